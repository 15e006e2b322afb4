# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cases spread over processes, each with a Program of its own, which cannot be shared."""

from __future__ import annotations

import multiprocessing
import resource
import time
from typing import TYPE_CHECKING

from tests.fuzz.run import Figures, Fuzzer

if TYPE_CHECKING:
    from collections.abc import Callable

_MEMORY = 4 << 30
_CHUNK = 50

_fuzzer: Fuzzer | None = None


def _open() -> None:
    global _fuzzer
    # Absurd sizes must not be allocated.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    _fuzzer = Fuzzer(is_judged=True)


def _run(seeds: range) -> tuple[Figures, int]:
    assert _fuzzer is not None
    return _fuzzer.run(seeds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_cases(cases: int, seed: int, workers: int, seconds: float, say: Callable[[str], None]) -> Figures:
    """Run cases; print failures as they are found, and figures at the end.

    :param seed: of the first case; each next one has the next number.
    :param seconds: after which no more is done, of however many cases.
    """
    figures, largest, started = Figures(), 0, time.monotonic()
    end = seed + cases
    chunks = [range(first, min(first + _CHUNK, end)) for first in range(seed, end, _CHUNK)]
    with multiprocessing.get_context("spawn").Pool(workers, _open) as pool:
        for part, memory in pool.imap(_run, chunks):
            for problem in part.problems:
                say(problem)
            figures.add(part)
            largest = max(largest, memory)
            if time.monotonic() - started > seconds:
                say(f"stopped after {seconds:.0f} s, before seed {seed + figures.cases}")
                pool.terminate()
                break
            if figures.cases % 2500 == 0:
                say(f"{figures.cases} cases after {time.monotonic() - started:.0f} s, {len(figures.problems)} problems")
    say(f"{figures}\n  {time.monotonic() - started:.0f} s on {workers} workers, at most {largest >> 10} MiB each")
    say("  damage: " + ", ".join(f"{name} {number}" for name, number in sorted(figures.kinds.items())))
    return figures
