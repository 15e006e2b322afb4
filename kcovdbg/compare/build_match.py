# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pairs of equal coverage points of two builds of a kernel, by which traces of both are compared.

A function is the same by name and file, or by name where one build alone has it in another file.
Its lines are paired by a diff of the sources where both are at hand, or else by their order. Points
are the same when all frames of their locations are; several of one function that are on one line
are matched one by one where the function has them in the same order in both builds, and as one
otherwise. Where inlining differs, the innermost function and line decide.

Points that are the same have one number. Numbers replace PCs wherever records of two builds are
aligned or counted.
"""

from __future__ import annotations

import operator
import posixpath
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import compress, pairwise
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.location import KIND_BITS, KIND_MASK, MAX_DEPTH, Frame, frames_of_chain
from kcovdbg.records.alignment import align_records, number_values
from kcovdbg.records.native_loops import NO_ID, Numbering, find_innermost, flatten_chains
from kcovdbg.records.pc_counts import make_numbering
from kcovdbg.records.pc_locations import PcColumns, kind_flags, pair_words
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.table_rows import gather

_NO_NUMBER: Final = 0
# A tail call that is known stands for the block that it ends, and the entry of a function for its
# first block.
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
# Shorter runs agree by chance: between 6.1 and 6.12, 68 % of single distances and 42 % of two in a
# row were of other lines.
_RUN: Final = 4
# At the start and the end of a function, less is left to chance.
_EDGE_RUN: Final = 2
# Limit for functions in a remark.
_NAMED: Final = 4

Function: TypeAlias = tuple[str, str]
"""Name without a clone's suffix, and file without ``./``; both may be empty."""
_Line: TypeAlias = tuple[Function, int]
"""A function and a line of it, as the left build has them where both do; a line that only the right
one has is negative.
"""


class FunctionSpan(NamedTuple):
    """Where the source of a function is."""

    name: str
    file: str
    """As in debug info."""
    lines: range
    """From the first to the last one that frames of points are on."""
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

    :param columns: of the PCs that were recorded in it, with its table.
    :param read_text: returns the lines of a source file by its name in debug info, none where it is
        not at hand.
    :param unrecorded: those of the PCs that were not recorded, but are points which the table
        lacks.
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
        files = [strings[number] or "" for number in groups.file]
        normal = {file: posixpath.normpath(file) if file else "" for file in {*files}}
        self.functions: list[Function] = [
            (strip_clone_suffix(strings[number] or ""), normal[file])
            for number, file in zip(groups.function, files, strict=True)
        ]
        """The function of each group of frames."""
        self._files = dict(zip(self.functions, files, strict=True))
        self.groups: dict[Function, list[int]] = {}
        """The groups of frames of each function; a clone has one of its own."""
        for group, function in enumerate(self.functions):
            self.groups.setdefault(function, []).append(group)
        self._group_lines = Numbering().number(pair_words(groups.of_frame, columns.frames.line))
        self._lines: dict[Function, Sequence[int]] = {}
        self._named: defaultdict[str, list[Function]] = defaultdict(list)
        for function in self.groups:
            self._named[function[0]].append(function)

    def lines(self, function: Function) -> Sequence[int]:
        """Return the lines of a function that frames of points are on, ascending."""
        if function not in self._lines:
            words = self._group_lines
            found: set[int] = set()
            for group in self.groups[function]:
                # A frame without a line has the line 0.
                span = bisect_left(words, group << 32 | 1), bisect_left(words, group + 1 << 32)
                found.update(word & NO_ID for word in words[slice(*span)])
            self._lines[function] = sorted(found)
        return self._lines[function]

    def span(self, function: Function) -> FunctionSpan:
        """Return where a function is, which has lines."""
        lines = self.lines(function)
        return FunctionSpan(
            function[0],
            self._files[function],
            range(lines[0], lines[-1] + 1),
            is_inlined=not self._inlined.isdisjoint(self.groups[function]),
        )

    @cached_property
    def _inlined(self) -> set[int]:
        """The groups of frames that are not the outermost ones of some points."""
        chains = array("Q", {*self.rows})
        _, frames = flatten_chains(self.columns.frames, chains)
        counts = Counter(gather(frames, self.columns.groups.of_frame, NO_ID))
        counts.subtract(self.columns.outermost_groups(chains))
        return {group for group, count in counts.items() if count > 0}

    def find_home(self, function: Function) -> Function:
        """Return a function with the file that most of its code is in.

        Debug info has code of macros and cleanups, and code that the compiler moved, on lines of
        other files, without a frame of its own.
        """
        name, file = function
        most = max(self._named[name], key=lambda one: len(self.lines(one)))
        if most == function or len(self.lines(most)) == len(self.lines(function)):
            return function
        text = "\n".join(self._read_text(self._files[function])) if file else ""
        return function if re.search(rf"\b{re.escape(name)}\b", text) else most

    def frames(self, chain: int) -> Sequence[int]:
        """Return the numbers of a chain's frames, innermost first."""
        return frames_of_chain(self.columns.frames, chain)

    def function(self, frame: int) -> Function:
        """Return the function of a frame."""
        return self.functions[self.columns.groups.of_frame[frame]]

    def find_executed(self) -> set[Function]:
        """Return the functions into which the code of the recorded points was compiled."""
        return {
            self.functions[group]
            for group in {*self.columns.outermost_groups(self._chains)} - {NO_ID}
        }

    def find_named(self) -> set[Function]:
        """Return the functions of all frames of the recorded points."""
        _, frames = flatten_chains(self.columns.frames, self._chains)
        groups = gather(frames, self.columns.groups.of_frame, NO_ID)
        return {self.functions[group] for group in {*groups} - {NO_ID}}

    def find_kinds(self) -> set[int]:
        """Return the kinds of the recorded points."""
        return {_KINDS[kind] for kind in PointKind if any(kind_flags(self._chains, (kind,)))}

    def select(
        self, row_groups: array[int], functions: Collection[Function], kinds: Collection[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield PC and chain of the rows of the table that are in some functions, ascending.

        :param row_groups: the group of each row that decides.
        :param kinds: of points.
        """
        wanted = array("I", (function in functions for function in self.functions))
        is_kind = kind_flags(self.rows, (kind for kind in PointKind if _KINDS[kind] in kinds))
        chosen = bytes(map(operator.and_, gather(row_groups, wanted, 0), is_kind))
        table = self.table.columns
        return zip(
            map(table.base.__add__, compress(table.offset, chosen)),
            compress(self.rows, chosen),
            strict=True,
        )

    def find_entry(self, pcs: Sequence[int]) -> int | None:
        """Return the index of the point where a function is entered, None where it has no or
        several bodies.

        :param pcs: its points, ascending.
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
        return bodies[0] if len(bodies) == 1 else None

    def text(self, function: Function) -> list[str]:
        """Return the text from a function's first line with a point to the last one.

        :return: empty where the source is not at hand.
        """
        lines, file = self.lines(function), self._files[function]
        whole = self._read_text(file) if lines and file else ()
        # A shorter source is older or newer than the build.
        if not lines or lines[-1] > len(whole):
            return []
        return [line.strip() for line in whole[lines[0] - 1 : lines[-1]]]


def _pair_functions(left: BuildFunctions, right: BuildFunctions) -> dict[Function, Function]:
    """Return the functions of the right build that the left one has, with the left ones."""
    sides = left.groups.keys(), right.groups.keys()
    pairs = {function: function for function in sides[1] & sides[0] if function[0]}
    alone: list[dict[str, list[Function]]] = [defaultdict(list), defaultdict(list)]
    for side, (own, other) in enumerate((sides, sides[::-1])):
        for function in own - other:
            alone[side][function[0]].append(function)
    for name, found in alone[0].items():
        others = alone[1].get(name, ())
        if (
            name
            and len(found) == len(others) == 1
            and _may_be_same(left, found[0], right, others[0])
        ):
            pairs[others[0]] = found[0]
    return pairs


def _may_be_same(
    left: BuildFunctions, function: Function, right: BuildFunctions, other: Function
) -> bool:
    """Return whether functions of one name can be the same. A stub in another file cannot: it
    stands for a function that the kernel lacks.
    """
    files = function[1], other[1]
    if _STUBS in files:
        return False
    sizes = sorted((len(left.lines(function)), len(right.lines(other))))
    # Without debug info there is only the name.
    return not all(files) or sizes[0] >= _MOVED_LINES * sizes[1]


def _pair_by_text(lines: Sequence[Sequence[int]], texts: Sequence[Sequence[str]]) -> dict[int, int]:
    """Pair lines on the right with those on the left that a diff of both texts leaves equal."""
    first, other = lines[0][0], lines[1][0]
    left = {*lines[0]}
    of_text = {
        other + there: first + here for here, there in align_records(*number_values(*texts)).pairs()
    }
    return {line: of_text[line] for line in lines[1] if of_text.get(line) in left}


def _pair_by_order(left: Sequence[int], right: Sequence[int]) -> dict[int, int]:
    """Pair lines of functions by the distances between lines: whole functions if all distances are
    equal, otherwise runs of several equal ones.
    """
    if len(left) == len(right) and all(
        there - here == right[0] - left[0] for here, there in zip(left, right, strict=True)
    ):
        return dict(zip(right, left, strict=True))
    steps = [array("Q", [1, *(b - a + 1 for a, b in pairwise(side))]) for side in (left, right)]
    pairs: dict[int, int] = {}
    i = j = 0
    for start, other, length in align_records(*steps).blocks:
        is_at_edge = start == other == 0 or (
            start + length == len(left) and other + length == len(right)
        )
        if length < (_EDGE_RUN if is_at_edge else _RUN):
            continue
        if i < start and j < other:
            # A run's first distance is measured from the lines before it.
            pairs[right[other - 1]] = left[start - 1]
        pairs.update(zip(right[other : other + length], left[start : start + length], strict=True))
        i, j = start + length, other + length
    return pairs


_REASONS: Final = {
    Unmatched.FUNCTION: "in functions that it lacks",
    Unmatched.NO_POINT: "on lines where it has no point",
    Unmatched.NO_LINES: "in functions that one build has no debug info of",
    Unmatched.LOCATION: "without a known location",
}


@dataclass(frozen=True, slots=True)
class BuildMatch:
    """Points recorded in either build, matched with those of the other; pairs are (left, right)."""

    numbers: tuple[Mapping[int, int], Mapping[int, int]]
    """PC -> number of the point; numbers begin with 1."""
    pcs: Sequence[tuple[int, int]]
    """The first PC of each point in both builds, by its number; 0 where there is none."""
    to_left: Mapping[Function, Function]
    """Function of the right build -> the same function of the left build."""
    unmatched: tuple[Mapping[int, Unmatched], Mapping[int, Unmatched]]
    """PC -> why the other build lacks it."""
    moved: Sequence[tuple[str, str, str]]
    """Name, old file and new file of each function that was executed and moved."""
    same: int
    """How many of the functions that were executed both builds have in one file."""
    by_source: int
    """Functions whose lines were paired by a diff of their sources."""
    by_order: int
    """Functions whose lines were paired by their order."""
    recorded: tuple[int, int]
    """How many points were recorded in each build."""
    reached: tuple[Collection[Function], Collection[Function]]
    """The functions of recorded points, as the left build has them."""
    renamed: tuple[Mapping[Function, str], Mapping[Function, str]]
    """Function of one build alone -> name of the one that has its text in the other build."""
    homes: tuple[Mapping[Function, Function], Mapping[Function, Function]]
    """Function with a file that only some of its code is in -> the same with its own file."""
    unrecorded: tuple[Mapping[Function, FunctionSpan], Mapping[Function, FunctionSpan]]
    """Functions of recorded points of the other build, as the left build has them, whose points
    were not recorded in this one.
    """

    def function(self, function: Function, side: int) -> Function:
        """Return the left build's name for a function; a function of the right build alone gets a
        name that no function has.
        """
        return _as_left(function, side, self.to_left)

    def remarks(self) -> Iterator[str]:
        """Yield remarks on what was matched, and how, and on what was not."""
        parts = [f"{self.same} functions in both"]
        names = [f"{name} ({old} → {new})" for name, old, new in self.moved]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            parts.append(f"{len(names)} moved: {', '.join(names[:_NAMED])}{more}")
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
        for side, unmatched, total in zip(
            ("left", "right"), self.unmatched, self.recorded, strict=True
        ):
            reasons = list(unmatched.values())
            if reasons:
                why = ", ".join(
                    f"{reasons.count(reason)} {text}"
                    for reason, text in _REASONS.items()
                    if reason in reasons
                )
                yield (
                    f"{len(reasons)} of {total} points on the {side} have no counterpart in the "
                    f"other build: {why}"
                )


def match_builds(left: BuildFunctions, right: BuildFunctions) -> BuildMatch:
    """Match the points of two builds."""
    builds, to_left = (left, right), _pair_functions(left, right)
    matcher = _PointMatcher(builds, to_left)
    matcher.match()
    of_left = frozenset(left.find_named())
    of_right = frozenset(_as_left(one, 1, to_left) for one in right.find_named())
    pairs = [(old, new) for new, old in to_left.items() if old in of_left | of_right]
    moved = sorted(
        (old[0], old[1], new[1]) for old, new in pairs if old != new and old[1] and new[1]
    )
    by_source = sum(matcher.is_paired_by_source(new) for _, new in pairs)
    homes = _find_homes(left), _find_homes(right)
    return BuildMatch(
        numbers=matcher.numbers,
        pcs=matcher.pcs,
        to_left=to_left,
        unmatched=(matcher.find_unmatched(0), matcher.find_unmatched(1)),
        moved=moved,
        same=len(pairs) - len(moved),
        by_source=by_source,
        by_order=len(pairs) - by_source,
        recorded=(len(left.recorded), len(right.recorded)),
        reached=(of_left, of_right),
        renamed=_find_renamed(builds, to_left),
        homes=homes,
        unrecorded=_find_unrecorded(builds, to_left, (of_left, of_right), homes),
    )


def _find_homes(build: BuildFunctions) -> dict[Function, Function]:
    """Return the functions of recorded points with a file that is not their own."""
    homes = {}
    for function in build.find_named():
        home = build.find_home(function)
        if home != function:
            homes[function] = home
    return homes


def _find_unrecorded(
    builds: tuple[BuildFunctions, BuildFunctions],
    to_left: Mapping[Function, Function],
    reached: tuple[Collection[Function], Collection[Function]],
    homes: tuple[Mapping[Function, Function], Mapping[Function, Function]],
) -> tuple[Mapping[Function, FunctionSpan], Mapping[Function, FunctionSpan]]:
    """Return the functions of both builds of which one alone recorded points, by the other one."""
    to_right = {old: new for new, old in to_left.items()}
    found: tuple[dict[Function, FunctionSpan], dict[Function, FunctionSpan]] = ({}, {})
    for side, build in enumerate(builds):
        every = (
            *reached[1 - side],
            *(_as_left(one, 1 - side, to_left) for one in homes[1 - side].values()),
        )
        for function in every:
            own = function if side == 0 else to_right.get(function)
            if function not in reached[side] and own in build.groups and build.lines(own):
                found[side][function] = build.span(own)
    return found


def _find_renamed(
    builds: tuple[BuildFunctions, BuildFunctions], to_left: Mapping[Function, Function]
) -> tuple[Mapping[Function, str], Mapping[Function, str]]:
    """Return the other names of executed functions that one build alone has: of the one function in
    the same file of the other build that has most of the text.
    """
    paired = {*to_left.values()}, {*to_left}
    renamed: tuple[dict[Function, str], dict[Function, str]] = ({}, {})
    for side, build in enumerate(builds):
        other = builds[1 - side]
        by_file: defaultdict[str, list[Function]] = defaultdict(list)
        for candidate in other.groups.keys() - paired[1 - side]:
            by_file[candidate[1]].append(candidate)
        for function in build.find_named() - paired[side]:
            found = [
                candidate[0]
                for candidate in by_file[function[1]]
                if _is_same_text(build.text(function), other.text(candidate))
            ]
            if len(found) == 1:
                renamed[side][function] = found[0]
    return renamed


def _is_same_text(left: Sequence[str], right: Sequence[str]) -> bool:
    """Return whether two functions have most of their lines in common, braces aside."""
    sides = [[line for line in lines if _WORD.search(line)] for lines in (left, right)]
    if min(map(len, sides)) < _LEAST_TEXT:
        return False
    common = align_records(*number_values(*sides)).common
    return common > _RENAMED_TEXT * max(map(len, sides))


def _as_left(function: Function, side: int, to_left: Mapping[Function, Function]) -> Function:
    """Return a function as the left build has it; of the right build alone it has a name that no
    function has.
    """
    return function if side == 0 else to_left.get(function, ("\0" + function[0], function[1]))


class _PointMatcher:
    """Gives the points of two builds their numbers.

    What finds the matches of a kernel with half a million points takes more memory than they do,
    and ends with it.

    :param to_left: the functions of the right build that the left one has, as it has them.
    """

    def __init__(
        self, builds: tuple[BuildFunctions, BuildFunctions], to_left: Mapping[Function, Function]
    ) -> None:
        self._builds = builds
        self._to_left = to_left
        self._to_right = {old: new for new, old in to_left.items()}
        self._kinds = builds[0].find_kinds() | builds[1].find_kinds()
        self._pair_lines, self._line, self._point = (
            cache(self._find_pairs),
            cache(self._find_line),
            cache(self._find_point),
        )
        self.numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.pcs = [(0, 0)]

    def match(self) -> None:
        """Number all points."""
        executed = {
            self._function(one, side)
            for side, build in enumerate(self._builds)
            for one in build.find_executed()
        }
        for side, build in enumerate(self._builds):
            # All points of the functions that were executed in either build: the order counts.
            functions = {one for one in build.groups if self._function(one, side) in executed}
            build.chain_of.update(
                build.select(build.columns.outermost_groups(build.rows), functions, self._kinds)
            )
        groups = [self._group(side) for side in (0, 1)]
        for function in dict.fromkeys((*groups[0], *groups[1])):
            self._match_function(groups[0].get(function, []), groups[1].get(function, []))
        for side in (0, 1):
            self._match_by_innermost(side)

    def is_paired_by_source(self, right: Function) -> bool:
        """Return whether the lines of a function of the right build were paired by the sources."""
        return self._pair_lines(right)[1]

    def _function(self, function: Function, side: int) -> Function:
        return _as_left(function, side, self._to_left)

    def _find_pairs(self, right: Function) -> tuple[Mapping[int, int], bool]:
        """Return the lines of a function of the right build that the left one has, as there, and
        whether by the sources.
        """
        builds, functions = self._builds, (self._to_left[right], right)
        lines = [build.lines(function) for build, function in zip(builds, functions, strict=True)]
        if not all(lines):
            return {}, False
        texts = [build.text(function) for build, function in zip(builds, functions, strict=True)]
        return (
            (_pair_by_text(lines, texts), True) if all(texts) else (_pair_by_order(*lines), False)
        )

    def _find_line(self, side: int, frame: int) -> _Line:
        """Return the function and line of a frame."""
        build = self._builds[side]
        function, line = build.function(frame), build.columns.frames.line[frame]
        if side and line and function in self._to_left:
            line = self._pair_lines(function)[0].get(line, -line)
        return self._function(function, side), line

    def _find_point(self, side: int, chain: int) -> _Point:
        lines = tuple(self._line(side, frame) for frame in self._builds[side].frames(chain))
        return _Point(_KINDS[PointKind(chain & KIND_MASK)], lines)

    def _group(self, side: int) -> dict[Function, list[int]]:
        """Return the points of a build, ascending, by function."""
        build = self._builds[side]
        groups: dict[Function, list[int]] = {}
        for pc in sorted(build.chain_of):
            frames = build.frames(build.chain_of[pc])
            # A point without a location equals none of the other build.
            function = self._line(side, frames[-1])[0] if frames else ("\0", str(side))
            groups.setdefault(function, []).append(pc)
        return groups

    def _add(self, left: Sequence[int], right: Sequence[int]) -> int:
        """Give PCs of both builds the number of a new point."""
        number = len(self.pcs)
        self.pcs.append((left[0] if left else 0, right[0] if right else 0))
        for known, pcs in zip(self.numbers, (left, right), strict=True):
            known.update(dict.fromkeys(pcs, number))
        return number

    def _match_function(self, left: list[int], right: list[int]) -> None:
        """Number the points of a function."""
        points = [
            [self._point(side, self._builds[side].chain_of[pc]) for pc in pcs]
            for side, pcs in enumerate((left, right))
        ]
        entries = [
            build.find_entry(pcs) for build, pcs in zip(self._builds, (left, right), strict=True)
        ]
        by_point: dict[object, tuple[list[int], list[int]]] = {}
        for side, its in enumerate(points):
            for index, point in enumerate(its):
                key: object = point
                if None not in entries and index == entries[side]:
                    # Compilers do not agree on the line where a function begins.
                    key = "entry"
                by_point.setdefault(key, ([], []))[side].append(index)
        # The index on the right of points that are in the same order on both sides.
        in_order: Mapping[int, int] | None = None
        for mine, others in by_point.values():
            is_single = len(mine) == len(others)
            if is_single and len(mine) > 1:
                if in_order is None:
                    in_order = dict(align_records(*number_values(*points)).pairs())
                is_single = [in_order.get(index) for index in mine] == others
            if is_single or not mine or not others:
                for index in range(max(len(mine), len(others))):
                    self._add(
                        [left[at] for at in mine[index : index + 1]],
                        [right[at] for at in others[index : index + 1]],
                    )
            else:
                # On one line, in another order or another number.
                self._add([left[at] for at in mine], [right[at] for at in others])

    def _find_alone(self, side: int) -> list[tuple[int, int]]:
        """Return PC and chain of each recorded point of a build without a counterpart."""
        numbers = self.numbers[side]
        return [
            (pc, chain)
            for pc, chain in self._builds[side].recorded.items()
            if not self.pcs[numbers[pc]][1 - side]
        ]

    def _match_by_innermost(self, side: int) -> None:
        """Match points whose functions are inlined into others in the other build."""
        alone = {pc: self._point(side, chain) for pc, chain in self._find_alone(side)}
        alone = {pc: point for pc, point in alone.items() if point.lines and point.lines[0][1] > 0}
        wanted = {point.innermost for point in alone.values()}
        by_outermost: dict[object, int] = {}
        by_any: dict[object, int] = {}
        for pc, chain in self._find_copies(1 - side, {line[0] for _, line in wanted}):
            point = self._point(1 - side, chain)
            if point.innermost in wanted:
                by_outermost.setdefault((point.innermost, point.lines[-1][0]), pc)
                for function, _ in point.lines:
                    by_any.setdefault((point.innermost, function), pc)
        for pc, point in alone.items():
            # Inlined into the same function, or by itself, or into one that is inlined here.
            found = by_any.get((point.innermost, point.lines[-1][0]))
            for function, _ in point.lines:
                found = found or by_outermost.get((point.innermost, function))
            if found:
                self._join(side, pc, found)

    def _find_copies(self, side: int, functions: Collection[Function]) -> list[tuple[int, int]]:
        """Return the lowest PC, ascending, of each chain with its innermost frame in some
        functions, and the chain.
        """
        build = self._builds[side]
        wanted = {one for one in build.groups if self._function(one, side) in functions}
        if not wanted:
            return []
        groups = gather(
            find_innermost(build.columns.frames, build.rows), build.columns.groups.of_frame, NO_ID
        )
        found = dict(build.select(groups, wanted, self._kinds))
        # Points of modules are not in the table.
        found |= {
            pc: chain
            for pc, chain in build.chain_of.items()
            if chain >> KIND_BITS & MAX_DEPTH and build.function(build.frames(chain)[0]) in wanted
        }
        first = {found[pc]: pc for pc in sorted(found, reverse=True)}
        return sorted((pc, chain) for chain, pc in first.items())

    def _join(self, side: int, pc: int, counterpart: int) -> None:
        """Give a PC the number of its counterpart."""
        number = self.numbers[1 - side].get(counterpart)
        if number is None:
            number = self._add(*([], [counterpart]) if side == 0 else ([counterpart], []))
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
            old = self._function(build.find_home(build.function(frames[0])), side)
            new = self._to_right.get(old)
            if new is None:
                found[pc] = Unmatched.FUNCTION
            else:
                has_lines = self._builds[0].lines(old) and self._builds[1].lines(new)
                found[pc] = Unmatched.NO_POINT if has_lines else Unmatched.NO_LINES
        return found


class BuildComparison:
    """Records of two builds as numbers of points that both share; within one build, PCs are the
    numbers.

    :param match: None where they are one build.
    """

    def __init__(self, match: BuildMatch | None = None) -> None:
        self.match = match

    def count(self, side: int, counts: Mapping[int, int]) -> Mapping[int, int]:
        """Return how often each point was recorded.

        :param side: 0 for the left one.
        :param counts: PC -> records.
        """
        if self.match is None:
            return counts
        found: dict[int, int] = defaultdict(int)
        for pc, records in counts.items():
            found[self.match.numbers[side][pc]] += records
        return dict(found)

    def number_records(self, side: int, pcs: array[int]) -> array[int]:
        """Return the number of each record's point; 0 for a record without a PC.

        :param pcs: of records. Type code Q.
        """
        if self.match is None:
            return pcs
        numbering = make_numbering(pcs)
        numbers = array(
            "I", [self.match.numbers[side].get(pc, _NO_NUMBER) for pc in numbering.number(pcs)]
        )
        return array("Q", gather(numbering.ids(pcs), numbers, _NO_NUMBER))

    def pc(self, number: int, side: int) -> int | None:
        """Return the PC of a point in a build, None where that has none."""
        return number if self.match is None else self.match.pcs[number][side] or None

    def counterpart(self, pc: int, side: int) -> int | None:
        """Return the PC of the same point in the other build, None where that has none."""
        if self.match is None or not pc:
            return None
        return self.pc(self.match.numbers[side][pc], 1 - side)

    def missing(self, pc: int, side: int) -> str | None:
        """Return what the other build lacks of a PC, None where it has a counterpart."""
        reason = None if self.match is None else self.match.unmatched[side].get(pc)
        return None if reason is None else reason.value

    def function(self, frame: Frame, side: int) -> Function:
        """Return name and file of a frame's function, the left build's where both have it."""
        file = posixpath.normpath(frame.file) if frame.file else ""
        function = (strip_clone_suffix(frame.function or ""), file)
        return function if self.match is None else self.match.function(function, side)

    def remarks(self) -> tuple[str, ...]:
        """Return remarks on what was matched, and how, and on what was not."""
        return () if self.match is None else tuple(self.match.remarks())
