# SPDX-License-Identifier: LGPL-2.1-or-later
"""QEMU's machine protocol: the socket that drgn reads a guest through, and what we say on it besides.

A QMP socket serves one client at a time, so drgn and we share one connection. drgn reads all replies to what it sent before it
returns, so between its calls the stream is ours.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import socket
import struct
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

from kcovdbg.errors import TargetError
from kcovdbg.target import elf
from kcovdbg.target.address import SocketAddress, connect
from kcovdbg.target.rsp import StubReadError

if TYPE_CHECKING:
    from collections.abc import Iterator

_GREETING_TIMEOUT: Final = 5.0
_REPLY_TIMEOUT: Final = 30.0
_HINT: Final = "start QEMU with -qmp unix:PATH,server=on,wait=off and give that PATH"


class Qmp:
    """One connection.

    :param address: of QEMU's QMP socket.
    :raises TargetError: when nothing listens there, it is busy, or it doesn't speak QMP.
    """

    def __init__(self, address: SocketAddress, timeout: float = _GREETING_TIMEOUT) -> None:
        self.address = address
        self._socket = connect(address, "QEMU's QMP socket", _HINT, timeout)
        self._buffer = b""
        self._count = 0
        try:
            self._check_greeting(timeout)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def duplicate(self) -> int:
        """Return a file descriptor of the connection, greeting still unread, for drgn: it closes it with its Program."""
        return os.dup(self._socket.fileno())

    def close(self) -> None:
        """End the connection, drgn's duplicate included, so that QEMU can serve the next client. May be called twice."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def peer_memory_is_readable(self) -> bool:
        """Tell whether drgn can read QEMU's memory directly: on this machine, with the rights to trace it."""
        if self._socket.family != socket.AF_UNIX:
            return False
        size = struct.calcsize("3i")
        pid = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
        try:
            # Opening it asks for the same rights as process_vm_readv().
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
        except OSError:
            return False
        return True

    def execute(self, command: str, fd: int | None = None, **arguments: Any) -> Any:
        """Run a command and return what it returns. Capabilities must have been negotiated, as drgn does.

        :param fd: a file descriptor to send along, for getfd.
        :raises TargetError: when QEMU refuses or is gone.
        """
        return self._execute(command, arguments, fd)

    def _execute(self, command: str, arguments: dict[str, Any], fd: int | None) -> Any:
        self._count += 1
        ident = f"kcovdbg-{self._count}"
        message: dict[str, Any] = {"execute": command, "id": ident}
        if arguments:
            message["arguments"] = arguments
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        deadline = time.monotonic() + _REPLY_TIMEOUT
        try:
            self._socket.sendmsg([json.dumps(message).encode() + b"\n"], ancillary)
            while True:
                reply = self._receive(deadline)
                # Events, and replies to an earlier command of ours that timed out, are passed over.
                if reply.get("id") == ident:
                    break
        except (OSError, ValueError) as error:
            raise TargetError(f"QEMU at {self.address.text} doesn't answer: {error}") from None
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)
        if "error" in reply:
            raise TargetError(f"QEMU refuses {command}: {reply['error'].get('desc', reply['error'])}")
        return reply.get("return")

    def is_running(self) -> bool:
        """Tell whether the guest's CPUs run."""
        return bool(self.execute("query-status")["running"])

    @contextlib.contextmanager
    def paused(self) -> Iterator[bool]:
        """Let the guest stand still inside the block; it goes on afterwards if it ran before."""
        was_running = self.is_running()
        if was_running:
            self.execute("stop")
        try:
            yield True
        finally:
            if was_running:
                self.execute("cont")

    def monitor(self, line: str) -> str:
        """Run a command of the monitor for humans."""
        return str(self._execute("human-monitor-command", {"command-line": line}, None))

    def read_physical(self, address: int, size: int) -> bytes:
        """Read physical memory through the monitor: slow, for what has to be read before drgn can read anything.

        :raises StubReadError: when QEMU doesn't show it.
        """
        text = self.monitor(f"xp /{size}xb {address:#x}")
        found = bytes(int(byte, 16) for line in text.splitlines() for byte in re.findall(r"\b0x([0-9a-f]{2})\b", line))
        if len(found) != size:
            raise StubReadError(f"physical {address:#x}")
        return found

    def read_notes(self) -> bytes:
        """Return the ELF notes that QEMU would write into a dump: registers of each CPU, VMCOREINFO.

        :raises TargetError: when QEMU can't, or isn't on this machine.
        """
        if self._socket.family != socket.AF_UNIX:
            raise TargetError("QEMU hands files over by unix sockets only")
        with tempfile.TemporaryFile() as file:
            self.execute("getfd", fd=file.fileno(), fdname="kcovdbg")
            # A page is the least that it writes; the notes are before it.
            self.execute("dump-guest-memory", paging=False, protocol="fd:kcovdbg", begin=0, length=4096)
            try:
                return elf.read_note_segments(file, elf.read_header(file))
            except elf.ElfError as error:
                raise TargetError(f"QEMU wrote a dump that can't be read: {error}") from None

    def _check_greeting(self, timeout: float) -> None:
        hint = "it serves one client at a time: end the other one, or start QEMU with one more -qmp for kcovdbg alone"
        deadline = time.monotonic() + timeout
        start = b""
        while b"\n" not in start:
            if start and time.monotonic() > deadline:
                # Peeking gives the same piece again without waiting.
                raise TargetError(f"QMP at {self.address.text} gives no whole greeting within {timeout:g} s", hint=hint)
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                # Left in the stream, as drgn wants to read it.
                start = self._socket.recv(4096, socket.MSG_PEEK)
            except TimeoutError:
                raise TargetError(f"QMP at {self.address.text} gives no greeting within {timeout:g} s", hint=hint) from None
            except OSError as error:
                raise TargetError(f"QMP at {self.address.text}: {error.strerror or error}", hint=hint) from None
            if not start:
                raise TargetError(f"QMP at {self.address.text} closed the connection", hint=hint)
            if not start.lstrip().startswith(b"{"):
                raise TargetError(f"{self.address.text} doesn't speak QMP", hint=f"{_HINT}; a monitor for humans won't do")
            if b"\n" not in start:
                time.sleep(0.01)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.01))
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        return message if isinstance(message, dict) else {}
