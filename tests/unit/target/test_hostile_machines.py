# SPDX-License-Identifier: LGPL-2.1-or-later
"""QMP servers and GDB stubs that mean harm: they answer slowly, without end, or with what no
machine would say.
"""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from kcovdbg.errors import KcovdbgError, LimitError, TargetError
from kcovdbg.limits import REPLY_SIZE, REPLY_TIME, VARIABLE, one_command, renew_time_for_replies
from kcovdbg.target.connection import parse_socket_address
from kcovdbg.target.qmp import Qmp
from kcovdbg.target.rsp import RspClient
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.unit.target.test_rsp import Stub, frame

# Generous: the machine may be busy.
PATIENCE = 20


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setenv(VARIABLE, f"{REPLY_TIME}=1 {REPLY_SIZE}=1M")


@contextlib.contextmanager
def serving(path, talk):
    """Run a server that talks to one client in its own way until that leaves."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)

    def serve():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                talk(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield parse_socket_address(str(path))
    finally:
        listener.close()
        thread.join(PATIENCE)


@contextlib.contextmanager
def in_time():
    start = time.monotonic()
    yield
    assert time.monotonic() - start < PATIENCE


def trickle(start, piece=b" ", delay=0.05):
    def talk(connection):
        connection.sendall(start)
        while True:
            connection.sendall(piece)
            time.sleep(delay)

    return talk


GREETING = b'{"QMP": {}}\n'


@pytest.mark.parametrize(
    ("talk", "limit"),
    [
        (trickle(GREETING + b'{"return": '), REPLY_TIME),
        (trickle(GREETING, b'{"event": "STOP"}\n', 0.0001), REPLY_TIME),
        (trickle(GREETING, b"x" * 65536, 0), REPLY_SIZE),
    ],
    ids=["a reply that trickles in", "events", "a reply without end"],
)
def test_limits_of_qmp_s_replies_hold(tmp_path, talk, limit):
    with serving(tmp_path / "qmp", talk) as address:
        client = Qmp(address)
        with in_time(), pytest.raises(LimitError, match=limit) as caught:
            client.execute("query-status")
        assert limit in caught.value.hint
        with in_time():
            client.close()


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"", r"no greeting.* 0\.3 s"),
        (b'{"QMP": ', r"incomplete greeting.* 0\.3 s"),
        (b"QEMU 7.2.22 monitor - type 'help' for more information\r\n(qemu) ", "not a QMP socket"),
        (None, "connection closed|Connection reset"),
    ],
)
def test_sockets_that_arent_qmp_or_busy(tmp_path, greeting, message):
    def talk(connection):
        if greeting is not None:
            connection.sendall(greeting)
            connection.recv(4096)

    with serving(tmp_path / "qmp", talk) as address:
        with pytest.raises(TargetError, match=message) as caught:
            Qmp(address, timeout=0.3)
        assert caught.value.hint


def test_qmp_passes_over_events(tmp_path):
    replies = (
        b'{"event": "STOP"}\r\n{"return": {}, "id": "older"}\r\n{"return": {"running": true}, '
        b'"id": "kcovdbg-1"}\r\n'
    )
    with serving(tmp_path / "qmp", trickle(GREETING + replies)) as address:
        client = Qmp(address)
        assert client.is_running()
        client.close()


@pytest.mark.parametrize("greeting", [b"{" * 10_000, b'{"QMP": '])
def test_a_qmp_greeting_without_end(tmp_path, greeting):
    with (
        serving(tmp_path / "qmp", trickle(greeting)) as address,
        in_time(),
        pytest.raises(KcovdbgError),
    ):
        Qmp(address, timeout=1)


@pytest.mark.parametrize(
    "reply",
    [
        b"[" * 100_000,
        b'{"id": "kcovdbg-1", "return": {"running": ' + b"9" * 10_000 + b"}}",
        b'{"id": "kcovdbg-1", "return": []}',
        b'{"id": "kcovdbg-1", "return": {"running": "yes"}}',
        b'{"id": "kcovdbg-1"}',
        b'{"id": "kcovdbg-1", "error": "no"}',
        b'{"id": "kcovdbg-1", "error": {"desc": {}}}',
        b"\xff\xfe",
    ],
)
def test_qmp_replies_that_no_qemu_sends(tmp_path, reply):
    def talk(connection):
        connection.sendall(GREETING + reply + b"\n")
        connection.recv(4096)
        connection.recv(4096)

    with serving(tmp_path / "qmp", talk) as address:
        client = Qmp(address)
        with pytest.raises(KcovdbgError):
            client.state()
        client.close()


@pytest.fixture
def stub(tmp_path):
    made = []

    def start(answers, **options):
        server = Stub(tmp_path / f"stub{len(made)}", answers=answers, **options)
        client = RspClient(
            parse_socket_address(str(tmp_path / f"stub{len(made)}")), timeout=2
        ).attach()
        made.append((server, client))
        return client

    yield start
    for server, client in made:
        client.close()
        server.close()


def endless(item):
    while True:
        yield item


@pytest.mark.parametrize(
    "talk",
    [
        trickle(b"$", b"1"),
        trickle(b"", b"1", 0),
        trickle(b"", frame(b"T05"), 0.001),
        trickle(b"", frame(b"O"), 0.001),
    ],
    ids=["packet", "no packet", "stops", "output"],
)
def test_a_stub_that_never_comes_to_the_point(tmp_path, talk):
    with serving(tmp_path / "stub", talk) as address, in_time(), pytest.raises(KcovdbgError):
        RspClient(address, timeout=1).attach()


def test_a_description_without_end(stub):
    for answer in (
        b"m",
        b"m" + b"<reg " * 800,
        b"m" + b"a" * 4000,
        b'm<xi:include href="target.xml"/>',
    ):
        client = stub({b"qXfer": [answer]})
        with in_time():
            assert client.register("cr3") is None


def test_numbers_of_registers_that_are_none(stub):
    for number in ("9" * 10_000, "\u0663", "-1", ""):
        text = b'l<xi:include href="a"/><reg name="cr3" regnum="%s"/>' % number.encode()
        client = stub({b"qXfer": [text], b"p": [b"0100"]})
        # No exception of Python, which refuses to read the first.
        assert client.register("cr3") in (None, 1)


@pytest.mark.parametrize(
    "answer",
    [b"", b"E01", b"zz" * 16, b"00", b"0" * 31, b"0" + b"*~" * 200_000],
    ids=lambda data: data[:9],
)
def test_memory_that_is_none(stub, answer):
    """The last one is a bomb of run lengths."""
    client = stub({b"m": [answer]})
    with in_time(), pytest.raises(KcovdbgError):
        client.read(0, 16)


def test_answers_of_a_monitor_that_are_none(stub):
    version = b"O" + (b"9" * 10_000 + b".1").hex().encode()
    assert stub({b"qRcmd": [version, b"OK"]}, running=False).was_running is False
    client = stub({b"qRcmd": endless(b"O" + b"61" * 1000)})
    with in_time(), pytest.raises(KcovdbgError):
        client.monitor("info registers")


@pytest.mark.parametrize("piece", [b"", b" ", b'{"event": "X"}\n'])
def test_drgn_s_own_talk_to_qmp_ends_in_time(tmp_path, piece):
    """It waits in C, where no signal is handled."""
    with (
        serving(tmp_path / "qmp", trickle(GREETING, piece)) as address,
        in_time(),
        pytest.raises(LimitError, match=REPLY_TIME),
    ):
        open_target(TargetOptions(qemu=address.text))


@pytest.mark.parametrize(("start", "piece"), [('"', "x"), ("", "[1,")])
def test_drgn_s_own_talk_to_qmp_takes_no_more_memory_than_a_reply_may(
    tmp_path, monkeypatch, start, piece
):
    monkeypatch.setenv(VARIABLE, f"{REPLY_TIME}=20 {REPLY_SIZE}=1M")
    path = str(tmp_path / "qmp")
    reply = f'{GREETING.decode()}{{"return": {start}'
    # Processes: drgn lets no other thread run, and has the memory that earlier tests of this one
    # freed.
    with subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, path, reply, piece], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        done = run_kcovdbg("--qemu", path, "-e", "info", status=2)
    assert REPLY_SIZE in done.stderr
    assert REPLY_TIME not in done.stderr


_ENDLESS = """
import contextlib, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(1)
print("ready", flush=True)
connection, _ = listener.accept()
connection.sendall(sys.argv[2].encode())
with contextlib.suppress(OSError):
    while True:
        connection.sendall(sys.argv[3].encode() * 10000)
"""


def test_the_time_for_replies_is_that_of_a_command(stub, monkeypatch):
    """Each reply comes in time; all together take longer than a command may wait."""
    monkeypatch.setenv(VARIABLE, f"{REPLY_TIME}=2")

    client = stub({b"m": [b"00" * 16]})
    send = Stub._send

    def send_late(server, connection, content):
        time.sleep(0.1)
        send(server, connection, content)

    monkeypatch.setattr(Stub, "_send", send_late)

    def read_all():
        for address in range(0, 1 << 20, 16):
            client.read(address, 16)

    start = time.monotonic()
    with one_command(), pytest.raises(LimitError, match=REPLY_TIME):
        read_all()
    assert 1 < time.monotonic() - start < PATIENCE
    with one_command():
        # As monitor does for each look.
        for address in range(0, 400, 16):
            renew_time_for_replies()
            assert client.read(address, 16) == bytes(16)
