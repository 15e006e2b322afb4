# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which PCs every run of a workload covers, which flicker, and how the runs of two workloads differ.

Coverage varies between runs: 100 identical TCP sessions covered 2,598 PCs together and 2,500 every time (docs/coverage.md).
Several runs per side separate a difference from flicker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class RunCounts:
    """In how many runs each PC occurs, and how often altogether.

    Runs are added one by one and not kept: memory is bounded by the number of distinct PCs, whatever the number of runs.

    :param runs: PC -> records, for each run.
    """

    def __init__(self, runs: Iterable[Mapping[int, int]] = ()) -> None:
        self.total = 0
        """Number of runs."""
        # PC -> [runs, records]: one look-up per PC and run.
        self._counts: dict[int, list[int]] = {}
        for run in runs:
            self.add(run)

    def add(self, run: Mapping[int, int]) -> None:
        """Add one run.

        :param run: PC -> records.
        """
        self.total += 1
        counts = self._counts
        for pc, records in run.items():
            found = counts.get(pc)
            if found is None:
                counts[pc] = [1, records]
            else:
                found[0] += 1
                found[1] += records

    @property
    def pcs(self) -> Collection[int]:
        """The PCs of all runs."""
        return self._counts.keys()

    def runs(self, pc: int) -> int:
        """Return the number of runs in which a PC occurs."""
        found = self._counts.get(pc)
        return 0 if found is None else found[0]

    def records(self, pc: int) -> int:
        """Return the number of records of a PC in all runs."""
        found = self._counts.get(pc)
        return 0 if found is None else found[1]


class Occurrence(NamedTuple):
    """One PC of several runs."""

    pc: int
    runs: int
    """Runs in which it occurs."""
    records: int
    """In all runs."""
    is_stable: bool
    """Whether it occurs in every run; otherwise it flickers."""


def find_occurrences(runs: RunCounts) -> list[Occurrence]:
    """Return every PC of some runs: flickering ones first, the rarest of them first, then by address."""
    found = [Occurrence(pc, times := runs.runs(pc), runs.records(pc), times == runs.total) for pc in runs.pcs]
    return sorted(found, key=lambda one: (one.is_stable, one.runs, one.pc))


class DiffSide(str, Enum):
    """Which side of a comparison has a PC or a record."""

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
    """In all runs of both sides."""
    left_runs: int
    """Runs on the left that have it."""
    right_runs: int


class RunDifference(NamedTuple):
    """How the runs of two sides differ."""

    differences: tuple[DifferingPc, ...]
    """By side, then by address."""
    common: int
    """PCs that every run of both sides has."""
    left_runs: int
    """Number of runs on the left."""
    right_runs: int


def compare_runs(left: RunCounts, right: RunCounts) -> RunDifference:
    """Compare the runs of two sides."""
    by_side: dict[DiffSide, list[DifferingPc]] = {side: [] for side in DiffSide}
    common = 0
    for pc in {*left.pcs, *right.pcs}:
        in_left, in_right = left.runs(pc), right.runs(pc)
        if in_left == left.total and in_right == right.total:
            common += 1
            continue
        if in_left == left.total and not in_right:
            side = DiffSide.LEFT
        elif in_right == right.total and not in_left:
            side = DiffSide.RIGHT
        else:
            side = DiffSide.FLICKER
        by_side[side].append(DifferingPc(side, pc, left.records(pc) + right.records(pc), in_left, in_right))
    differences = tuple(one for found in by_side.values() for one in sorted(found, key=lambda one: one.pc))
    return RunDifference(differences, common, left.total, right.total)
