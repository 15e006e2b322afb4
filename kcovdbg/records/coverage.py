# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of lines and functions: the points of lines, and the states of lines with code."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from posixpath import normpath
from typing import Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.model.location import Frame, FrameColumns
from kcovdbg.records.line_states import CodeColumns, LineState
from kcovdbg.records.native_loops import NO_ID, Numbering, add_lines, find_outermost, flatten_chains
from kcovdbg.records.pc_locations import PcColumns, kind_flags, low_bytes, low_halves, pair_words
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.table_rows import INVERTED, gather, select_words


class LineCoverage(NamedTuple):
    """Coverage of one line of source."""

    file: str
    line: int
    state: LineState
    hits: int
    """Records of the line's points, or of its code if those are more."""
    points: int
    """Points that the compiler put there, including points of functions inlined there."""
    covered: int
    """Points that were executed."""


class FileCoverage(NamedTuple):
    """Coverage of the lines of a file that have points or code, in columns: a kernel has a million
    of them.
    """

    file: str
    lines: Sequence[int]
    """The numbers of the lines, ascending."""
    states: Sequence[int]
    """The :class:`LineState` of each line."""
    hits: Sequence[int]
    """As :attr:`LineCoverage.hits`; the columns below in the same way."""
    points: Sequence[int]
    covered: Sequence[int]

    @property
    def executed_lines(self) -> int:
        """Number of executed lines."""
        return self.states.count(LineState.EXECUTED) + self.states.count(LineState.PARTLY)

    def rows(self) -> Iterator[LineCoverage]:
        """Iterate over the lines."""
        states = map(LineState, self.states)
        columns = (self.lines, states, self.hits, self.points, self.covered)
        for row in zip(*columns, strict=True):
            yield LineCoverage(self.file, *row)


class PointLines(NamedTuple):
    """The lines of all files that have points."""

    spans: Mapping[str, range]
    """Where the lines of each file are in the columns."""
    lines: Sequence[int]
    """Ascending in each file."""
    hits: Sequence[int]
    """As :attr:`LineCoverage.hits`; the columns below in the same way."""
    points: Sequence[int]
    covered: Sequence[int]


NO_POINT_LINES: Final = PointLines({}, array("I"), array("Q"), array("I"), array("I"))


class JoinedLines(NamedTuple):
    """The lines of all files that have points or code, with their states."""

    spans: Mapping[str, range]
    """Where the lines of each file are in the columns, by name."""
    lines: array[int]
    """As in :class:`FileCoverage`; the columns below in the same way."""
    states: bytearray
    hits: array[int]
    points: array[int]
    covered: array[int]
    function_lines: bytearray
    """For each line on which functions begin, which states the functions' lines have: HAS_DECIDED,
    HAS_UNKNOWN.
    """
    function_hits: array[int]
    """For each line on which functions begin, the hits of their first executed line, or 0."""

    def files(self) -> list[FileCoverage]:
        """Return the lines by file."""
        found = []
        for name, span in self.spans.items():
            part = slice(span.start, span.stop)
            states, columns = self.states[part], (self.hits, self.points, self.covered)
            others = (column[part] for column in columns)
            found.append(FileCoverage(name, self.lines[part], states, *others))
        return found


# enum kcovdbg_function_lines.
HAS_DECIDED: Final = 1
HAS_UNKNOWN: Final = 2

# Numbers of struct kcovdbg_source_file.
_FILE_NUMBERS: Final = 7


def join_code(
    points: PointLines, code: CodeColumns, starts: Mapping[str, Collection[int]]
) -> JoinedLines:
    """Return lines with points and lines with code, by file, with their states.

    A line has points and no code if its code is not understood. It was executed if one of its
    points was recorded.

    :param starts: the first lines of functions, by path.
    """
    names = sorted(points.spans.keys() | code.spans.keys())
    files, functions = array("I"), array("I")
    nothing = range(0)
    for name in names:
        of_points, of_code = points.spans.get(name, nothing), code.spans.get(name, nothing)
        files.extend((of_points.start, of_points.stop, of_code.start, of_code.stop))
        files.append(len(functions))
        functions.extend(sorted(starts.get(normpath(name), ())))
        files.extend((len(functions), 0))
    ffi, lib = load_native()
    point_count, code_count = len(points.lines), len(code.lines)
    given = {
        "point_line": column("I", points.lines, point_count),
        "points": column("I", points.points, point_count),
        "covered": column("I", points.covered, point_count),
        "point_hits": column("Q", points.hits, point_count),
        "code_line": column("I", code.lines, code_count),
        "code_state": column("B", code.states, code_count),
        "code_hits": column("Q", code.hits, code_count),
        "function_line": column("I", functions),
    }
    room = point_count + code_count
    lines, with_points, covered = zeros("I", room), zeros("I", room), zeros("I", room)
    states, hits = bytearray(room), zeros("Q", room)
    function_lines, function_hits = bytearray(len(functions)), zeros("Q", len(functions))
    put = {
        "line": column("I", lines),
        "points": column("I", with_points),
        "covered": column("I", covered),
        "state": column("B", states),
        "hits": column("Q", hits),
        "function_lines": column("B", function_lines),
        "function_hits": column("Q", function_hits),
    }
    lib.kcovdbg_join_lines(
        ffi.new("struct kcovdbg_source_lines *", given),
        ffi.from_buffer("struct kcovdbg_source_file[]", files),
        len(names),
        ffi.new("struct kcovdbg_joined_lines *", put),
    )
    spans = _find_spans(names, files[_FILE_NUMBERS - 1 :: _FILE_NUMBERS])
    return JoinedLines(
        spans, lines, states, hits, with_points, covered, function_lines, function_hits
    )


def _group_lines(files: Iterable[FileCoverage]) -> dict[str, dict[int, LineCoverage]]:
    """Return lines by file and number."""
    return {coverage.file: {row.line: row for row in coverage.rows()} for coverage in files}


def fill_lines(
    sides: Sequence[Sequence[FileCoverage]], missing: Sequence[LineState]
) -> list[list[FileCoverage]]:
    """Return the lines of several traces so that each trace has the lines that any of them has.

    :param sides: the lines of each trace, by file.
    :param missing: for each trace, the state of lines that only others have.
    """
    by_name = list(map(_group_lines, sides))
    known: defaultdict[str, dict[int, LineCoverage]] = defaultdict(dict)
    for side in by_name:
        for name, lines in side.items():
            known[name].update(lines)
    filled = []
    for side, state in zip(by_name, missing, strict=True):
        files = []
        for name, lines in sorted(known.items()):
            own = side.get(name, {})
            for line in lines.keys() - own.keys():
                own[line] = lines[line]._replace(state=state, hits=0, covered=0)
            files.append(_make_file(name, own))
        filled.append(files)
    return filled


def _make_file(name: str, rows: Mapping[int, LineCoverage]) -> FileCoverage:
    """Return lines as columns.

    :param rows: one or more, by line.
    """
    columns = zip(*(rows[line] for line in sorted(rows)), strict=True)
    _, lines, states, hits, points, covered = columns
    return FileCoverage(name, lines, bytes(states), hits, points, covered)


def find_lines(
    columns: PcColumns,
    records: array[int],
    kinds: Iterable[PointKind],
    wanted: Callable[[Frame], bool] | None = None,
    *,
    has_unexecuted: bool = False,
) -> PointLines:
    """Return the lines of points, by file.

    A point counts for every line of its chain of inlined functions: executing an inlined body
    executes the call. Functions that were not executed at all are left out, and so are lines
    without a record where there is no table.

    :param columns: where the PCs are; PCs of tail calls from unknown functions are left out.
    :param records: the number of records of each PC. Type code Q.
    :param kinds: the kinds of points of the table that can have records.
    :param wanted: returns whether lines of a function or file are wanted; None if all are.
    :param has_unexecuted: whether lines of functions that were not executed are wanted as well.
    """
    chains = columns.chains
    if any(columns.approximate):
        exact = columns.approximate.translate(INVERTED)
        chains, records = select_words(chains, exact), select_words(records, exact)
    groups: list[tuple[array[int], array[int] | None]] = [(chains, records)]
    if columns.table is not None:
        groups.append((_missed_points(columns, chains, kinds, has_unexecuted=has_unexecuted), None))
    strings = columns.frames.strings
    names = {number: strings[number] for number in set(columns.frames.file)}
    unwanted: Iterable[int] = ()
    if wanted is not None:
        unwanted = _find_unwanted(columns.frames, (chains for chains, _ in groups), wanted)
    spans, lines, of_frame = number_lines(columns.frames, names, unwanted)
    return PointLines(spans, lines, *add_lines(columns.frames, groups, of_frame, len(lines)))


def _missed_points(
    columns: PcColumns, chains: array[int], kinds: Iterable[PointKind], *, has_unexecuted: bool
) -> array[int]:
    """Return the chains of points that were not recorded, in functions that were executed, or in
    all.

    A function that is inlined elsewhere is another copy, which need not have been executed.

    :param chains: the chains of the recorded points.
    """
    assert columns.table is not None
    frames, rows = columns.frames, columns.table.columns.chain
    seen = int.from_bytes(columns.seen, "little")
    flags = int.from_bytes(kind_flags(rows, kinds), "little") & ~seen
    if has_unexecuted or not flags:
        return select_words(rows, flags.to_bytes(len(rows), "little"))
    recorded = array("I", set(find_outermost(frames, chains)) - {NO_ID})
    # First by name alone: few functions were executed, and few of the others share a name with
    # them.
    named = zeros("I", len(frames.strings))
    for function in gather(recorded, frames.function, 0):
        named[function] = 1
    of_rows = gather(gather(find_outermost(frames, rows), frames.function, 0), named, 0)
    flags &= int.from_bytes(low_bytes(of_rows), "little")
    points = select_words(rows, flags.to_bytes(len(rows), "little"))
    executed = set(_find_functions(frames, recorded))
    functions = _find_functions(frames, find_outermost(frames, points))
    return array("Q", compress(points, map(executed.__contains__, functions)))


def _find_functions(frames: FrameColumns, numbers: array[int]) -> array[int]:
    """Return the function and the file of each frame as a word; functions of several files share
    names.
    """
    return pair_words(*(gather(numbers, column, 0) for column in (frames.function, frames.file)))


def _find_unwanted(
    frames: FrameColumns, groups: Iterable[array[int]], wanted: Callable[[Frame], bool]
) -> Iterator[int]:
    """Yield the numbers of the frames of chains whose functions and files are unwanted."""
    flat = (flatten_chains(frames, chains)[1] for chains in groups)
    used = Numbering((0, len(frames.line))).number(*flat)
    # A damaged table has numbers beyond its frames.
    numbers = low_halves(used[: bisect_left(used, len(frames.line))])
    functions = _find_functions(frames, numbers)
    unwanted = set()
    for word in set(functions):
        function, file = frames.strings[word >> 32], frames.strings[word & NO_ID]
        if not wanted(Frame(function, file, None, None)):
            unwanted.add(word)
    yield from compress(numbers, map(unwanted.__contains__, functions))


def number_lines(
    frames: FrameColumns, names: Mapping[int, str | None], unwanted: Iterable[int]
) -> tuple[Mapping[str, range], array[int], array[int]]:
    """Return where the lines of each file are in a column, the column of lines of frames, ascending
    in each file, and the index of each frame's line in it; :data:`NO_ID` for a frame without line.

    :param names: the name of each file, by its number among the strings.
    :param unwanted: frames that are left out.
    """
    files = sorted(filter(None, set(names.values())))
    rank_of = {name: rank for rank, name in enumerate(files, 1)}
    ranks = zeros("I", len(frames.strings))
    for number, name in names.items():
        if name:
            ranks[number] = rank_of[name]
    of_frames = gather(frames.file, ranks, 0)
    for number in unwanted:
        of_frames[number] = 0
    _, lib = load_native()
    lines, of_frame, ends = (zeros("I", len(values)) for values in (of_frames, of_frames, files))
    count = lib.kcovdbg_number_lines(
        column("I", of_frames),
        column("I", frames.line, len(of_frames)),
        len(of_frames),
        len(files),
        column("I", lines),
        column("I", ends),
        column("I", of_frame),
    )
    if count > len(lines):
        raise MemoryError
    return _find_spans(files, ends), lines[:count], of_frame


def _find_spans(names: Sequence[str], ends: Iterable[int]) -> dict[str, range]:
    """Return where the lines of each file are in columns, without files that have none.

    :param ends: for each file, the end of its lines.
    """
    spans = {}
    start = 0
    for name, end in zip(names, ends, strict=True):
        if end > start:
            spans[name] = range(start, end)
        start = end
    return spans
