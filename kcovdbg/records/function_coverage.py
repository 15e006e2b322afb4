# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage by function: how many of the points that were compiled into a function were executed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kcovdbg.records.pc_columns import kind_flags
from kcovdbg.records.coverage import FunctionCoverage
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, TableColumns


class FunctionPoints(NamedTuple):
    """A function, by its symbol, and the coverage points in its code."""

    function: FunctionSymbol
    first: int
    """The first row of the table that may be one of its points."""
    end: int
    """The row after the last one."""


class PointRows:
    """Rows of a table that are coverage points.

    :param table: its columns.
    :param kinds: of points.
    """

    def __init__(self, table: TableColumns, kinds: Iterable[PointKind]) -> None:
        self._table = table
        self.flags: bytes = kind_flags(table.chain, kinds)
        """Of each row, whether it is a point: 0 or 1."""

    def count(self, group: FunctionPoints) -> int:
        """Return the number of points of a function."""
        return self.flags.count(1, group.first, group.end)

    def pcs(self, group: FunctionPoints) -> list[int]:
        """Return the points of a function, as recorded."""
        base, offsets, flags = self._table.base, self._table.offset, self.flags
        return [base + offsets[row] for row in range(group.first, group.end) if flags[row]]

    def only(self, seen: bytes | bytearray) -> bytes:
        """Return of each row whether it is a point and one of some rows: 0 or 1.

        :param seen: of each row, whether it is one of those.
        """
        both = int.from_bytes(self.flags, "little") & int.from_bytes(seen, "little")
        return both.to_bytes(len(self.flags), "little")

    def group(self, functions: Iterable[FunctionSymbol], start: int, end: int, call_length: int) -> Iterator[FunctionPoints]:
        """Iterate over the functions that have points in a range of addresses, ascending.

        A point is in the function that its call is in: after a call that ends a function, the next one starts. Of functions
        that overlap, the first has the points.

        :param functions: ascending.
        :param start: of the range.
        :param end: of the range, excluded.
        :param call_length: bytes of a call of a callback.
        """
        offsets = self._table.offset
        shift = call_length - self._table.base
        first = bisect_left(offsets, start + shift)
        limit = bisect_left(offsets, end + shift)
        for function in functions:
            first = bisect_left(offsets, function.address + shift, first, limit)
            last = bisect_left(offsets, function.address + function.size + shift, first, limit)
            if self.flags.find(1, first, last) >= 0:
                yield FunctionPoints(function, first, last)
            first = last


def find_touched(functions: Sequence[FunctionPoints], calls: Iterable[int]) -> list[FunctionPoints]:
    """Return the functions that any of these addresses is in.

    :param functions: ascending.
    :param calls: of calls before recorded PCs; the caller of a tail call counts as touched, as it was executed.
    """
    starts = [group.function.address for group in functions]
    touched: set[int] = set()
    for call in calls:
        index = bisect_right(starts, call) - 1
        if index >= 0 and call < starts[index] + functions[index].function.size:
            touched.add(index)
    return [functions[index] for index in sorted(touched)]


def count_functions(functions: Iterable[FunctionPoints], points: PointRows, seen: bytearray) -> list[FunctionCoverage]:
    """Return how much of each function was executed.

    :param functions: a unit of each is known, others are left out.
    :param seen: of each row of the table, whether it was recorded: 0 or 1.
    """
    executed = points.only(seen)
    return [
        FunctionCoverage(
            group.function.unit, group.function.name, executed.count(1, group.first, group.end), points.count(group)
        )
        for group in functions
        if group.function.unit is not None
    ]
