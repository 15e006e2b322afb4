# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rank the functions, files or PCs that take most of a buffer."""

from __future__ import annotations

import operator
from array import array
from itertools import compress, count
from typing import NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.records.native_loops import NO_ID
from kcovdbg.records.pc_counts import make_numbering
from kcovdbg.records.pc_locations import PcColumns
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


class Ranking(NamedTuple):
    """Groups of PCs by their records."""

    shares: list[Share]
    """The groups with the most records, the largest first."""
    groups: int
    """Number of all groups."""
    records: int
    """Records of all groups."""
    repeats: int
    """Repeats of all groups."""

    @property
    def rest(self) -> tuple[int, int]:
        """The number of groups without a share, and their records."""
        shown = sum(share.records for share in self.shares)
        return self.groups - len(self.shares), self.records - shown


def rank(
    columns: PcColumns,
    counts: array[int],
    repeats: array[int],
    by: str,
    wanted: bytes | None = None,
    limit: int | None = None,
) -> Ranking:
    """Group PCs and sort the groups, the largest first.

    :param columns: where the PCs are.
    :param counts: records of each PC. Type code Q.
    :param repeats: repeated records of each PC, from :func:`count_repeats`. Type code Q.
    :param by: ``function`` (innermost, including inlined ones), ``file`` or ``pc``. A PC without a
        function is its own group.
    :param wanted: for each PC, 0 to leave it out; None to rank all.
    :param limit: how many groups to return at most; None for all.
    """
    pcs = columns.pcs
    groups = array("I", range(len(pcs))) if by == "pc" else _groups(columns, by)
    if wanted is not None:
        columns_of_pcs = pcs, counts, repeats
        pcs, counts, repeats = (array("Q", compress(one, wanted)) for one in columns_of_pcs)
        groups = array("I", compress(groups, wanted))
    size = max(groups, default=-1) + 1
    # What each group has: records, PCs, the index of the first PC with the most records, repeats.
    records, repeated = zeros("Q", size), zeros("Q", size)
    points, hottest = zeros("I", size), zeros("I", size)
    _, lib = load_native()
    lib.kcovdbg_sum_groups(
        column("I", groups),
        column("Q", counts, len(groups)),
        column("Q", repeats, len(groups)),
        len(groups),
        size,
        column("Q", records),
        column("I", points),
        column("I", hottest),
        column("Q", repeated),
    )
    order = sorted(compress(range(size), points), key=hottest.__getitem__)
    order.sort(key=records.__getitem__, reverse=True)
    total = sum(records)
    shares = []
    for group in order[:limit]:
        own, pc = records[group], pcs[hottest[group]]
        shares.append(Share(own, own / total, points[group], pc, repeated[group]))
    return Ranking(shares, len(order), total, sum(repeated))


def _groups(columns: PcColumns, by: str) -> array[int]:
    """Return the number of each PC's group."""
    if by == "file":
        return columns.files()
    # Static functions in different files may share a name. What a tail call recorded is in a callee
    # of the function.
    frames = columns.groups
    frame_count = len(frames)
    named = array("I", range(frame_count))
    for number in compress(count(), map(operator.not_, frames.function)):
        named[number] = NO_ID
    groups = gather(columns.innermost_groups(columns.chains), named, NO_ID)
    for index in compress(count(), columns.approximate):
        if groups[index] != NO_ID:
            groups[index] += frame_count
    free = count(2 * frame_count)
    for index in compress(count(), map(NO_ID.__eq__, groups)):
        groups[index] = next(free)
    return groups


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
    if lib.kcovdbg_count_repeats(
        column("I", ids), len(ids), column("I", symbols), len(symbols), column("Q", repeats)
    ):
        raise MemoryError
    return repeats[first:]
