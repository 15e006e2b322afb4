# SPDX-License-Identifier: LGPL-2.1-or-later
"""What no command may do: print what a terminal obeys, and run for ever."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from typing import Any

# C0 but for the newline, DEL, C1, and controls of direction.
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class TooSlowError(BaseException):
    """Something exceeded its time limit: no command catches this."""


@contextlib.contextmanager
def time_limit(seconds: float, processor: float = 0.0) -> Iterator[None]:
    """Raise TooSlowError when something takes too long by the clock, or too much time of a
    processor.
    """

    def stop(_signal: int, _frame: Any) -> None:
        raise TooSlowError

    timers = {
        signal.SIGALRM: (signal.ITIMER_REAL, seconds),
        signal.SIGPROF: (signal.ITIMER_PROF, processor),
    }
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
