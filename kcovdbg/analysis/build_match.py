# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which coverage points of two builds of a kernel are the same, so that traces of both can be compared.

Points are the same when all frames of their locations are: the same functions (:mod:`.function_pairs`) on the same lines
(:mod:`.line_pairs`). Several points of one function that are on one line are matched one by one where the function has them in
the same order in both builds, and as one otherwise. Where inlining differs, the innermost function and line decide.

Points that are the same have one number. Numbers replace PCs wherever records of two builds are aligned or counted.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import compress
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.analysis.alignment import align
from kcovdbg.analysis.chain_loops import find_innermost, gather
from kcovdbg.analysis.function_pairs import BuildFunctions, FunctionPair, FunctionPairs, PairKind
from kcovdbg.analysis.line_pairs import LinePairs, Renames, pair_lines
from kcovdbg.analysis.native_loops import NO_ID, zeros
from kcovdbg.analysis.pc_counts import make_numbering
from kcovdbg.model.frame_columns import KIND_BITS, KIND_MASK, MAX_DEPTH
from kcovdbg.symbols.coverage_points import PointKind

_Key: TypeAlias = tuple[int, ...]
"""What a point is, and where: its kind, then the numbers of its frames, innermost first; equal in both builds."""

_NO_CLASS: Final = 0
# A tail call that is known stands for the block that it ends, and the entry of a function for its first block.
_KINDS: Final = {kind: int(kind) for kind in PointKind} | dict.fromkeys(
    (PointKind.TAIL_KNOWN, PointKind.ENTRY), int(PointKind.PC)
)
# Parts of functions that are not entered by calls of the function.
_SPLIT: Final = re.compile(r"\.(?:cold|part)\b")


class Unmatched(str, Enum):
    """Why a point has no counterpart in the other build."""

    FUNCTION = "function"
    """The other build has no such function."""
    LINE = "line"
    """The other build has the function, but no point on such a line of it."""
    LINES = "lines"
    """Both builds have the function, but one has no debug info of it."""
    LOCATION = "location"
    """Where the point is, is unknown."""


@dataclass(frozen=True, slots=True)
class BuildPoints:
    """The points of one build that were recorded, as numbers that both builds share."""

    numbers: Mapping[int, int]
    """PC -> number of the point; none is 0."""
    unmatched: Mapping[int, Unmatched]
    """PC -> why the other build lacks it; without those that it has."""

    def translate(self, pcs: array[int]) -> array[int]:
        """Return the number of each record's point; 0 for a record without a PC.

        :param pcs: of records. Type code Q.
        """
        numbering = make_numbering(pcs)
        distinct = numbering.number(pcs)
        numbers = array("I", [self.numbers.get(pc, _NO_CLASS) for pc in distinct])
        return array("Q", gather(numbering.ids(pcs), numbers, _NO_CLASS))

    def count(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Return how often each point was recorded, by its number.

        :param counts: PC -> records.
        """
        found: dict[int, int] = defaultdict(int)
        for pc, records in counts.items():
            found[self.numbers[pc]] += records
        return dict(found)


@dataclass(frozen=True, slots=True)
class BuildMatch:
    """What two builds have in common, of what was recorded in either."""

    left: BuildPoints
    right: BuildPoints
    pcs: Sequence[tuple[int, int]]
    """The first PC of each point in the left build and in the right one, by its number; 0 where there is none."""
    functions: Mapping[PairKind, int]
    """How many of the functions were found in both builds, by what made them the same."""
    to_left: Mapping[tuple[str, str], tuple[str, str]]
    """Name and file of each function that was found in both, in the right build -> in the left one."""
    moved: Sequence[tuple[str, str, str]]
    """Name, old file and new file of each function that was moved."""
    renamed: Sequence[tuple[str, str]]
    """Old name and new name of each function that was renamed."""
    by_source: int
    """Functions whose lines were paired by a diff of their sources."""
    by_order: int
    """Functions whose lines were paired by their order."""

    def other_pc(self, number: int, *, is_left: bool) -> int | None:
        """Return the PC that a point has in the other build, None where it has none.

        :param is_left: whether the other build is the right one.
        """
        return self.pcs[number][1 if is_left else 0] or None


class _Build:
    """One build while points are matched.

    :param functions: its functions, with its columns.
    """

    def __init__(self, functions: BuildFunctions) -> None:
        self.functions = functions
        self.columns = functions.columns
        assert self.columns.table is not None
        table = self.columns.table.columns
        self._base, self._offsets = table.base, table.offset
        self.rows = array("Q")
        self.rows.frombytes(memoryview(table.chain).cast("B"))  # type: ignore[arg-type]
        self.chain_of: dict[int, int] = dict(zip(self.columns.pcs, self.columns.chains, strict=True))
        """PC -> chain, of what was recorded and of the points that are looked at beside it."""

    @cached_property
    def outer_places(self) -> array[int]:
        """The place of the outermost frame of each row of the table."""
        return self.columns.outermost_places(self.rows)

    @cached_property
    def inner_places(self) -> array[int]:
        """The place of the innermost frame of each row of the table."""
        return gather(find_innermost(self.columns.frames, self.rows), self.columns.places.of_frame, NO_ID)

    def select(self, row_places: array[int], places: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield PC and chain of the rows whose place is one of these."""
        wanted = zeros("I", len(self.columns.places))
        for place in places:
            wanted[place] = 1
        chosen = gather(row_places, wanted, 0)
        base = self._base
        for offset, chain in zip(compress(self._offsets, chosen), compress(self.rows, chosen), strict=True):
            yield base + offset, chain

    def find_entries(self, pcs: Sequence[int]) -> list[int]:
        """Return the indexes of the first points of functions' bodies, without parts that the compiler split off.

        :param pcs: of one function, ascending.
        """
        table = self.columns.table
        assert table is not None
        found: dict[int, int] = {}
        for index, pc in enumerate(pcs):
            symbol = table.function_at(pc - 1)
            if symbol is not None and not _SPLIT.search(symbol.name):
                found.setdefault(symbol.address, index)
        return list(found.values())

    def frames(self, chain: int) -> Sequence[int]:
        """Return the numbers of a chain's frames, innermost first."""
        return self.columns.frames_of(chain)

    def places(self, chains: Iterable[int]) -> set[int]:
        """Return the places of all frames of some chains."""
        of_frame = self.columns.places.of_frame
        return {of_frame[frame] for chain in set(chains) for frame in self.frames(chain)}

    def outer_place(self, chain: int) -> int | None:
        frames = self.frames(chain)
        return self.columns.places.of_frame[frames[-1]] if len(frames) else None


def _kind_of(chain: int) -> int:
    return _KINDS[PointKind(chain & KIND_MASK)]


class _Keys:
    """Numbers of functions and lines that both builds share.

    :param left: the left build.
    :param right: the right one.
    :param pairs: functions that both have.
    """

    def __init__(self, left: _Build, right: _Build, pairs: FunctionPairs) -> None:
        self._left, self._right, self._pairs = left, right, pairs
        self._numbers: dict[tuple[int, int, bool], int] = {}
        self._frames: dict[tuple[int, bool], int] = {}
        self._chains: dict[tuple[int, bool], _Key] = {}
        self.lines: dict[int, LinePairs] = {}
        """The lines of functions that both builds have, by their places in the left build."""
        self._to_left: dict[int, Mapping[int, int]] = {}

    @cached_property
    def _renames(self) -> Renames:
        return Renames(self._pairs.old_names())

    @cached_property
    def _stale(self) -> set[str]:
        return self._pairs.find_stale_files()

    def _pair(self, pair: FunctionPair) -> Mapping[int, int]:
        """Return the lines of a function, from the right build to the left one."""
        found = self._to_left.get(pair.left)
        if found is None:
            old, new = self._left.functions, self._right.functions
            renames = None if old.files[pair.left] in self._stale else self._renames
            lines = pair_lines(old, pair.left, new, pair.right, renames)
            self.lines[pair.left] = lines
            found = self._to_left[pair.left] = {there: here for here, there in lines.to_right.items()}
        return found

    def frame(self, frame: int, *, is_left: bool) -> int:
        """Return the number of a frame's function and line, the left build's where both have it."""
        known = self._frames.get((frame, is_left))
        if known is not None:
            return known
        columns = (self._left if is_left else self._right).columns
        place, line, of_left = columns.places.of_frame[frame], columns.frames.line[frame], is_left
        pair = self._pairs.to_right(place) if is_left else self._pairs.to_left(place)
        if pair is not None:
            to_left = self._pair(pair)
            if not is_left and (line in to_left or not line):
                # Functions without lines have the line 0.
                place, line, of_left = pair.left, to_left.get(line, 0), True
        number = self._numbers.setdefault((place, line, of_left), len(self._numbers))
        self._frames[frame, is_left] = number
        return number

    def chain(self, chain: int, *, is_left: bool) -> _Key:
        """Return where a point is."""
        known = self._chains.get((chain, is_left))
        if known is None:
            frames = (self._left if is_left else self._right).frames(chain)
            known = self._chains[chain, is_left] = (_kind_of(chain), *(self.frame(frame, is_left=is_left) for frame in frames))
        return known

    def has_line(self, frame: int, *, is_left: bool) -> bool:
        """Return whether both builds have points on the line of a frame."""
        columns = (self._left if is_left else self._right).columns
        place, line = columns.places.of_frame[frame], columns.frames.line[frame]
        pair = self._pairs.to_right(place) if is_left else self._pairs.to_left(place)
        if pair is None:
            return False
        to_left = self._pair(pair)
        return line in (self.lines[pair.left].to_right if is_left else to_left)


class _Point(NamedTuple):
    """A point of one function."""

    pc: int
    key: _Key


class _Matcher:
    """One match of two builds.

    :param left: functions of the left build.
    :param right: functions of the right one.
    """

    def __init__(self, left: BuildFunctions, right: BuildFunctions) -> None:
        self._builds = _Build(left), _Build(right)
        self._pairs = FunctionPairs(left, right)
        self._keys = _Keys(*self._builds, self._pairs)
        self._numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._pcs: list[tuple[int, int]] = [(0, 0)]

    def run(self) -> BuildMatch:
        recorded = [build.places(build.columns.chains) for build in self._builds]
        self._pairs.add(*recorded)
        self._read_functions()
        self._pairs.add(*(build.places(build.chain_of.values()) for build in self._builds))
        for left, right in self._group_by_function():
            self._match_function(left, right)
        for is_left in (True, False):
            self._match_by_innermost(is_left=is_left)
        pairs = [pair for place in recorded[0] if (pair := self._pairs.to_right(place)) is not None]
        pairs += [
            pair for place in recorded[1] if (pair := self._pairs.to_left(place)) is not None and pair.left not in recorded[0]
        ]
        old, new = (build.functions for build in self._builds)
        by_source = [self._keys.lines[pair.left].is_by_source for pair in pairs if pair.left in self._keys.lines]
        return BuildMatch(
            self._points(is_left=True),
            self._points(is_left=False),
            self._pcs,
            Counter(pair.kind for pair in pairs),
            {(new.names[pair.right], new.files[pair.right]): (old.names[pair.left], old.files[pair.left]) for pair in pairs},
            sorted(
                (old.names[pair.left], old.files[pair.left], new.files[pair.right])
                for pair in pairs
                if pair.kind is PairKind.MOVED
            ),
            sorted((old.names[pair.left], new.names[pair.right]) for pair in pairs if pair.kind is PairKind.RENAMED),
            sum(by_source),
            len(by_source) - sum(by_source),
        )

    def _read_functions(self) -> None:
        """Add all points of the functions that were executed in either build."""
        left, right = self._builds
        executed = [
            {place for chain in set(build.columns.chains) if (place := build.outer_place(chain)) is not None}
            for build in self._builds
        ]
        wanted = (
            executed[0] | {pair.left for place in executed[1] if (pair := self._pairs.to_left(place)) is not None},
            executed[1] | {pair.right for place in executed[0] if (pair := self._pairs.to_right(place)) is not None},
        )
        for build, places in zip((left, right), wanted, strict=True):
            build.chain_of.update(build.select(build.outer_places, places))

    def _group_by_function(self) -> Iterator[tuple[list[_Point], list[_Point]]]:
        """Yield the points of each function in both builds, by address."""
        groups: dict[tuple[int | None, bool], tuple[list[_Point], list[_Point]]] = {}
        for is_left, build in zip((True, False), self._builds, strict=True):
            for pc in sorted(build.chain_of):
                chain = build.chain_of[pc]
                place, of_left = build.outer_place(chain), is_left
                pair = None if is_left or place is None else self._pairs.to_left(place)
                if pair is not None:
                    place, of_left = pair.left, True
                found = groups.setdefault((place, of_left), ([], []))
                found[0 if is_left else 1].append(_Point(pc, self._keys.chain(chain, is_left=is_left)))
        yield from groups.values()

    def _match_function(self, left: Sequence[_Point], right: Sequence[_Point]) -> None:
        """Number the points of a function."""
        sides = left, right
        by_key: dict[_Key, tuple[list[int], list[int]]] = {}
        entries = self._find_entries(left, right)
        if entries is not None:
            # Compilers do not agree on the line where a function begins.
            pcs = left[entries[0]].pc, right[entries[1]].pc
            self._numbers[0][pcs[0]] = self._numbers[1][pcs[1]] = self._add(*pcs)
        for side, points in enumerate(sides):
            for index, point in enumerate(points):
                if entries is None or index != entries[side]:
                    by_key.setdefault(point.key, ([], []))[side].append(index)
        in_order = _pair_in_order(left, right)
        for key, (mine, others) in by_key.items():
            if len(key) > 1 and mine and others and not _is_one_by_one(mine, others, in_order):
                # On one line, in another order or another number.
                number = self._add(left[mine[0]].pc, right[others[0]].pc)
                for side, indexes in enumerate((mine, others)):
                    self._numbers[side].update((sides[side][index].pc, number) for index in indexes)
                continue
            if len(key) == 1 or not others or not mine:
                # Without a location, or in one build only.
                for index in mine:
                    self._numbers[0][left[index].pc] = self._add(left[index].pc, 0)
                for index in others:
                    self._numbers[1][right[index].pc] = self._add(0, right[index].pc)
                continue
            for index, other in zip(mine, others, strict=True):
                number = self._add(left[index].pc, right[other].pc)
                self._numbers[0][left[index].pc] = self._numbers[1][right[other].pc] = number

    def _find_entries(self, left: Sequence[_Point], right: Sequence[_Point]) -> tuple[int, int] | None:
        """Return the indexes of the points where a function is entered, None where it has no or several bodies."""
        found = []
        for build, points in zip(self._builds, (left, right), strict=True):
            indexes = build.find_entries([point.pc for point in points]) if points else ()
            if len(indexes) != 1:
                return None
            found.append(indexes[0])
        return found[0], found[1]

    def _add(self, left: int, right: int) -> int:
        self._pcs.append((left, right))
        return len(self._pcs) - 1

    def _recorded_alone(self, *, is_left: bool) -> list[tuple[int, int]]:
        """Return PC and innermost frame of what was recorded in one build and has no counterpart, but a location."""
        build, numbers = (self._builds[0], self._numbers[0]) if is_left else (self._builds[1], self._numbers[1])
        other = 1 if is_left else 0
        return [
            (pc, build.frames(chain)[0])
            for pc, chain in zip(build.columns.pcs, build.columns.chains, strict=True)
            if chain >> KIND_BITS & MAX_DEPTH and not self._pcs[numbers[pc]][other]
        ]

    def _match_by_innermost(self, *, is_left: bool) -> None:
        """Match points whose functions are inlined into others in the other build."""
        side, other = (0, 1) if is_left else (1, 0)
        own, foreign = self._builds[side], self._builds[other]
        alone = [
            (pc, frame) for pc, frame in self._recorded_alone(is_left=is_left) if self._keys.has_line(frame, is_left=is_left)
        ]
        wanted = set()
        for _, frame in alone:
            place = own.columns.places.of_frame[frame]
            pair = self._pairs.to_right(place) if is_left else self._pairs.to_left(place)
            if pair is not None:
                wanted.add(pair.right if is_left else pair.left)
        if not wanted:
            return
        by_key: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for pc, chain in foreign.select(foreign.inner_places, wanted):
            by_key[_kind_of(chain), self._keys.frame(foreign.frames(chain)[0], is_left=not is_left)].append((pc, chain))
        for pc, frame in alone:
            chain = own.chain_of[pc]
            functions = self._functions(chain, is_left=is_left)
            candidates = [
                (abs(len(theirs) - len(functions)), other_pc)
                for other_pc, other_chain in by_key.get((_kind_of(chain), self._keys.frame(frame, is_left=is_left)), ())
                # One is inlined into what the other one is in, or into nothing.
                if (theirs := self._functions(other_chain, is_left=not is_left))[-1] in functions or functions[-1] in theirs
            ]
            if not candidates:
                continue
            _, found = min(candidates)
            number = self._numbers[other].get(found)
            if number is None:
                number = self._numbers[other][found] = self._add(*((0, found) if is_left else (found, 0)))
            if not self._pcs[number][side]:
                self._pcs[number] = (pc, found) if is_left else (found, pc)
            self._numbers[side][pc] = number

    def _functions(self, chain: int, *, is_left: bool) -> list[tuple[int, bool]]:
        """Return the functions of a chain, innermost first: the left build's where both have them."""
        build = self._builds[0 if is_left else 1]
        places = [build.columns.places.of_frame[frame] for frame in build.frames(chain)]
        if is_left:
            return [(place, True) for place in places]
        pairs = [self._pairs.to_left(place) for place in places]
        return [(place, False) if pair is None else (pair.left, True) for place, pair in zip(places, pairs, strict=True)]

    def _points(self, *, is_left: bool) -> BuildPoints:
        side, other = (0, 1) if is_left else (1, 0)
        build, numbers = self._builds[side], self._numbers[side]
        unmatched: dict[int, Unmatched] = {}
        for pc, chain in zip(build.columns.pcs, build.columns.chains, strict=True):
            if self._pcs[numbers[pc]][other]:
                continue
            frames = build.frames(chain)
            if not len(frames):
                unmatched[pc] = Unmatched.LOCATION
                continue
            place = build.columns.places.of_frame[frames[0]]
            pair = self._pairs.to_right(place) if is_left else self._pairs.to_left(place)
            if pair is None:
                unmatched[pc] = Unmatched.FUNCTION
                continue
            has_lines = all(len(its.functions.lines(at)) for its, at in zip(self._builds, (pair.left, pair.right), strict=True))
            unmatched[pc] = Unmatched.LINE if has_lines else Unmatched.LINES
        return BuildPoints({pc: numbers[pc] for pc in build.columns.pcs}, unmatched)


def _pair_in_order(left: Sequence[_Point], right: Sequence[_Point]) -> Mapping[int, int]:
    """Return the index on the right of points on the left, of those that are in the same order on both sides."""
    keys = [point.key for point in left], [point.key for point in right]
    if keys[0] == keys[1]:
        return {index: index for index in range(len(left))}
    numbers: dict[_Key, int] = {}
    sides = [array("Q", [numbers.setdefault(key, len(numbers) + 1) for key in side]) for side in keys]
    blocks = align(*sides).blocks
    return {block.left + at: block.right + at for block in blocks for at in range(block.length)}


def _is_one_by_one(left: Sequence[int], right: Sequence[int], in_order: Mapping[int, int]) -> bool:
    """Return whether equal points of a function are as many in both builds, and in the same order."""
    if len(left) != len(right):
        return False
    return len(left) == 1 or all(in_order.get(mine) == other for mine, other in zip(left, right, strict=True))


def match_builds(left: BuildFunctions, right: BuildFunctions) -> BuildMatch:
    """Match the points of two builds that were recorded.

    :param left: functions of the left build, with the columns of all PCs that were recorded in it and its location table.
    """
    return _Matcher(left, right).run()
