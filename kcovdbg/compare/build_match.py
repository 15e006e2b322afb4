# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which coverage points of two builds of a kernel are the same, so that traces of both can be compared.

Points are the same when all frames of their locations are: the same functions on the same lines (:mod:`.function_pairs`).
Several points of one function that are on one line are matched one by one where the function has them in
the same order in both builds, and as one otherwise. Where inlining differs, the innermost function and line decide.

Points that are the same have one number. Numbers replace PCs wherever records of two builds are aligned or counted.
"""

from __future__ import annotations

import operator
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import compress
from typing import Final, NamedTuple

from kcovdbg.compare.function_pairs import BuildFunctions, FunctionPair, FunctionPairs, LinePairs, PairKind, pair_lines
from kcovdbg.compiled_module import zeros
from kcovdbg.model.location import KIND_BITS, KIND_MASK, MAX_DEPTH, START_SHIFT
from kcovdbg.records.alignment import align
from kcovdbg.records.chain_loops import find_innermost, gather
from kcovdbg.records.native_loops import NO_ID
from kcovdbg.records.pc_columns import kind_flags, low_halves, pair_words
from kcovdbg.records.pc_counts import make_numbering
from kcovdbg.symbols.coverage_points import PointKind

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
    """Matches between two builds, of the points recorded in either."""

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
    by_source: int
    """Functions whose lines were paired by a diff of their sources."""
    by_order: int
    """Functions whose lines were paired by their order."""


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
        self.pcs, self.chains = self.columns.pcs, self.columns.chains
        """The recorded points."""
        if functions.unrecorded:
            is_recorded = bytes(pc not in functions.unrecorded for pc in self.pcs)
            self.pcs, self.chains = (array("Q", compress(column, is_recorded)) for column in (self.pcs, self.chains))

    @cached_property
    def recorded_kinds(self) -> set[int]:
        """The kinds of points that were recorded, as in :func:`_kind_of`."""
        return {_KINDS[kind] for kind in PointKind if any(kind_flags(self.chains, (kind,)))}

    def select(self, row_places: array[int], places: Iterable[int], kinds: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield PC and chain of the rows whose place is one of these, ascending.

        :param row_places: a place for each row of the table.
        :param kinds: of points, as in :func:`_kind_of`.
        """
        wanted = zeros("I", len(self.columns.places))
        for place in places:
            wanted[place] = 1
        is_kind = kind_flags(self.rows, (kind for kind in PointKind if _KINDS[kind] in kinds))
        chosen = bytes(map(operator.and_, gather(row_places, wanted, 0), is_kind))
        return zip(map(self._base.__add__, compress(self._offsets, chosen)), compress(self.rows, chosen), strict=True)

    def select_outside(self, places: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield PC and chain of what is not in the image, as that of modules, by the place of the innermost frame."""
        assert self.columns.table is not None
        ranges = self.columns.table.text_ranges()
        start, end = min((one.start for one in ranges), default=0), max((one.end for one in ranges), default=0)
        pcs = self.columns.pcs
        for pc in (*pcs[: bisect_left(pcs, start)], *pcs[bisect_right(pcs, end) :]):
            chain = self.chain_of[pc]
            if chain >> KIND_BITS & MAX_DEPTH and self.innermost_place(chain) in places:
                yield pc, chain

    def add_functions(self, places: Iterable[int], kinds: Collection[int]) -> None:
        """Add all points of functions that are of some kinds, as in :func:`_kind_of`."""
        self.chain_of.update(self.select(self.columns.outermost_places(self.rows), places, kinds))

    def find_bodies(self, pcs: Sequence[int]) -> array[int]:
        """Return the body of a function that each PC is in: the number of its symbol.

        0 stands for none, and for a part that the compiler split off.

        :param pcs: ascending.
        """
        table = self.columns.table
        assert table is not None
        found = zeros("I", len(pcs))
        at = number = 0
        while at < len(pcs):
            symbol = table.function_at(pcs[at] - 1)
            end = at + 1
            if symbol is not None:
                last = bisect_right(pcs, symbol.address + symbol.size, at)
                if last > end and table.function_at(pcs[last - 1] - 1) == symbol:
                    end = last
                if not _SPLIT.search(symbol.name):
                    number += 1
                    found[at:end] = array("I", (number,)) * (end - at)
            at = end
        return found

    def frames(self, chain: int) -> Sequence[int]:
        """Return the numbers of a chain's frames, innermost first."""
        return self.columns.frames_of(chain)

    def innermost_place(self, chain: int) -> int:
        """Return the place of the innermost frame of a chain, which is not empty."""
        return self.columns.places.of_frame[self.frames(chain)[0]]

    def places(self, chains: Iterable[int]) -> set[int]:
        """Return the places of all frames of some chains."""
        _, frames = self.columns.flatten(array("Q", set(chains)))
        return set(gather(frames, self.columns.places.of_frame, NO_ID)) - {NO_ID}


def _kind_of(chain: int) -> int:
    return _KINDS[PointKind(chain & KIND_MASK)]


class _Keys:
    """Numbers of functions and lines that both builds share: the left build's where both have them.

    :param left: the left build.
    :param right: the right one.
    :param pairs: functions that both have.
    """

    def __init__(self, left: _Build, right: _Build, pairs: FunctionPairs) -> None:
        self._builds = left, right
        sides = left.functions, right.functions
        counts = [len(side.names) for side in sides]
        functions = array("I", range(counts[0])), array("I", range(counts[0], sum(counts)))
        lines = [len(side.place_lines) for side in sides]
        numbers = array("I", range(lines[0], sum(lines)))
        self._is_paired = bytearray(sum(lines))
        self.by_source = frozenset(
            pair.left for pair, in_both in self._pair_lines(pairs) if self._share(pair, in_both, numbers, functions[1])
        )
        """The places in the left build of functions whose lines were paired by a diff of their sources."""
        self.nowhere = sum(counts)
        """The number that no function has."""
        self.functions = functions
        """Of each place of the left build and of the right one, the number of its function."""
        self.lines = sides[0].line_of_frame, gather(sides[1].line_of_frame, numbers, NO_ID)
        """Of each frame of the left build and of the right one, the number of its function and line."""
        self._numbers: dict[bytes, int] = {}

    def _pair_lines(self, pairs: FunctionPairs) -> Iterator[tuple[FunctionPair, LinePairs]]:
        old, new = (build.functions for build in self._builds)
        for pair in pairs:
            yield pair, pair_lines(old, pair.left, new, pair.right)

    def _share(self, pair: FunctionPair, lines: LinePairs, numbers: array[int], functions: array[int]) -> bool:
        """Give a function of the right build, and its lines, the numbers of the left build.

        :return: whether its lines were paired by source.
        """
        functions[pair.right] = pair.left
        old, new = (build.functions for build in self._builds)
        here, there = old.line_span(pair.left), new.line_span(pair.right)
        if len(lines.to_right) == len(here) == len(there):
            # All pairs are in order.
            numbers[there.start : there.stop] = array("I", here)
            self._is_paired[here.start : here.stop] = b"\1" * len(here)
        else:
            left, right = (
                dict(zip(*one, strict=True)) for one in ((old.lines(pair.left), here), (new.lines(pair.right), there))
            )
            for line, other in lines.to_right.items():
                numbers[right[other]] = left[line]
                self._is_paired[left[line]] = 1
        if old.has_unknown_line(pair.left) and new.has_unknown_line(pair.right):
            numbers[there.start - 1] = here.start - 1
        return lines.is_by_source

    def number(self, chains: Iterable[int], *, is_left: bool) -> array[int]:
        """Return what each point is, and where, as numbers that are equal for equal points of both builds."""
        columns = self._builds[0 if is_left else 1].columns
        frames = gather(columns.frames.chain_frame, self.lines[0 if is_left else 1], NO_ID)
        width, data = frames.itemsize, frames.tobytes()
        kinds = [_kind_of(chain).to_bytes(1, "little") for chain in range(len(PointKind))]
        known: dict[int, int] = {}
        chains = list(chains)
        numbers = self._numbers
        for chain in set(chains):
            start, length = chain >> START_SHIFT, chain >> KIND_BITS & MAX_DEPTH
            key = data[start * width : (start + length) * width] + kinds[chain & KIND_MASK]
            known[chain] = numbers.setdefault(key, len(numbers))
        return array("I", map(known.__getitem__, chains))

    def innermost(self, chain: int, *, is_left: bool) -> tuple[int, int]:
        """Return the kind of a point, and the number of its innermost function and line."""
        side = 0 if is_left else 1
        return _kind_of(chain), self.lines[side][self._builds[side].frames(chain)[0]]

    def functions_of(self, chain: int, *, is_left: bool) -> list[int]:
        """Return the functions of a chain, innermost first."""
        side = 0 if is_left else 1
        of_frame = self._builds[side].columns.places.of_frame
        return [self.functions[side][of_frame[frame]] for frame in self._builds[side].frames(chain)]

    def has_line(self, line: int) -> bool:
        """Return whether both builds have points on a line of a function.

        :param line: its number.
        """
        return self._is_paired[line] != 0


class _Points(NamedTuple):
    """Points of one function, or of all: one function after the other, each by address."""

    pcs: array[int]
    keys: array[int]
    bodies: array[int]

    def select(self, span: range) -> _Points:
        """Return the points of one function."""
        return _Points(*(column[span.start : span.stop] for column in self))

    def find_entry(self) -> int | None:
        """Return the index of the point where the function is entered, None where it has no or several bodies."""
        bodies = {*self.bodies} - {0}
        return self.bodies.index(bodies.pop()) if len(bodies) == 1 else None


class _Copies:
    """The lowest PCs of a build by their innermost functions and lines, and by the functions that those are inlined into."""

    def __init__(self) -> None:
        self._by_outermost: dict[tuple[tuple[int, int], int], int] = {}
        self._by_any: dict[tuple[tuple[int, int], int], int] = {}

    def add(self, pc: int, innermost: tuple[int, int], functions: Sequence[int]) -> None:
        """Add a point, after all those with lower PCs."""
        self._by_outermost.setdefault((innermost, functions[-1]), pc)
        for function in functions:
            self._by_any.setdefault((innermost, function), pc)

    def find(self, innermost: tuple[int, int], functions: Sequence[int]) -> int | None:
        """Return the PC of a point that is inlined into the same outermost function, or whose outermost one is among these."""
        inlined = self._by_any.get((innermost, functions[-1]))
        others = (self._by_outermost.get((innermost, function)) for function in functions)
        return inlined if inlined is not None else next((pc for pc in others if pc is not None), None)


class _Matcher:
    """One match of two builds.

    :param left: functions of the left build.
    :param right: functions of the right one.
    """

    def __init__(self, left: BuildFunctions, right: BuildFunctions) -> None:
        self._builds = _Build(left), _Build(right)
        self._pairs = FunctionPairs(left, right)
        self._kinds = frozenset().union(*(build.recorded_kinds for build in self._builds))
        self._numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._pcs = array("Q", (0,)), array("Q", (0,))

    def run(self) -> BuildMatch:
        recorded = [build.places(build.chains) for build in self._builds]
        self._pairs.add(*recorded)
        self._read_functions()
        self._pairs.add(*(build.places(build.chain_of.values()) for build in self._builds))
        keys = _Keys(*self._builds, self._pairs)
        self._match_functions(keys)
        for is_left in (True, False):
            self._match_by_innermost(keys, is_left=is_left)
        pairs = [pair for place in recorded[0] if (pair := self._pairs.to_right(place)) is not None]
        pairs += [
            pair for place in recorded[1] if (pair := self._pairs.to_left(place)) is not None and pair.left not in recorded[0]
        ]
        old, new = (build.functions for build in self._builds)
        by_source = sum(pair.left in keys.by_source for pair in pairs)
        return BuildMatch(
            self._points(is_left=True),
            self._points(is_left=False),
            list(zip(*self._pcs, strict=True)),
            Counter(pair.kind for pair in pairs),
            {(new.names[pair.right], new.files[pair.right]): (old.names[pair.left], old.files[pair.left]) for pair in pairs},
            sorted(
                (old.names[pair.left], old.files[pair.left], new.files[pair.right])
                for pair in pairs
                if pair.kind is PairKind.MOVED
            ),
            by_source,
            len(pairs) - by_source,
        )

    def _read_functions(self) -> None:
        """Add all points of the functions that were executed in either build."""
        executed = [set(build.columns.outermost_places(build.chains)) - {NO_ID} for build in self._builds]
        wanted = (
            executed[0] | {pair.left for place in executed[1] if (pair := self._pairs.to_left(place)) is not None},
            executed[1] | {pair.right for place in executed[0] if (pair := self._pairs.to_right(place)) is not None},
        )
        for build, places in zip(self._builds, wanted, strict=True):
            build.add_functions(places, self._kinds)

    def _match_functions(self, keys: _Keys) -> None:
        """Number the points of all functions."""
        sides = [self._group_by_function(keys, is_left=is_left) for is_left in (True, False)]
        numbers = [zeros("I", len(points.pcs)) for points, _ in sides]
        for function in dict.fromkeys((*sides[0][1], *sides[1][1])):
            spans = [spans.get(function, range(0)) for _, spans in sides]
            found = self._match_function(*(points.select(span) for (points, _), span in zip(sides, spans, strict=True)))
            for side, span in enumerate(spans):
                numbers[side][span.start : span.stop] = found[side]
        for side, (points, _) in enumerate(sides):
            self._numbers[side].update(zip(points.pcs, numbers[side], strict=True))

    def _group_by_function(self, keys: _Keys, *, is_left: bool) -> tuple[_Points, Mapping[int, range]]:
        """Return the points of a build, sorted by function, and where those of each function are."""
        side = 0 if is_left else 1
        build = self._builds[side]
        pcs = array("Q", sorted(build.chain_of))
        chains = array("Q", map(build.chain_of.__getitem__, pcs))
        # What is nowhere is the same as nothing of the other build.
        functions = gather(build.columns.outermost_places(chains), keys.functions[side], keys.nowhere + side)
        words = array("Q", sorted(pair_words(functions, array("I", range(len(pcs))))))
        order = low_halves(words)
        points = _Points(
            array("Q", map(pcs.__getitem__, order)),
            gather(order, keys.number(chains, is_left=is_left), 0),
            gather(order, build.find_bodies(pcs), 0),
        )
        spans: dict[int, range] = {}
        end = 0
        while end < len(words):
            start, function = end, words[end] >> 32
            end = bisect_left(words, function + 1 << 32, start)
            spans[function] = range(start, end)
        return points, spans

    def _match_function(self, left: _Points, right: _Points) -> tuple[array[int], array[int]]:
        """Return the numbers of the points of a function in both builds."""
        if not left.pcs or not right.pcs:
            return self._add(left.pcs, zeros("Q", len(left.pcs))), self._add(zeros("Q", len(right.pcs)), right.pcs)
        sides = left, right
        entries = left.find_entry(), right.find_entry()
        if left.keys == right.keys and (None in entries or entries[0] == entries[1]):
            numbers = self._add(left.pcs, right.pcs)
            return numbers, numbers
        found = zeros("I", len(left.pcs)), zeros("I", len(right.pcs))
        if entries[0] is not None and entries[1] is not None:
            # Compilers do not agree on the line where a function begins.
            found[0][entries[0]] = found[1][entries[1]] = self._add_one(left.pcs[entries[0]], right.pcs[entries[1]])
        by_key: dict[int, tuple[list[int], list[int]]] = {}
        for side, points in enumerate(sides):
            for index, key in enumerate(points.keys):
                if not found[side][index]:
                    by_key.setdefault(key, ([], []))[side].append(index)
        in_order: Mapping[int, int] | None = None
        for mine, others in by_key.values():
            if not mine or not others:
                for index in mine:
                    found[0][index] = self._add_one(left.pcs[index], 0)
                for index in others:
                    found[1][index] = self._add_one(0, right.pcs[index])
                continue
            if len(mine) == len(others) == 1:
                found[0][mine[0]] = found[1][others[0]] = self._add_one(left.pcs[mine[0]], right.pcs[others[0]])
                continue
            if in_order is None:
                in_order = _pair_in_order(left.keys, right.keys)
            if len(mine) == len(others) and all(map(operator.eq, map(in_order.get, mine), others)):
                for index, other in zip(mine, others, strict=True):
                    found[0][index] = found[1][other] = self._add_one(left.pcs[index], right.pcs[other])
                continue
            # On one line, in another order or another number.
            number = self._add_one(left.pcs[mine[0]], right.pcs[others[0]])
            for side, indexes in enumerate((mine, others)):
                for index in indexes:
                    found[side][index] = number
        return found

    def _add(self, left: array[int], right: array[int]) -> array[int]:
        """Return new numbers of points of both builds."""
        first = len(self._pcs[0])
        self._pcs[0].extend(left)
        self._pcs[1].extend(right)
        return array("I", range(first, len(self._pcs[0])))

    def _add_one(self, left: int, right: int) -> int:
        self._pcs[0].append(left)
        self._pcs[1].append(right)
        return len(self._pcs[0]) - 1

    def _recorded_alone(self, *, is_left: bool) -> list[tuple[int, int]]:
        """Return PC and chain of what was recorded in one build and has no counterpart."""
        side, other = (0, 1) if is_left else (1, 0)
        build = self._builds[side]
        counterparts = map(self._pcs[other].__getitem__, map(self._numbers[side].__getitem__, build.pcs))
        return list(compress(zip(build.pcs, build.chains, strict=True), map(operator.not_, counterparts)))

    def _match_by_innermost(self, keys: _Keys, *, is_left: bool) -> None:
        """Match points whose functions are inlined into others in the other build."""
        side, other = (0, 1) if is_left else (1, 0)
        own, foreign = self._builds[side], self._builds[other]
        alone = [
            (pc, chain)
            for pc, chain in self._recorded_alone(is_left=is_left)
            if chain >> KIND_BITS & MAX_DEPTH and keys.has_line(keys.innermost(chain, is_left=is_left)[1])
        ]
        wanted = set()
        for place in {own.innermost_place(chain) for _, chain in alone}:
            pair = self._pairs.to_right(place) if is_left else self._pairs.to_left(place)
            if pair is not None:
                wanted.add(pair.right if is_left else pair.left)
        if not wanted:
            return
        chains = dict.fromkeys(chain for _, chain in alone)
        lines = {keys.innermost(chain, is_left=is_left) for chain in chains}
        copies = _Copies()
        inner_places = gather(find_innermost(foreign.columns.frames, foreign.rows), foreign.columns.places.of_frame, NO_ID)
        # Of points with the same frames, the first one is as good as any.
        candidates = *foreign.select(inner_places, wanted, self._kinds), *foreign.select_outside(wanted)
        first = {chain: pc for pc, chain in reversed(candidates)}
        for chain, pc in sorted(first.items(), key=operator.itemgetter(1)):
            innermost = keys.innermost(chain, is_left=not is_left)
            if innermost in lines:
                copies.add(pc, innermost, keys.functions_of(chain, is_left=not is_left))
        found = {
            chain: copies.find(keys.innermost(chain, is_left=is_left), keys.functions_of(chain, is_left=is_left))
            for chain in chains
        }
        for pc, chain in alone:
            counterpart = found[chain]
            if counterpart is None:
                continue
            number = self._numbers[other].get(counterpart)
            if number is None:
                number = self._numbers[other][counterpart] = self._add_one(*((0, counterpart) if is_left else (counterpart, 0)))
            if not self._pcs[side][number]:
                self._pcs[side][number], self._pcs[other][number] = pc, counterpart
            self._numbers[side][pc] = number

    def _points(self, *, is_left: bool) -> BuildPoints:
        build, numbers = self._builds[0 if is_left else 1], self._numbers[0 if is_left else 1]
        unmatched: dict[int, Unmatched] = {}
        reasons: dict[int, Unmatched] = {}
        for pc, chain in self._recorded_alone(is_left=is_left):
            if not chain >> KIND_BITS & MAX_DEPTH:
                unmatched[pc] = Unmatched.LOCATION
                continue
            place = build.innermost_place(chain)
            if place not in reasons:
                reasons[place] = self._find_reason(place, is_left=is_left)
            unmatched[pc] = reasons[place]
        return BuildPoints(dict(zip(build.pcs, map(numbers.__getitem__, build.pcs), strict=True)), unmatched)

    def _find_reason(self, place: int, *, is_left: bool) -> Unmatched:
        """Return why a point in a function has no counterpart."""
        pair = self._pairs.to_right(place) if is_left else self._pairs.to_left(place)
        if pair is None:
            return Unmatched.FUNCTION
        places = pair.left, pair.right
        has_lines = all(len(build.functions.lines(at)) for build, at in zip(self._builds, places, strict=True))
        return Unmatched.LINE if has_lines else Unmatched.LINES


def _pair_in_order(left: array[int], right: array[int]) -> Mapping[int, int]:
    """Return the index on the right of points on the left, of those that are in the same order on both sides."""
    # The alignment knows no zero.
    sides = [array("Q", [key + 1 for key in side]) for side in (left, right)]
    return {block.left + at: block.right + at for block in align(*sides).blocks for at in range(block.length)}


def match_builds(left: BuildFunctions, right: BuildFunctions) -> BuildMatch:
    """Match the points of two builds that were recorded.

    :param left: functions of the left build, with the columns of all PCs that were recorded in it and its location table.
    """
    return _Matcher(left, right).run()
