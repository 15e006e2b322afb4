# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measurements of times, and their goals."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of the bench."""

    what: str
    mine: float
    other: float
    other_name: str
    ratio: float
    """How often better, or how much of the bound: as `goal` says."""
    goal: str
    good: bool
    unit: str = "s"


def best(run: Callable[[], Any], rounds: int = 5) -> float:
    """The shortest of some times, in seconds: what a quiet machine would need."""
    times = []
    for _ in range(rounds):
        gc.collect()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def processor_time(
    command: Sequence[str],
    *,
    stdin: Path = Path(os.devnull),
    cwd: Path = Path(),
    environment: Mapping[str, str] | None = None,
    statuses: Collection[int] = (0,),
) -> float:
    """Run a command and return the processor time of its processes, in seconds.

    :param statuses: the exit statuses that it may have.
    """
    before = os.times()
    with stdin.open() as given:
        done = subprocess.run(
            command,
            stdin=given,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode in statuses, done.stderr
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def best_of_each(*runs: Callable[[], Any], rounds: int = 5) -> list[float]:
    """The shortest time of each of some ways, tried in turn: what disturbs the machine meanwhile
    disturbs all of them.
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for place, run in enumerate(runs):
            times[place].append(best(run, 1))
    return [min(each) for each in times]


def faster(what: str, mine: float, other: float, other_name: str, times: float) -> Result:
    """At least so many times faster than another way."""
    ratio = other / mine
    return Result(what, mine, other, other_name, ratio, f">= {times:g}x faster", ratio >= times)


def at_most(what: str, mine: float, other: float, other_name: str, times: float) -> Result:
    """At most so many times another way's time."""
    ratio = mine / other
    return Result(what, mine, other, other_name, ratio, f"<= {times:g}x its time", ratio <= times)


def bounded(what: str, mine: float, bound: float, unit: str) -> Result:
    """At most a number."""
    return Result(
        what, mine, bound, "bound", mine / bound, f"<= {bound:g} {unit}", mine <= bound, unit
    )


def format_result(result: Result) -> str:
    if result.unit == "s":
        mine, other = (f"{value * 1000:.3f} ms" for value in (result.mine, result.other))
    else:
        mine, other = (f"{value:.2f} {result.unit}" for value in (result.mine, result.other))
    verdict = "ok" if result.good else "MISSED"
    return (
        f"{result.what:<44} {mine:>14}   {result.other_name:<20} {other:>14} {result.ratio:>8.2f}  "
        f" {result.goal:<18} {verdict}"
    )


def show(results: Iterable[Result]) -> int:
    """Print each result when it is there; return the exit status, 1 when one misses its goal."""
    status = 0
    for result in results:
        print(format_result(result), flush=True)
        status |= not result.good
    return int(status)
