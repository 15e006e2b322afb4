# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage by source line: which lines have points, and which of them a buffer covers."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Final

from kcovdbg.records.pc_columns import PcColumns, kind_flags, low_bytes, low_halves, pair_words
from kcovdbg.compiled_module import zeros
from kcovdbg.records.coverage import FileCoverage
from kcovdbg.model.frame_columns import FrameColumns
from kcovdbg.model.location import Frame
from kcovdbg.records.chain_loops import add_lines, find_outermost, flatten_chains, gather
from kcovdbg.records.native_loops import NO_ID, Numbering
from kcovdbg.symbols.coverage_points import PointKind

# Rows that are looked at together.
_STEP: Final = 1024


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
    lines, of_frame, names = _number_lines(columns.frames, [chains for chains, _ in groups], wanted)
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
    frames, rows = columns.frames, columns.table.columns.chain
    flags = int.from_bytes(kind_flags(rows, kinds), "little") & ~int.from_bytes(columns.seen, "little")
    if has_unexecuted:
        return _choose(rows, flags)
    recorded = array("I", set(find_outermost(frames, chains)) - {NO_ID})
    # First by name alone: few functions were executed, and few of the others share a name with them.
    named = zeros("I", len(frames.strings))
    for function in gather(recorded, frames.function, 0):
        named[function] = 1
    of_rows = gather(gather(find_outermost(frames, rows), frames.function, 0), named, 0)
    points = _choose(rows, flags & int.from_bytes(low_bytes(of_rows), "little"))
    executed = set(_find_functions(frames, recorded))
    return array("Q", compress(points, map(executed.__contains__, _find_functions(frames, find_outermost(frames, points)))))


def _choose(rows: Sequence[int], flags: int) -> array[int]:
    """Return the rows whose flags are set.

    :param flags: a byte for each row, 0 or 1, the first one lowest.
    """
    chosen = array("Q")
    wanted = flags.to_bytes(len(rows), "little")
    start = wanted.find(1)
    while start >= 0:
        end = start + _STEP
        chosen.extend(compress(rows[start:end], wanted[start:end]))
        start = wanted.find(1, end)
    return chosen


def _find_functions(frames: FrameColumns, numbers: array[int]) -> array[int]:
    """Return the function and the file of each frame as a word; functions of several files share names."""
    return pair_words(*(gather(numbers, column, 0) for column in (frames.function, frames.file)))


def _number_lines(
    frames: FrameColumns, groups: Iterable[array[int]], wanted: Callable[[Frame], bool] | None
) -> tuple[array[int], array[int], list[str]]:
    """Return the lines of the frames of chains, ascending, the number of each frame's line, and the names of the files, sorted.

    A line is a word: the rank of its file's name, from 1, and its number. The rank is 0 for what is unknown or unwanted.
    """
    strings = frames.strings
    used = Numbering((0, len(frames.line))).number(*(flatten_chains(frames, chains)[1] for chains in groups))
    # A damaged table has numbers beyond its frames.
    numbers = low_halves(used[: bisect_left(used, len(frames.line))])
    of_file = gather(numbers, frames.file, 0)
    files = sorted((strings[number] or "", number) for number in set(of_file) if number and strings[number])
    ranks = {number: rank for rank, (_, number) in enumerate(files, 1)}
    of_frames = array("I", [ranks.get(number, 0) for number in of_file])
    if wanted is not None:
        functions = _find_functions(frames, numbers)
        flags = {word: wanted(Frame(strings[word >> 32], strings[word & NO_ID], None, None)) for word in set(functions)}
        of_frames = array("I", [rank if flags[word] else 0 for rank, word in zip(of_frames, functions, strict=True)])
    words = pair_words(of_frames, gather(numbers, frames.line, 0))
    numbering = Numbering()
    lines = numbering.number(words)
    of_frame = zeros("I", len(frames.line))
    for number, line in zip(numbers, numbering.ids(words), strict=True):
        of_frame[number] = line
    return lines, of_frame, [name for name, _ in files]
