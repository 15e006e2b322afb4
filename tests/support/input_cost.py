# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a reader costs on an input, and on one that is twice as large."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

# An input is made larger until its reader takes so many seconds, or has so many parts.
_SECONDS: Final = 0.03
_MOST: Final = 1 << 20
_RATIO: Final = 2.5
_DOUBLINGS: Final = 3
# Of Python's own memory, in bytes: smaller differences are of its caches.
_SMALL: Final = 1 << 20

Prepare = Callable[[int], Callable[[], object]]
"""Makes an input of so many parts; returns what reads it."""


def _measure_time(prepare: Prepare, size: int, times: int) -> float:
    read = prepare(size)
    least = float("inf")
    for _ in range(times):
        # Its cost depends on what earlier tests left.
        gc.collect()
        gc.disable()
        start = time.process_time()
        try:
            read()
        finally:
            least = min(least, time.process_time() - start)
            gc.enable()
    return least


def _measure_memory(prepare: Prepare, size: int) -> int:
    read = prepare(size)
    tracemalloc.start()
    try:
        found: Any = read()
        peak = tracemalloc.get_traced_memory()[1]
        del found
    finally:
        tracemalloc.stop()
    return peak


def check_cost(prepare: Prepare, start: int = 64) -> None:
    """Assert that twice as many parts take at most two and a half times as long, and as much
    memory.
    """
    size = start
    while size < _MOST and _measure_time(prepare, size, 1) < _SECONDS:
        size *= 2
    # The step from one of the processor's caches to the next is one doubling only, and a busy
    # machine may disturb one.
    for _ in range(_DOUBLINGS):
        once, twice = _measure_time(prepare, size, 4), _measure_time(prepare, 2 * size, 4)
        if twice <= _RATIO * once:
            break
        size *= 2
    else:
        raise AssertionError(f"{size} parts take {twice:.3f} s, half of them {once:.3f} s")
    few, many = _measure_memory(prepare, size), _measure_memory(prepare, 2 * size)
    assert many <= _RATIO * few or many < _SMALL, (
        f"{2 * size} parts take {many:,} bytes, {size} take {few:,}"
    )
