# SPDX-License-Identifier: LGPL-2.1-or-later
"""The child: the process that runs kcovdbg for GDB, and the messages to and from it.

A message has the lengths of its two parts, a JSON object, and bytes.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
from typing import Any, Dict, Iterator, Optional, Tuple

import gdb

VERSION = 1
"""The version of the messages."""
_HEAD = struct.Struct(">II")
_HERE = os.path.dirname(os.path.realpath(__file__))
_HINT = (
    "name the Python that kcovdbg is installed in: KCOVDBG_PYTHON=/path/to/venv/bin/python gdb ..."
)
# The first two are for GDB's own Python; the others are the size of the terminal when GDB was
# started.
_NOT_INHERITED = ("PYTHONHOME", "PYTHONPATH", "COLUMNS", "LINES")
# Seconds that a child has to start. Its imports take one second, longer on a machine that is short
# of memory.
_PATIENCE = 60.0

Fields = Dict[str, Any]


class LostError(Exception):
    """The child has ended."""


def find_python() -> str:
    """Return the interpreter that kcovdbg is installed in.

    :raises gdb.GdbError: when it is not found.
    """
    named = os.environ.get("KCOVDBG_PYTHON")
    if named:
        return named
    for script in _find_scripts():
        try:
            with open(script, "rb") as file:
                start = file.read(4096)
        except OSError:
            continue
        # pip writes the second form for a long path.
        found = re.match(rb"#!(?:/bin/sh\n'''exec' )?\"?(/[^\"\n ]+)", start)
        if found is not None and b"python" in os.path.basename(found[1]):
            return os.fsdecode(found[1])
    raise gdb.GdbError(
        "kcovdbg: could not find the Python that kcovdbg is installed in\n  " + _HINT
    )


def _find_scripts() -> Iterator[str]:
    """Yield where the program kcovdbg may be; the installation with this file comes first."""
    installed = re.match(r"(.*)/(?:lib|lib64)/python3[^/]*/(?:site|dist)-packages/kcovdbg/", _HERE)
    if installed is not None:
        yield os.path.join(installed[1], "bin", "kcovdbg")
    else:
        # A checkout.
        yield os.path.join(os.path.dirname(os.path.dirname(_HERE)), ".venv", "bin", "kcovdbg")
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        # A relative path would run programs of the current directory.
        if os.path.isabs(folder):
            yield os.path.join(folder, "kcovdbg")


class Child:
    """The process, and the socket to it."""

    def __init__(self) -> None:
        python = find_python()
        environment = {
            name: value for name, value in os.environ.items() if name not in _NOT_INHERITED
        }
        # Python imports nothing from the current directory. Python 3.10 does not know the variable;
        # the child starts in / for it.
        environment["PYTHONSAFEPATH"] = "1"
        # Commands do not use drgn's plugins, whose import takes up to 180 ms. drgn prints a
        # traceback if C-c comes meanwhile.
        environment["DRGN_DISABLE_PLUGINS"] = "*"
        ours, theirs = socket.socketpair()
        try:
            # In a session of its own, the child gets no C-c from the terminal; GDB passes it on.
            self._process = subprocess.Popen(
                [python, "-m", "kcovdbg.frontends.gdb.server", str(theirs.fileno())],
                cwd="/",
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise gdb.GdbError(
                "kcovdbg: could not start '%s': %s\n  %s" % (python, error.strerror, _HINT)
            ) from None
        finally:
            theirs.close()
        self._socket = ours
        self._buffer = bytearray()
        # Length of the message at the start of the buffer that was returned by receive(), but
        # neither answered nor released.
        self._received = 0
        self.python = python
        self._is_ready = False

    def greet(self, patience: float = _PATIENCE) -> None:
        """Wait until the child serves.

        :param patience: in seconds.
        :raises gdb.GdbError: when the child cannot be used, or does not serve in time.
        """
        if not self._is_ready:
            if not self._wait(patience):
                raise gdb.GdbError(
                    "kcovdbg: '%s' does not answer yet\n  the next command waits for it again"
                    % self.python
                )
            try:
                fields, _ = self.receive()
            except LostError:
                self.end()
                raise gdb.GdbError(
                    "kcovdbg: '%s' could not run kcovdbg\n  %s" % (self.python, _HINT)
                ) from None
            if fields.get("version") != VERSION:
                self.end()
                raise gdb.GdbError(
                    "kcovdbg: '%s' has another version of kcovdbg than %s\n  %s"
                    % (self.python, _HERE, _HINT)
                )
            self._is_ready = True
            self.release()

    def _wait(self, seconds: Optional[float] = None) -> bool:
        """Wait until there is something to receive; return whether there is."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def is_alive(self) -> bool:
        """Return whether the child runs."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Pass C-c on to the child."""
        self._process.send_signal(signal.SIGINT)

    def send(self, fields: Fields, data: bytes = b"") -> None:
        """Send a message, and release the received one, which this message may answer.

        C-c is delayed until the whole message is sent: after a part of it, the child would take
        the next message for the rest.

        :raises LostError: when the child has ended.
        """
        text = json.dumps(fields).encode()
        message = memoryview(_HEAD.pack(len(text), len(data)) + text + data)
        interrupt = None
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            while message:
                try:
                    message = message[self._socket.send(message) :]
                except KeyboardInterrupt as error:
                    interrupt = error
                except OSError:
                    raise LostError from None
            self.release()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        if interrupt is not None:
            raise interrupt

    def receive(self) -> Tuple[Fields, bytes]:
        """Return the next message.

        The same message is returned until it is answered or released: C-c may come before the
        caller has it.

        :raises LostError: when the child has ended.
        """
        while True:
            if len(self._buffer) >= _HEAD.size:
                size, more = _HEAD.unpack_from(self._buffer)
                middle, end = _HEAD.size + size, _HEAD.size + size + more
                if len(self._buffer) >= end:
                    text, rest = self._buffer[_HEAD.size : middle], self._buffer[middle:end]
                    self._received = end
                    return json.loads(text.decode()), bytes(rest)
            # Wait in select(), which C-c interrupts, as recv() goes on after a signal.
            self._wait()
            masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                data = self._socket.recv(1 << 16)
                self._buffer += data
            except OSError:
                raise LostError from None
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            if not data:
                raise LostError

    def release(self) -> None:
        """Forget the received message, which needs no answer."""
        size, self._received = self._received, 0
        del self._buffer[:size]

    def end(self) -> None:
        """End the child."""
        self._socket.close()
        try:
            self._process.kill()
            self._process.wait()
        except OSError:
            pass
