# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of a view of one trace, or of two side by side: which records each row shows.

Any row is found without computing those before it, so that a view of a million records costs no more than the rows on its
screen. Only folding and filtering read all records, once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from kcovdbg.records.alignment import Alignment

# Equal rows that stay unfolded before and after a difference.
_CONTEXT: Final = 3
# Records that are compared at once.
_CHUNK: Final = 4096


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


class Rows(Protocol):
    """The rows of a view."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def row(self, number: int) -> ViewRow:
        """Return one row."""

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row that shows a record, or the last one before it if none does.

        :param index: of the record.
        :param right: whether it is a record of the right side.
        """

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:
        """Return the row in which the nearest difference beyond a row begins; None without one."""


class SingleRows:
    """The rows of one trace: one per record.

    :param count: number of records.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def row(self, number: int) -> ViewRow:
        """Return one row."""
        return ViewRow(number, None, Mark.NONE)

    def find(self, index: int, *, right: bool = False) -> int:  # noqa: ARG002 - there is no right side
        """Return the row of a record."""
        return max(0, min(index, self._count - 1))

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:  # noqa: ARG002
        """Return None: one trace has no differences."""
        return None


class IndexRows:
    """The rows of two buffers compared by index, such as two views of one buffer.

    :param left: words of the left side's records.
    :param right: words of the right side's records.
    :param width: words per record; all of them are compared.
    """

    def __init__(self, left: Sequence[int], right: Sequence[int], width: int = 1) -> None:
        self._left, self._right, self._width = left, right, width
        self._left_count, self._right_count = len(left) // width, len(right) // width
        self._common = min(self._left_count, self._right_count)

    def __len__(self) -> int:
        return max(self._left_count, self._right_count)

    def row(self, number: int) -> ViewRow:
        """Return one row."""
        if number >= self._common:
            is_left = number < self._left_count
            return ViewRow(number if is_left else None, None if is_left else number, Mark.LEFT if is_left else Mark.RIGHT)
        return ViewRow(number, number, Mark.EQUAL if self._is_same(number, number + 1) else Mark.CHANGED)

    def find(self, index: int, *, right: bool = False) -> int:  # noqa: ARG002 - both sides have the same index
        """Return the row of a record."""
        return max(0, min(index, len(self) - 1))

    def _is_equal(self, number: int) -> bool:
        return number < self._common and self._is_same(number, number + 1)

    def _is_same(self, start: int, end: int) -> bool:
        """Return whether both sides have the same records from the start up to the end."""
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
            end = min(number + _CHUNK, self._common)
            # Only a chunk that differs is compared record by record.
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
            start = max(0, end - _CHUNK)
            if not self._is_same(start, end):
                return next(i for i in range(end - 1, start - 1, -1) if not self._is_equal(i))
            end = start
        return None


class ContentRows:
    """The rows of two aligned traces: a record that both have is one row, one that only one side has stands beside a gap.

    :param alignment: of the two traces.
    """

    def __init__(self, alignment: Alignment) -> None:
        # A segment is an equal block, or what lies between two blocks: there, both sides share rows while both have records.
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

    def row(self, number: int) -> ViewRow:
        """Return one row."""
        segment = self._segment(number)
        at = number - self._start[segment]
        left = self._left[segment] + at if at < self._left_length[segment] else None
        right = self._right[segment] + at if at < self._right_length[segment] else None
        if self._equal[segment]:
            return ViewRow(left, right, Mark.EQUAL)
        mark = Mark.RIGHT if left is None else Mark.LEFT if right is None else Mark.CHANGED
        return ViewRow(left, right, mark)

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row of a record."""
        segment = bisect_right(self._right if right else self._left, index) - 1
        starts, lengths = (self._right, self._right_length) if right else (self._left, self._left_length)
        # A segment without records on this side starts at the same index as the next one.
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
        """Return the spans of equal rows: the first row, and the one after the last."""
        return [(self._start[at], self._start[at + 1]) for at, equal in enumerate(self._equal) if equal]


class ChosenRows:
    """A selection of a view's rows, as a filter or a fold leaves them.

    :param base: the rows of the view.
    :param chosen: numbers of the selected rows, ascending.
    :param rounds: number of rows that each one stands for; one by default.
    """

    def __init__(self, base: Rows, chosen: array[int], rounds: array[int] | None = None) -> None:
        self._base = base
        self._chosen = chosen
        self._rounds = rounds

    def __len__(self) -> int:
        return len(self._chosen)

    def row(self, number: int) -> ViewRow:
        """Return one row."""
        row = self._base.row(self._chosen[number])
        return row if self._rounds is None else row._replace(rounds=self._rounds[number])

    def find(self, index: int, *, right: bool = False) -> int:
        """Return the row of a record, or the one before it."""
        return max(0, bisect_right(self._chosen, self._base.find(index, right=right)) - 1)

    def next_difference(self, number: int, *, backwards: bool = False) -> int | None:
        """Return the row of the nearest difference among the selected ones."""
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
    """Select the rows with a wanted record on either side.

    :param left: returns whether a record on the left is wanted, by its index.
    :param right: the same for the right side.
    """
    chosen = array("Q")
    for number in range(len(rows)):
        row = rows.row(number)
        if (row.left is not None and left(row.left)) or (row.right is not None and right(row.right)):
            chosen.append(number)
    return ChosenRows(rows, chosen)


def fold_equal(rows: ContentRows) -> ChosenRows:
    """Fold equal rows, except a few around each difference."""
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
