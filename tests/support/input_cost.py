# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a reader costs on an input, and on larger ones."""

from __future__ import annotations

import ctypes
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

# An input is made larger until its reader takes so many seconds, or has so many parts. That is time
# enough to measure, and what is read still fits a cache of the processor, more or less.
_SECONDS: Final = 0.005
_MOST: Final = 1 << 20
_RATIO: Final = 2.5
_DOUBLINGS: Final = 4
_RUNS: Final = 5
# Seconds that a part of a large input may take in any case: as much as memory itself costs on a slow
# machine, once the input has outgrown each cache.
_MEMORY: Final = 20e-9
# Of Python's own memory, in bytes: smaller differences are of its caches.
_SMALL: Final = 1 << 20

# Of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_DEFAULT_THRESHOLD: Final = 128 << 10

Prepare = Callable[[int], Callable[[], object]]
"""Makes an input of so many parts; returns what reads it."""


def _measure_time(read: Callable[[], object]) -> float:
    start = time.process_time()
    read()
    return time.process_time() - start


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
    with _steady_memory():
        while size < _MOST and _measure_time(prepare(size)) < _SECONDS:
            size *= 2
        _check_time(prepare, size)
    # Small inputs are read at once, larger ones in pieces.
    size = min(2 * size, _MOST)
    many = _measure_memory(prepare, 2 * size)
    if many < _SMALL:
        return
    few = _measure_memory(prepare, size)
    if many > _RATIO * few:
        # A larger input may be read in another way: it takes twice as much from there on.
        size *= 2
        few, many = many, _measure_memory(prepare, 2 * size)
    assert many <= _RATIO * few, f"{2 * size} parts take {many:,} bytes, {size} take {few:,}"


@contextmanager
def _steady_memory() -> Iterator[None]:
    """Keep what the memory of a reader costs in proportion to its size.

    A collection costs as much as earlier tests left. malloc() gets large blocks from the kernel and
    returns them each time, and then each page costs a fault: as much as reading what is on it.
    """
    libc = ctypes.CDLL(None)
    gc.collect()
    gc.disable()
    libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(_TRIM_THRESHOLD, 1 << 30)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, _DEFAULT_THRESHOLD)
        libc.mallopt(_TRIM_THRESHOLD, _DEFAULT_THRESHOLD)
        libc.malloc_trim(0)
        gc.enable()


def _check_time(prepare: Prepare, size: int) -> None:
    """Compare an input with larger ones, each twice as large as the last.

    A busy machine, or a cache that becomes too small, slows one doubling down or two. What takes
    more than its share does so at each. A reader that is as fast as memory passes.
    """
    few = prepare(size)
    once = _measure_time(few)
    for doublings in range(1, _DOUBLINGS + 1):
        many = prepare(size << doublings)
        more = _measure_time(many)
        for _ in range(_RUNS):
            # In turns, so that both have quiet moments.
            once = min(once, _measure_time(few))
            more = min(more, _measure_time(many))
        if more <= max(_RATIO**doublings * once, _MEMORY * (size << doublings)):
            return
    raise AssertionError(
        f"{size << doublings} parts take {more:.3f} s, {size} of them take {once:.3f} s"
    )
