# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of a view of one trace, or of two side by side: which records each row shows.

Any row is found without computing those before it, so that a view of a million records costs no more than the rows on its
screen. Only folding and filtering read all records, once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from enum import Enum
from itertools import accumulate, groupby
from typing import Final, NamedTuple

from kcovdbg.records.alignment import Alignment, Block

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

    A record that only one side has stands beside a gap, or beside one of the other side.

    :param alignment: of the two traces.
    :param is_single: whether there is one trace, which is aligned with itself.
    """

    def __init__(self, alignment: Alignment, *, is_single: bool = False) -> None:
        self._is_single = is_single
        # A segment is an equal block, or what lies between two blocks: first records, lengths and first row.
        self._records = array("Q"), array("Q")
        self._lengths = array("Q"), array("Q")
        self._equal = bytearray()
        ends = 0, 0
        for block in (*alignment.blocks, Block(alignment.left, alignment.right, 0)):
            firsts = block.left, block.right
            self._add(ends, [first - end for first, end in zip(firsts, ends, strict=True)], is_equal=False)
            self._add(firsts, (block.length, block.length), is_equal=True)
            ends = block.left + block.length, block.right + block.length
        self._start = array("Q", accumulate(map(max, *self._lengths), initial=0))
        # Of a fold or filter: the first rows that are shown, and how many rows each one stands for.
        self._chosen: Sequence[int] = range(self._start[-1])
        self._rounds: Sequence[int] | None = None

    @classmethod
    def of_one(cls, count: int) -> ViewRows:
        """Return the rows of one trace: one per record.

        :param count: number of records.
        """
        return cls(Alignment((Block(0, 0, count),), count, count, is_coarse=False), is_single=True)

    def _add(self, firsts: Iterable[int], lengths: Sequence[int], *, is_equal: bool) -> None:
        if any(lengths):
            for side, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
                self._records[side].append(first)
                self._lengths[side].append(length)
            self._equal.append(is_equal)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._chosen)

    def _segment(self, row: int) -> int:
        return bisect_right(self._start, row) - 1

    def row(self, number: int) -> ViewRow:
        """Return one row."""
        row = self._chosen[number]
        segment = self._segment(row)
        at = row - self._start[segment]
        left, right = (
            records[segment] + at if at < lengths[segment] else None
            for records, lengths in zip(self._records, self._lengths, strict=True)
        )
        rounds = 1 if self._rounds is None else self._rounds[number]
        if self._is_single:
            return ViewRow(left, None, Mark.NONE, rounds)
        if self._equal[segment]:
            return ViewRow(left, right, Mark.EQUAL, rounds)
        return ViewRow(left, right, Mark.RIGHT if left is None else Mark.LEFT if right is None else Mark.CHANGED, rounds)

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row that shows a record, or the last one before it if none does.

        :param index: of the record.
        :param right: whether it is a record of the right side.
        """
        records, lengths = self._records[right], self._lengths[right]
        segment = bisect_right(records, index) - 1
        # A segment without records on this side starts at the same index as the next one.
        while segment > 0 and not lengths[segment]:
            segment -= 1
        row = 0 if segment < 0 else self._start[segment] + max(index - records[segment], 0)
        return max(0, bisect_right(self._chosen, row) - 1)

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:
        """Return the row in which the nearest difference beyond a row begins; None without one."""
        if not len(self):
            return None
        row = self._chosen[number]
        segment = self._segment(row)
        step = -1 if backwards else 1
        # The difference that a row is in begins before it.
        if not (backwards and row > self._start[segment]):
            segment += step
        while 0 <= segment < len(self._equal):
            start = self._start[segment]
            at = bisect_right(self._chosen, start) - 1
            if not self._equal[segment] and at >= 0 and self._chosen[at] == start:
                return at
            segment += step
        return None

    def _choose(self, spans: Iterable[tuple[int, int]]) -> ViewRows:
        """Return these rows with some of them alone.

        :param spans: number of each, and how many rows it stands for.
        """
        chosen, rounds = array("Q"), array("Q")
        for number, count in spans:
            chosen.append(self._chosen[number])
            rounds.append(count)
        found = copy(self)
        found.__dict__.update(_chosen=chosen, _rounds=rounds)
        return found

    def filter(self, left: Callable[[int], bool], right: Callable[[int], bool]) -> ViewRows:
        """Return the rows with a wanted record on either side.

        :param left: returns whether a record on the left is wanted, by its index.
        :param right: the same for the right side.
        """
        rows = ((number, self.row(number)) for number in range(len(self)))
        return self._choose(
            (number, row.rounds)
            for number, row in rows
            if (row.left is not None and left(row.left)) or (row.right is not None and right(row.right))
        )

    def fold_equal(self) -> ViewRows:
        """Return the rows with equal ones folded, except a few around each difference."""
        if self._rounds is not None:
            # They are folded.
            return self
        return self._choose(self._fold_segments())

    def _fold_segments(self) -> Iterator[tuple[int, int]]:
        for segment, is_equal in enumerate(self._equal):
            start, end = self._start[segment], self._start[segment + 1]
            first = start + (_CONTEXT if start else 0)
            last = end - (_CONTEXT if end < len(self) else 0)
            if not is_equal or last - first < 2:
                first = last = end
            yield from ((row, 1) for row in range(start, first))
            if first < last:
                yield first, last - first
            yield from ((row, 1) for row in range(last, end))

    def fold_groups(self, groups: Sequence[int]) -> ViewRows:
        """Return the rows of one trace with consecutive records of one group in one.

        :param groups: a number for each record.
        """
        if self._rounds is not None:
            return self
        lengths = [sum(1 for _ in members) for _, members in groupby(groups)]
        return self._choose(zip(accumulate(lengths, initial=0), lengths, strict=False))
