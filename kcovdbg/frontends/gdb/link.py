# SPDX-License-Identifier: LGPL-2.1-or-later
"""The messages between GDB and this process, and C-c, which ends a request but never the exchange
of a message.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

from kcovdbg.errors import TargetError
from kcovdbg.target.end_signals import raise_interrupt

VERSION: Final = 1
"""Version of the messages: gdb/ may be of another installation."""
_HEAD: Final = struct.Struct(">II")

Fields = dict[str, Any]


class Message(NamedTuple):
    """One message."""

    fields: Fields
    data: bytes = b""


class Interrupts:
    """C-c, which GDB passes on as SIGINT: it ends a request, and never the exchange of a message,
    whose answer would be taken for the next one.
    """

    def __init__(self) -> None:
        self._is_allowed = False
        self._is_pending = False

    def watch(self) -> None:
        """Take the process's SIGINT."""
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_allowed:
            raise_interrupt(number, frame)
        else:
            self._is_pending = True

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let C-c end a block; one from before the block does not."""
        self._is_pending, self._is_allowed = False, True
        try:
            yield
        finally:
            self._is_allowed = False

    @contextlib.contextmanager
    def delayed(self) -> Iterator[None]:
        """Delay C-c to the end of a block."""
        before, self._is_allowed = self._is_allowed, False
        try:
            yield
        finally:
            self._is_allowed = before
        if self._is_pending and before:
            self._is_pending = False
            raise KeyboardInterrupt


class Link:
    """The connection to GDB.

    :param number: the file descriptor of a socket.
    """

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        # Programs that this process starts must not keep it open.
        self._socket.set_inheritable(False)
        self._file = self._socket.makefile("rb", 1 << 16)
        self._count = 0
        self.interrupts = Interrupts()

    def send(self, **fields: object) -> None:
        """Send a message."""
        text = json.dumps(fields).encode()
        try:
            self._socket.sendall(_HEAD.pack(len(text), 0) + text)
        except OSError:
            os._exit(0)

    def receive(self) -> Message:
        """Return the next message. The process ends with GDB."""
        start = self._file.read(_HEAD.size)
        if len(start) < _HEAD.size:
            os._exit(0)
        size, more = _HEAD.unpack(start)
        return Message(json.loads(self._file.read(size)), self._file.read(more))

    def call(
        self, op: str, answer: Callable[[Fields], Fields] | None = None, **fields: object
    ) -> Message:
        """Ask GDB for something, and return its answer.

        :param answer: answers what GDB asks meanwhile.
        :raises TargetError: when GDB has lost the machine.
        """
        with self.interrupts.delayed():
            self._count += 1
            # Requests of `answer` meanwhile have numbers of their own.
            number = self._count
            self.send(op=op, n=number, **fields)
            while True:
                message = self.receive()
                if message.fields.get("re") == number:
                    break
                if answer is not None and "op" in message.fields:
                    self.send(op="verdict", n=message.fields["n"], **answer(message.fields))
        if message.fields.get("interrupted"):
            raise KeyboardInterrupt
        if "lost" in message.fields:
            raise TargetError(message.fields["lost"])
        return message
