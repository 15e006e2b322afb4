# SPDX-License-Identifier: LGPL-2.1-or-later
"""GDB's remote serial protocol: the commands that read memory and registers."""

from __future__ import annotations

import contextlib
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.errors import CapabilityError, KcovdbgError, ReadError, TargetError
from kcovdbg.limits import REPLY_SIZE, find_limit, over_limit, time_for_replies
from kcovdbg.target.connection import (
    Connection,
    MachineState,
    SocketAddress,
    StopRecord,
    connect,
    describe_record,
    is_closed_by_peer,
    read_record,
    receive,
    remove_record,
    restore_record,
    time_left,
    write_record,
)
from kcovdbg.target.end_signals import give_back_signals, holds_signals, take_signals

_HINT: Final = (
    "start QEMU with -gdb tcp::1234 (or -s), or run gdbserver in its monitor; give that address"
)
_PACKET: Final = re.compile(rb"\$([^#$]*)#([0-9a-fA-F]{2})", re.DOTALL)
_STOP: Final = (b"T", b"S")
# W and X: a machine that ran has ended.
_STOPS: Final = (*_STOP, b"W", b"X")
_SILENT_SINCE: Final = (8, 1)
_RETRIES: Final = 3
# Limits for the parts of a machine's description, and for the bytes of a part: QEMU's parts have
# kilobytes.
_MAX_FEATURES: Final = 64
_MAX_FEATURE: Final = 1 << 18


class StopReply(NamedTuple):
    """The way in which a machine stopped."""

    has_ended: bool
    thread: int | None
    """The stub's number of the CPU, from 1; None if not reported."""
    watch: int | None
    """An address in the memory of the watchpoint that was hit; None if none was hit, or the stub
    does not report it.
    """
    signal: int
    """The signal that the stub reports as the reason; 5, SIGTRAP, for breakpoints and watchpoints.
    """


class Stub(Connection):
    """A machine's stub: :class:`RspClient`, or a stub that GDB is connected to and lends."""

    is_slow = True
    where: str
    """The stub's address in messages."""
    block: int = PAGE_SIZE
    """Bytes to read at once; a power of two, at most a page."""

    @property
    def kaslr_offsets(self) -> Sequence[int]:
        """KASLR offsets to try first, if only virtual memory can be read."""
        return ()

    def read(self, address: int, size: int) -> bytes:
        """Read physical memory after :meth:`use_physical_memory`, otherwise virtual memory.

        :raises ReadError: when the stub cannot read all of it.
        :raises TargetError: when the connection is lost.
        """
        raise NotImplementedError

    def use_physical_memory(self) -> bool:
        """Read physical memory from now on; return whether the stub can, as QEMU's can."""
        raise NotImplementedError

    def use_virtual_memory(self) -> None:
        """Read virtual memory from now on."""
        raise NotImplementedError

    def monitor(self, command: str) -> str | None:
        """Run a command of the stub's monitor and return its output, None when the monitor has no
        such command.
        """
        raise NotImplementedError

    def registers(self, thread: int | None = None) -> bytes:
        """Return the general registers of a CPU in GDB's order, empty when they are unknown.

        :param thread: the stub's number of the CPU, from 1; by default the CPU that stopped.
        """
        raise NotImplementedError

    def register(self, name: str) -> int | None:
        """Return a register of the CPU of the last call of :meth:`registers`.

        :param name: its name in the stub's description of the machine.
        :return: None when there is no such register.
        """
        raise NotImplementedError


class RspClient(Stub):
    """One connection to a stub.

    :meth:`attach` stops the machine; :meth:`close` continues it if it ran before.

    :param address: the stub's address.
    :param timeout: seconds to wait for an answer.
    """

    def __init__(self, address: SocketAddress, timeout: float = 10.0) -> None:
        self.address = address
        self.where = address.text
        self._timeout = timeout
        self._buffer = bytearray()
        self._socket = socket.socket()
        self._process = "1"
        self._is_physical = False
        self.was_running = True
        self.is_run_assumed = False
        """Whether :attr:`was_running` is a guess."""
        self._is_attached = False
        self._is_running = False
        self._is_unfinished = False
        self._register_numbers: Mapping[str, int] | None = None
        self._taken: list[signal.Signals] = []

    def attach(self) -> RspClient:
        """Connect, which stops the machine; return this client.

        :raises TargetError: when nothing listens at the address, or no stub answers.
        """
        # They are given back at the end, as the machine is stopped until then.
        self._taken = take_signals()
        previous = read_record(self.address)
        is_left = previous is not None and (previous.reason != "" or not previous.is_running)
        # A machine that a killed run of kcovdbg left stopped is recorded already. It stays stopped.
        self.was_running = not is_left
        try:
            if not is_left:
                write_record(self.address)
            self._connect()
            self._attach(is_left)
            if self.was_running:
                write_record(self.address)
            else:
                restore_record(self.address, previous)
            self._is_attached = True
        except BaseException:
            self._give_up(previous)
            raise
        return self

    @holds_signals
    def _connect(self) -> None:
        # A signal between the connection and its assignment would lose the connection, and with it
        # the packet that lets the machine go on.
        self._socket.close()
        self._socket = connect(self.address, "a GDB stub", _HINT, self._timeout)
        if self._socket.family == socket.AF_INET:
            # Each read waits for the answer to a small packet.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @holds_signals
    def _give_up(self, previous: StopRecord | None) -> None:
        """Close a connection that is not attached yet.

        A busy stub accepts the connection when its other client leaves, and stops the machine. It
        then reads the packet that is sent here, which continues the machine.

        :param previous: the earlier record of the machine.
        """
        if self.was_running:
            with contextlib.suppress(OSError):
                self._socket.settimeout(0)
                self._socket.sendall(b"+$D;1#b0")
            restore_record(self.address, previous)
        self._release()

    def _release(self) -> None:
        self._socket.close()
        give_back_signals(self._taken)
        self._taken = []

    def _attach(self, is_left: bool) -> None:
        """Find out what the stub can do, and whether the machine ran.

        :param is_left: whether a record says that an earlier run of kcovdbg left it stopped.
        """
        # QEMU keeps "multiprocess" for the next client, and then ignores a `D` without a process.
        # So multiprocess is always asked for, and the process is always sent.
        self._send(b"qSupported:multiprocess+;hwbreak+")
        deadline = self._deadline()
        reply = self._receive(deadline)
        # A stub whose machine ran sends a stop reply before any answer.
        was_running = reply.startswith(_STOP)
        while reply.startswith(_STOP):
            reply = self._receive(deadline)
        size = _number(re.search(rb"(?:^|;)PacketSize=([0-9a-fA-F]{1,9})(?:;|$)", reply))
        self._packet_size = 400 if size is None else max(size, 64)
        self._is_multiprocess = b"multiprocess+" in reply.split(b";")
        stop = self._ask(b"?")
        if not stop.startswith(_STOP):
            raise TargetError(
                f"the stub at {self.address.text} has no machine: {stop[:40]!r}", hint=_HINT
            )
        if match := re.search(rb"thread:p([0-9a-fA-F]{1,16})\.", stop):
            self._process = f"{int(match[1], 16):x}"
        if not was_running and not is_left:
            was_running = self.is_run_assumed = self._may_have_run()
        self.was_running = was_running

    def _may_have_run(self) -> bool:
        """Return whether a machine that sent no stop reply may have run before.

        Since "gdbstub: only send stop-reply packets when allowed to" (in v8.1), QEMU sends none to
        a new client.
        """
        version = re.match(r"(\d{1,9})\.(\d{1,9})", self.monitor("info version") or "")
        if version is None or (int(version[1]), int(version[2])) < _SILENT_SINCE:
            return False
        # If the machine has not started or has panicked, the status has a reason in parentheses.
        status = (self.monitor("info status") or "").split()
        return status == ["VM", "status:", "paused"]

    def describe_run(self) -> str:
        """Return a note on whether the machine ran before, and runs afterwards."""
        if not self.was_running:
            return "the machine was stopped before kcovdbg attached, and remains so"
        note = "the machine is stopped while kcovdbg is attached"
        if self.is_run_assumed:
            note += "; its stub does not report whether it was running; it runs afterwards"
        return note

    def stop_note(self) -> str | None:
        record = None if self.was_running else read_record(self.address)
        return None if record is None else describe_record(record)

    def resume(self) -> str:
        record = None if self.was_running else read_record(self.address)
        if record is None or record.is_running:
            raise TargetError(
                f"the machine at {self.address.text} was not left stopped by kcovdbg",
                hint="the debugger that stopped it lets it go on",
            )
        self.was_running = True
        return "the machine goes on when kcovdbg ends"

    @holds_signals
    def close(self) -> None:
        """Detach: the machine continues if it ran before. A second call does nothing."""
        if self._is_attached and self._socket.fileno() >= 0:
            self._detach()
            if self.was_running:
                remove_record(self.address)
        self._release()

    def leave_stopped(self, reason: str) -> str:
        """Leave the machine stopped at :meth:`close`, and record the reason for later runs of
        kcovdbg; return a note for the user.
        """
        if not self.was_running:
            return self.describe_run()
        self.was_running = False
        write_record(self.address, reason)
        return "the machine stays stopped; resume lets it go on"

    def _detach(self) -> None:
        try:
            self.stop()
            if self._is_physical:
                # QEMU would keep it for the next client.
                self.use_virtual_memory()
            if self.was_running:
                self._send(f"D;{self._process}".encode() if self._is_multiprocess else b"D")
                # The stub might not detach if the connection closed before its answer.
                with contextlib.suppress(KcovdbgError):
                    self._receive(time.monotonic() + min(self._timeout, 5.0))
        except KcovdbgError:
            pass
        finally:
            self._socket.close()

    def is_gone(self) -> bool:
        return is_closed_by_peer(self._socket)

    def state(self) -> MachineState:
        return MachineState.GONE if self.is_gone() else MachineState.STOPPED

    def insert_watchpoint(self, address: int, size: int) -> None:
        """Set a hardware watchpoint for writes, on all CPUs.

        :raises CapabilityError: when the stub has none, or no more.
        """
        reply = self._ask(b"Z2,%x,%x" % (address, size))
        if reply != b"OK":
            detail = f": {reply[:20].decode(errors='replace')}" if reply else ""
            raise CapabilityError(
                f"the stub at {self.address.text} has no hardware watchpoint for "
                f"{address:#x}{detail}"
            )

    def remove_watchpoint(self, address: int, size: int) -> None:
        """Remove a watchpoint, if it is set."""
        self._ask(b"z2,%x,%x" % (address, size))

    def run(self, seconds: float | None) -> StopReply | None:
        """Let the machine run until it stops; return how it stopped, None when it still runs after
        the time.

        :raises TargetError: when the connection is lost.
        """
        if not self._is_running:
            self._send(b"c")
            self._is_running = True
        return self._receive_stop() if self._has_packet(seconds) else None

    def _has_packet(self, seconds: float | None) -> bool:
        """Wait until the stub has sent something; return whether it did."""
        start = time.monotonic()
        while _PACKET.search(self._buffer) is None:
            if not select.select([self._socket], [], [], time_left(start, seconds))[0]:
                return False
            self._fill(self._deadline())
        return True

    def _receive_stop(self) -> StopReply:
        deadline = time.monotonic() + time_for_replies()
        while True:
            reply = self._receive(deadline)
            # The machine may print to the debugger meanwhile.
            if reply[:1] in _STOPS:
                self._is_running = False
                return _parse_stop(reply)

    def stop(self) -> StopReply | None:
        """Stop the machine if :meth:`run` left it running; return how it stopped, None when it did
        not run.
        """
        if not self._is_running:
            return None
        self._write(b"\x03")
        return self._receive_stop()

    def use_physical_memory(self) -> bool:
        self._is_physical = self._ask(b"Qqemu.PhyMemMode:1") == b"OK"
        return self._is_physical

    def use_virtual_memory(self) -> None:
        self._ask(b"Qqemu.PhyMemMode:0")
        self._is_physical = False

    def monitor(self, command: str) -> str | None:
        text = bytearray()
        with self._exchange():
            self._send(b"qRcmd," + command.encode().hex().encode())
            deadline = time.monotonic() + time_for_replies()
            while True:
                reply = self._receive(min(deadline, self._deadline()))
                if reply == b"OK":
                    return text.decode(errors="replace")
                if not reply or (reply.startswith(b"E") and len(reply) == 3):
                    return None
                # kgdb and other stubs may answer without O.
                with contextlib.suppress(ValueError):
                    text += bytes.fromhex(reply.removeprefix(b"O").decode())
                    if len(text) > find_limit(REPLY_SIZE):
                        raise over_limit(
                            REPLY_SIZE, f"output of '{command}' by the stub at {self.address.text}"
                        )
                    if not reply.startswith(b"O"):
                        return text.decode(errors="replace")

    def step(self, thread: int, seconds: float | None = None) -> StopReply:
        """Let one CPU execute one instruction, while the others are stopped; return how it stopped.

        :param thread: the stub's number of the CPU, from 1.
        :param seconds: the time after which the CPU is stopped although it executed nothing, as
            when it waits for an interrupt; None for no limit.
        :raises CapabilityError: when the stub cannot step one CPU, or has no such CPU.
        """
        with self._exchange():
            self._send(b"vCont;s:" + self._thread_name(thread))
            if seconds is not None and not self._has_packet(seconds):
                # A machine that has stopped by now ignores this.
                self._write(b"\x03")
            deadline = self._deadline()
            reply = self._receive(deadline)
            while reply.startswith(b"O"):
                reply = self._receive(deadline)
        if reply[:1] not in _STOPS:
            detail = reply[:20].decode(errors="replace")
            raise CapabilityError(f"the stub at {self.address.text} cannot step one CPU: {detail}")
        return _parse_stop(reply)

    def _thread_name(self, thread: int) -> bytes:
        name = f"{thread:x}"
        if self._is_multiprocess:
            name = f"p{self._process}.{name}"
        return name.encode()

    def registers(self, thread: int | None = None) -> bytes:
        if thread is not None and self._ask(b"Hg" + self._thread_name(thread)) != b"OK":
            return b""
        try:
            # Unknown digits are sent as x.
            return bytes.fromhex(self._ask(b"g").decode().replace("x", "0"))
        except ValueError:
            return b""

    def register(self, name: str) -> int | None:
        if self._register_numbers is None:
            self._register_numbers = _number_registers(self._read_feature)
        number = self._register_numbers.get(name)
        if number is None:
            return None
        try:
            return int.from_bytes(bytes.fromhex(self._ask(b"p%x" % number).decode()), "little")
        except ValueError:
            return None

    def _read_feature(self, name: str) -> str:
        """Return a part of the machine's description, empty when there is no such part."""
        text = b""
        while len(text) < _MAX_FEATURE:
            reply = self._ask(
                b"qXfer:features:read:%s:%x,%x" % (name.encode(), len(text), self._packet_size - 4)
            )
            text += reply[1:]
            if not reply.startswith(b"m") or len(reply) == 1:
                return text.decode(errors="replace") if reply.startswith(b"l") else ""
        return ""

    def read(self, address: int, size: int) -> bytes:
        piece = max((self._packet_size - 4) // 2, 16)
        if self._packet_size % PAGE_SIZE == 0:
            # QEMU answers with up to half of its packet size: a page takes two packets, not three.
            piece = self._packet_size // 2
        data = bytearray()
        while len(data) < size:
            data += self._read_piece(address + len(data), min(piece, size - len(data)))
        return bytes(data)

    def _read_piece(self, address: int, size: int) -> bytes:
        reply = self._ask(b"m%x,%x" % (address, size))
        if len(reply) == 2 * size:
            with contextlib.suppress(ValueError):
                return bytes.fromhex(reply.decode())
        if not reply or reply.startswith(b"E") or len(reply) < 2 * size:
            detail = reply[:20].decode(errors="replace")
            raise ReadError(f"could not read {address:#x} through the stub: {detail}", address)
        raise TargetError(
            f"the stub at {self.address.text}: invalid answer to a read: {reply[:40]!r}"
        )

    def _ask(self, command: bytes) -> bytes:
        with self._exchange():
            self._send(command)
            return self._receive(self._deadline())

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Send a packet and receive its answers in a block.

        If C-c left an earlier exchange unfinished, its answer is received first. Otherwise it would
        be taken for the answer to the next packet.
        """
        if self._is_unfinished:
            # The unfinished packet may never have been sent. The answer to this packet shows that
            # nothing else is to come.
            self._send(b"?")
            deadline = self._deadline()
            while not self._receive(deadline).startswith(_STOP):
                pass
        self._is_unfinished = True
        yield
        self._is_unfinished = False

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def _send(self, command: bytes) -> None:
        self._write(b"$%s#%02x" % (command, sum(command) & 0xFF))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from None

    def _receive(self, deadline: float) -> bytes:
        """Return the next packet, acknowledged and unescaped."""
        damaged = 0
        while True:
            match = _PACKET.search(self._buffer)
            if match is None:
                self._fill(deadline)
                continue
            content, checksum, end = bytes(match[1]), int(match[2], 16), match.end()
            # The buffer cannot shrink while a match refers to it.
            del match
            del self._buffer[:end]
            if sum(content) & 0xFF == checksum:
                self._write(b"+")
                return _unescape(content)
            damaged += 1
            if damaged > _RETRIES:
                raise TargetError(f"the stub at {self.address.text}: damaged packets")
            self._write(b"-")

    def _fill(self, deadline: float) -> None:
        try:
            receive(self._socket, self._buffer, deadline)
        except TimeoutError:
            raise TargetError(
                f"the GDB stub at {self.address.text}: no answer within {self._timeout:g} s",
                hint="it serves one client at a time: detach the other debugger",
            ) from None
        except OSError as error:
            raise self._lost(error) from None

    def _lost(self, error: OSError) -> TargetError:
        return TargetError(
            f"lost the GDB stub at {self.address.text}: {error.strerror or error}",
            hint="the machine may have ended, or another debugger uses the stub",
        )


def _number_registers(read: Callable[[str], str]) -> dict[str, int]:
    """Return the number of each register in a machine's description.

    :param read: returns a part of the description by its name.
    """
    found: dict[str, int] = {}
    number = 0
    # A register without a number follows the register before it.
    for part in re.findall(r'<xi:include\s+href="([^"]+)"', read("target.xml"))[:_MAX_FEATURES]:
        for register in re.findall(r"<reg\s[^<>]{0,4096}>", read(part)):
            attributes = dict(re.findall(r'\b(name|regnum)="([^"]*)"', register))
            if re.fullmatch(r"[0-9]{1,9}", attributes.get("regnum", "")):
                number = int(attributes["regnum"])
            found.setdefault(attributes.get("name", ""), number)
            number += 1
    return found


def _parse_stop(reply: bytes) -> StopReply:
    thread = re.search(rb"thread:(?:p[0-9a-fA-F]{1,16}\.)?([0-9a-fA-F]{1,16})", reply)
    watch = re.search(rb"[^r]watch:([0-9a-fA-F]{1,16})", reply)
    signal = re.match(rb"([0-9a-fA-F]{2})", reply[1:3])
    has_ended = reply[:1] in (b"W", b"X")
    return StopReply(has_ended, _number(thread), _number(watch), _number(signal) or 0)


def _number(match: re.Match[bytes] | None) -> int | None:
    return None if match is None else int(match[1], 16)


def _unescape(packet: bytes) -> bytes:
    """Undo the protocol's escapes and its run-length encoding."""
    if b"}" not in packet and b"*" not in packet:
        return packet
    limit = find_limit(REPLY_SIZE)
    out = bytearray()
    position = 0
    while position < len(packet):
        byte = packet[position]
        following = packet[position + 1 : position + 2]
        if byte == ord("}") and following:
            out.append(following[0] ^ 0x20)
            position += 2
        elif byte == ord("*") and out and following >= b"\x1d":
            out += out[-1:] * (following[0] - 29)
            position += 2
            if len(out) > limit:
                raise over_limit(REPLY_SIZE, "a reply of the GDB stub")
        else:
            out.append(byte)
            position += 1
    return bytes(out)
