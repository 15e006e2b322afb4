# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage by function: how many of the points that were compiled into a function were executed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from kcovdbg.model.coverage import FunctionCoverage
from kcovdbg.symbols.location_table import FunctionSymbol


class FunctionPoints(NamedTuple):
    """A function, by its symbol, and the coverage points in its code."""

    function: FunctionSymbol
    pcs: Sequence[int]
    """As recorded: return addresses; ascending, at least one."""


def group_points(functions: Iterable[FunctionSymbol], pcs: Sequence[int], call_length: int) -> list[FunctionPoints]:
    """Return the functions that have points, each with its points, ascending.

    A point is in the function that its call is in: after a call that ends a function, the next one starts. Of functions that
    overlap, the first has the points.

    :param functions: ascending.
    :param pcs: of points, as recorded, ascending.
    :param call_length: bytes of a call of a callback.
    """
    found: list[FunctionPoints] = []
    first = 0
    for function in functions:
        while first < len(pcs) and pcs[first] - call_length < function.address:
            first += 1
        end = first
        while end < len(pcs) and pcs[end] - call_length < function.address + function.size:
            end += 1
        if end > first:
            found.append(FunctionPoints(function, pcs[first:end]))
        first = end
    return found


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


def count_functions(functions: Iterable[FunctionPoints], recorded: Collection[int]) -> list[FunctionCoverage]:
    """Return how much of each function was executed.

    :param functions: a unit of each is known, others are left out.
    :param recorded: PCs.
    """
    return [
        FunctionCoverage(group.function.unit, group.function.name, sum(pc in recorded for pc in group.pcs), len(group.pcs))
        for group in functions
        if group.function.unit is not None
    ]
