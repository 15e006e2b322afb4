# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage by source line: which lines have points, and which of them a buffer covers."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import compress

from kcovdbg.analysis.chain_loops import add_lines, gather
from kcovdbg.analysis.native_loops import NO_ID, Numbering, zeros
from kcovdbg.analysis.pc_columns import PcColumns, kind_flags, low_halves, pair_words
from kcovdbg.model.coverage import FileCoverage
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import PointKind


def find_lines(
    columns: PcColumns,
    records: array[int],
    kinds: Iterable[PointKind],
    wanted: Callable[[Frame], bool] | None = None,
    *,
    has_unexecuted: bool = False,
) -> list[FileCoverage]:
    """Return the coverage of source lines, by file.

    A point counts for every line of its chain of inlined functions: executing an inlined body executes the call. Functions
    that were not executed at all are left out, and so are lines without a record where there is no table.

    :param columns: where the PCs are; what was recorded by a tail call from an unknown function is left out.
    :param records: of each PC. Type code Q.
    :param kinds: of the points of the table that can have records.
    :param wanted: returns whether lines of a function or file are wanted; None if all are.
    :param has_unexecuted: whether lines of functions that were not executed are wanted as well.
    """
    chains = columns.chains
    if any(columns.approximate):
        exact = columns.approximate.translate(bytes((1, 0, *range(2, 256))))
        chains, records = (array("Q", compress(column, exact)) for column in (chains, records))
    groups: list[tuple[array[int], array[int] | None]] = [(chains, records)]
    if columns.table is not None:
        groups.append((_missed_points(columns, chains, kinds, has_unexecuted=has_unexecuted), None))
    lines, of_frame, names = _number_lines(columns, wanted)
    sums = add_lines(columns.frames, groups, of_frame, len(lines))
    numbers = low_halves(lines)
    found = []
    for rank, name in enumerate(names, 1):
        # Frames without a line have the line 0.
        part = slice(bisect_left(lines, rank << 32 | 1), bisect_left(lines, rank + 1 << 32))
        has_points = sums.points[part]
        if any(has_points):
            columns_of_file = ((numbers, "I"), (sums.hits, "Q"), (sums.points, "I"), (sums.covered, "I"))
            found.append(
                FileCoverage(name, *(array(code, compress(column[part], has_points)) for column, code in columns_of_file))
            )
    return found


def _missed_points(columns: PcColumns, chains: array[int], kinds: Iterable[PointKind], *, has_unexecuted: bool) -> array[int]:
    """Return the chains of points that were not recorded, in functions that were executed, or in all.

    Inlined elsewhere, a function is another copy, which may not have been executed.

    :param chains: of what was recorded.
    """
    assert columns.table is not None
    rows = columns.table.columns.chain
    size = len(rows)
    missed = int.from_bytes(kind_flags(rows, kinds), "little") & ~int.from_bytes(columns.seen, "little")
    points = array("Q", compress(rows, missed.to_bytes(size, "little")))
    if has_unexecuted:
        return points
    executed = zeros("I", len(columns.places))
    for place in set(columns.outermost_places(chains)) - {NO_ID}:
        executed[place] = 1
    return array("Q", compress(points, gather(columns.outermost_places(points), executed, 0)))


def _number_lines(columns: PcColumns, wanted: Callable[[Frame], bool] | None) -> tuple[array[int], array[int], list[str]]:
    """Return the lines of all frames, ascending, the number of each frame's line, and the names of the files, sorted.

    A line is a word: the rank of its file's name, from 1, and its number. The rank is 0 for what is unknown or unwanted.
    """
    frames, places = columns.frames, columns.places
    files = sorted((frames.strings[number] or "", number) for number in set(places.file) if number and frames.strings[number])
    ranks = {number: rank for rank, (_, number) in enumerate(files, 1)}
    of_place = array("I", [ranks.get(number, 0) for number in places.file])
    if wanted is not None:
        flags = columns.place_flags(wanted)
        of_place = array("I", [rank if flag else 0 for rank, flag in zip(of_place, flags, strict=True)])
    words = pair_words(gather(places.of_frame, of_place, 0), frames.line)
    numbering = Numbering()
    lines = numbering.number(words)
    return lines, numbering.ids(words), [name for name, _ in files]
