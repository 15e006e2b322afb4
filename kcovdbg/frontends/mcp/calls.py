# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the calls of tools: one at a time in the main thread, and in a spare process while the main
thread is busy.

A target belongs to one thread. The spare process is forked before there is a target or another
thread, and opens its own target at its first call. A target that serves only one client, such as a
GDB stub, has no spare process: its calls wait for each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kcovdbg.child_process import end_with_parent
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.frontends.mcp.tools import MAX_BYTES, ToolAnswer, ToolBox

_T = TypeVar("_T")
# Seconds that the main thread works on a call before the next one goes to the spare process.
_PATIENCE: Final = 1.0


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    box: ToolBox
    name: str
    arguments: Mapping[str, Any]
    max_bytes: int = MAX_BYTES

    def __call__(self) -> ToolAnswer:
        """Return the answer.

        :raises UsageError: when there is no such tool.
        """
        return self.box.call(self.name, self.arguments, self.max_bytes)


class _Item(NamedTuple):
    function: Callable[[], Any]
    future: Future[Any]


class CallQueue:
    """A queue of calls from the protocol's thread. The main thread runs them, or the thread of the
    spare process.
    """

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._busy_since: float | None = None

    def call(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Have another thread run a function; return its future result."""
        future: Future[_T] = Future()
        with self._changed:
            self._items.append(_Item(function, future))
            self._changed.notify_all()
        return asyncio.wrap_future(future)

    def end(self) -> None:
        """Let :meth:`run` and :meth:`pass_on` return when the queue is empty."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def run(self) -> None:
        """Run calls until the end."""
        while (item := self._take()) is not None:
            _run(item.function, item.future)
            with self._changed:
                self._busy_since = None

    def pass_on(self, spare: SpareProcess) -> None:
        """Until the end, pass a call of a tool on to the spare process whenever the main thread is
        busy with another call.
        """
        while (item := self._take_late()) is not None:
            call = item.function
            assert isinstance(call, ToolCall)
            _run(partial(spare.answer, call), item.future)

    def _take(self) -> _Item | None:
        """Return the next call; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_over)
            if not self._items:
                return None
            item = self._items.popleft()
            if isinstance(item.function, ToolCall):
                self._busy_since = time.monotonic()
                self._changed.notify_all()
            return item

    def _take_late(self) -> _Item | None:
        """Return a call of a tool that waits while the main thread has been busy with another one
        for some time; None at the end.
        """
        with self._changed:
            while not self._is_over:
                left = None
                if self._busy_since is not None:
                    left = self._busy_since + _PATIENCE - time.monotonic()
                if left is not None and left <= 0:
                    for item in self._items:
                        if isinstance(item.function, ToolCall):
                            self._items.remove(item)
                            return item
                    left = None
                self._changed.wait(left)
        return None


def _run(function: Callable[[], Any], future: Future[Any]) -> None:
    # Skip requests that the client cancelled, or that nobody waits for any more.
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)


class SpareProcess:
    """A fork of this process that answers calls. Make it while there is only one thread.

    :param box: the tools; their target is not open yet.
    """

    def __init__(self, box: ToolBox) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                ours.close()
                _serve(box, theirs, parent)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        self._socket = ours
        self._replies = ours.makefile("rb")

    def answer(self, call: ToolCall) -> ToolAnswer:
        """Return the process's answer to a call.

        :raises UsageError: when there is no such tool.
        :raises KcovdbgError: when the process has ended.
        """
        try:
            request = json.dumps([call.name, call.arguments, call.max_bytes])
            self._socket.sendall(request.encode() + b"\n")
            line = self._replies.readline()
        except OSError:
            line = b""
        if not line:
            raise KcovdbgError("a process of the server ended", hint="start the server again")
        reply = json.loads(line)
        if "usage" in reply:
            raise UsageError(reply["usage"], hint=reply["hint"])
        return ToolAnswer(**reply)

    def end(self) -> None:
        """End the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._socket.close()


def _serve(box: ToolBox, connection: socket.socket, parent: int) -> None:
    """Answer calls until the parent ends."""
    if not end_with_parent(parent, signal.SIGKILL):
        return
    # Only the parent talks to the client.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for line in connection.makefile("rb"):
        name, arguments, max_bytes = json.loads(line)
        try:
            reply = box.call(name, arguments, max_bytes)._asdict()
        except UsageError as error:
            reply = {"usage": str(error), "hint": error.hint}
        connection.sendall(json.dumps(reply).encode() + b"\n")
