# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the coverage of a kernel's source files by a trace. In modules whose debug info is not read,
only executed lines are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.model.location import Frame
from kcovdbg.records.line_states import Quality, TraceRecords, select_code_records
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.records.source_coverage import (
    SourceCoverage,
    add_executed,
    find_source_coverage,
    join_coverage,
    sum_up,
)
from kcovdbg.symbols.location_table import LocationTable


class ImageCoverage(NamedTuple):
    """The coverage of a kernel's source files."""

    files: Sequence[SourceCoverage]
    """By path."""
    remarks: tuple[str, ...]
    """Sums, and what is missing."""


def find_image_coverage(
    context: Context, trace: TraceRecords, wanted: Callable[[Frame], bool] | None
) -> ImageCoverage:
    """Return the coverage of all files of a kernel.

    :param wanted: returns whether a function of a file is of interest; None if all are.
    :raises CapabilityError: when the blocks of the kernel's code are unknown.
    """
    is_exact = bool(trace.quality & Quality.EXACT)
    is_complete = bool(trace.quality & Quality.COMPLETE)
    table = find_point_table(context, needs_points=not is_exact)
    found = find_source_coverage(table, trace, wanted)
    files, tables = found.files, [table]
    others = found.unmatched
    for module in context.kernel.points.find_module_tables():
        tables.append(module)
        own = select_code_records(trace, module)
        in_module = find_source_coverage(module, own, wanted)
        files = join_coverage(files, in_module.files)
        others -= len(own.counts) - in_module.unmatched
    in_modules, module_pcs = _find_module_lines(context, tables, trace.counts, wanted)
    files = add_executed(files, in_modules)
    totals = sum_up(files)
    remarks = [
        f"{totals.executed_lines} of {totals.lines} lines and {totals.executed_functions} of "
        f"{totals.functions} functions were executed, in {len(files)} files"
    ]
    if totals.unknown_lines:
        remarks.append(
            f"{totals.unknown_lines} lines are left out: unknown whether they were executed"
        )
    if not is_complete and not is_exact:
        remarks.append(
            "records are missing or may be: what was not executed is unknown, and left out"
        )
    if found.contradictions:
        remarks.append(
            f"the records contradict the code of {found.contradictions} functions: only "
            f"recorded points count there"
        )
    if module_pcs:
        remarks.append(f"{module_pcs} PCs are in modules, of which there are executed lines alone")
    remarks += context.kernel.points.explain_modules([trace])
    others -= module_pcs
    if others > 0:
        what = "in no function" if is_exact else "no coverage points, as after tail calls"
        remarks.append(f"{others} of {len(trace.counts)} PCs are {what}")
    return ImageCoverage(files, tuple(remarks))


_Records: TypeAlias = Mapping[str, Mapping[int, int]]
"""The most records of a point of each line, by file."""


def _find_module_lines(
    context: Context,
    tables: Sequence[LocationTable],
    counts: Mapping[int, int],
    wanted: Callable[[Frame], bool] | None,
) -> tuple[_Records, int]:
    """Return the executed lines of modules without tables, and the number of PCs that they have."""
    ranges = chain.from_iterable(table.text_ranges() for table in tables)
    outside = as_counts(counts).outside((text.start, text.end) for text in ranges)
    names = context.names
    names.prefetch(outside)
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    located = 0
    for pc in outside:
        frame = names.frame(pc)
        if frame.file is None or frame.line is None:
            continue
        located += 1
        if wanted is None or wanted(frame):
            lines = found[frame.file]
            lines[frame.line] = max(counts[pc], lines.get(frame.line, 0))
    return found, located
