# SPDX-License-Identifier: LGPL-2.1-or-later
"""Align the records of two ordered traces, and make the rows of a view of one trace or of both side
by side.

Any row is found without computing the rows before it, so that a view of a million records costs no
more than the rows on its screen. Only folding and filtering read all records, once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import accumulate, groupby, pairwise, repeat
from typing import Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.records.pc_counts import make_numbering, to_array

_MAX_RECORDS: Final = 1 << 30
# PCs that differ only in this many low bits are mostly in one function: functions are a few hundred
# bytes long.
_FUNCTION_BITS: Final = 8
# Steps in C that take less than half a second.
_BUDGET: Final = 200_000_000
# Records that are compared at once.
_CHUNK: Final = 4096


class Block(NamedTuple):
    """Consecutive records that both of two sequences have."""

    left: int
    """Index of the first one on the left."""
    right: int
    length: int


class AlignedPart(NamedTuple):
    """Records that both sides have, or the differing records between two such parts."""

    left: range
    """Indexes of the records on the left."""
    right: range
    is_common: bool

    def find_differing(self) -> Iterator[tuple[int, range]]:
        """Iterate over the sides with records of their own in this part, 0 for the left one, and
        these records.
        """
        for side, records in enumerate((self.left, self.right)):
            if records and not self.is_common:
                yield side, records


class Alignment(NamedTuple):
    """Comparison of two traces in order."""

    blocks: tuple[Block, ...]
    """Ascending on both sides; the records in between are on one side only."""
    left: int
    """Records on the left."""
    right: int
    is_coarse: bool
    """Whether the search was cut short: the blocks are right, but there may be more blocks."""

    @property
    def common(self) -> int:
        """Number of records that both sides have."""
        return sum(block.length for block in self.blocks)

    def parts(self) -> Iterator[AlignedPart]:
        """Iterate over all records of both sides, in order."""
        i = j = 0
        for left, right, length in (*self.blocks, (self.left, self.right, 0)):
            if i < left or j < right:
                yield AlignedPart(range(i, left), range(j, right), False)
            i, j = left + length, right + length
            if length:
                yield AlignedPart(range(left, i), range(right, j), True)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Iterate over the indexes of the records in common, on both sides."""
        for left, right, length in self.blocks:
            yield from zip(range(left, left + length), range(right, right + length), strict=True)


def find_blocks(
    left: array[int], right: array[int], groups: array[int] | None = None, *, budget: int = _BUDGET
) -> Alignment:
    """Align two sequences of numbers.

    :param groups: the group of each number. Consecutive records of one group (for PCs, a function)
        are aligned as one first: sequences of a million nearly equal records take a fifth of a
        second.
    :param budget: limit of steps. Records that are not aligned by then count as different.
    :raises ValueError: when a sequence has 2^30 records or more, or a number has no group.
    """
    if len(left) >= _MAX_RECORDS or len(right) >= _MAX_RECORDS:
        raise ValueError("too many records")
    if groups is not None and max(max(left, default=-1), max(right, default=-1)) >= len(groups):
        raise ValueError("a number without a group")
    ffi, lib = load_native()
    diff = lib.kcovdbg_diff_new(
        column("I", left),
        len(left),
        column("I", right),
        len(right),
        ffi.NULL if groups is None else column("I", groups),
        0 if groups is None else len(groups),
        budget,
    )
    if diff == ffi.NULL:
        raise MemoryError
    try:
        flat = zeros("I", 3 * lib.kcovdbg_diff_count(diff))
        lib.kcovdbg_diff_blocks(diff, column("I", flat))
        is_coarse = bool(lib.kcovdbg_diff_is_coarse(diff))
    finally:
        lib.kcovdbg_diff_free(diff)
    numbers = iter(flat.tolist())
    return Alignment(tuple(map(Block, numbers, numbers, numbers)), len(left), len(right), is_coarse)


def align_records(left: Sequence[int], right: Sequence[int]) -> Alignment:
    """Align two traces.

    :param left: PCs.
    :param right: PCs.
    """
    words = [to_array(side) for side in (left, right)]
    numbering = make_numbering(left)
    pcs = numbering.number(*words)
    sides = [numbering.ids(side) for side in words]
    found = find_blocks(*sides)
    if found.is_coarse:
        # Aligning whole functions first needs fewer steps.
        groups = array("I", *number_values(pc >> _FUNCTION_BITS for pc in pcs))
        by_function = find_blocks(sides[0], sides[1], groups)
        if not by_function.is_coarse or by_function.common > found.common:
            found = by_function
    return found


def align_by_index(left: Sequence[int], right: Sequence[int], width: int = 1) -> Alignment:
    """Pair the records of two traces by their indexes, as for two readings of one buffer.

    :param left: words of the records.
    :param width: words of a record; all of them are compared.
    """
    counts = len(left) // width, len(right) // width
    blocks: list[Block] = []

    def is_same(start: int, end: int) -> bool:
        return bool(left[start * width : end * width] == right[start * width : end * width])

    for start in range(0, min(counts), _CHUNK):
        end = min(start + _CHUNK, *counts)
        same = [(start, end)]
        if not is_same(start, end):
            # Only a chunk that differs is compared record by record.
            same = [(at, at + 1) for at in range(start, end) if is_same(at, at + 1)]
        for first, last in same:
            if blocks and blocks[-1].left + blocks[-1].length == first:
                first = blocks.pop().left
            blocks.append(Block(first, first, last - first))
    return Alignment(tuple(blocks), *counts, is_coarse=False)


def number_values(*sequences: Iterable[Hashable]) -> list[array[int]]:
    """Return sequences of any values as numbers from 1 on, equal for equal values, as
    :func:`align_records` takes them.
    """
    numbers: dict[Hashable, int] = {}
    return [
        array("Q", [numbers.setdefault(value, len(numbers) + 1) for value in values])
        for values in sequences
    ]


# Equal rows that stay unfolded before and after a difference.
_CONTEXT: Final = 3


class Mark(str, Enum):
    """Comparison of the two sides of a row."""

    EQUAL = "="
    LEFT = "<"
    """Only on the left."""
    RIGHT = ">"
    CHANGED = "|"
    """Both sides have a record, and they differ."""
    NONE = " "
    """The view has one side only."""


class ViewRow(NamedTuple):
    """One row of a view."""

    left: int | None
    """Index of the record on this side; None for none."""
    right: int | None
    mark: Mark
    rounds: int = 1
    """Number of rows folded into this one."""


class ViewRows:
    """The rows of one trace, or of two that are aligned: a record that both have is one row.

    Unmatched records face a gap or an unmatched record of the other side.

    :param alignment: the alignment of the two traces.
    :param is_single: whether there is one trace, which is aligned with itself.
    :param chosen: the rows that a fold or a filter shows; None for all.
    :param rounds: how many rows each of them stands for.
    """

    def __init__(
        self,
        alignment: Alignment,
        *,
        is_single: bool = False,
        chosen: Sequence[int] | None = None,
        rounds: Sequence[int] | None = None,
    ) -> None:
        self._alignment = alignment
        self._is_single = is_single
        self._parts = tuple(alignment.parts())
        # The first row of each part.
        lengths = (max(len(part.left), len(part.right)) for part in self._parts)
        self._start = array("Q", accumulate(lengths, initial=0))
        self._chosen = range(self._start[-1]) if chosen is None else chosen
        self._rounds = rounds

    @classmethod
    def of_one(cls, count: int) -> ViewRows:
        """Return the rows of one trace: one per record.

        :param count: number of records.
        """
        return cls(Alignment((Block(0, 0, count),), count, count, is_coarse=False), is_single=True)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._chosen)

    def row(self, number: int) -> ViewRow:
        """Return one row."""
        row = self._chosen[number]
        number_of_part = bisect_right(self._start, row) - 1
        part, at = self._parts[number_of_part], row - self._start[number_of_part]
        left = part.left[at] if at < len(part.left) else None
        right = part.right[at] if at < len(part.right) else None
        mark = Mark.CHANGED
        if self._is_single:
            right, mark = None, Mark.NONE
        elif part.is_common:
            mark = Mark.EQUAL
        elif left is None:
            mark = Mark.RIGHT
        elif right is None:
            mark = Mark.LEFT
        return ViewRow(left, right, mark, 1 if self._rounds is None else self._rounds[number])

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row that shows a record, or the last one before it if none does.

        :param index: the record's index.
        :param right: whether it is a record of the right side.
        """

        def records(part: AlignedPart) -> range:
            return part.right if right else part.left

        number = bisect_right(self._parts, index, key=lambda part: records(part).start) - 1
        # A part without records on this side starts at the same index as the next one.
        while number > 0 and not records(self._parts[number]):
            number -= 1
        row = 0
        if number >= 0:
            row = self._start[number] + max(index - records(self._parts[number]).start, 0)
        return max(0, bisect_right(self._chosen, row) - 1)

    def find_differences(self) -> list[int]:
        """Return the shown rows in which differences begin, ascending."""
        rows = []
        for part, start in zip(self._parts, self._start, strict=False):
            row = bisect_left(self._chosen, start)
            if not part.is_common and row < len(self) and self._chosen[row] == start:
                rows.append(row)
        return rows

    def _choose(self, spans: Iterable[tuple[int, int]]) -> ViewRows:
        """Return these rows with some of them alone.

        :param spans: number of each, and how many rows it stands for.
        """
        chosen, rounds = array("Q"), array("Q")
        for number, count in spans:
            chosen.append(self._chosen[number])
            rounds.append(count)
        return ViewRows(self._alignment, is_single=self._is_single, chosen=chosen, rounds=rounds)

    def filter(self, is_wanted: Callable[[ViewRow], bool]) -> ViewRows:
        """Return the rows that are wanted."""
        wanted = []
        for number in range(len(self)):
            row = self.row(number)
            if is_wanted(row):
                wanted.append((number, row.rounds))
        return self._choose(wanted)

    def fold_equal(self) -> ViewRows:
        """Return the rows with equal ones folded, except a few around each difference."""
        if self._rounds is not None:
            # It is folded or filtered already.
            return self
        return self._choose(self._fold_parts())

    def _fold_parts(self) -> Iterator[tuple[int, int]]:
        for part, (start, end) in zip(self._parts, pairwise(self._start), strict=True):
            first = start + (_CONTEXT if start else 0)
            last = end - (_CONTEXT if end < len(self) else 0)
            if not part.is_common or last - first < 2:
                first = last = end
            yield from zip(range(start, first), repeat(1), strict=False)
            if first < last:
                yield first, last - first
            yield from zip(range(last, end), repeat(1), strict=False)

    def fold_groups(self, groups: Iterable[object]) -> ViewRows:
        """Return the rows of one trace with consecutive records of one group in one.

        :param groups: the group of each record.
        """
        if self._rounds is not None:
            return self
        lengths = [sum(1 for _ in members) for _, members in groupby(groups)]
        return self._choose(zip(accumulate(lengths, initial=0), lengths, strict=False))
