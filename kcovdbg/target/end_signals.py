# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turns C-c and the signals that end a process into exceptions in kcovdbg's own code.

An exception in a plugin that drgn imports, or in a function that drgn calls, would be lost or taken
for a failure of that function. So signals wait there, and while a machine is let go on.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import termios
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Final, NamedTuple, ParamSpec, TypeVar

from kcovdbg.limits import CALL_TIME, WORK, find_limit, over_limit

_P = ParamSpec("_P")
_T = TypeVar("_T")

# The signals that end a process and can be handled. A fault of the processor ends kcovdbg.
_SIGNALS: Final = (
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGABRT,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
# Modules whose callees may lose exceptions. C code that imports a module may lose them as well, as
# drgn does to log. argparse would restore a value that it has not saved yet, and fail.
_FOREIGN_MODULES: Final = frozenset(
    {"_drgn_util.plugins", "argparse", "logging", "importlib._bootstrap", "_frozen_importlib"}
)
# Seconds after which a signal that had to wait is sent again.
_WAIT: Final = 0.005


class _Timer(NamedTuple):
    """The timer that ends a block by a signal."""

    limit: str
    subject: str
    timer: int
    """One of ``signal.ITIMER_*``."""


class _Process:
    """The signals that this process has received, and the code in which they wait."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.is_over = False
        self.codes: set[CodeType] = set()
        self.timers: dict[int, _Timer] = {}
        self.terminal: int | None = None
        self.waiting: set[int] = set()

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_over:
            return
        if self.must_wait(frame):
            if number not in self.waiting:
                self.waiting.add(number)
                # The interrupted code may hold the locks of the module threading.
                _thread.start_new_thread(self.send_again, (number,))
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        raise SystemExit(128 + number)

    def must_wait(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code in self.codes or frame.f_code.co_name == "__del__":
                return True
            if frame.f_globals.get("__name__") in _FOREIGN_MODULES:
                return True
            frame = frame.f_back
        return False

    def send_again(self, number: int) -> None:
        time.sleep(_WAIT)
        self.waiting.discard(number)
        identifier = threading.main_thread().ident
        if identifier is not None:
            signal.pthread_kill(identifier, number)


_PROCESS: Final = _Process()


def _end_block(number: int, frame: FrameType | None) -> None:
    found = _PROCESS.timers.get(number)
    if found is None:
        return
    if _PROCESS.must_wait(frame):
        signal.setitimer(found.timer, _WAIT)
        return
    raise over_limit(found.limit, found.subject)


@contextlib.contextmanager
def _hold_time(number: int, timer: int, limit: str, subject: str) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or number in _PROCESS.timers:
        # Only the main thread can be interrupted; in an outer block, the outer time counts.
        yield
        return
    _PROCESS.timers[number] = _Timer(limit, subject, timer)
    before = signal.signal(number, _end_block)
    try:
        signal.setitimer(timer, find_limit(limit))
        yield
    finally:
        del _PROCESS.timers[number]
        signal.setitimer(timer, 0)
        signal.signal(number, before)


def reading(subject: str) -> contextlib.AbstractContextManager[None]:
    """Limit the processor time of a block of the main thread that reads an input.

    :raises LimitError: when the block takes more time.
    """
    return _hold_time(signal.SIGPROF, signal.ITIMER_PROF, WORK, f"reading {subject}")


def answering(subject: str) -> contextlib.AbstractContextManager[None]:
    """Limit the time of a block of the main thread that answers a call.

    :raises LimitError: when the block takes more time.
    """
    return _hold_time(signal.SIGALRM, signal.ITIMER_REAL, CALL_TIME, subject)


def holds_signals(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function of the main thread so that signals wait until it has returned. In a
    generator, they do not wait after a yield.
    """
    _PROCESS.codes.add(function.__code__)
    return function


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt in the interrupted code, or send the signal again later if that code
    must finish first. A handler that decides itself whether C-c counts calls this.
    """
    _PROCESS.handle(number, frame)


def take_signals() -> list[signal.Signals]:
    """Let C-c raise KeyboardInterrupt, and the other signals SystemExit; return the signals that
    are handled now. Signals that were ignored or handled before are left out. Outside of the main
    thread, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        taken.append(signal.SIGINT)
    for number in taken:
        signal.signal(number, _PROCESS.handle)
    return taken


@holds_signals
def give_back_signals(taken: list[signal.Signals]) -> None:
    """Undo :func:`take_signals`. A signal that still waits is then handled as before."""
    # At exit, Python may have no handlers any more.
    with contextlib.suppress(ValueError):
        for number in taken:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )


@contextlib.contextmanager
def signals_as_exit() -> Iterator[None]:
    """Let signals raise exceptions in a block, so that the block cleans up.

    :raises SystemExit: when a signal was lost in the block.
    """
    taken = take_signals()
    received = _PROCESS.received
    try:
        yield
    finally:
        give_back_signals(taken)
    if taken and _PROCESS.received != received:
        raise SystemExit(exit_status(0))


def watch_terminal() -> None:
    """Let :func:`exit_status` notice that the terminal has closed, unless SIGHUP is ignored. A read
    or a write may fail before the signal comes, or instead of it.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Standard streams are replaced when they fail: keep a copy.
        _PROCESS.terminal = next((os.dup(stream) for stream in range(3) if os.isatty(stream)), None)


def has_hung_up() -> bool:
    """Return whether the terminal of :func:`watch_terminal` has closed."""
    if _PROCESS.terminal is None:
        return False
    try:
        termios.tcgetattr(_PROCESS.terminal)
    except termios.error:
        return True
    return False


def exit_status(status: int) -> int:
    """Return the exit status of this process.

    :param status: the status if no signal was to end the process.
    """
    if _PROCESS.received is not None:
        return 128 + _PROCESS.received
    if has_hung_up():
        return 128 + signal.SIGHUP
    return status


def end_handling() -> None:
    """Ignore signals while the process ends, lets machines go on and deletes files."""
    _PROCESS.is_over = True
