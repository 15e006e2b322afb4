# SPDX-License-Identifier: LGPL-2.1-or-later
"""QMP, QEMU's machine protocol, on a connection that is shared with drgn.

A QMP socket serves one client at a time. drgn reads all replies to its commands before it returns:
between its calls, kcovdbg can use the connection.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import GoneError, ReadError, TargetError
from kcovdbg.input_file import parse_json
from kcovdbg.limits import (
    REPLY_SIZE,
    REPLY_TIME,
    allocated_memory,
    count_wait,
    find_limit,
    over_limit,
    time_for_replies,
)
from kcovdbg.target.connection import (
    Connection,
    MachineState,
    SocketAddress,
    connect,
    describe_record,
    is_closed_by_peer,
    read_record,
    receive,
    remove_record,
    write_record,
)
from kcovdbg.target.end_signals import holds_signals, signals_as_exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_GREETING_TIMEOUT: Final = 5.0
_MAX_GREETING: Final = 4096
# Memory for a reply, as a multiple of its size: drgn copies it to a buffer of twice the size, and
# then parses it.
_ROOM: Final = 4
# Memory for the stacks of threads that start meanwhile.
_STACKS: Final = 24 << 20
# Limit for the bytes that one command reads: the monitor prints at least six characters for each.
_LARGEST_READ: Final = 1 << 16
_HINT: Final = "start QEMU with -qmp unix:PATH,server=on,wait=off and give PATH"


class Qmp(Connection):
    """One connection to QEMU.

    :param address: the address of QEMU's QMP socket.
    :param timeout: seconds to wait for QEMU's greeting.
    :raises TargetError: when nothing listens there, it is busy, or it is not a QMP socket.
    """

    def __init__(self, address: SocketAddress, timeout: float = _GREETING_TIMEOUT) -> None:
        self.address = address
        self._socket = connect(address, "QEMU's QMP socket", _HINT, timeout)
        self._buffer = bytearray()
        self._count = 0
        try:
            self._check_greeting(timeout)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def duplicate(self) -> int:
        """Return a file descriptor of the connection for drgn, whose Program closes it. The
        greeting is still unread.
        """
        return os.dup(self._socket.fileno())

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the time and the memory of a block in which drgn talks to QEMU.

        Another process closes the connection after the time: while drgn waits, no other thread of
        Python and no handler of signals runs.
        """
        seconds = max(time_for_replies(), 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        room = allocated_memory() + _ROOM * find_limit(REPLY_SIZE) + _STACKS
        # This clock starts before the clock of the other process. So when that process closes the
        # connection, the time has passed here as well.
        start = time.monotonic()
        watch = os.fork()
        if not watch:
            with contextlib.suppress(BaseException):
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                time.sleep(seconds)
                self._socket.shutdown(socket.SHUT_RDWR)
            os._exit(0)
        try:
            if soft == resource.RLIM_INFINITY or room < soft:
                resource.setrlimit(resource.RLIMIT_DATA, (room, hard))
            yield
        except MemoryError as error:
            raise over_limit(REPLY_SIZE, f"a reply of QEMU at {self.address.text}") from error
        except Exception as error:
            if time.monotonic() - start >= seconds:
                raise over_limit(REPLY_TIME, f"waiting for QEMU at {self.address.text}") from error
            raise
        finally:
            count_wait(time.monotonic() - start)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
            os.kill(watch, signal.SIGKILL)
            os.waitpid(watch, 0)

    def close(self) -> None:
        """Close the connection and drgn's duplicate, so that QEMU serves the next client. A second
        call does nothing.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def peer_memory_is_readable(self) -> bool:
        """Return whether drgn can read QEMU's memory directly: QEMU runs on this machine, and may
        be traced.
        """
        if self._socket.family != socket.AF_UNIX:
            return False
        size = struct.calcsize("3i")
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, _, _ = struct.unpack("3i", credentials)
        try:
            # Opening it needs the same permissions as process_vm_readv().
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
        except OSError:
            return False
        return True

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, fd: int | None = None
    ) -> Any:
        """Run a command and return its result. drgn has negotiated capabilities before.

        :param fd: a file descriptor to send with the command getfd.
        :raises TargetError: when QEMU refuses the command or is gone.
        """
        self._count += 1
        ident = f"kcovdbg-{self._count}"
        message: dict[str, Any] = {"execute": command, "id": ident}
        if arguments:
            message["arguments"] = arguments
        ancillary = []
        if fd is not None:
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])))
        deadline = time.monotonic() + time_for_replies()
        try:
            self._socket.sendmsg([json.dumps(message).encode() + b"\n"], ancillary)
            while True:
                reply = self._receive(deadline)
                # Other messages are events, or replies to a command that timed out.
                if reply.get("id") == ident:
                    break
        except TimeoutError:
            raise over_limit(REPLY_TIME, f"waiting for QEMU at {self.address.text}") from None
        except ConnectionError:
            raise GoneError(f"QEMU at {self.address.text}") from None
        except (OSError, ValueError) as error:
            raise TargetError(f"no answer from QEMU at {self.address.text}: {error}") from None
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)
        if "error" in reply:
            problem = reply["error"]
            detail = problem.get("desc") if isinstance(problem, dict) else problem
            raise TargetError(f"QEMU refused {command}: {detail}")
        return reply.get("return")

    def _query_status(self) -> tuple[bool, str]:
        """Return whether the guest runs, and its state in QEMU's words."""
        status = self.execute("query-status")
        if not isinstance(status, dict) or not isinstance(status.get("running"), bool):
            raise TargetError(f"QEMU at {self.address.text}: invalid answer to query-status")
        return status["running"], str(status.get("status"))

    def is_gone(self) -> bool:
        return is_closed_by_peer(self._socket)

    def state(self) -> MachineState:
        try:
            return MachineState.RUNNING if self.is_running() else MachineState.STOPPED
        except GoneError:
            return MachineState.GONE

    def is_running(self) -> bool:
        """Return whether the guest's CPUs run."""
        return self._query_status()[0]

    @contextlib.contextmanager
    def pause(self) -> Iterator[bool]:
        if not self.is_running():
            yield True
            return
        with signals_as_exit():
            try:
                write_record(self.address)
                self.execute("stop")
                yield True
            finally:
                self._let_go_on()

    @holds_signals
    def _let_go_on(self) -> None:
        self.execute("cont")
        remove_record(self.address)

    def stop_note(self) -> str | None:
        is_running, state = self._query_status()
        if is_running:
            # The guest that was stopped has ended, or was continued by hand.
            remove_record(self.address)
            return None
        record = read_record(self.address)
        if record is not None:
            return describe_record(record)
        return f"the guest is stopped, and not by kcovdbg; its state in QEMU is '{state}'"

    def resume(self) -> None:
        record = read_record(self.address)
        if self.is_running():
            raise TargetError(f"the guest at {self.address.text} is running")
        if record is None or record.is_running:
            raise TargetError(
                f"the guest at {self.address.text} was not left stopped by kcovdbg",
                hint="in QEMU's monitor, cont lets it go on",
            )
        self._let_go_on()

    def monitor(self, line: str) -> str:
        """Run a command of the human monitor and return its output."""
        return str(self.execute("human-monitor-command", {"command-line": line}))

    def read_physical(self, address: int, size: int) -> bytes:
        """Read physical memory through the monitor, which is slow.

        :raises ReadError: when it is unreadable.
        """
        data = b""
        while len(data) < size:
            start, count = address + len(data), min(size - len(data), _LARGEST_READ)
            text = self.monitor(f"xp /{count}xb {start:#x}")
            found = bytes.fromhex("".join(re.findall(r"\b0x([0-9a-f]{2})\b", text)))
            if len(found) != count:
                raise ReadError(f"could not read physical {start:#x}", start)
            data += found
        return data

    def read_notes(self) -> bytes:
        """Return the ELF notes of a dump by QEMU: the registers of each CPU, and VMCOREINFO.

        :raises TargetError: when QEMU cannot write a dump, or is not on this machine.
        """
        if self._socket.family != socket.AF_UNIX:
            raise TargetError("QEMU takes files over unix sockets only")
        with tempfile.NamedTemporaryFile(prefix="kcovdbg-") as file:
            self.execute("getfd", {"fdname": "kcovdbg"}, file.fileno())
            # QEMU writes at least a page; the notes come before it.
            part = {"paging": False, "protocol": "fd:kcovdbg", "begin": 0, "length": PAGE_SIZE}
            self.execute("dump-guest-memory", part)
            with ElfFile(file.name, "QEMU's dump") as core:
                return core.read_notes()

    def _check_greeting(self, timeout: float) -> None:
        def fail(problem: object) -> TargetError:
            hint = (
                "it serves one client at a time: end the other one, or start QEMU with a second "
                "-qmp for kcovdbg"
            )
            return TargetError(f"QMP at {self.address.text}: {problem}", hint=hint)

        deadline = time.monotonic() + timeout
        start = b""
        while b"\n" not in start:
            if len(start) == _MAX_GREETING or (start and time.monotonic() > deadline):
                # More bytes do not fit, or do not come.
                raise fail(f"incomplete greeting after {timeout:g} s")
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                # The greeting is left for drgn to read.
                start = self._socket.recv(_MAX_GREETING, socket.MSG_PEEK)
            except TimeoutError:
                raise fail(f"no greeting within {timeout:g} s") from None
            except OSError as error:
                raise fail(error.strerror or error) from None
            if not start:
                raise fail("connection closed")
            if not start.lstrip().startswith(b"{"):
                raise TargetError(
                    f"{self.address.text} is not a QMP socket",
                    hint=f"{_HINT}; a human monitor is not QMP",
                )
            if b"\n" not in start:
                time.sleep(0.01)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while (end := self._buffer.find(b"\n")) < 0:
            receive(self._socket, self._buffer, deadline)
        message = parse_json(bytes(self._buffer[:end]))
        del self._buffer[: end + 1]
        return message if isinstance(message, dict) else {}
