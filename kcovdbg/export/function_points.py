# SPDX-License-Identifier: LGPL-2.1-or-later
"""The coverage points of functions, as syzkaller lists them: by the symbol that has the call."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from kcovdbg.elf.symbol_table import demangle
from kcovdbg.records.pc_locations import kind_flags
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
    :param kinds: the kinds of points.
    """

    def __init__(self, table: TableColumns, kinds: Iterable[PointKind]) -> None:
        self._table = table
        self.flags: bytes = kind_flags(table.chain, kinds)
        """Whether each row is a point: 0 or 1."""

    def count(self, group: FunctionPoints) -> int:
        """Return the number of points of a function."""
        return self.flags.count(1, group.first, group.end)

    def select(self, group: FunctionPoints) -> tuple[list[int], list[int]]:
        """Return the points of a function, as recorded, and their chains."""
        part = slice(group.first, group.end)
        flags = self.flags[part]
        pcs = map(self._table.base.__add__, compress(self._table.offset[part], flags))
        return list(pcs), list(compress(self._table.chain[part], flags))

    def only(self, seen: bytes | bytearray) -> bytes:
        """Return for each row whether it is a point and set in ``seen``: 0 or 1."""
        both = int.from_bytes(self.flags, "little") & int.from_bytes(seen, "little")
        return both.to_bytes(len(self.flags), "little")

    def group(
        self, functions: Iterable[FunctionSymbol], start: int, end: int, call_length: int
    ) -> Iterator[FunctionPoints]:
        """Iterate over the functions that have points in a range of addresses, ascending.

        A point is in the function with its call: after a call that ends a function, the next
        function starts. If functions overlap, the first has the points.

        :param functions: ascending.
        :param start: start of the range.
        :param end: end of the range, excluded.
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
    """Return the functions that have any of some addresses.

    :param functions: ascending.
    :param calls: addresses of the calls before recorded PCs. The caller of a tail call counts as
        well, since it was executed.
    """
    starts = [group.function.address for group in functions]
    touched: set[int] = set()
    for call in calls:
        index = bisect_right(starts, call) - 1
        if index >= 0 and call < starts[index] + functions[index].function.size:
            touched.add(index)
    return [functions[index] for index in sorted(touched)]


def count_functions(
    functions: Iterable[FunctionPoints], points: PointRows, seen: bytearray
) -> list[tuple[str, str, int, int]]:
    """Return file and name of each function, the number of its executed points, and the number of
    all of its points.

    :param functions: those without a known unit are left out.
    :param seen: for each row of the table, whether it was recorded: 0 or 1.
    """
    executed = points.only(seen)
    rows = []
    for group in functions:
        if group.function.unit is not None:
            unit, name = group.function.unit, demangle(group.function.name)
            count = executed.count(1, group.first, group.end)
            rows.append((unit, name, count, points.count(group)))
    return rows
