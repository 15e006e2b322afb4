# SPDX-License-Identifier: LGPL-2.1-or-later
"""Match equal coverage points of two builds of a kernel, so that traces of both can be compared.

Functions are equal if they have the same name and file, or if they have the same name and moved
from one file to another. Lines of equal functions are paired by a diff of the sources, or without
sources by their order. Points are equal if all frames of their locations are equal. Several points
of a function on one line are matched one by one if they have the same order in both builds, and
otherwise as one. If inlining differs, the innermost function and line decide.

Equal points get the same number. Numbers replace PCs wherever records of two builds are aligned or
counted.
"""

from __future__ import annotations

import operator
import posixpath
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import compress, pairwise
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.kcov import name_some
from kcovdbg.model.location import KIND_BITS, KIND_MASK, MAX_DEPTH, Frame, frames_of_chain
from kcovdbg.records.alignment import align_records, number_values
from kcovdbg.records.native_loops import NO_ID, Numbering, flatten_chains
from kcovdbg.records.pc_counts import make_numbering
from kcovdbg.records.pc_locations import PcColumns, kind_flags, pair_words
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.table_rows import gather

_NO_NUMBER: Final = 0
# Kinds that differ between builds with the same code: a known tail call stands for the block that
# it ends, and the entry of a function for its first block.
_KINDS: Final = {kind: int(kind) for kind in PointKind} | dict.fromkeys(
    (PointKind.TAIL_KNOWN, PointKind.ENTRY), int(PointKind.PC)
)
# Parts of functions that are not entered by calls of the function.
_SPLIT: Final = re.compile(r"\.(?:cold|part)\b")
# A function that was moved keeps at least this share of its lines with points.
_MOVED_LINES: Final = 0.5
# A function that was renamed keeps more than this share of its text.
_RENAMED_TEXT: Final = 0.6
_LEAST_TEXT: Final = 3
_WORD: Final = re.compile(r"\w")
# Stubs of system calls that a configuration lacks.
_STUBS: Final = "kernel/sys_ni.c"
# Lines are paired by order if so many distances in a row are equal. Shorter runs are often equal by
# chance: between 6.1 and 6.12, 68 % of single distances and 42 % of two in a row were wrong.
_RUN: Final = 4
# The same at the start and the end of a function, where chance is smaller.
_EDGE_RUN: Final = 2
# Limit for functions in a remark.
_NAMED: Final = 4

Function: TypeAlias = tuple[str, str]
"""Name without a clone's suffix, and file without ``./``; both may be empty."""
_Line: TypeAlias = tuple[Function, int]
"""A function and a line of it, as the left build names them. A line that only the right build has
is negative.
"""


class FunctionSpan(NamedTuple):
    """Place of a function in the source."""

    name: str
    file: str
    """The file's name in debug info."""
    lines: range
    """From the first to the last line with frames of points."""
    is_inlined: bool
    """Whether points of other functions are in it."""


class Unmatched(str, Enum):
    """The reason that a point has no counterpart in the other build."""

    FUNCTION = "function"
    """The other build has no such function."""
    NO_POINT = "line"
    """The other build has the function, but no point on such a line of it."""
    NO_LINES = "lines"
    """Both builds have the function, but one has no debug info of it."""
    LOCATION = "location"
    """The point's location is unknown."""


class _Point(NamedTuple):
    """Kind and location of a point, equal for equal points of both builds."""

    kind: int
    lines: tuple[_Line, ...]
    """Innermost first."""

    @property
    def innermost(self) -> tuple[int, _Line]:
        return self.kind, self.lines[0]


class BuildFunctions:
    """The functions and points of one build.

    :param columns: the recorded PCs, with the build's table.
    :param read_text: returns the lines of a source file by its name in debug info; empty if the
        file is missing.
    :param unrecorded: PCs in the columns that were not recorded: points that the table lacks.
    """

    def __init__(
        self,
        columns: PcColumns,
        read_text: Callable[[str], Sequence[str]],
        unrecorded: Collection[int] = frozenset(),
    ) -> None:
        assert columns.table is not None
        self.columns = columns
        self.table = columns.table
        self.rows = array("Q", columns.table.columns.chain)
        self.chain_of = dict(zip(columns.pcs, columns.chains, strict=True))
        """PC -> chain of frames, for recorded points and for candidates for matching."""
        self.recorded = {pc: chain for pc, chain in self.chain_of.items() if pc not in unrecorded}
        self._chains = array("Q", {*self.recorded.values()})
        self._read_text = read_text
        groups, strings = columns.groups, columns.frames.strings
        self.functions: list[Function] = []
        """The function of each group of frames."""
        self.groups: dict[Function, list[int]] = {}
        """The groups of frames of each function; each clone of a function has its own group."""
        self._files: dict[Function, str] = {}
        normalize = cache(normalize_file)
        for group, (name, number) in enumerate(zip(groups.function, groups.file, strict=True)):
            file = strings[number] or ""
            function = strip_clone_suffix(strings[name] or ""), normalize(file)
            self.functions.append(function)
            self.groups.setdefault(function, []).append(group)
            self._files[function] = file
        self._group_lines = Numbering().number(pair_words(groups.of_frame, columns.frames.line))
        self._lines: dict[Function, Sequence[int]] = {}
        self._named = _list_by_name(self.groups)

    def lines(self, function: Function) -> Sequence[int]:
        """Return the lines of a function that have frames of points, ascending."""
        if function not in self._lines:
            words = self._group_lines
            found: set[int] = set()
            for group in self.groups[function]:
                # A frame without a line has the line 0.
                span = bisect_left(words, group << 32 | 1), bisect_left(words, group + 1 << 32)
                found.update(map(NO_ID.__and__, words[slice(*span)]))
            self._lines[function] = sorted(found)
        return self._lines[function]

    def span(self, function: Function) -> FunctionSpan:
        """Return the place of a function that has lines."""
        lines = self.lines(function)
        return FunctionSpan(
            function[0],
            self._files[function],
            range(lines[0], lines[-1] + 1),
            is_inlined=not self._inlined.isdisjoint(self.groups[function]),
        )

    @cached_property
    def _inlined(self) -> set[int]:
        """The groups of frames that are inlined into other functions at some points."""
        chains = array("Q", {*self.rows})
        _, frames = flatten_chains(self.columns.frames, chains)
        counts = Counter(gather(frames, self.columns.groups.of_frame, NO_ID))
        counts.subtract(self.columns.outermost_groups(chains))
        return {group for group, count in counts.items() if count > 0}

    def find_home(self, function: Function) -> Function:
        """Return a function with the file that has most of its code.

        In debug info, code of macros and cleanups, and code that the compiler moved, can be on
        lines of another file, and still have the function's name.
        """
        name, file = function
        main = max(self._named[name], key=lambda one: len(self.lines(one)))
        if main == function or len(self.lines(main)) == len(self.lines(function)):
            return function
        text = "\n".join(self._read_text(self._files[function])) if file else ""
        if re.search(rf"\b{re.escape(name)}\b", text):
            return function
        return main

    def frames(self, chain: int) -> Sequence[int]:
        """Return the numbers of a chain's frames, innermost first."""
        return frames_of_chain(self.columns.frames, chain)

    def function(self, frame: int) -> Function:
        """Return the function of a frame."""
        return self.functions[self.columns.groups.of_frame[frame]]

    def find_executed(self) -> set[Function]:
        """Return the functions that the code of the recorded points was compiled into."""
        return self._list_functions(self.columns.outermost_groups(self._chains))

    def find_named(self) -> set[Function]:
        """Return the functions of all frames of the recorded points."""
        _, frames = flatten_chains(self.columns.frames, self._chains)
        return self._list_functions(gather(frames, self.columns.groups.of_frame, NO_ID))

    def _list_functions(self, groups: Iterable[int]) -> set[Function]:
        return {self.functions[group] for group in {*groups} - {NO_ID}}

    def find_kinds(self) -> set[int]:
        """Return the kinds of the recorded points."""
        return {_KINDS[kind] for kind in PointKind if any(kind_flags(self._chains, (kind,)))}

    def select(
        self, row_groups: array[int], functions: Collection[Function], kinds: Collection[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield PC and chain of the table's points in some functions, ascending.

        :param row_groups: for each row, the group of frames that decides.
        :param kinds: the kinds of points to yield.
        """
        wanted = array("I", map(functions.__contains__, self.functions))
        is_kind = kind_flags(self.rows, (kind for kind in PointKind if _KINDS[kind] in kinds))
        chosen = bytes(map(operator.and_, gather(row_groups, wanted, 0), is_kind))
        table = self.table.columns
        return zip(
            map(table.base.__add__, compress(table.offset, chosen)),
            compress(self.rows, chosen),
            strict=True,
        )

    def find_entry(self, pcs: Sequence[int]) -> int | None:
        """Return the index of the point where a function is entered; None if the function has no
        body, or several.

        :param pcs: the function's points, ascending.
        """
        bodies = []
        at = 0
        while at < len(pcs):
            symbol = self.table.function_at(pcs[at] - 1)
            if symbol is not None and not _SPLIT.search(symbol.name):
                bodies.append(at)
            at += 1
            if symbol is not None:
                # Skip the points of the same symbol.
                at = max(at, bisect_right(pcs, symbol.address + symbol.size, at - 1))
        if len(bodies) != 1:
            return None
        return bodies[0]

    def text(self, function: Function) -> list[str]:
        """Return the text from a function's first line with a point to the last one; empty if the
        source is missing.
        """
        lines, file = self.lines(function), self._files[function]
        if not lines or not file:
            return []
        whole = self._read_text(file)
        # A shorter source is older or newer than the build.
        if lines[-1] > len(whole):
            return []
        return list(map(str.strip, whole[lines[0] - 1 : lines[-1]]))


def normalize_file(file: str | None) -> str:
    """Return a file's name without ``./`` and ``../``; empty without a name."""
    return posixpath.normpath(file) if file else ""


def find_function(frame: Frame) -> Function:
    """Return the function of a frame."""
    return strip_clone_suffix(frame.function or ""), normalize_file(frame.file)


class FunctionPairs:
    """The functions that both builds have.

    :param to_left: function of the right build -> the same function of the left build.
    """

    def __init__(self, to_left: Mapping[Function, Function]) -> None:
        self.to_left = to_left
        self.to_right = dict(zip(to_left.values(), to_left, strict=True))

    def name(self, function: Function, side: int) -> Function:
        """Return a function's name in both builds: the left build's. A function that only the right
        build has gets a name that no function can have.
        """
        if side == 0:
            return function
        return self.to_left.get(function) or ("\0" + function[0], function[1])

    def find(self, name: Function, side: int) -> Function | None:
        """Return the function of a build by its name in both builds; None if one build lacks it."""
        right = self.to_right.get(name)
        if right is None or side == 1:
            return right
        return name


def _pair_functions(left: BuildFunctions, right: BuildFunctions) -> FunctionPairs:
    """Return the functions that both builds have."""
    both = left.groups.keys() & right.groups.keys()
    pairs = {function: function for function in both if function[0]}
    others = _list_by_name(right.groups.keys() - both)
    for name, found in _list_by_name(left.groups.keys() - both).items():
        if name and len(found) == 1 == len(others[name]):
            old, new = found[0], others[name][0]
            if _may_be_same(left, old, right, new):
                pairs[new] = old
    return FunctionPairs(pairs)


def _list_by_name(functions: Iterable[Function]) -> Mapping[str, Sequence[Function]]:
    found: defaultdict[str, list[Function]] = defaultdict(list)
    for function in functions:
        found[function[0]].append(function)
    return found


def _may_be_same(
    left: BuildFunctions, function: Function, right: BuildFunctions, other: Function
) -> bool:
    """Return whether two functions with one name can be the same, after one has moved to another
    file. A stub cannot: it stands for a function that the kernel lacks.
    """
    files = function[1], other[1]
    if _STUBS in files:
        return False
    if not all(files):
        # Without debug info there is only the name.
        return True
    sizes = sorted((len(left.lines(function)), len(right.lines(other))))
    return sizes[0] >= _MOVED_LINES * sizes[1]


def _pair_by_text(lines: Sequence[Sequence[int]], texts: Sequence[Sequence[str]]) -> dict[int, int]:
    """Return pairs of lines that a diff of both texts finds equal: right line -> left line.

    :param texts: the texts of both functions, from their first line on.
    """
    left, right = map(frozenset, lines)
    pairs: dict[int, int] = {}
    for left_index, right_index in align_records(*number_values(*texts)).pairs():
        old = lines[0][0] + left_index
        new = lines[1][0] + right_index
        if old in left and new in right:
            pairs[new] = old
    return pairs


def _pair_by_order(left: Sequence[int], right: Sequence[int]) -> dict[int, int]:
    """Return pairs of lines with equal distances between them: right line -> left line. All lines
    are paired if all distances are equal, otherwise lines in runs of several equal distances.
    """
    steps = _find_steps(left), _find_steps(right)
    if steps[0] == steps[1]:
        return dict(zip(right, left, strict=True))
    pairs: dict[int, int] = {}
    i = j = 0
    for start, other, length in align_records(*steps).blocks:
        ends = len(left) - start - length, len(right) - other - length
        is_at_edge = (start, other) == (0, 0) or ends == (0, 0)
        if length < (_EDGE_RUN if is_at_edge else _RUN):
            continue
        if i < start and j < other:
            # A run's first distance is measured from the lines before it.
            pairs[right[other - 1]] = left[start - 1]
        pairs.update(zip(right[other : other + length], left[start : start + length], strict=True))
        i, j = start + length, other + length
    return pairs


def _find_steps(lines: Sequence[int]) -> array[int]:
    """Return the distances between lines, each plus 1, after a 1 for the first line."""
    return array("Q", [1, *(after - before + 1 for before, after in pairwise(lines))])


_REASONS: Final = {
    Unmatched.FUNCTION: "in functions that it lacks",
    Unmatched.NO_POINT: "on lines where it has no point",
    Unmatched.NO_LINES: "in functions that one build has no debug info of",
    Unmatched.LOCATION: "without a known location",
}


class MatchSide(NamedTuple):
    """One of two builds that were matched."""

    numbers: Mapping[int, int]
    """PC -> number of the point; numbers begin with 1."""
    recorded: int
    """Number of points that were recorded in this build."""
    unmatched: Mapping[int, Unmatched]
    """PC of a recorded point -> why the other build lacks it."""
    reached: Collection[Function]
    """The functions of recorded points, by their names in both builds."""
    renamed: Mapping[Function, str]
    """Function that only this build has -> name of the function with the same text in the other."""
    homes: Mapping[Function, Function]
    """Function with a file that has only some of its code -> the function with its own file."""
    unrecorded: Mapping[Function, FunctionSpan]
    """Places of functions with points that the other build recorded and this build did not, by
    their names in both builds.
    """


@dataclass(frozen=True, slots=True)
class BuildMatch:
    """Points recorded in either build, matched with points of the other build."""

    sides: Sequence[MatchSide]
    """The left build, then the right one."""
    pcs: Sequence[tuple[int, int]]
    """Number of a point -> its first PC in each build; 0 if a build lacks the point."""
    pairs: FunctionPairs
    moved: Sequence[tuple[str, str, str]]
    """Name, old file and new file of each executed function that moved."""
    same: int
    """Number of executed functions that have the same file in both builds."""
    by_source: int
    """Number of functions with lines paired by a diff of their sources."""
    by_order: int
    """Number of functions with lines paired by their order."""

    def remarks(self) -> Iterator[str]:
        """Yield remarks on the functions, on how lines were paired, and on unmatched points."""
        parts = [f"{self.same} functions in both"]
        if self.moved:
            named = (f"{name} ({old} → {new})" for name, old, new in self.moved)
            parts.append(f"{len(self.moved)} moved: {name_some(named, _NAMED)}")
        yield f"two builds: {'; '.join(parts)}"
        if self.by_source and self.by_order:
            yield (
                f"lines are paired by the sources of {self.by_source} functions, by their order in "
                f"{self.by_order}"
            )
        elif self.by_order:
            yield (
                "lines are paired by their order: no sources of both builds; --other-source and "
                "--source-dir name them"
            )
        for name, side in zip(("left", "right"), self.sides, strict=True):
            counts = Counter(side.unmatched.values())
            why = [
                f"{counts[reason]} {text}" for reason, text in _REASONS.items() if counts[reason]
            ]
            if why:
                yield (
                    f"{len(side.unmatched)} of {side.recorded} points on the {name} have no "
                    f"counterpart in the other build: {', '.join(why)}"
                )


def match_builds(left: BuildFunctions, right: BuildFunctions) -> BuildMatch:
    """Match the points of two builds."""
    builds, pairs = (left, right), _pair_functions(left, right)
    matcher = _PointMatcher(builds, pairs)
    matcher.match()
    homes = _find_homes(left), _find_homes(right)
    reached = _name_all(left.find_named(), 0, pairs), _name_all(right.find_named(), 1, pairs)
    sides = []
    for side, build in enumerate(builds):
        other = 1 - side
        wanted = reached[other] | _name_all(homes[other].values(), other, pairs)
        found = MatchSide(
            matcher.numbers[side],
            len(build.recorded),
            matcher.find_unmatched(side),
            reached[side],
            _find_renamed(builds, pairs, side),
            homes[side],
            _find_unrecorded(build, side, pairs, wanted - reached[side]),
        )
        sides.append(found)
    moved: list[tuple[str, str, str]] = []
    same = by_source = 0
    for old in pairs.to_right.keys() & (reached[0] | reached[1]):
        new = pairs.to_right[old]
        if old != new and old[1] and new[1] and old not in homes[0] and new not in homes[1]:
            moved.append((*old, new[1]))
        else:
            same += 1
        by_source += matcher.is_paired_by_source(new)
    by_order = same + len(moved) - by_source
    return BuildMatch(sides, matcher.pcs, pairs, sorted(moved), same, by_source, by_order)


def _name_all(
    functions: Iterable[Function], side: int, pairs: FunctionPairs
) -> frozenset[Function]:
    """Return the names in both builds of functions."""
    return frozenset(pairs.name(function, side) for function in functions)


def _find_homes(build: BuildFunctions) -> dict[Function, Function]:
    """Return functions of recorded points with another file than their own -> the function with its
    own file.
    """
    homes = {}
    for function in build.find_named():
        home = build.find_home(function)
        if home != function:
            homes[function] = home
    return homes


def _find_unrecorded(
    build: BuildFunctions, side: int, pairs: FunctionPairs, wanted: Collection[Function]
) -> Mapping[Function, FunctionSpan]:
    """Return the places in one build of functions with points that only the other build recorded.

    :param wanted: names of the functions in both builds; this build may lack some.
    """
    found: dict[Function, FunctionSpan] = {}
    for name in wanted:
        own = pairs.find(name, side)
        if own is not None and build.lines(own):
            found[name] = build.span(own)
    return found


def _find_renamed(
    builds: tuple[BuildFunctions, BuildFunctions], pairs: FunctionPairs, side: int
) -> Mapping[Function, str]:
    """Return new names of executed functions that only one build has: if exactly one function in
    the same file of the other build has most of the text, its name.
    """
    build, other = builds[side], builds[1 - side]
    paired: tuple[Collection[Function], ...] = pairs.to_right.keys(), pairs.to_left.keys()
    by_file: defaultdict[str, list[Function]] = defaultdict(list)
    for candidate in other.groups.keys() - paired[1 - side]:
        by_file[candidate[1]].append(candidate)
    renamed: dict[Function, str] = {}
    for function in build.find_named() - {*paired[side]}:
        text = build.text(function)
        candidates = by_file[function[1]]
        found = [one[0] for one in candidates if _is_same_text(text, other.text(one))]
        if len(found) == 1:
            renamed[function] = found[0]
    return renamed


def _is_same_text(left: Sequence[str], right: Sequence[str]) -> bool:
    """Return whether two functions have most of their lines in common, without lines of braces."""
    sides = list(filter(_WORD.search, left)), list(filter(_WORD.search, right))
    if min(map(len, sides)) < _LEAST_TEXT:
        return False
    common = align_records(*number_values(*sides)).common
    return common > _RENAMED_TEXT * max(map(len, sides))


class _PointMatcher:
    """Give the points of two builds their numbers.

    Its caches take more memory than the result, and are freed with the matcher.

    :param pairs: the functions of both builds.
    """

    def __init__(self, builds: tuple[BuildFunctions, BuildFunctions], pairs: FunctionPairs) -> None:
        self._builds = builds
        self._pairs = pairs
        self._kinds = builds[0].find_kinds() | builds[1].find_kinds()
        self._pair_lines = cache(self._find_pairs)
        self._line = cache(self._find_line)
        self._point = cache(self._find_point)
        self.numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.pcs = [(0, 0)]

    def match(self) -> None:
        """Number all points."""
        left, right = self._builds
        executed = _name_all(left.find_executed(), 0, self._pairs)
        executed |= _name_all(right.find_executed(), 1, self._pairs)
        # Points that were not executed are numbered as well, because the order of all points of a
        # function matters.
        groups = self._group(0, executed), self._group(1, executed)
        for function in dict.fromkeys((*groups[0], *groups[1])):
            self._match_function(groups[0].get(function, []), groups[1].get(function, []))
        self._match_by_innermost(0)
        self._match_by_innermost(1)

    def is_paired_by_source(self, right: Function) -> bool:
        """Return whether the lines of a function of the right build were paired by the sources."""
        return self._pair_lines(right)[1]

    def _find_pairs(self, right: Function) -> tuple[Mapping[int, int], bool]:
        """Return the lines of a function of the right build -> the lines of the left build, and
        whether they were paired by the sources.
        """
        left = self._pairs.to_left[right]
        lines = self._builds[0].lines(left), self._builds[1].lines(right)
        if not all(lines):
            return {}, False
        texts = self._builds[0].text(left), self._builds[1].text(right)
        if all(texts):
            return _pair_by_text(lines, texts), True
        return _pair_by_order(*lines), False

    def _find_line(self, side: int, frame: int) -> _Line:
        """Return the function and line of a frame."""
        build = self._builds[side]
        function, line = build.function(frame), build.columns.frames.line[frame]
        if side and line and function in self._pairs.to_left:
            line = self._pair_lines(function)[0].get(line, -line)
        return self._pairs.name(function, side), line

    def _find_point(self, side: int, chain: int) -> _Point:
        lines = tuple(self._line(side, frame) for frame in self._builds[side].frames(chain))
        return _Point(_KINDS[PointKind(chain & KIND_MASK)], lines)

    def _select(self, side: int, names: Collection[Function]) -> Collection[Function]:
        """Return the functions of a build by their names in both builds."""
        return {one for one in self._builds[side].groups if self._pairs.name(one, side) in names}

    def _group(self, side: int, executed: Collection[Function]) -> dict[Function, list[int]]:
        """Return the PCs of a build by function, ascending: all recorded points, and all points of
        executed functions.
        """
        build = self._builds[side]
        outermost = build.columns.outermost_groups(build.rows)
        functions = self._select(side, executed)
        build.chain_of.update(build.select(outermost, functions, self._kinds))
        groups: dict[Function, list[int]] = {}
        for pc in sorted(build.chain_of):
            frames = build.frames(build.chain_of[pc])
            # A point without a location has no equal in the other build.
            function = self._line(side, frames[-1])[0] if frames else ("\0", str(side))
            groups.setdefault(function, []).append(pc)
        return groups

    def _add(self, left: Sequence[int], right: Sequence[int]) -> int:
        """Give PCs of both builds the number of a new point."""
        number = len(self.pcs)
        self.pcs.append((next(iter(left), 0), next(iter(right), 0)))
        for known, pcs in zip(self.numbers, (left, right), strict=True):
            known.update(dict.fromkeys(pcs, number))
        return number

    def _match_function(self, left: list[int], right: list[int]) -> None:
        """Number the points of a function."""
        points = self._find_points(0, left), self._find_points(1, right)
        entries = self._builds[0].find_entry(left), self._builds[1].find_entry(right)
        # Point -> its indices on both sides.
        by_point: dict[object, tuple[list[int], list[int]]] = {}
        for side, side_points in enumerate(points):
            for index, point in enumerate(side_points):
                key: object = point
                if None not in entries and index == entries[side]:
                    # Compilers do not agree on the line where a function begins.
                    key = "entry"
                by_point.setdefault(key, ([], []))[side].append(index)
        # Index on the left -> index on the right, for points that have the same order.
        in_order: Mapping[int, int] | None = None
        for left_indices, right_indices in by_point.values():
            left_pcs = [left[index] for index in left_indices]
            right_pcs = [right[index] for index in right_indices]
            is_one_to_one = len(left_indices) == len(right_indices)
            if is_one_to_one and len(left_indices) > 1:
                if in_order is None:
                    in_order = dict(align_records(*number_values(*points)).pairs())
                is_one_to_one = list(map(in_order.get, left_indices)) == right_indices
            if left_pcs and right_pcs and not is_one_to_one:
                # Points on one line whose order or number differs are one.
                self._add(left_pcs, right_pcs)
                continue
            for index in range(max(len(left_pcs), len(right_pcs))):
                self._add(left_pcs[index : index + 1], right_pcs[index : index + 1])

    def _find_points(self, side: int, pcs: Iterable[int]) -> Sequence[_Point]:
        chain_of = self._builds[side].chain_of
        return [self._point(side, chain_of[pc]) for pc in pcs]

    def _find_alone(self, side: int) -> list[tuple[int, int]]:
        """Return PC and chain of each recorded point of a build without a counterpart."""
        numbers = self.numbers[side]
        return [
            (pc, chain)
            for pc, chain in self._builds[side].recorded.items()
            if not self.pcs[numbers[pc]][1 - side]
        ]

    def _match_by_innermost(self, side: int) -> None:
        """Match points of functions that are inlined in another way in the other build."""
        alone: dict[int, _Point] = {}
        wanted: set[tuple[int, _Line]] = set()
        for pc, chain in self._find_alone(side):
            point = self._point(side, chain)
            if point.lines and point.lines[0][1] > 0:
                alone[pc] = point
                wanted.add(point.innermost)
        by_outermost: dict[object, int] = {}
        by_any: dict[object, int] = {}
        for pc, chain in self._find_copies(1 - side, {line[0] for _, line in wanted}):
            point = self._point(1 - side, chain)
            if point.innermost in wanted:
                by_outermost.setdefault((point.innermost, point.lines[-1][0]), pc)
                for function, _ in point.lines:
                    by_any.setdefault((point.innermost, function), pc)
        for pc, point in alone.items():
            # The counterpart is inlined into the same outermost function; or its own outermost
            # function is one of the functions here.
            found = by_any.get((point.innermost, point.lines[-1][0]))
            for function, _ in point.lines:
                found = found or by_outermost.get((point.innermost, function))
            if found:
                self._join(side, pc, found)

    def _find_copies(self, side: int, functions: Collection[Function]) -> list[tuple[int, int]]:
        """Return the lowest PC, in ascending order, of each chain whose innermost frame is in some
        functions, with the chain.
        """
        build = self._builds[side]
        wanted = self._select(side, functions)
        if not wanted:
            return []
        innermost = build.columns.innermost_groups(build.rows)
        found = dict(build.select(innermost, wanted, self._kinds))
        # Points of modules are not in the table.
        found |= {
            pc: chain
            for pc, chain in build.chain_of.items()
            if chain >> KIND_BITS & MAX_DEPTH and build.function(build.frames(chain)[0]) in wanted
        }
        first: dict[int, int] = {}
        for pc in sorted(found):
            first.setdefault(found[pc], pc)
        return list(zip(first.values(), first, strict=True))

    def _join(self, side: int, pc: int, counterpart: int) -> None:
        """Give a PC the number of its counterpart."""
        number = self.numbers[1 - side].get(counterpart)
        if number is None:
            sides: tuple[list[int], list[int]] = ([], [])
            sides[1 - side].append(counterpart)
            number = self._add(*sides)
        if not self.pcs[number][side]:
            self.pcs[number] = (pc, counterpart) if side == 0 else (counterpart, pc)
        self.numbers[side][pc] = number

    def find_unmatched(self, side: int) -> dict[int, Unmatched]:
        """Return why recorded points have no counterpart."""
        build = self._builds[side]
        found = {}
        for pc, chain in self._find_alone(side):
            frames = build.frames(chain)
            if not frames:
                found[pc] = Unmatched.LOCATION
                continue
            home = build.find_home(build.function(frames[0]))
            old = self._pairs.name(home, side)
            new = self._pairs.to_right.get(old)
            if new is None:
                found[pc] = Unmatched.FUNCTION
            else:
                has_lines = self._builds[0].lines(old) and self._builds[1].lines(new)
                found[pc] = Unmatched.NO_POINT if has_lines else Unmatched.NO_LINES
        return found


class BuildComparison:
    """Replace PCs of two builds by numbers that both builds share. Within one build, PCs are the
    numbers.

    :param match: None if both sides are one build.
    """

    def __init__(self, match: BuildMatch | None = None) -> None:
        self.match = match

    def count(self, side: int, counts: Mapping[int, int]) -> Mapping[int, int]:
        """Return how often each point was recorded.

        :param side: 0 for the left build.
        :param counts: PC -> records.
        """
        if self.match is None:
            return counts
        found: dict[int, int] = defaultdict(int)
        for pc, records in counts.items():
            found[self.match.sides[side].numbers[pc]] += records
        return dict(found)

    def number_records(self, side: int, pcs: array[int]) -> array[int]:
        """Return the number of each record's point; 0 for a record without a PC.

        :param pcs: the PC of each record. Type code Q.
        """
        if self.match is None:
            return pcs
        numbering = make_numbering(pcs)
        known = self.match.sides[side].numbers
        numbers = array("I", [known.get(pc, _NO_NUMBER) for pc in numbering.number(pcs)])
        return array("Q", gather(numbering.ids(pcs), numbers, _NO_NUMBER))

    def pc(self, number: int, side: int) -> int | None:
        """Return the PC of a point in a build; None if the build lacks the point."""
        if self.match is None:
            return number
        return self.match.pcs[number][side] or None

    def counterpart(self, pc: int, side: int) -> int | None:
        """Return the PC of the same point in the other build, or None."""
        if self.match is None or not pc:
            return None
        return self.pc(self.match.sides[side].numbers[pc], 1 - side)

    def missing(self, pc: int, side: int) -> str | None:
        """Return what the other build lacks for a PC; None if the PC has a counterpart."""
        if self.match is None or pc not in self.match.sides[side].unmatched:
            return None
        return self.match.sides[side].unmatched[pc].value

    def function(self, frame: Frame, side: int) -> Function:
        """Return name and file of a frame's function in both builds."""
        function = find_function(frame)
        if self.match is None:
            return function
        return self.match.pairs.name(function, side)

    def remarks(self) -> tuple[str, ...]:
        """Return remarks on the match, none within one build."""
        if self.match is None:
            return ()
        return tuple(self.match.remarks())
