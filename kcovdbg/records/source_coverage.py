# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of source files by a trace: lines, functions and branches, counted once for all outputs.

Lines, functions and branches whose execution is unknown are left out: they are neither executed nor
missed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from posixpath import normpath
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.elf.symbol_table import demangle, strip_clone_suffix
from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import Frame
from kcovdbg.records.coverage import HAS_DECIDED, NO_POINT_LINES, JoinedLines, join_code
from kcovdbg.records.line_states import (
    BranchState,
    CodeColumns,
    FunctionState,
    Quality,
    StateColumns,
    TraceRecords,
    find_code_columns,
    flag_states,
    join_code_columns,
    make_finder,
)
from kcovdbg.records.pc_locations import pair_words
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import without_collection
from kcovdbg.symbols.table_rows import select_numbers, select_words

_DECIDED: Final = flag_states(lambda state: state.is_decided)
_UNKNOWN: Final = flag_states(lambda state: state.is_unknown)
_LAST_LINE: Final = 1 << 32


class FunctionCoverage(NamedTuple):
    """A function, with all its copies."""

    name: str
    line: int
    """The line of its definition, or the first line of its code if debug info lacks that."""
    hits: int | None
    """How often it was entered, 0 if never; None where it is unknown whether it was. For a function
    that was executed in inlined copies alone, the hits of its first executed line.
    """


class BranchCoverage(NamedTuple):
    """Code that goes on in one of two ways."""

    line: int
    number: int
    """Among all branches of the line, which does not depend on the trace."""
    was_executed: bool
    hits: tuple[int, int]
    """How often it went either way."""


class SourceCoverage(NamedTuple):
    """The coverage of one file, as far as it is decided."""

    path: str
    """Relative to the build root, without ``./`` and ``..`` where it is below it."""
    lines: array[int]
    """The lines whose execution is decided, ascending."""
    hits: array[int]
    """The largest number of records of a block of each line; 1 if only other records show that it
    was executed; 0 if it was not.
    """
    all_functions: Sequence[FunctionCoverage]
    """The functions with code, by line and name."""
    branches: Sequence[BranchCoverage]
    """The branches by line: for an executed line, its executed branches whose ways are known; for
    any other line, the branches that one function has there."""
    unknown_lines: array[int]
    """The lines that may or may not have been executed."""

    @property
    def functions(self) -> Sequence[tuple[FunctionCoverage, int]]:
        """The functions whose execution is known, with how often they were entered."""
        return [
            (function, function.hits)
            for function in self.all_functions
            if function.hits is not None
        ]

    @property
    def executed_lines(self) -> int:
        """Number of executed lines."""
        return len(self.hits) - self.hits.count(0)

    @property
    def executed_functions(self) -> int:
        """Number of executed functions."""
        return sum(bool(function.hits) for function in self.all_functions)

    @property
    def taken_sides(self) -> int:
        """Number of sides of branches that were taken, of two for each."""
        return sum(bool(hits) for branch in self.branches for hits in branch.hits)

    @property
    def totals(self) -> CoverageTotals:
        """The numbers of its lines, functions and sides of branches."""
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
    """Iterate over the functions of a file with their lines: from the first line of each to the
    first line of the next. Functions that a macro defines on one line share its lines.
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
    """Return several traces as one, with all of their executions.

    It is known what was not executed if each trace ended in user space, and all have records of the
    same kinds of points.

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
    listed: set[int] = set()
    quality, kinds = traces[0].quality, traces[0].kinds
    enables = Quality(0)
    for trace in traces:
        counts.update(trace.counts)
        listed.update(trace.listed)
        enables |= trace.quality & Quality.ENABLES
        quality &= trace.quality
        if trace.kinds != kinds:
            kinds |= trace.kinds
            quality &= ~Quality.COMPLETE
    quality |= enables
    if not quality & Quality.ENDED:
        quality &= ~Quality.COMPLETE
    if not quality & Quality.COMPLETE:
        quality &= ~Quality.PLACED
        listed.clear()
    return TraceRecords(counts, quality, kinds, listed=sorted(listed))


class CodeCoverage(NamedTuple):
    """The coverage of an image by a trace."""

    files: Sequence[SourceCoverage]
    """The files that have code, by path."""
    contradictions: int
    """Number of functions whose records contradict their edges."""
    unmatched: int
    """Number of PCs that are no points."""


_Wanted: TypeAlias = Callable[[Frame], bool]


@without_collection()
def find_source_coverage(
    table: LocationTable, trace: TraceRecords, wanted: _Wanted | None
) -> CodeCoverage:
    """Return the coverage of all files of an image.

    :param table: of the image.
    :param wanted: returns whether a function of a file is of interest, given as a frame; None if
        all are.
    :raises CapabilityError: when the table has no blocks.
    """
    columns = make_finder(table).find_columns(trace)
    paths = [normpath(name) if name else None for name in columns.names]
    code = _join_spellings(find_code_columns(columns, None))
    starts = _find_starts(table)
    entries = _find_entries(table, columns, paths, starts)
    joined = join_code(NO_POINT_LINES, code, starts)
    branches = _group_branches(columns, paths)
    files = []
    first = 0
    for path, lines in _split_lines(joined):
        groups = sorted(starts.get(path, {}).items())
        end = first + len(groups)
        found = zip(joined.function_lines[first:end], joined.function_hits[first:end], strict=True)
        first = end
        functions: list[FunctionCoverage] = []
        for (line, names), (known, hits) in zip(groups, found, strict=True):
            if known:
                functions += _judge_functions(line, names, known, hits, entries.get(path, {}))
        if wanted is not None:
            functions = [one for one in functions if wanted(Frame(one.name, path, None, None))]
            lines = _select_lines(lines, path, groups, wanted)
        of_lines = _choose_branches(columns, branches.get(path, ()), lines)
        if lines.numbers or functions or lines.unknown:
            files.append(
                SourceCoverage(path, lines.numbers, lines.hits, functions, of_lines, lines.unknown)
            )
    return CodeCoverage(files, columns.contradictions, columns.unmatched)


def select_reachable(
    table: LocationTable, files: Iterable[SourceCoverage], functions: Collection[int]
) -> Sequence[SourceCoverage]:
    """Return the coverage of files, reduced to the lines that have code in some functions.

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
    flags = bytes(map(kept.__contains__, file.lines))
    own = file._replace(
        lines=select_numbers(file.lines, flags),
        hits=select_words(file.hits, flags),
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
    """Return the coverage of files with further executed lines, for instance of modules.

    :param executed: by the file's name in debug info and the line: records.
    """
    more = []
    for name, records in executed.items():
        lines = array("I", sorted(records))
        hits = array("Q", [records[line] for line in lines])
        more.append(SourceCoverage(normpath(name), lines, hits, (), (), array("I")))
    changed = {file.path for file in more}
    joined = []
    for file in join_coverage(files, more):
        if file.path in changed:
            functions = []
            for function, _, executed_lines, _ in find_function_lines(file):
                if executed_lines and not function.hits:
                    function = function._replace(hits=1)
                functions.append(function)
            file = file._replace(all_functions=functions)
        joined.append(file)
    return joined


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
    # A line that ran in one place ran. A line that did not run in one may have run in the other.
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


class _Entry(NamedTuple):
    """The execution of a function's own code."""

    hits: int
    """How often all copies were entered."""
    is_unknown: bool
    """Whether it is unknown for some copy whether it was entered."""


_NO_ENTRY: Final = _Entry(0, False)


def _judge_functions(
    line: int,
    names: Sequence[str],
    known: int,
    most: int,
    entries: Mapping[tuple[int, str], _Entry],
) -> list[FunctionCoverage]:
    """Return the functions that begin on a line.

    A function was executed if one of its lines was, in its own code or in an inlined copy. If
    several begin on the line, those count that are not known to have been skipped.

    :param known: what is known of their lines, as in :class:`.JoinedLines`.
    :param most: the hits of their first line that was executed.
    :param entries: by line and name.
    """
    found: dict[str, int | None] = {}
    for name in names:
        entry = entries.get((line, name))
        hits, is_unknown = entry or _NO_ENTRY
        is_skipped = not hits and not is_unknown
        if most and is_skipped and entry is not None:
            found[name] = 0
        elif most:
            found[name] = hits or most
        elif is_skipped and known == HAS_DECIDED:
            found[name] = 0
        else:
            found[name] = None
    if most and not any(found.values()):
        found = dict.fromkeys(names, most)
    return [FunctionCoverage(name, line, found[name]) for name in sorted(found)]


class _Lines(NamedTuple):
    """The lines of a file that have code, ascending."""

    numbers: array[int]
    hits: array[int]
    unknown: array[int]


def _find_starts(table: LocationTable) -> dict[str, dict[int, list[str]]]:
    """Return the functions that begin on each line of each file, by path.

    A function has the lines from its name to the line before the next function.
    """
    found: dict[str, dict[int, list[str]]] = {}
    for path, definitions in table.definitions.items():
        lines = found[path] = {}
        for definition in definitions:
            lines.setdefault(definition.line, []).append(definition.name)
    return found


def _join_spellings(code: CodeColumns) -> CodeColumns:
    """Return lines by path; debug info may spell the name of a file in several ways."""
    spans: dict[str, range] = {}
    others = []
    for name, span in code.spans.items():
        path = normpath(name)
        if path in spans:
            others.append(code._replace(spans={path: span}))
        elif name:
            spans[path] = span
    return reduce(join_code_columns, others, code._replace(spans=spans))


def _split_lines(joined: JoinedLines) -> Iterator[tuple[str, _Lines]]:
    """Yield the lines of each file."""
    states = bytes(joined.states)
    decided, unknown = states.translate(_DECIDED), states.translate(_UNKNOWN)
    numbers = select_numbers(joined.lines, decided)
    hits = select_words(joined.hits, decided)
    unknown_numbers = select_numbers(joined.lines, unknown)
    first = first_unknown = 0
    for path, span in joined.spans.items():
        end = first + decided.count(1, span.start, span.stop)
        end_unknown = first_unknown + unknown.count(1, span.start, span.stop)
        unknown_lines = unknown_numbers[first_unknown:end_unknown]
        yield path, _Lines(numbers[first:end], hits[first:end], unknown_lines)
        first, first_unknown = end, end_unknown


def _select_lines(
    lines: _Lines, path: str, groups: Sequence[tuple[int, Sequence[str]]], wanted: _Wanted
) -> _Lines:
    """Return the lines that are in wanted functions.

    :param groups: first lines, with the names of the functions that begin there.
    """
    first_lines = [line for line, _ in groups]
    flags = [any(wanted(Frame(name, path, None, None)) for name in names) for _, names in groups]
    is_outside_wanted = wanted(Frame(None, path, None, None))

    def choose(numbers: array[int]) -> bytes:
        places = (bisect_right(first_lines, number) - 1 for number in numbers)
        return bytes(flags[at] if at >= 0 else is_outside_wanted for at in places)

    chosen, unknown = choose(lines.numbers), choose(lines.unknown)
    return _Lines(
        select_numbers(lines.numbers, chosen),
        select_words(lines.hits, chosen),
        select_numbers(lines.unknown, unknown),
    )


def _path_of(file: int, paths: Sequence[str | None]) -> str | None:
    return paths[file] if file < len(paths) else None


def _group_branches(columns: StateColumns, paths: Sequence[str | None]) -> Mapping[str, list[int]]:
    """Return the branches of each file by line, and within a line in the order of their code."""
    words = pair_words(columns.branch_file, columns.branch_line)
    order = sorted(range(len(words)), key=words.__getitem__)
    found: defaultdict[str, list[int]] = defaultdict(list)
    start = 0
    while start < len(order):
        file = columns.branch_file[order[start]]
        end = bisect_left(order, file + 1 << 32, start, key=words.__getitem__)
        path = _path_of(file, paths)
        if path is not None:
            found[path] += order[start:end]
        start = end
    return found


def _choose_branches(
    columns: StateColumns, branches: Sequence[int], lines: _Lines
) -> list[BranchCoverage]:
    """Return the decided branches of lines.

    Inlined code has them in each copy, of which an execution takes one.

    :param branches: the numbers of the file's branches.
    """
    found = []
    executed = dict(zip(lines.numbers, lines.hits, strict=True))
    states, functions, sides = columns.branch_state, columns.branch_function, columns.branch_hits
    last = number = first = 0
    hits: int | None = None
    # Several spellings of a name have parts of their own.
    for index in sorted(branches, key=columns.branch_line.__getitem__):
        line = columns.branch_line[index]
        number += 1
        if line != last:
            last, number, first = line, 0, functions[index]
            hits = executed.get(line)
        if hits is None or (not hits and functions[index] != first):
            continue
        wanted = BranchState.EXECUTED if hits else BranchState.NOT_EXECUTED
        if states[index] == wanted:
            taken = sides[2 * index], sides[2 * index + 1]
            found.append(BranchCoverage(line, number, hits > 0, taken))
    return found


def _find_entries(
    table: LocationTable,
    columns: StateColumns,
    paths: Sequence[str | None],
    starts: dict[str, dict[int, list[str]]],
) -> Mapping[str, Mapping[tuple[int, str], _Entry]]:
    """Return the functions with code of their own, by path, line and name."""
    assert table.blocks is not None
    places: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, lines in starts.items():
        for line, names in lines.items():
            for name in names:
                places[name].append((path, line))
    symbols = {symbol.address - table.columns.base: symbol for symbol in table.functions()}
    found: defaultdict[str, dict[tuple[int, str], _Entry]] = defaultdict(dict)
    for part, start in enumerate(table.blocks.part_start):
        symbol, state = symbols.get(start), columns.entry_state[part]
        if symbol is None or ".cold" in symbol.name or state == FunctionState.NOT_INSTRUMENTED:
            continue
        name = strip_clone_suffix(demangle(symbol.name))
        entry_path = _path_of(columns.entry_file[part], paths)
        place = _choose_place(places.get(name, ()), entry_path, symbol.unit)
        if place is None:
            if entry_path is None:
                continue
            # Functions in assembly have no definition.
            place = entry_path, columns.entry_line[part]
            names = starts.setdefault(entry_path, {}).setdefault(place[1], [])
            if name not in names:
                names.append(name)
        entries, key = found[place[0]], (place[1], name)
        hits, is_unknown = entries.get(key, _NO_ENTRY)
        is_unknown |= state == FunctionState.UNKNOWN
        entries[key] = _Entry(hits + columns.entry_hits[part], is_unknown)
    return found


def _choose_place(
    places: Sequence[tuple[str, int]], path: str | None, unit: str | None
) -> tuple[str, int] | None:
    """Return the path and line of a function; several files have functions of one name.

    :param path: the file of its first instruction.
    :param unit: the source file that it was compiled from.
    """
    if len(places) == 1:
        return places[0]
    for wanted in (path, unit):
        for place in places:
            if place[0] == wanted:
                return place
    return None
