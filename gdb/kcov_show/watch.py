# SPDX-License-Identifier: LGPL-2.1-or-later
"""Let the machine run until a write that the child wants, by GDB's hardware watchpoints."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

import gdb

from .child import LostError

_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long"}

Span = Tuple[int, ...]


class Watch:
    """One run of the machine with watchpoints.

    The methods return how the run ended, as the child gets it: ``end``, ``gone`` or ``error``.

    :param spans: address and size of each watchpoint.
    :param seconds: time after which the machine is stopped without a write; None for no limit.
    :param judge: called while the machine is stopped; returns whether the write is wanted.
    """

    def __init__(
        self, spans: Sequence[Span], seconds: Optional[float], judge: Callable[[], bool]
    ) -> None:
        self._spans = spans
        self._seconds = seconds
        self._judge = judge
        self._deadline: Optional[float] = None
        self._end = "other"
        self._error: Optional[Exception] = None
        self._is_running = False

    def run(self) -> Dict[str, Any]:
        """Let the machine run, remove the watchpoints, and return how the run ended."""
        with contextlib.ExitStack() as stack:
            problem = self._set_watchpoints(stack)
            if problem is not None:
                return problem
            if self._seconds is not None:
                # Set before the timer starts: a C-c from then on is the timer's, not the user's.
                self._deadline = time.monotonic() + self._seconds
                stack.enter_context(_interrupting(self._seconds))
            try:
                gdb.execute("continue", to_string=True)
            except gdb.error as error:
                return _not_running(error)
            except KeyboardInterrupt:
                self._end = self._interrupted()
        return self._result()

    def start(self, finish: Callable[[Dict[str, Any]], None]) -> Optional[Dict[str, Any]]:
        """Let the machine run in the background: GDB reads the next commands of MI meanwhile.

        :param finish: called by GDB's event loop with how the run ended.
        :return: None while the machine runs, or why it does not run.
        """
        stack = contextlib.ExitStack()
        problem = self._set_watchpoints(stack)

        def end() -> None:
            # GDB may note the end twice: the connection closes after the last stop.
            if self._is_running:
                self._is_running = False
                stack.close()
                finish(self._result())

        def note(_event: object) -> None:
            # Not now: during the event, GDB still uses the watchpoint that was hit.
            gdb.post_event(end)

        if problem is None:
            for registry in (
                gdb.events.stop,
                gdb.events.exited,
                getattr(gdb.events, "connection_removed", None),
            ):
                if registry is not None:
                    registry.connect(note)
                    stack.callback(registry.disconnect, note)
            if self._seconds is not None:
                self._deadline = time.monotonic() + self._seconds
                timer = threading.Timer(self._seconds, lambda: gdb.post_event(_interrupt))
                stack.callback(timer.cancel)
                timer.start()
            self._is_running = True
            try:
                # Not into a string: GDB 18 would write the ^running of MI there.
                gdb.execute("continue &")
            except gdb.error as error:
                self._is_running = False
                problem = _not_running(error)
        if problem is not None:
            stack.close()
        return problem

    def _set_watchpoints(self, stack: contextlib.ExitStack) -> Optional[Dict[str, Any]]:
        """Set the watchpoints; return the problem if that is impossible.

        :param stack: removes the watchpoints when it is closed.
        """
        for address, size in self._spans:
            watch = _Breakpoint("*(%s *) %#x" % (_TYPES[size], address), self)
            stack.callback(watch.delete)
            if watch.type != gdb.BP_HARDWARE_WATCHPOINT:
                hint = "let it use hardware watchpoints: set can-use-hw-watchpoints 1"
                return {"error": "GDB would single-step the machine", "hint": hint}
        gdb.events.stop.connect(self._note)
        stack.callback(gdb.events.stop.disconnect, self._note)
        return None

    def _result(self) -> Dict[str, Any]:
        if self._error is not None:
            raise self._error
        return {"gone": True} if _is_gone() else {"end": self._end}

    def is_over(self) -> bool:
        """Return whether the machine stays stopped after a write: the write is wanted, or the run
        is over.
        """
        try:
            if self._judge():
                self._end = "write"
            elif self._is_late():
                self._end = "time"
            else:
                return False
        except KeyboardInterrupt:
            self._end = self._interrupted()
        except (LostError, gdb.error) as error:
            # Raised again by _result(): here, GDB would print a traceback.
            self._error = error
        return True

    def _note(self, event: Any) -> None:
        is_interrupt = isinstance(event, gdb.SignalEvent) and event.stop_signal == "SIGINT"
        if self._end == "other" and is_interrupt:
            self._end = self._interrupted()

    def _interrupted(self) -> str:
        """Return whether C-c came from the user or from the timeout."""
        return "time" if self._is_late() else "interrupt"

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline


class _Breakpoint(gdb.Breakpoint):
    """A watchpoint that GDB does not list among the user's."""

    def __init__(self, expression: str, watch: Watch) -> None:
        self._watch = watch
        super().__init__(expression, gdb.BP_WATCHPOINT, gdb.WP_WRITE, True)
        self.silent = True

    def stop(self) -> bool:
        """Return whether the machine stays stopped after a write."""
        return self._watch.is_over()


def _interrupt() -> None:
    """Stop the machine, if it runs in the background."""
    with contextlib.suppress(gdb.error):
        gdb.execute("interrupt", to_string=True)


def _is_gone() -> bool:
    return gdb.selected_inferior().connection is None or gdb.selected_thread() is None


def _not_running(error: gdb.error) -> Dict[str, Any]:
    """Return why GDB could not let the machine run."""
    if _is_gone():
        return {"gone": True}
    return {"error": " ".join(str(error).split())}


@contextlib.contextmanager
def _interrupting(seconds: float) -> Iterator[None]:
    """Send C-c to GDB after a time, unless the block ends before.

    Another process sends it: while the machine runs, GDB lets Python's other threads run only now
    and then.
    """
    script = "sleep %.3f && kill -INT %d" % (seconds, os.getpid())
    timer = subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(timer.pid, signal.SIGKILL)
        timer.wait()
