# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of source lines by a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import Frame
from kcovdbg.records.coverage import FileCoverage, find_lines
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.records.pc_names import LocationCache
from kcovdbg.symbols.coverage_points import PointKind


class CoveredLines(NamedTuple):
    """Lines with points in functions that were executed."""

    files: list[FileCoverage]
    """By name."""
    remarks: tuple[str, ...]
    """Missing parts: lines that were not executed, or records of tail calls."""

    @property
    def total(self) -> int:
        """Number of lines with points."""
        return sum(len(file.lines) for file in self.files)

    @property
    def covered(self) -> int:
        """Number of executed lines."""
        return sum(file.covered_lines for file in self.files)


def find_line_coverage(
    names: LocationCache,
    find_table: Callable[[], object],
    counts: Mapping[int, int],
    kinds: Iterable[PointKind],
    wanted: Callable[[Frame], bool] | None = None,
) -> CoveredLines:
    """Return the lines with points in functions that were executed.

    :param names: of the kernel that was executed.
    :param find_table: waits for the table of its points, and raises CapabilityError when there is
        none.
    :param counts: PC -> records.
    :param kinds: of the points that can be among them.
    :param wanted: of which functions or files the lines are of interest; None for all.
    """
    remarks: tuple[str, ...] = ()
    try:
        find_table()
    except CapabilityError as error:
        remarks = (f"uncovered lines are unavailable: {error}",)
    known = as_counts(counts)
    columns = names.columns(known.pcs)
    no_points = sum(columns.approximate[index] for index in columns.unlisted)
    tail_calls = columns.approximate.count(1) - no_points
    for number, reason in (
        (tail_calls, "recorded by tail calls from unknown functions"),
        (no_points, "no coverage points of this kernel"),
    ):
        if number:
            remarks = (f"{number} of {len(counts)} PCs are left out: {reason}", *remarks)
    return CoveredLines(find_lines(columns, known.records, kinds, wanted), remarks)
