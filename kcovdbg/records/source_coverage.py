# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of source files by a trace: lines, functions and branches, counted once for all outputs.

What could not be decided is left out: it is neither executed nor missed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter
from posixpath import normpath
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.location import KIND_BITS, KIND_MASK, MAX_DEPTH, Frame
from kcovdbg.records.line_states import BranchState, FunctionState, LineState, StateColumns, TraceRecords, make_finder
from kcovdbg.records.native_loops import find_chains, find_outermost, flatten_chains
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.symbols.location_table import LocationTable, TableColumns

_DECIDED: Final = bytes(LineState(state).is_decided if state in set(LineState) else 0 for state in range(256))
_UNKNOWN: Final = bytes(LineState(state).is_unknown if state in set(LineState) else 0 for state in range(256))


class FunctionCoverage(NamedTuple):
    """A function, with all its copies."""

    name: str
    line: int
    """Where it begins; of one that has only inlined copies, where the first coverage point of it is."""
    hits: int
    """How often it was entered, 0 if never; 1 where it follows from others that it was. Of a function that has only inlined
    copies the most records of one of its points."""


class BranchCoverage(NamedTuple):
    """Code that goes on in one of two ways."""

    line: int
    number: int
    """Among all branches of the line, which does not depend on the trace."""
    was_executed: bool
    hits: tuple[int, int]
    """How often it went either way."""


class SourceCoverage(NamedTuple):
    """What is decided of one file."""

    path: str
    """Relative to the build root, without ``./`` and ``..`` where it is below it."""
    lines: array[int]
    """Those that were executed, and those that were not; ascending."""
    hits: array[int]
    """Of each: the most records of a block of it, 1 where it follows from others that it was executed, or 0."""
    functions: Sequence[FunctionCoverage]
    """By line and name."""
    branches: Sequence[BranchCoverage]
    """By line. Of an executed line those that were executed, if it is known which ways; of another one those that one function
    has of it."""
    unknown_lines: int

    @property
    def executed_lines(self) -> int:
        """Number of executed lines."""
        return len(self.hits) - self.hits.count(0)

    @property
    def executed_functions(self) -> int:
        """Number of executed functions."""
        return sum(function.hits > 0 for function in self.functions)

    @property
    def taken_sides(self) -> int:
        """Number of sides of branches that were taken, of two for each."""
        return sum(bool(hits) for branch in self.branches for hits in branch.hits)


class CoverageTotals(NamedTuple):
    """Sums over files."""

    lines: int
    executed_lines: int
    functions: int
    executed_functions: int
    sides: int
    taken_sides: int
    unknown_lines: int


def sum_up(files: Iterable[SourceCoverage]) -> CoverageTotals:
    """Return the sums over some files."""
    rows = [
        (
            len(file.lines),
            file.executed_lines,
            len(file.functions),
            file.executed_functions,
            2 * len(file.branches),
            file.taken_sides,
            file.unknown_lines,
        )
        for file in files
    ]
    return CoverageTotals(*map(sum, zip(*rows, strict=True))) if rows else CoverageTotals(0, 0, 0, 0, 0, 0, 0)


class CodeCoverage(NamedTuple):
    """The coverage of an image by a trace."""

    files: Sequence[SourceCoverage]
    """Those with code whose functions or lines are decided or unknown, by path."""
    contradictions: int
    """Functions whose records contradict their edges."""
    unmatched: int
    """PCs that are of no point."""


_Wanted: TypeAlias = Callable[[Frame], bool]
_Place: TypeAlias = "tuple[str, str]"
"""The path and the name of a function."""


class _Functions(NamedTuple):
    """All functions with a point, by path and name."""

    hits: Mapping[_Place, int | None]
    """None where it is unknown whether it was executed."""
    lines: Mapping[_Place, int]


def find_source_coverage(table: LocationTable, trace: TraceRecords, wanted: _Wanted | None = None) -> CodeCoverage:
    """Return the coverage of all files of an image.

    :param table: of the image.
    :param wanted: returns whether a function of a file is of interest, given as a frame; None if all are.
    :raises CapabilityError: when the table has no blocks.
    """
    columns = make_finder(table).find_columns(trace)
    paths = [normpath(name) if name else "" for name in columns.names]
    functions = _find_functions(table, trace, columns, paths)
    by_path: defaultdict[str, list[FunctionCoverage]] = defaultdict(list)
    starts: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for place, hits in functions.hits.items():
        (path, name), line = place, functions.lines[place]
        starts[path].append((line, name))
        if hits is not None and (wanted is None or wanted(Frame(name, path, None, None))):
            by_path[path].append(FunctionCoverage(name, line, hits))
    branches = _group_branches(columns, paths)
    parts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for path, part in _split_files(columns, paths):
        parts[path].append(part)
    found = []
    for path in sorted({*parts, *by_path}):
        lines = _join_lines(columns, parts[path])
        if wanted is not None:
            lines = _select_lines(lines, path, sorted(starts[path]), wanted)
        own = sorted(by_path[path], key=attrgetter("line", "name"))
        of_lines = _choose_branches(branches.get(path, {}), lines)
        if lines.numbers or own or lines.unknown:
            found.append(SourceCoverage(path, lines.numbers, lines.hits, own, of_lines, lines.unknown))
    return CodeCoverage(found, columns.contradictions, columns.unmatched)


def add_executed(files: Sequence[SourceCoverage], executed: Mapping[str, Mapping[int, int]]) -> Sequence[SourceCoverage]:
    """Return the coverage of files with further lines that were executed, such as those of modules.

    :param executed: by the file's name in debug info and the line: records.
    """
    if not executed:
        return files
    by_path = {file.path: file for file in files}
    for name, records in executed.items():
        path = normpath(name)
        file = by_path.get(path, SourceCoverage(path, array("I"), array("Q"), (), (), 0))
        lines = dict(zip(file.lines, file.hits, strict=True))
        for line, hits in records.items():
            lines[line] = max(hits, lines.get(line, 0))
        numbers = array("I", sorted(lines))
        by_path[path] = file._replace(lines=numbers, hits=array("Q", [lines[line] for line in numbers]))
    return [by_path[path] for path in sorted(by_path)]


class _Lines(NamedTuple):
    numbers: array[int]
    hits: array[int]
    unknown_numbers: array[int]

    @property
    def unknown(self) -> int:
        return len(self.unknown_numbers)


def _split_files(columns: StateColumns, paths: Sequence[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the path of each file, and where its lines begin and end."""
    files = columns.line_file
    start = 0
    while start < len(files):
        end = bisect_left(files, files[start] + 1, start)
        if files[start] < len(paths) and paths[files[start]]:
            yield paths[files[start]], (start, end)
        start = end


def _join_lines(columns: StateColumns, parts: Sequence[tuple[int, int]]) -> _Lines:
    """Return the lines of a file; debug info may spell its name in several ways."""
    if len(parts) == 1:
        start, end = parts[0]
        states, numbers = columns.line_state[start:end], columns.line[start:end]
        decided = states.translate(_DECIDED)
        unknown = states.translate(_UNKNOWN)
        hits = columns.line_hits[start:end]
        return _Lines(
            array("I", compress(numbers, decided)), array("Q", compress(hits, decided)), array("I", compress(numbers, unknown))
        )
    states_of: defaultdict[int, set[LineState]] = defaultdict(set)
    most: defaultdict[int, int] = defaultdict(int)
    for start, end in parts:
        for index in range(start, end):
            state, line = LineState(columns.line_state[index]), columns.line[index]
            states_of[line].add(state)
            if state.was_executed:
                most[line] = max(most[line], columns.line_hits[index])
    missed = {line for line, states in states_of.items() if states == {LineState.NOT_EXECUTED}}
    known = sorted(missed.union(most))
    others = (line for line, states in states_of.items() if states != {LineState.NOT_INSTRUMENTED} and line not in most)
    unknown_lines = array("I", sorted(set(others) - missed))
    return _Lines(array("I", known), array("Q", [most.get(line, 0) for line in known]), unknown_lines)


def _select_lines(lines: _Lines, path: str, starts: Sequence[tuple[int, str]], wanted: _Wanted) -> _Lines:
    """Return the lines that are in wanted functions: each is in the one that begins before it.

    :param starts: lines and names of the functions of the file, ascending.
    """
    first_lines = [line for line, _ in starts]

    def choose(numbers: array[int]) -> bytes:
        names = (starts[at - 1][1] if (at := bisect_right(first_lines, number)) else None for number in numbers)
        return bytes(wanted(Frame(name, path, None, None)) for name in names)

    flags, unknown_flags = choose(lines.numbers), choose(lines.unknown_numbers)
    return _Lines(
        array("I", compress(lines.numbers, flags)),
        array("Q", compress(lines.hits, flags)),
        array("I", compress(lines.unknown_numbers, unknown_flags)),
    )


class _Branch(NamedTuple):
    function: int
    state: int
    hits: tuple[int, int]


def _group_branches(columns: StateColumns, paths: Sequence[str]) -> Mapping[str, Mapping[int, Sequence[_Branch]]]:
    """Return the branches of each file and line, in the order of their code."""
    found: defaultdict[str, defaultdict[int, list[_Branch]]] = defaultdict(lambda: defaultdict(list))
    sides = zip(columns.branch_hits[::2], columns.branch_hits[1::2], strict=True)
    rows = map(_Branch, columns.branch_function, columns.branch_state, sides)
    for file, line, branch in zip(columns.branch_file, columns.branch_line, rows, strict=True):
        if file < len(paths) and paths[file]:
            found[paths[file]][line].append(branch)
    return found


def _choose_branches(branches: Mapping[int, Sequence[_Branch]], lines: _Lines) -> list[BranchCoverage]:
    """Return the decided branches of lines. Inlined code has them in each copy, of which an execution takes one."""
    found = []
    for line, hits in zip(lines.numbers, lines.hits, strict=True):
        for number, branch in enumerate(branches.get(line, ())):
            was_executed = branch.state == BranchState.EXECUTED
            is_first = branch.function == branches[line][0].function and branch.state == BranchState.NOT_EXECUTED
            if was_executed if hits else is_first:
                found.append(BranchCoverage(line, number, was_executed, branch.hits))
    return found


class _Points:
    """The points of an image, with the functions of their frames.

    :param columns: of its table.
    """

    def __init__(self, columns: TableColumns) -> None:
        self._frames = columns.frames
        self._known: dict[int, _Place] = {}

    def place_of(self, frame: int) -> _Place | None:
        """Return the path and the name of a frame's function; None where one is unknown."""
        frames = self._frames
        # A damaged table has numbers beyond its frames.
        if frame >= len(frames.function):
            return None
        function, file = frames.function[frame], frames.file[frame]
        word = function << 32 | file
        place = self._known.get(word)
        if place is None:
            name, path = frames.strings[function], frames.strings[file]
            place = self._known[word] = (normpath(path) if path else "", strip_clone_suffix(name or ""))
        return place if all(place) else None

    def compiled_into(self, chains: Sequence[int]) -> Iterator[_Place | None]:
        """Iterate over the functions that points were compiled into."""
        return map(self.place_of, find_outermost(self._frames, array("Q", chains)))

    def find_lines(self, chains: Iterable[int]) -> dict[_Place, int]:
        """Return the functions of all frames of chains, and the first line of each there, 0 where that is unknown."""
        _, numbers = flatten_chains(self._frames, array("Q", set(chains)))
        found: dict[_Place, int] = {}
        for number in set(numbers):
            place = self.place_of(number)
            if place is not None:
                line, before = self._frames.line[number], found.get(place, 0)
                found[place] = min(line, before) if line and before else line or before
        return found

    def count_inlined(self, chains: Iterable[int], records: Iterable[int]) -> dict[_Place, int]:
        """Return the functions that are inlined at points, and the most records of one of these points.

        :param records: of each.
        """
        most: dict[int, int] = {}
        for word, count in zip(map(_without_outermost, chains), records, strict=True):
            most[word] = max(count, most.get(word, 0))
        found: dict[_Place, int] = {}
        lengths, numbers = flatten_chains(self._frames, array("Q", most))
        counts = chain.from_iterable(map(repeat, most.values(), lengths))
        for number, count in zip(numbers, counts, strict=True):
            place = self.place_of(number)
            if place is not None:
                found[place] = max(count, found.get(place, 0))
        return found


def _without_outermost(word: int) -> int:
    """Return a chain without the function that it was compiled into."""
    return word - (1 << KIND_BITS) if word >> KIND_BITS & MAX_DEPTH else word


class _OwnCode(NamedTuple):
    """What functions have code of their own, and where the points are."""

    hits: Mapping[_Place, Sequence[int | None]]
    """How often each copy was entered; None where it is unknown whether it was."""
    lines: Mapping[_Place, int]
    """Where its code begins."""
    missed: Sequence[int]
    """The chains of points in functions that were not executed."""
    others: Sequence[int]
    """The chains of points in others."""


def _find_own_code(table: LocationTable, kinds: Iterable[int], columns: StateColumns, paths: Sequence[str]) -> _OwnCode:
    """Return the functions with code of their own.

    :param kinds: of points that the trace can have.
    """
    assert table.blocks is not None
    points = _Points(table.columns)
    base, offsets, chains = table.columns.base, table.columns.offset, table.columns.chain
    of_kinds = frozenset(kinds)
    cold = {symbol.address - base for symbol in table.find_functions(lambda name: ".cold" in name)}
    hits: defaultdict[_Place, list[int | None]] = defaultdict(list)
    lines: dict[_Place, int] = {}
    missed: list[int] = []
    others: list[int] = []
    parts: list[int] = []
    firsts: list[int] = []
    for part, (start, size) in enumerate(zip(table.blocks.part_start, table.blocks.part_size, strict=True)):
        state = columns.entry_state[part]
        # A point is the address after its call.
        first, end = bisect_right(offsets, start), bisect_right(offsets, start + size)
        own = [word for word in chains[first:end] if word & KIND_MASK in of_kinds]
        if state == FunctionState.NOT_INSTRUMENTED or not own:
            continue
        (missed if state == FunctionState.NOT_EXECUTED else others).extend(own)
        if start not in cold:
            parts.append(part)
            firsts.append(own[0])
    for part, place in zip(parts, points.compiled_into(firsts), strict=True):
        if place is None:
            continue
        is_unknown = columns.entry_state[part] == FunctionState.UNKNOWN
        hits[place].append(None if is_unknown else columns.entry_hits[part])
        file, line = columns.entry_file[part], columns.entry_line[part]
        if file < len(paths) and paths[file] == place[0]:
            lines[place] = min(line, lines.get(place, line))
    return _OwnCode(hits, lines, missed, others)


def _find_functions(table: LocationTable, trace: TraceRecords, columns: StateColumns, paths: Sequence[str]) -> _Functions:
    """Return the functions with a point.

    An inlined copy was executed if a point of it was. It was not if the function was not that it is in; else that is unknown,
    as code in front of its first point may be in a block of the caller's.
    """
    own = _find_own_code(table, trace.kinds, columns, paths)
    points = _Points(table.columns)
    counts = as_counts(trace.counts)
    recorded = find_chains(counts.pcs, table.columns)
    inlined = points.count_inlined(recorded.chains, counts.records)
    unknown = points.find_lines(map(_without_outermost, own.others))
    lines: dict[_Place, int] = dict(own.lines)
    for first_lines in (points.find_lines(own.missed), points.find_lines(own.others)):
        for place, line in first_lines.items():
            lines[place] = min(line, lines.get(place, line)) if line else lines.get(place, 0)
    found: dict[_Place, int | None] = {}
    for place in lines:
        copies = own.hits.get(place, ())
        entered = sum(filter(None, copies))
        if entered or place in inlined:
            found[place] = max(entered, inlined.get(place, 0))
        else:
            found[place] = None if None in copies or place in unknown else 0
    return _Functions(found, lines)
