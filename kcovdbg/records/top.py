# SPDX-License-Identifier: LGPL-2.1-or-later
"""The contents of a buffer in numbers: records by function, file or PC, and how many of them are repeats within loops."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Sequence
from itertools import compress, count
from typing import NamedTuple, overload

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.records.native_loops import NO_ID
from kcovdbg.records.pc_columns import PcColumns
from kcovdbg.records.pc_counts import make_numbering
from kcovdbg.symbols.table_rows import gather


class Share(NamedTuple):
    """The share of a buffer that one function, file or PC takes."""

    records: int
    share: float
    """Fraction of all records, 0 to 1."""
    points: int
    """Distinct PCs."""
    pc: int
    """The PC with the most records."""
    repeats: int
    """Records of points that the same function run already had, mostly from loops."""


class _GroupSums(NamedTuple):
    """Counts for each group of PCs, by its number."""

    records: array[int]
    points: array[int]
    """Number of PCs."""
    hottest: array[int]
    """Index of the first of the PCs with the most records."""
    repeats: array[int]


class Ranking(Sequence[Share]):
    """Shares of groups of PCs, those with the most records first, each made when it is asked for.

    :param pcs: type code Q.
    :param sums: of the groups.
    :param order: of the groups.
    """

    def __init__(self, pcs: array[int], sums: _GroupSums, order: Sequence[int]) -> None:
        self._pcs = pcs
        self._sums = sums
        self._order = order
        self.records = sum(sums.records)
        """Of all groups."""
        self.repeats = sum(sums.repeats)
        """Of all groups."""

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Share: ...
    @overload
    def __getitem__(self, index: slice) -> list[Share]: ...
    def __getitem__(self, index: int | slice) -> Share | list[Share]:
        """Return the share of a rank, or those of some."""
        if isinstance(index, slice):
            return list(map(self._share, self._order[index]))
        return self._share(self._order[index])

    def _share(self, group: int) -> Share:
        records, points, hottest, repeats = (values[group] for values in self._sums)
        return Share(records, records / self.records, points, self._pcs[hottest], repeats)


def rank(columns: PcColumns, counts: array[int], repeats: array[int], by: str, wanted: bytes | None = None) -> Ranking:
    """Group PCs and sort the groups, the largest first.

    :param columns: where the PCs are.
    :param counts: records of each PC. Type code Q.
    :param repeats: repeated records of each PC, from :func:`count_repeats`. Type code Q.
    :param by: ``function`` (innermost, including inlined ones), ``file`` or ``pc``. A PC without a function is its own group.
    :param wanted: of each PC, 0 for one that is left out; None to rank all.
    """
    pcs = columns.pcs
    groups = None if by == "pc" else _groups(columns, by)
    if wanted is not None:
        pcs, counts, repeats = (array("Q", compress(values, wanted)) for values in (pcs, counts, repeats))
        groups = None if groups is None else array("I", compress(groups, wanted))
    if groups is None:
        sums = _GroupSums(counts, array("I", [1]) * len(pcs), array("I", range(len(pcs))), repeats)
    else:
        sums = _sum_groups(groups, counts, repeats, max(groups, default=-1) + 1)
    order = sorted(compress(range(len(sums.points)), sums.points), key=sums.hottest.__getitem__)
    order.sort(key=sums.records.__getitem__, reverse=True)
    return Ranking(pcs, sums, order)


def _sum_groups(groups: array[int], counts: array[int], repeats: array[int], group_count: int) -> _GroupSums:
    """Sum up the records of groups of PCs.

    :param groups: of each PC.
    :param counts: records of each PC. Type code Q.
    :param repeats: repeated records of each PC. Type code Q.
    """
    sums = _GroupSums(zeros("Q", group_count), zeros("I", group_count), zeros("I", group_count), zeros("Q", group_count))
    _, lib = load_native()
    lib.kcovdbg_sum_groups(
        column("I", groups),
        column("Q", counts, len(groups)),
        column("Q", repeats, len(groups)),
        len(groups),
        group_count,
        column("Q", sums.records, group_count),
        column("I", sums.points, group_count),
        column("I", sums.hottest, group_count),
        column("Q", sums.repeats, group_count),
    )
    return sums


def _groups(columns: PcColumns, by: str) -> array[int]:
    """Return the number of each PC's group."""
    if by == "file":
        return columns.files()
    # Static functions in different files may share a name. What a tail call recorded is in a callee of the function.
    frames = columns.groups
    named = array("I", range(len(frames)))
    for number in _find_ones(bytes(map(operator.not_, frames.function))):
        named[number] = NO_ID
    groups = gather(columns.innermost_groups(), named, NO_ID)
    for index in _find_ones(columns.approximate):
        if groups[index] != NO_ID:
            groups[index] += len(frames)
    free = count(2 * len(frames))
    return array("I", [next(free) if group == NO_ID else group for group in groups]) if NO_ID in groups else groups


def _find_ones(flags: bytes) -> Iterator[int]:
    index = flags.find(1)
    while index >= 0:
        yield index
        index = flags.find(1, index + 1)


def count_repeats(columns: PcColumns, sequence: array[int]) -> array[int]:
    """Count the records that repeat a point of the same run of a function, mostly in loops.

    :param columns: where the PCs of the sequence are.
    :param sequence: PCs in order, 0 for records without one. Type code Q.
    :return: repeated records of each PC of the columns. Type code Q.
    """
    numbering = make_numbering(sequence)
    distinct = numbering.number(sequence)
    symbols = columns.symbols()
    first = len(distinct) - len(columns)
    if first:
        # Records without a PC are in no function, not even the unknown one.
        symbols.insert(0, NO_ID)
    repeats = zeros("Q", len(symbols))
    ids = numbering.ids(sequence)
    _, lib = load_native()
    if lib.kcovdbg_count_repeats(column("I", ids), len(ids), column("I", symbols), len(symbols), column("Q", repeats)):
        raise MemoryError
    return repeats[first:]
