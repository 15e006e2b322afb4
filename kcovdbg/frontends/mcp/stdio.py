# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server on standard input and output.

Commands run in the main thread, where signals end them cleanly, as everywhere; the protocol is spoken in another, which answers
while a command runs and notices that the client hung up.
"""

from __future__ import annotations

import asyncio
import io
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import anyio

from kcovdbg.console.runner import report
from kcovdbg.console.trace_paths import FileConfinement
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.frontends.mcp.server import ToolServer
from kcovdbg.frontends.mcp.tools import ToolBox

_T = TypeVar("_T")
_STDOUT: Final = 1
_STDERR: Final = 2
_DONE: Final = object()


class CallQueue:
    """Calls from the protocol's thread, run one at a time by another."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()

    async def call(self, function: Callable[[], _T]) -> _T:
        """Return the result of a function that the other thread runs."""
        future: Future[_T] = Future()
        self._calls.put((function, future))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """Let :meth:`run` return after the calls so far."""
        self._calls.put(None)

    def run(self, spare: Iterator[None]) -> None:
        """Run calls until the end.

        :param spare: work that no call waits for; a step is done whenever there is no call.
        """
        while (given := self._next(spare)) is not None:
            function, future = given
            # Of a request that the client cancelled, or that nobody waits for any more.
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - for whoever waits
                future.set_exception(error)
            else:
                future.set_result(result)

    def _next(self, spare: Iterator[None]) -> tuple[Callable[[], Any], Future[Any]] | None:
        while self._calls.empty() and next(spare, _DONE) is not _DONE:
            pass
        return self._calls.get()


class _ReplyStream(io.TextIOWrapper):
    """Standard output, which ends the server when its reader is gone."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]) -> None:
        super().__init__(open(descriptor, "wb"), encoding="utf-8")  # noqa: SIM115 - open until the end
        self._on_end = on_end

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._on_end()
            raise


def serve_stdio(workspace: Workspace, confinement: FileConfinement) -> None:
    """Serve tools on standard input and output until the client hangs up.

    :raises CapabilityError: when standard input is a terminal.
    """
    if sys.stdin.isatty():
        raise CapabilityError("mcp: standard input is a terminal", hint="a client starts this: docs/mcp.md")
    box = ToolBox(workspace, confinement)
    calls = CallQueue()
    # What anything else writes to standard output must not mix with replies.
    replies = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)

    def speak() -> None:
        try:
            anyio.run(ToolServer(box, calls.call).serve, _ReplyStream(replies, calls.end))
        except Exception as error:  # noqa: BLE001 - a reader that is gone is no error, and what is one was answered
            if workspace.debug:
                report(workspace, error)
        finally:
            calls.end()

    # A daemon: it may wait for a client that does not hang up.
    threading.Thread(target=speak, name="mcp", daemon=True).start()
    try:
        box.open()
    except KcovdbgError as error:
        # Each call tries again: a guest may not be up yet.
        report(workspace, error)
    calls.run(box.warm_up())
