# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client for QEMU's GDB stub: stop the guest at an address, look at its memory and registers, let
it go on.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Sequence

from typing_extensions import Self

from tests.lab.errors import LabError

# QEMU's packets hold 4096 bytes, hence 2048 of memory in hex.
_READ_MAX = 2000


class RspError(LabError):
    """The stub refused, or sent what this client does not understand."""


class Rsp:
    """One connection. Attaching stops the guest; leave with `detach`, or the guest stays stopped.

    :param registers: the 64-bit registers that a `g` packet starts with; the program counter is
        `pc`.
    :param byte_order: the guest's, as struct has it.
    """

    def __init__(
        self,
        address: tuple[str, int],
        timeout: float = 30,
        *,
        registers: Sequence[str],
        byte_order: str = "<",
    ) -> None:
        self._socket = socket.create_connection(address, timeout)
        self._buffer = b""
        self._registers = registers
        self._byte_order = byte_order
        self.stopped = True
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._drain()
            # Without "multiprocess", which would make QEMU ignore the `D` of a client that forgets
            # the process.
            self._ask(b"qSupported:hwbreak+")
            self._ask(b"?")
            self._drain()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detach, unless that is done; the connection ends in any case."""
        if self._socket.fileno() < 0:
            return
        try:
            self.detach()
        except (OSError, RspError):
            self._socket.close()

    def detach(self) -> None:
        """Let the guest go on without us."""
        if not self.stopped:
            self.interrupt()
        # With the process: QEMU goes on wanting it once a debugger before us has negotiated that.
        self._expect_ok(b"D;1")
        self._socket.close()

    def leave_stopped(self) -> None:
        """Drop the connection and leave the guest where it stands; QMP's `cont` moves it again."""
        self._socket.close()

    def read(self, address: int, size: int) -> bytes:
        """Return virtual memory, as the stopped CPU sees it."""
        data = bytearray()
        while len(data) < size:
            want = min(size - len(data), _READ_MAX)
            reply = self._ask(b"m%x,%x" % (address + len(data), want))
            if re.fullmatch(rb"E[0-9a-fA-F]{2}", reply):
                raise RspError(f"can't read {want} bytes at {address + len(data):#x}")
            chunk = bytes.fromhex(reply.decode())
            if not chunk:
                raise RspError(f"empty answer for {address + len(data):#x}")
            data += chunk
        return bytes(data)

    def word(self, address: int) -> int:
        """Return an unsigned 64-bit number in memory."""
        return int(struct.unpack(f"{self._byte_order}Q", self.read(address, 8))[0])

    def registers(self) -> dict[str, int]:
        """The general registers of the stopped CPU."""
        raw = bytes.fromhex(self._ask(b"g")[: 16 * len(self._registers)].decode())
        return dict(
            zip(
                self._registers,
                struct.unpack(f"{self._byte_order}{len(self._registers)}Q", raw),
                strict=True,
            )
        )

    def set_breakpoint(self, address: int) -> None:
        """Set a hardware breakpoint, which is not in the guest's memory and so in no dump."""
        self._expect_ok(b"Z1,%x,1" % address)

    def clear_breakpoint(self, address: int) -> None:
        self._expect_ok(b"z1,%x,1" % address)

    def step(self) -> None:
        """Run one instruction."""
        self._send(b"s")
        if self.wait_stop(10) is None:
            raise RspError("a single step does not end")

    def resume(self) -> None:
        """Let the guest run on."""
        self._send(b"c")
        self.stopped = False

    def wait_stop(self, timeout: float) -> str | None:
        """Return the stop packet, or None if the guest still runs after the timeout."""
        deadline = time.monotonic() + timeout
        packet = self._packet(deadline)
        if packet is None:
            return None
        if packet[:1] not in (b"S", b"T"):
            raise RspError(f"the guest ended: {packet!r}")
        self.stopped = True
        return packet.decode()

    def interrupt(self) -> None:
        """Stop the guest wherever it is."""
        self._socket.sendall(b"\x03")
        if self.wait_stop(10) is None:
            raise RspError("the guest does not stop")

    def _expect_ok(self, command: bytes) -> None:
        if (reply := self._ask(command)) != b"OK":
            raise RspError(f"{command!r} was answered with {reply!r}")

    def _ask(self, command: bytes) -> bytes:
        self._send(command)
        reply = self._packet(time.monotonic() + (self._socket.gettimeout() or 30))
        if reply is None:
            raise RspError(f"no answer to {command!r}")
        return reply

    def _send(self, command: bytes) -> None:
        self._socket.sendall(b"$%s#%02x" % (command, sum(command) & 0xFF))

    def _drain(self) -> None:
        """Discard what the stub sends unasked: it may announce the stop that attaching caused, and
        that packet would pass for the answer to our next command and shift all that follow."""
        while self._packet(time.monotonic() + 0.2) is not None:
            pass

    def _packet(self, deadline: float) -> bytes | None:
        """The next packet, acknowledged, or None when the deadline passes first.

        QEMU neither escapes nor compresses any.
        """
        while True:
            found = re.search(rb"\$([^#]*)#([0-9a-fA-F]{2})", self._buffer, re.DOTALL)
            if found:
                self._buffer = self._buffer[found.end() :]
                if sum(found[1]) & 0xFF != int(found[2], 16):
                    raise RspError(f"damaged packet {found[0]!r}")
                self._socket.sendall(b"+")
                return found[1]
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([self._socket], [], [], wait)[0]:
                return None
            received = self._socket.recv(65536)
            if not received:
                raise RspError("the stub closed the connection")
            self._buffer += received
