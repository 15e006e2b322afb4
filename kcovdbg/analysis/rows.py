# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which records stand in which row of a view of one trace or two: any row is found without looking at those before it.

A view of a million records must cost what its screen costs. What a row holds is computed when it is drawn; only what a reader
asks for by name, a fold or a filter, goes through all records once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from kcovdbg.analysis.aligning import Alignment

# Equal records are folded when that many are in a row; so many around a difference stay.
_CONTEXT: Final = 3
_COMPARED: Final = 4096


class Mark(str, Enum):
    """How the two sides of a row compare."""

    EQUAL = "="
    LEFT = "<"
    """Only on the left."""
    RIGHT = ">"
    CHANGED = "|"
    """Both sides have something, and not the same."""
    NONE = " "
    """There is one side only."""


class Row(NamedTuple):
    """What stands in a row."""

    left: int | None
    """Index of the record."""
    right: int | None
    mark: Mark
    rounds: int = 1
    """How many rows are folded into this one."""


class Rows(Protocol):
    """The rows of a view."""

    def __len__(self) -> int:
        """Return how many there are."""

    def row(self, number: int) -> Row:
        """Return one."""

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row in which a record is, or the one before where it stands in none.

        :param index: of the record.
        :param right: on the right side.
        """

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:
        """Return the nearest row beyond this one whose sides differ and whose neighbour's don't; None where there is none."""


class SingleRows:
    """One trace.

    :param count: its records.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def row(self, number: int) -> Row:
        """Return one."""
        return Row(number, None, Mark.NONE)

    def find(self, index: int, *, right: bool = False) -> int:  # noqa: ARG002 - there is no right side
        """Return the row of a record."""
        return max(0, min(index, self._count - 1))

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:  # noqa: ARG002
        """One side differs from nothing."""
        return None


class IndexRows:
    """Two buffers side by side, record by record: one buffer seen in two ways.

    :param left: words of the left side's records.
    :param right: words of the right side's.
    :param width: words per record: all of them are compared.
    """

    def __init__(self, left: Sequence[int], right: Sequence[int], width: int = 1) -> None:
        self._left, self._right, self._width = left, right, width
        self._left_count, self._right_count = len(left) // width, len(right) // width
        self._common = min(self._left_count, self._right_count)

    def __len__(self) -> int:
        return max(self._left_count, self._right_count)

    def row(self, number: int) -> Row:
        """Return one."""
        if number >= self._common:
            is_left = number < self._left_count
            return Row(number if is_left else None, None if is_left else number, Mark.LEFT if is_left else Mark.RIGHT)
        return Row(number, number, Mark.EQUAL if self._is_same(number, number + 1) else Mark.CHANGED)

    def find(self, index: int, *, right: bool = False) -> int:  # noqa: ARG002 - both sides have the same index
        """Return the row of a record."""
        return max(0, min(index, len(self) - 1))

    def _is_equal(self, number: int) -> bool:
        return number < self._common and self._is_same(number, number + 1)

    def _is_same(self, start: int, end: int) -> bool:
        """Tell whether records up to the end are alike, comparing them all at once."""
        span = slice(start * self._width, end * self._width)
        return self._left[span] == self._right[span]

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:
        """Return the first row of the nearest difference beyond this row."""
        if backwards:
            end = self._last_difference(number)
            while end is not None and end > 0 and not self._is_equal(end - 1):
                end -= 1
            return end
        while number < len(self) and not self._is_equal(number):
            number += 1
        while number < self._common:
            end = min(number + _COMPARED, self._common)
            # Whole pieces are compared at once; only the one that differs is looked at.
            if self._is_same(number, end):
                number = end
                continue
            return next(i for i in range(number, end) if not self._is_equal(i))
        return number if number < len(self) else None

    def _last_difference(self, before: int) -> int | None:
        if before > self._common:
            return before - 1
        end = before
        while end > 0:
            start = max(0, end - _COMPARED)
            if not self._is_same(start, end):
                return next(i for i in range(end - 1, start - 1, -1) if not self._is_equal(i))
            end = start
        return None


class ContentRows:
    """Two traces aligned: what both have stands in one row, and gaps where one has more.

    :param alignment: of the two.
    """

    def __init__(self, alignment: Alignment) -> None:
        # Segments: equal blocks, and what is between them, whose sides share rows as far as both have records.
        self._left, self._right = array("Q"), array("Q")
        self._left_length, self._right_length = array("Q"), array("Q")
        self._equal = bytearray()
        i = j = 0
        for left, right, length in (*alignment.blocks, (alignment.left, alignment.right, 0)):
            if i < left or j < right:
                self._add(i, j, left - i, right - j, equal=False)
            if length:
                self._add(left, right, length, length, equal=True)
            i, j = left + length, right + length
        rows = (max(a, b) for a, b in zip(self._left_length, self._right_length, strict=True))
        self._start = array("Q", accumulate(rows, initial=0))

    def _add(self, left: int, right: int, left_length: int, right_length: int, *, equal: bool) -> None:
        self._left.append(left)
        self._right.append(right)
        self._left_length.append(left_length)
        self._right_length.append(right_length)
        self._equal.append(equal)

    def __len__(self) -> int:
        return self._start[-1]

    def _segment(self, number: int) -> int:
        return bisect_right(self._start, number) - 1

    def row(self, number: int) -> Row:
        """Return one."""
        segment = self._segment(number)
        at = number - self._start[segment]
        left = self._left[segment] + at if at < self._left_length[segment] else None
        right = self._right[segment] + at if at < self._right_length[segment] else None
        if self._equal[segment]:
            return Row(left, right, Mark.EQUAL)
        mark = Mark.RIGHT if left is None else Mark.LEFT if right is None else Mark.CHANGED
        return Row(left, right, mark)

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row of a record."""
        segment = bisect_right(self._right if right else self._left, index) - 1
        starts, lengths = (self._right, self._right_length) if right else (self._left, self._left_length)
        # Segments without records on this side begin at the same index as the one after them.
        while segment > 0 and not lengths[segment]:
            segment -= 1
        segment = max(segment, 0)
        return min(self._start[segment] + max(index - starts[segment], 0), max(len(self) - 1, 0)) if len(self) else 0

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:
        """Return the first row of the nearest difference beyond this row."""
        if not len(self):
            return None
        segment = self._segment(min(number, len(self) - 1))
        if backwards and number > self._start[segment] and not self._equal[segment]:
            return self._start[segment]
        segment += -1 if backwards else 1
        while 0 <= segment < len(self._equal):
            if not self._equal[segment]:
                return self._start[segment]
            segment += -1 if backwards else 1
        return None

    def equal_spans(self) -> list[tuple[int, int]]:
        """Return the rows of what both sides have: first one, and the one after the last."""
        return [(self._start[at], self._start[at + 1]) for at, equal in enumerate(self._equal) if equal]


class ChosenRows:
    """Some of the rows of a view, in their order: what is left of a filter or a fold.

    :param base: the rows.
    :param chosen: the numbers of those that stay, ascending.
    :param rounds: for each how many rows it stands for; by default one.
    """

    def __init__(self, base: Rows, chosen: array[int], rounds: array[int] | None = None) -> None:
        self._base = base
        self._chosen = chosen
        self._rounds = rounds

    def __len__(self) -> int:
        return len(self._chosen)

    def row(self, number: int) -> Row:
        """Return one."""
        row = self._base.row(self._chosen[number])
        return row if self._rounds is None else row._replace(rounds=self._rounds[number])

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row of a record, or the one before it."""
        return max(0, bisect_right(self._chosen, self._base.find(index, right=right)) - 1)

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:
        """Return the nearest difference that is left."""
        if not self._chosen:
            return None
        found = self._base.next_difference(self._chosen[number], backwards=backwards)
        while found is not None:
            at = bisect_right(self._chosen, found) - 1
            if at >= 0 and self._chosen[at] == found:
                return at
            found = self._base.next_difference(found, backwards=backwards)
        return None


def filter_rows(rows: Rows, left: Callable[[int], bool], right: Callable[[int], bool]) -> ChosenRows:
    """Leave the rows of which either side is wanted.

    :param left: from the index of a record on the left to whether it is.
    :param right: the same on the right.
    """
    chosen = array("Q")
    for number in range(len(rows)):
        row = rows.row(number)
        if (row.left is not None and left(row.left)) or (row.right is not None and right(row.right)):
            chosen.append(number)
    return ChosenRows(rows, chosen)


def fold_equal(rows: ContentRows) -> ChosenRows:
    """Fold what both sides have, but for some rows around each difference."""
    chosen, rounds = array("Q"), array("Q")
    position = 0

    def take(start: int, end: int) -> None:
        chosen.extend(range(start, end))
        rounds.extend([1] * (end - start))

    for start, end in rows.equal_spans():
        first = start + (_CONTEXT if start else 0)
        last = end - (_CONTEXT if end < len(rows) else 0)
        if last - first < 2:
            continue
        take(position, first)
        chosen.append(first)
        rounds.append(last - first)
        position = last
    take(position, len(rows))
    return ChosenRows(rows, chosen, rounds)


def fold_groups(rows: SingleRows, groups: Sequence[int]) -> ChosenRows:
    """Fold consecutive records of one group into one row.

    :param groups: a number for each record.
    """
    chosen, rounds = array("Q"), array("Q")
    previous: int | None = None
    for number, group in enumerate(groups):
        if group == previous:
            rounds[-1] += 1
        else:
            chosen.append(number)
            rounds.append(1)
            previous = group
    return ChosenRows(rows, chosen, rounds)
