# SPDX-License-Identifier: LGPL-2.1-or-later
"""The client of GDB stubs, with a test stub that can misbehave."""

import contextlib
import os
import re
import socket
import threading

import pytest

from kcovdbg.elf.header import EM_AARCH64, EM_X86_64
from kcovdbg.errors import CapabilityError, ReadError, TargetError
from kcovdbg.target import rsp
from kcovdbg.target.connection import (
    describe_record,
    parse_socket_address,
    read_record,
    remove_record,
)
from kcovdbg.target.rsp import RspClient
from kcovdbg.target.stub_registers import stub_registers_of
from kcovdbg.target.watchpoints import MemorySpan, RunEnd, StubWatchpoints

MEMORY = bytes(range(256)) * 64


def frame(content):
    return b"$%s#%02x" % (content, sum(content) & 0xFF)


class Stub:
    """Serves one client after the other in a thread, and records their packets."""

    def __init__(
        self,
        path,
        *,
        running=True,
        packet_size=b"1000",
        answers=None,
        damage=0,
        piece=None,
        announces=True,
    ):
        self.asked = []
        self._announces = announces
        self.running = running
        self._answers = answers or {}
        self._packet_size = packet_size
        self._damage = damage
        self._piece = piece
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self):
        # Closing alone does not wake the thread that waits for a client.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(2)

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self._serve_one(connection)

    def _send(self, connection, content):
        self._last = content
        data = frame(content)
        if self._damage:
            self._damage -= 1
            data = data[:-2] + b"00"
        piece = self._piece or len(data)
        # A client that is gone reads no answers, but what it sent before must still be read.
        with contextlib.suppress(BrokenPipeError):
            for start in range(0, len(data), piece):
                connection.sendall(data[start : start + piece])

    def _serve_one(self, connection):
        if self.running and self._announces:
            # As QEMU does before 8.1: attaching stops the machine, and the stop is announced
            # unasked.
            self._send(connection, b"T02thread:p01.01;")
        was_running, self.running = self.running, False
        buffer = b""
        while True:
            data = connection.recv(4096)
            if not data:
                return
            buffer += data
            while True:
                if buffer.startswith(b"-"):
                    self._send(connection, self._last)
                    buffer = buffer[1:]
                    continue
                if buffer.startswith(b"\x03"):
                    self.asked.append(b"\x03")
                    self._send(connection, b"T02thread:p01.01;")
                    buffer = buffer[1:]
                    continue
                buffer = buffer.lstrip(b"+")
                match = re.match(rb"\$([^#]*)#[0-9a-f]{2}", buffer)
                if match is None:
                    break
                buffer = buffer[match.end() :]
                self.asked.append(match[1])
                if match[1].startswith(b"D"):
                    self.running = True
                for answer in self._answer(match[1], was_running):
                    self._send(connection, answer)

    def _answer(self, command, was_running):
        for start, answers in self._answers.items():
            if command.startswith(start):
                return answers
        if command.startswith(b"qSupported"):
            return [b"PacketSize=%s;multiprocess+" % self._packet_size]
        if command == b"?":
            return [b"T05thread:p01.01;"]
        if command.startswith((b"D", b"Qqemu", b"Hg")):
            return [b"OK"]
        if command.startswith(b"m"):
            address, size = (int(part, 16) for part in command[1:].split(b","))
            if address + size > len(MEMORY):
                return [b"E14"]
            if size > int(self._packet_size, 16) // 2:
                return [b"E22"]
            return [MEMORY[address : address + size].hex().encode()]
        return [b""]


@pytest.fixture
def stub(tmp_path):
    running = []

    def start(**options):
        made = Stub(tmp_path / f"stub{len(running)}", **options)
        client = RspClient(
            parse_socket_address(str(tmp_path / f"stub{len(running)}")), timeout=2
        ).attach()
        running.append((made, client))
        return made, client

    yield start
    for made, client in running:
        client.close()
        made.close()


def test_reads_are_split_as_the_stub_wants(stub):
    made, client = stub()
    assert client.read(100, 5000) == MEMORY[100:5100]
    assert [command for command in made.asked if command.startswith(b"m")] == [
        b"m64,800",
        b"m864,800",
        b"m1064,388",
    ]
    with pytest.raises(ReadError):
        client.read(len(MEMORY) - 8, 16)
    assert client.read(0, 4) == MEMORY[:4]


def test_an_interrupted_read_shifts_no_answers(stub, monkeypatch):
    _, client = stub()
    receive = client._receive
    for interrupted in ("before", "after"):

        def interrupt(deadline, interrupted=interrupted):
            if interrupted == "after":
                receive(deadline)
            raise KeyboardInterrupt

        monkeypatch.setattr(client, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.read(16, 8)
        monkeypatch.setattr(client, "_receive", receive)
        assert client.read(32, 8) == MEMORY[32:40]
        assert client.read(64, 8) == MEMORY[64:72]


@pytest.mark.parametrize(
    "options",
    [{"packet_size": b"40"}, {"packet_size": b"3fff"}, {"packet_size": b"190"}, {"piece": 3}],
    ids=str,
)
def test_odd_packet_sizes_and_packets_in_pieces(stub, options):
    _, client = stub(**options)
    assert client.read(0, 3000) == MEMORY[:3000]


def test_a_machine_is_left_as_it_was(stub):
    made, client = stub(running=True)
    assert client.was_running
    client.close()
    client.close()
    # With "multiprocess", a detach without a process is ignored.
    assert made.asked.count(b"D;1") == 1
    assert made.running
    made, client = stub(running=False)
    assert not client.was_running
    client.close()
    assert not any(command.startswith(b"D") for command in made.asked)


def qemu(version, status):
    told = {"info version": version, "info status": f"VM status: {status}"}
    return {
        b"qRcmd," + line.encode().hex().encode(): [
            b"O" + f"{text}\r\n".encode().hex().encode(),
            b"OK",
        ]
        for line, text in told.items()
    }


def test_a_stub_that_announces_no_stop(stub):
    """Since QEMU 8.1: the machine runs afterwards, unless it cannot have run, or kcovdbg left it
    stopped.
    """
    made, client = stub(announces=False, answers=qemu("8.1.0Debian 1:8.1", "paused"))
    assert (client.was_running, client.is_run_assumed) == (True, True)
    client.close()
    assert made.running
    made, client = stub(announces=False, answers=qemu("10.0.13", "paused"))
    client.leave_stopped("a write was caught")
    client.close()
    later = RspClient(client.address, timeout=2).attach()
    assert (later.was_running, later.is_run_assumed) == (False, False)
    later.close()
    assert not made.running
    for version, status in (
        ("10.0.13", "paused (prelaunch)"),
        ("10.0.13", "paused (guest-panicked)"),
        ("7.2.22", "paused"),
    ):
        made, client = stub(announces=False, answers=qemu(version, status))
        assert not client.was_running
        client.close()
        assert not made.running


def test_damaged_packets_are_asked_for_again(stub):
    made, client = stub()
    made._damage = 2
    assert client.read(7, 9) == MEMORY[7:16]
    made._damage = 100
    with pytest.raises(TargetError, match="damaged packets"):
        client.read(7, 9)


def test_run_length_encoding_and_escapes(stub):
    # The count of repeats has 29 added: `"` is five of them.
    _, client = stub(answers={b"m0,4": [b'0*"00']})
    assert client.read(0, 4) == bytes(4)


@pytest.mark.parametrize(
    ("answers", "output"),
    [
        ([b"O" + b"one ".hex().encode(), b"O" + b"two".hex().encode(), b"OK"], "one two"),
        ([b""], None),
    ],
)
def test_output_of_a_monitor_is_joined(stub, answers, output):
    """A stub may have none."""
    _, client = stub(answers={b"qRcmd,": answers})
    assert client.monitor("info registers") == output


def test_a_busy_stub_says_so_and_isnt_left_stopped(tmp_path):
    made = Stub(tmp_path / "busy")
    first = RspClient(parse_socket_address(str(tmp_path / "busy")), timeout=2).attach()
    with pytest.raises(TargetError, match=r"busy\b.*0\.2 s") as caught:
        RspClient(parse_socket_address(str(tmp_path / "busy")), timeout=0.2).attach()
    assert "one client at a time" in caught.value.hint
    first.close()
    # The stub accepts the second connection only now; its leftovers must not keep the machine
    # stopped.
    for _ in range(100):
        if made.asked.count(b"D;1") == 2:
            break
        threading.Event().wait(0.02)
    assert made.asked.count(b"D;1") == 2
    assert made.running
    made.close()


def test_what_attaching_stops_is_recorded_before(tmp_path, monkeypatch):
    made = Stub(tmp_path / "stub")
    address = parse_socket_address(str(tmp_path / "stub"))
    seen = []

    def interrupt(*arguments):
        seen.append(read_record(address))
        connection = connect(*arguments)
        monkeypatch.setattr(rsp, "connect", connect)
        del connection
        raise KeyboardInterrupt

    connect = rsp.connect
    monkeypatch.setattr(rsp, "connect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        RspClient(address, timeout=2).attach()
    assert seen[0].pid == os.getpid()
    assert read_record(address) is None
    made.close()


def test_nothing_listens(tmp_path):
    with pytest.raises(TargetError, match=r"none\b.*no such") as caught:
        RspClient(parse_socket_address(str(tmp_path / "none"))).attach()
    assert "-gdb" in caught.value.hint
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(TargetError, match="connection refused"):
            RspClient(parse_socket_address(f"127.0.0.1:{unused.getsockname()[1]}")).attach()


def test_a_stub_that_goes_away(stub):
    made, client = stub()
    client._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(TargetError, match=r"stub0\b"):
        client.read(0, 4)
    client.close()
    made.close()


@pytest.mark.parametrize(
    ("text", "path", "host", "port"),
    [
        ("localhost:1234", None, "localhost", 1234),
        (":1234", None, "localhost", 1234),
        ("tcp::1234", None, "localhost", 1234),
        ("[::1]:1234", None, "::1", 1234),
        ("unix:/tmp/qmp", "/tmp/qmp", "", 0),
        *(
            (path, path, "", 0)
            for path in ("/tmp/qmp", "./a:1234", "/a:1234", "qmp", "host:0", "host:99999")
        ),
    ],
)
def test_addresses(text, path, host, port):
    assert parse_socket_address(text)[1:] == (path, host, port)


@pytest.mark.parametrize("machine", [EM_X86_64, EM_AARCH64])
def test_a_machine_that_stops_before_the_write(stub, machine):
    """The instruction is executed before the write is judged, while nothing is watched that would
    stop it again.
    """
    answers = {
        b"Z2": [b"OK"],
        b"z2": [b"OK"],
        b"c": [b"T05thread:p01.02;watch:1008;"],
        b"vCont;s": [b"T05thread:p01.02;"],
    }
    made, client = stub(answers=answers)
    judged = []

    def is_wanted():
        judged.append(len(made.asked))
        return len(judged) == 2

    watchpoints = StubWatchpoints(
        client, "it", lambda: None, stub_registers_of(machine), lambda _: ()
    )
    assert watchpoints.run([MemorySpan(0x1008, 4)], is_wanted, 5) is RunEnd.WRITE
    assert watchpoints.cpu == 1
    client.close()
    wanted = [b"z2,1008,4", b"vCont;s:p1.2", b"Z2,1008,4"] if machine == EM_AARCH64 else []
    start = made.asked.index(b"Z2,1008,4") + 1
    assert made.asked[start : judged[0]] == [b"c", *wanted]
    assert made.asked[judged[0] : judged[1]] == [b"c", *wanted]


STEPS = (b"vCont;s:p1.1", b"vCont;s:p1.2", b"vCont;s:p1.3")


@pytest.mark.parametrize(
    ("steps", "judged_of"),
    [
        # CPU 2 had hit the watchpoint, and not reported it when it was stopped.
        (([b"T05thread:p01.01;"], [b"T05thread:p01.02;watch:1008;"], [b"E22"]), [1]),
        (([b"T05thread:p01.01;"], [b"T05thread:p01.02;"], [b"E22"]), []),
        # CPU 1 waits for an interrupt.
        (([], [b"T05thread:p01.02;"], [b"E22"]), []),
        (([b""], [b""], [b""]), []),
    ],
)
def test_a_hit_that_was_not_reported_at_the_end(stub, steps, judged_of):
    """Each CPU executes one more instruction before the watchpoint is removed."""
    made, client = stub(
        answers={b"Z2": [b"OK"], b"z2": [b"OK"], b"c": [], **dict(zip(STEPS, steps, strict=True))}
    )
    judged = []
    watchpoints = StubWatchpoints(
        client, "it", lambda: None, stub_registers_of(EM_X86_64), lambda _: ()
    )

    def is_wanted():
        judged.append(watchpoints.cpu)
        return True

    end = watchpoints.run([MemorySpan(0x1008, 4)], is_wanted, 0.05)
    client.close()
    assert end is (RunEnd.WRITE if judged_of else RunEnd.TIME)
    assert judged == judged_of
    stepped = [asked for asked in made.asked if asked.startswith(b"vCont")]
    assert stepped == list(STEPS[:1] if steps[0] == [b""] else STEPS)
    assert made.asked.index(stepped[-1]) < made.asked.index(b"z2,1008,4")
    assert made.asked.count(b"\x03") == 1 + (not steps[0])


@pytest.mark.parametrize("answer", [b"", b"E01"])
def test_a_stub_without_watchpoints_and_steps(stub, answer):
    _, client = stub(answers={b"Z2": [answer], b"vCont": [b""]})
    with pytest.raises(CapabilityError):
        client.insert_watchpoint(0x1000, 8)
    with pytest.raises(CapabilityError):
        client.step(1)


def test_a_machine_that_ends_while_it_runs(stub):
    _, client = stub(answers={b"c": [b"W00"]})
    assert client.run(1.0).has_ended


def test_a_machine_is_left_stopped(stub):
    made, client = stub()
    assert client.leave_stopped("at the write") is not None
    client.close()
    assert not any(asked.startswith(b"D") for asked in made.asked)
    assert not made.running
    assert "at the write" in describe_record(
        read_record(client.address)._replace(pid=1, started="")
    )
    remove_record(client.address)


TARGET = b"""<target><architecture>aarch64</architecture>
<xi:include href="core.xml"/><xi:include href="system.xml"/></target>"""
PARTS = {
    b"target.xml": TARGET,
    b"core.xml": b'<feature><reg name="x0" bitsize="64"/><reg name="pc" bitsize="64" '
    b'regnum="32"/></feature>',
    b"system.xml": b'<feature><reg name="TCR_EL1" bitsize="64" group="cp_regs"/><reg bitsize="64" '
    b'name="TTBR1_EL1"/></feature>',
}


def test_registers_by_name(stub):
    client = stub(
        packet_size=b"40",
        answers={
            # Each part is sent in pieces.
            **{
                b"qXfer:features:read:%s:%x," % (name, start): [
                    (b"m" if start + 60 < len(text) else b"l") + text[start : start + 60]
                ]
                for name, text in PARTS.items()
                for start in range(0, len(text), 60)
            },
            b"p21": [b"0011223344556677"],
            b"p22": [b"E14"],
        },
    )[1]
    assert client.register("TCR_EL1") == 0x7766554433221100
    # A program counter that only the stub names, and one that nobody names.
    assert client.register("TTBR1_EL1") is None
    assert client.register("VBAR_EL1") is None
    # A stub without a description.
    assert stub()[1].register("TTBR1_EL1") is None
