# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count in how many runs each PC occurs, and compare the runs of two sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class RunCounts:
    """For each PC, the number of runs that have it, and of its records in all runs.

    Runs are added one by one and not kept: memory is bounded by the number of distinct PCs,
    whatever the number of runs.

    :param runs: PC -> records, for each run.
    """

    def __init__(self, runs: Iterable[Mapping[int, int]] = ()) -> None:
        self.total = 0
        """Number of runs."""
        self.counts: dict[int, list[int]] = {}
        """By PC: the number of runs that have it, and the number of its records in all of them.
        One look-up per PC and run.
        """
        for run in runs:
            self.add(run)

    def add(self, run: Mapping[int, int]) -> None:
        """Add one run.

        :param run: PC -> records.
        """
        self.total += 1
        counts = self.counts
        for pc, records in run.items():
            found = counts.get(pc)
            if found is None:
                counts[pc] = [1, records]
            else:
                found[0] += 1
                found[1] += records


class Occurrence(NamedTuple):
    """One PC of several runs."""

    pc: int
    runs: int
    """Runs in which it occurs."""
    records: int
    """Its records in all runs."""
    is_stable: bool
    """Whether it occurs in every run; otherwise it flickers."""


def find_occurrences(runs: RunCounts) -> list[Occurrence]:
    """Return every PC of some runs: flickering ones first, the rarest of them first, then by
    address.
    """
    found = []
    for pc, (times, records) in runs.counts.items():
        found.append(Occurrence(pc, times, records, times == runs.total))
    return sorted(found, key=lambda one: (one.is_stable, one.runs, one.pc))


class DiffSide(str, Enum):
    """The sides of a comparison that have a PC or a record."""

    LEFT = "left"
    """Every run on the left has it, none on the right."""
    RIGHT = "right"
    """Every run on the right has it, none on the left."""
    FLICKER = "flicker"
    """Only some runs of a side have it."""


class DifferingPc(NamedTuple):
    """One PC that not all runs of both sides have."""

    side: DiffSide
    pc: int
    records: int
    """Its records in all runs of both sides."""
    left_runs: int
    """Runs on the left that have it."""
    right_runs: int


class RunDifference(NamedTuple):
    """How the runs of two sides differ."""

    differences: tuple[DifferingPc, ...]
    """The differing PCs, by side, then by address."""
    common: int
    """PCs that every run of both sides has."""
    left_runs: int
    """Number of runs on the left."""
    right_runs: int


def compare_runs(left: RunCounts, right: RunCounts) -> RunDifference:
    """Compare the runs of two sides."""
    found: list[DifferingPc] = []
    common = 0
    for pc in left.counts.keys() | right.counts.keys():
        in_left, left_records = left.counts.get(pc, (0, 0))
        in_right, right_records = right.counts.get(pc, (0, 0))
        if in_left == left.total and in_right == right.total:
            common += 1
            continue
        if in_left == left.total and not in_right:
            side = DiffSide.LEFT
        elif in_right == right.total and not in_left:
            side = DiffSide.RIGHT
        else:
            side = DiffSide.FLICKER
        found.append(DifferingPc(side, pc, left_records + right_records, in_left, in_right))
    order = list(DiffSide)
    found.sort(key=lambda one: (order.index(one.side), one.pc))
    return RunDifference(tuple(found), common, left.total, right.total)
