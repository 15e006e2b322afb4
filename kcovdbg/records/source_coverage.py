# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of source files by a trace: lines, functions and branches, counted once for all outputs.

What could not be decided is left out: it is neither executed nor missed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, compress, pairwise, repeat
from operator import and_, attrgetter
from posixpath import normpath
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.elf.symbol_table import demangle, strip_clone_suffix
from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import KIND_BITS, KIND_MASK, MAX_DEPTH, Frame
from kcovdbg.records.line_states import (
    BranchState,
    FunctionState,
    LineState,
    Quality,
    StateColumns,
    TraceRecords,
    make_finder,
)
from kcovdbg.records.native_loops import NO_ID, find_chains, find_outermost, flatten_chains
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.records.pc_locations import pair_words
from kcovdbg.symbols.location_table import LocationTable, TableColumns
from kcovdbg.symbols.symbolizer import without_collection

# By the numbers of states.
_DECIDED: Final = bytes(state.is_decided for state in LineState).ljust(256, b"\0")
_UNKNOWN: Final = bytes(state.is_unknown for state in LineState).ljust(256, b"\0")

_LAST_LINE: Final = 1 << 32


class FunctionCoverage(NamedTuple):
    """A function, with all its copies."""

    name: str
    line: int
    """Where it is defined; where debug info does not say that, where its code begins, and of one
    that has only inlined copies, where its first coverage point is.
    """
    hits: int | None
    """How often it was entered, 0 if never; 1 where it follows from its lines that it was; None
    where it is unknown whether it was. Of a function that has only inlined copies the most records
    of one of its points."""


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
    """The lines that were executed and those that were not, ascending."""
    hits: array[int]
    """The most records of a block of each line, 1 where it follows from others that it was
    executed, or 0.
    """
    all_functions: Sequence[FunctionCoverage]
    """The functions with code, by line and name."""
    branches: Sequence[BranchCoverage]
    """The branches by line: of an executed line the executed ones, if it is known which ways they
    went; of any other line those that one function has there."""
    unknown_lines: array[int]
    """The lines of which it is unknown whether they were executed."""

    @property
    def functions(self) -> Sequence[tuple[FunctionCoverage, int]]:
        """The functions whose execution is known, with how often they were entered."""
        known = ((function, function.hits) for function in self.all_functions)
        return [(function, hits) for function, hits in known if hits is not None]

    @property
    def executed_lines(self) -> int:
        """Number of executed lines."""
        return len(self.hits) - self.hits.count(0)

    @property
    def executed_functions(self) -> int:
        """Number of executed functions."""
        return sum(hits > 0 for _, hits in self.functions)

    @property
    def taken_sides(self) -> int:
        """Number of sides of branches that were taken, of two for each."""
        return sum(bool(hits) for branch in self.branches for hits in branch.hits)

    @property
    def totals(self) -> CoverageTotals:
        """The numbers of what the file has."""
        return CoverageTotals(
            len(self.lines),
            self.executed_lines,
            len(self.functions),
            self.executed_functions,
            2 * len(self.branches),
            self.taken_sides,
            len(self.unknown_lines),
        )


class CoverageTotals(NamedTuple):
    """Numbers of lines, functions and sides of branches, of a file or of several."""

    lines: int = 0
    executed_lines: int = 0
    functions: int = 0
    executed_functions: int = 0
    sides: int = 0
    taken_sides: int = 0
    unknown_lines: int = 0


def sum_up(files: Iterable[SourceCoverage]) -> CoverageTotals:
    """Return the sums over some files."""
    return CoverageTotals(*map(sum, zip(*(file.totals for file in files), strict=True)))


class FunctionLines(NamedTuple):
    """A function with its lines."""

    function: FunctionCoverage
    lines: int
    executed_lines: int
    unknown_lines: int


def find_function_lines(file: SourceCoverage) -> Iterator[FunctionLines]:
    """Iterate over the functions of a file with their lines: from where each begins to where the
    next one does. Those that a macro defines on one line share its lines.
    """
    starts = sorted({function.line for function in file.all_functions})
    ends = dict(pairwise([*starts, _LAST_LINE]))
    for function in file.all_functions:
        begin, end = function.line, ends[function.line]
        first, last = bisect_left(file.lines, begin), bisect_left(file.lines, end)
        hits = file.hits[first:last]
        unknown = bisect_left(file.unknown_lines, end) - bisect_left(file.unknown_lines, begin)
        yield FunctionLines(function, last - first, len(hits) - hits.count(0), unknown)


def merge_traces(traces: Sequence[TraceRecords]) -> TraceRecords:
    """Return several traces as one, which has each execution that one of them has.

    What was not executed is known where each trace ended in user space, and where all have records
    of the same points.

    :raises CapabilityError: when only some have executed addresses.
    """
    if len(traces) == 1:
        return traces[0]
    if len({trace.quality & Quality.EXACT for trace in traces}) > 1:
        raise CapabilityError(
            "executed addresses and records of KCOV cannot be counted together",
            hint="name one kind of trace",
        )
    counts: Counter[int] = Counter()
    for trace in traces:
        counts.update(trace.counts)
    kinds = frozenset().union(*(trace.kinds for trace in traces))
    quality = reduce(and_, (trace.quality for trace in traces))
    if any(trace.quality & Quality.ENABLES for trace in traces):
        quality |= Quality.ENABLES
    if not quality & Quality.ENDED or any(trace.kinds != kinds for trace in traces):
        quality &= ~(Quality.COMPLETE | Quality.PLACED)
    listed: set[int] = set()
    if quality & Quality.COMPLETE:
        listed.update(*(trace.listed for trace in traces))
    return TraceRecords(counts, quality, kinds, listed=sorted(listed))


class CodeCoverage(NamedTuple):
    """The coverage of an image by a trace."""

    files: Sequence[SourceCoverage]
    """The files that have code, by path."""
    contradictions: int
    """Functions whose records contradict their edges."""
    unmatched: int
    """PCs that are of no point."""


_Wanted: TypeAlias = Callable[[Frame], bool]
_Place: TypeAlias = "tuple[str, str]"
"""The path and the name of a function."""


class _Functions(NamedTuple):
    """All functions with code, by path and name."""

    hits: Mapping[_Place, int | None]
    """None where it is unknown whether it was executed."""
    lines: Mapping[_Place, int]
    inlined: Collection[_Place]
    """The functions with inlined copies, whose code may be in blocks that began before it."""


def find_source_coverage(
    table: LocationTable, trace: TraceRecords, wanted: _Wanted | None = None
) -> CodeCoverage:
    """Return the coverage of all files of an image.

    :param table: of the image.
    :param wanted: returns whether a function of a file is of interest, given as a frame; None if
        all are.
    :raises CapabilityError: when the table has no blocks.
    """
    with without_collection():
        return _find_coverage(table, trace, wanted)


def _find_coverage(
    table: LocationTable, trace: TraceRecords, wanted: _Wanted | None
) -> CodeCoverage:
    columns = make_finder(table).find_columns(trace)
    paths = [normpath(name) if name else "" for name in columns.names]
    if trace.quality & Quality.EXACT:
        functions = _find_entered(table, columns, paths)
    else:
        functions = _find_functions(table, trace, columns, paths)
    functions = _place_definitions(functions, table)
    by_path: defaultdict[str, list[FunctionCoverage]] = defaultdict(list)
    for (path, name), hits in functions.hits.items():
        by_path[path].append(FunctionCoverage(name, functions.lines[path, name], hits))
    branches = _group_branches(columns, paths)
    parts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for path, part in _split_files(columns, paths):
        parts[path].append(part)
    files = []
    for path in sorted({*parts, *by_path}):
        lines = _join_lines(columns, parts[path])
        own = sorted(by_path[path], key=attrgetter("line", "name"))
        if wanted is not None:
            lines = _select_lines(lines, path, own, wanted)
            own = [function for function in own if wanted(Frame(function.name, path, None, None))]
        file = SourceCoverage(path, lines.numbers, lines.hits, own, (), lines.unknown)
        own = [
            _decide_function(found, (path, found.function.name) in functions.inlined)
            for found in find_function_lines(file)
        ]
        of_lines = _choose_branches(branches.get(path, {}), lines)
        if lines.numbers or own or lines.unknown:
            files.append(file._replace(all_functions=own, branches=of_lines))
    return CodeCoverage(files, columns.contradictions, columns.unmatched)


def _place_definitions(functions: _Functions, table: LocationTable) -> _Functions:
    """Return functions where they are defined, with those that have no point: they are inlined
    everywhere.
    """
    hits, lines = dict(functions.hits), dict(functions.lines)
    inlined = set(functions.inlined)
    for path, definitions in table.definitions.items():
        before: dict[_Place, int] = {}
        for definition in definitions:
            place = path, definition.name
            code = functions.lines.get(place)
            # Of several of one name, which units define differently, the last one before its code.
            if place in before and code is not None and definition.line > code:
                continue
            before[place] = definition.line
        for place in before.keys() - hits.keys():
            hits[place] = 0
            inlined.add(place)
        lines.update(before)
    return _Functions(hits, lines, inlined)


def select_reachable(
    table: LocationTable, files: Iterable[SourceCoverage], functions: Collection[int]
) -> Sequence[SourceCoverage]:
    """Return the coverage of the lines and functions with code of some functions alone.

    :param table: of the image.
    :param functions: numbers of functions.
    """
    nothing = TraceRecords({}, Quality(0), frozenset())
    columns = make_finder(table).find_columns(nothing, sorted(functions))
    kept: defaultdict[str, set[int]] = defaultdict(set)
    for file, line in zip(columns.line_file, columns.line, strict=True):
        if file < len(columns.names):
            kept[normpath(columns.names[file])].add(line)
    return [_select_own(file, kept[file.path]) for file in files if file.path in kept]


def _select_own(file: SourceCoverage, kept: Collection[int]) -> SourceCoverage:
    flags = list(map(kept.__contains__, file.lines))
    own = file._replace(
        lines=array("I", compress(file.lines, flags)),
        hits=array("Q", compress(file.hits, flags)),
        unknown_lines=array("I", filter(kept.__contains__, file.unknown_lines)),
    )
    functions = [
        found.function for found in find_function_lines(own) if found.lines or found.unknown_lines
    ]
    branches = [branch for branch in file.branches if branch.line in kept]
    return own._replace(all_functions=functions, branches=branches)


def add_executed(
    files: Sequence[SourceCoverage], executed: Mapping[str, Mapping[int, int]]
) -> Sequence[SourceCoverage]:
    """Return the coverage of files with further lines that were executed, such as those of modules.

    :param executed: by the file's name in debug info and the line: records.
    """
    if not executed:
        return files
    by_path = {file.path: file for file in files}
    for name, records in executed.items():
        path = normpath(name)
        file = by_path.get(path, SourceCoverage(path, array("I"), array("Q"), (), (), array("I")))
        lines = dict(zip(file.lines, file.hits, strict=True))
        for line, hits in records.items():
            lines[line] = max(hits, lines.get(line, 0))
        numbers = array("I", sorted(lines))
        file = file._replace(lines=numbers, hits=array("Q", [lines[line] for line in numbers]))
        own = [
            found.function._replace(hits=max(found.function.hits or 0, 1))
            if found.executed_lines
            else found.function
            for found in find_function_lines(file)
        ]
        by_path[path] = file._replace(all_functions=own)
    return [by_path[path] for path in sorted(by_path)]


def join_coverage(
    files: Sequence[SourceCoverage], more: Sequence[SourceCoverage]
) -> Sequence[SourceCoverage]:
    """Return the coverage of the files of the kernel's image and of a module, which share headers.

    :param files: by path.
    :param more: by path.
    """
    by_path = {file.path: file for file in files}
    for file in more:
        before = by_path.get(file.path)
        by_path[file.path] = file if before is None else _join_file(before, file)
    return [by_path[path] for path in sorted(by_path)]


def _join_file(one: SourceCoverage, other: SourceCoverage) -> SourceCoverage:
    hits = dict(zip(one.lines, one.hits, strict=True))
    unknown = {*one.unknown_lines, *other.unknown_lines}
    for line, many in zip(other.lines, other.hits, strict=True):
        hits[line] = max(many, hits.get(line, 0))
    # What was executed in one place was executed; what was not in one may have been in the other.
    decided = sorted(line for line, many in hits.items() if many or line not in unknown)
    functions = {(function.line, function.name): function for function in one.all_functions}
    for function in other.all_functions:
        key = function.line, function.name
        before = functions.get(key, function._replace(hits=0))
        functions[key] = function._replace(hits=_join_hits(before.hits, function.hits))
    executed = {line for line in decided if hits[line]}
    branches: dict[int, list[BranchCoverage]] = defaultdict(list)
    for file in (one, other):
        known = set(branches)
        for branch in file.branches:
            fits = branch.line in hits and branch.was_executed == (branch.line in executed)
            if fits and branch.line not in known:
                branches[branch.line].append(branch)
    return SourceCoverage(
        one.path,
        array("I", decided),
        array("Q", [hits[line] for line in decided]),
        [functions[key] for key in sorted(functions)],
        [branch for line in sorted(branches) for branch in branches[line]],
        array("I", sorted(unknown - executed)),
    )


def _join_hits(one: int | None, other: int | None) -> int | None:
    """Return how often a function with several copies was entered; None where that is unknown."""
    if one is None or other is None:
        return one or other or None
    return one + other


def _decide_function(found: FunctionLines, has_inlined: bool) -> FunctionCoverage:
    """Return a function with what its lines say of it: it was executed if one of them was.

    It is unknown where only its points say that it was not: a copy that is inlined may have none,
    and its lines may have been executed.

    :param has_inlined: whether there are inlined copies.
    """
    function, hits = found.function, found.function.hits
    if not found.lines:
        # lcov 2 refuses a function without a line.
        hits = None
    elif found.executed_lines:
        hits = max(hits or 0, 1)
    elif hits or (has_inlined and found.unknown_lines):
        hits = None
    return function._replace(hits=hits)


class _Lines(NamedTuple):
    numbers: array[int]
    hits: array[int]
    unknown: array[int]


def _split_files(
    columns: StateColumns, paths: Sequence[str]
) -> Iterator[tuple[str, tuple[int, int]]]:
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
            array("I", compress(numbers, decided)),
            array("Q", compress(hits, decided)),
            array("I", compress(numbers, unknown)),
        )
    states_of: defaultdict[int, set[LineState]] = defaultdict(set)
    most: defaultdict[int, int] = defaultdict(int)
    for start, end in parts:
        for index in range(start, end):
            state, line = LineState(columns.line_state[index]), columns.line[index]
            states_of[line].add(state)
            if state.was_executed:
                most[line] = max(most[line], columns.line_hits[index])
    joined = _Lines(array("I"), array("Q"), array("I"))
    for line in sorted(states_of):
        if line in most or states_of[line] == {LineState.NOT_EXECUTED}:
            joined.numbers.append(line)
            joined.hits.append(most.get(line, 0))
        elif states_of[line] != {LineState.NOT_INSTRUMENTED}:
            joined.unknown.append(line)
    return joined


def _select_lines(
    lines: _Lines, path: str, functions: Sequence[FunctionCoverage], wanted: _Wanted
) -> _Lines:
    """Return the lines that are in wanted functions: each is in those that begin last before it.

    :param functions: of the file, by line.
    """
    names: defaultdict[int, list[str]] = defaultdict(list)
    for function in functions:
        names[function.line].append(function.name)
    starts = list(names)
    flags = [
        any(wanted(Frame(name, path, None, None)) for name in names[start]) for start in starts
    ]
    is_outside_wanted = wanted(Frame(None, path, None, None))

    def choose(numbers: array[int]) -> bytes:
        found = bytearray()
        for number in numbers:
            at = bisect_right(starts, number)
            found.append(flags[at - 1] if at else is_outside_wanted)
        return bytes(found)

    chosen, chosen_unknown = choose(lines.numbers), choose(lines.unknown)
    return _Lines(
        array("I", compress(lines.numbers, chosen)),
        array("Q", compress(lines.hits, chosen)),
        array("I", compress(lines.unknown, chosen_unknown)),
    )


_Branch: TypeAlias = "tuple[int, int, int, int]"
"""The number of the function, the state, and how often it was left by each side."""


def _group_branches(
    columns: StateColumns, paths: Sequence[str]
) -> Mapping[str, Mapping[int, Sequence[_Branch]]]:
    """Return the branches of each file and line, in the order of their code."""
    lines: defaultdict[tuple[int, int], list[_Branch]] = defaultdict(list)
    hits = columns.branch_hits
    rows = zip(columns.branch_function, columns.branch_state, hits[::2], hits[1::2], strict=True)
    for file, line, branch in zip(columns.branch_file, columns.branch_line, rows, strict=True):
        lines[file, line].append(branch)
    found: defaultdict[str, dict[int, list[_Branch]]] = defaultdict(dict)
    for (file, line), branches in lines.items():
        if file < len(paths) and paths[file]:
            found[paths[file]].setdefault(line, []).extend(branches)
    return found


def _choose_branches(
    branches: Mapping[int, Sequence[_Branch]], lines: _Lines
) -> list[BranchCoverage]:
    """Return the decided branches of lines.

    Inlined code has them in each copy, of which an execution takes one.
    """
    found = []
    executed = dict(zip(lines.numbers, lines.hits, strict=True))
    for line in sorted(executed.keys() & branches.keys()):
        wanted = BranchState.EXECUTED if executed[line] else BranchState.NOT_EXECUTED
        copies = branches[line]
        first = copies[0][0]
        for number, (function, state, next_hits, other_hits) in enumerate(copies):
            if not executed[line] and function != first:
                break
            if state == wanted:
                found.append(
                    BranchCoverage(line, number, executed[line] > 0, (next_hits, other_hits))
                )
    return found


_Word: TypeAlias = int
"""The function and the file of a frame: the numbers of their strings."""


class _Points:
    """The points of an image, with the functions of their frames.

    :param columns: of its table.
    """

    def __init__(self, columns: TableColumns) -> None:
        self._frames = columns.frames
        frames = columns.frames
        # The frames that chains refer to are there: the table was checked.
        self._words = pair_words(frames.function, frames.file)

    def _words_of(self, numbers: Iterable[int]) -> Iterator[_Word]:
        """Iterate over the functions of frames."""
        return map(self._words.__getitem__, numbers)

    def compiled_into(self, chains: Sequence[int]) -> list[_Word]:
        """Return the functions that points were compiled into."""
        outermost = find_outermost(self._frames, array("Q", chains))
        # Points without a location have no frame.
        return [0 if number == NO_ID else self._words[number] for number in outermost]

    def find_inlined(self, chains: Iterable[int]) -> set[_Word]:
        """Return the functions that are inlined at points."""
        inner = array("Q", map(_without_outermost, set(chains)))
        _, numbers = flatten_chains(self._frames, inner)
        return set(self._words_of(set(numbers)))

    def find_lines(self) -> dict[_Word, int]:
        """Return the functions of all frames, and the first line of each."""
        lines = self._frames.line
        ascending = sorted(range(len(lines)), key=lines.__getitem__)
        known = ascending[bisect_right(ascending, 0, key=lines.__getitem__) :]
        known.reverse()
        # The last one is the first line.
        return dict(zip(self._words_of(known), map(lines.__getitem__, known), strict=True))

    def count_inlined(self, chains: Iterable[int], records: Iterable[int]) -> dict[_Word, int]:
        """Return the functions that are inlined at points, and the most records of one of these
        points.

        :param records: of each.
        """
        most: dict[int, int] = {}
        for word, count in zip(map(_without_outermost, chains), records, strict=True):
            most[word] = max(count, most.get(word, 0))
        ascending = sorted((count, word) for word, count in most.items())
        lengths, numbers = flatten_chains(self._frames, array("Q", [word for _, word in ascending]))
        counts = chain.from_iterable(map(repeat, (count for count, _ in ascending), lengths))
        # The last one is the largest.
        return dict(zip(self._words_of(numbers), counts, strict=True))

    def find_places(self, words: Iterable[_Word]) -> dict[_Word, _Place]:
        """Return the paths and the names of functions, without those of which one is unknown."""
        strings = self._frames.strings
        paths: dict[int, str] = {}
        names: dict[int, str] = {}
        found = {}
        for word in words:
            function, file = word >> 32, word & NO_ID
            if file not in paths:
                paths[file] = normpath(strings[file] or "")
            if function not in names:
                names[function] = strip_clone_suffix(strings[function] or "")
            if strings[file] and names[function]:
                found[word] = paths[file], names[function]
        return found


def _without_outermost(word: int) -> int:
    """Return a chain without the function that it was compiled into."""
    return word - (1 << KIND_BITS) if word >> KIND_BITS & MAX_DEPTH else word


class _OwnCode(NamedTuple):
    """Functions with code of their own, and where the points are."""

    parts: Sequence[int]
    """The part of the code that each begins with, by number."""
    functions: Sequence[_Word]
    missed: Sequence[int]
    """The chains of points in functions that were not executed."""
    others: Sequence[int]
    """The chains of points in others."""


def _find_own_code(
    table: LocationTable, points: _Points, kinds: Iterable[int], columns: StateColumns
) -> _OwnCode:
    """Return the functions with code of their own.

    :param kinds: of points that the trace can have.
    """
    assert table.blocks is not None
    base, offsets, chains = table.columns.base, table.columns.offset, table.columns.chain
    of_kinds = frozenset(kinds)
    cold = {symbol.address - base for symbol in table.find_functions(lambda name: ".cold" in name)}
    missed: list[int] = []
    others: list[int] = []
    parts: list[int] = []
    firsts: list[int] = []
    for part, (start, size) in enumerate(
        zip(table.blocks.part_start, table.blocks.part_size, strict=True)
    ):
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
    return _OwnCode(parts, points.compiled_into(firsts), missed, others)


def _path_of(file: int, paths: Sequence[str]) -> str | None:
    return paths[file] if file < len(paths) else None


def _find_own_places(
    table: LocationTable,
    own: _OwnCode,
    places: Mapping[_Word, _Place],
    columns: StateColumns,
    paths: Sequence[str],
) -> dict[int, _Place]:
    """Return path and name of the functions with code of their own, by the number of the part.

    A function's first point may be of a line of another file, and so may its first instruction: it
    is in the file of the one that is the compilation unit, if that is not the one of both.
    """
    assert table.blocks is not None
    units = {symbol.address - table.columns.base: symbol.unit for symbol in table.functions()}
    found = {}
    for part, word in zip(own.parts, own.functions, strict=True):
        if word not in places:
            continue
        path, name = places[word]
        unit = units.get(table.blocks.part_start[part])
        entry = _path_of(columns.entry_file[part], paths)
        if entry is not None and entry != path and unit is not None and entry == normpath(unit):
            path = entry
        found[part] = path, name
    return found


def _find_entered(table: LocationTable, columns: StateColumns, paths: Sequence[str]) -> _Functions:
    """Return the functions with code of their own, for executed addresses: those need no point.

    Each is where its first instruction is.
    """
    assert table.blocks is not None
    names = {symbol.address - table.columns.base: symbol.name for symbol in table.functions()}
    hits: dict[_Place, int | None] = {}
    lines: dict[_Place, int] = {}
    for part, start in enumerate(table.blocks.part_start):
        path, name = _path_of(columns.entry_file[part], paths), names.get(start)
        if not path or name is None or ".cold" in name:
            continue
        place = path, strip_clone_suffix(demangle(name))
        line = columns.entry_line[part]
        lines[place] = min(line, lines.get(place, line))
        found: int | None = columns.entry_hits[part]
        if columns.entry_state[part] == FunctionState.UNKNOWN:
            found = None
        before = hits.get(place, 0)
        # Copies have the sum; one that is unknown leaves open whether any was executed.
        if found is None or before is None:
            hits[place] = found or before or None
        else:
            hits[place] = before + found
    return _Functions(hits, lines, frozenset())


def _find_functions(
    table: LocationTable, trace: TraceRecords, columns: StateColumns, paths: Sequence[str]
) -> _Functions:
    """Return the functions with a point.

    An inlined copy was executed if a point of it was. It was not if the function was not that it is
    in; else that is unknown, as code in front of its first point may be in a block of the caller's.
    """
    points = _Points(table.columns)
    own = _find_own_code(table, points, trace.kinds, columns)
    counts = as_counts(trace.counts)
    recorded = find_chains(counts.pcs, table.columns)
    inlined = points.count_inlined(recorded.chains, counts.records)
    unknown = points.find_inlined(own.others)
    known = unknown | points.find_inlined(own.missed)
    first_lines = points.find_lines()
    places = points.find_places(known.union(own.functions))
    own_places = _find_own_places(table, own, places, columns, paths)
    lines: dict[_Place, int] = {}
    # Files with several spellings have functions with several words.
    inlined_places = {places[word] for word in known if word in places}
    entered: dict[_Place, int] = dict.fromkeys(inlined_places, 0)
    undecided = {places[word] for word in unknown if word in places}
    for word, place in places.items():
        line = first_lines.get(word)
        if line is not None:
            lines[place] = min(line, lines.get(place, line))
        if place in entered:
            entered[place] = max(entered[place], inlined.get(word, 0))
    of_copies: defaultdict[_Place, int] = defaultdict(int)
    for part, place in own_places.items():
        entered.setdefault(place, 0)
        of_copies[place] += columns.entry_hits[part]
        if columns.entry_state[part] == FunctionState.UNKNOWN:
            undecided.add(place)
        if _path_of(columns.entry_file[part], paths) == place[0]:
            line = columns.entry_line[part]
            lines[place] = min(line, lines.get(place, line))
    found: dict[_Place, int | None] = {}
    for place, hits in entered.items():
        total = max(hits, of_copies.get(place, 0))
        # One without a line cannot be shown.
        if place in lines:
            found[place] = None if not total and place in undecided else total
    return _Functions(found, lines, inlined_places)
