# SPDX-License-Identifier: LGPL-2.1-or-later
"""What several runs of one thing have in common, and what flickers: is in some of them only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Occurrence(NamedTuple):
    """One PC, and in how many runs it is."""

    pc: int
    runs: int
    records: int
    """In all runs."""
    is_stable: bool
    """Whether it is in every run."""


def find_occurrences(runs: Sequence[Mapping[int, int]]) -> list[Occurrence]:
    """Return every PC of some runs: the flickering ones first, the rarest of them first, then by address.

    :param runs: PC -> records, of each run.
    """
    seen: Counter[int] = Counter()
    records: Counter[int] = Counter()
    for run in runs:
        seen.update(run.keys())
        records.update(run)
    found = [Occurrence(pc, times, records[pc], times == len(runs)) for pc, times in seen.items()]
    return sorted(found, key=lambda one: (one.is_stable, one.runs, one.pc))
