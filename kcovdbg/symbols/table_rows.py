# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of a location table that is being built: by the compiled module, in a tenth of the time of Python."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import or_
from typing import Final, NamedTuple

from kcovdbg.compiled_module import column, has_native, load_native
from kcovdbg.model.frame_columns import KIND_BITS, KIND_MASK, MAX_DEPTH, START_SHIFT
from kcovdbg.symbols.compiled_reader import make_rows, merge_points

BUCKET_SHIFT: Final = 6
"""A PC is looked up by the higher bits of its offset, then searched among the few that share them."""


# Of each array of a table: the member of struct kcovdbg_table that has the number of its items.
_COUNTERS: Final = {
    "offset": "point_count",
    "chain": "point_count",
    "bucket": "bucket_count",
    "chain_frame": "chain_frame_count",
    "frame_function": "frame_count",
    "frame_file": "frame_count",
    "frame_line": "frame_count",
    "frame_column": "frame_count",
    "string": "string_size",
    "range": "range_size",
    "function_start": "function_count",
    "function_size": "function_count",
    "function_name": "function_count",
    "function_alias": "function_count",
    "function_unit": "function_count",
}


class MergedPoints(NamedTuple):
    """The PCs of a table, ascending, and the kind of each."""

    pcs: array[int]
    kinds: bytes


class RowColumns(NamedTuple):
    """What a table has of each PC."""

    offset: array[int]
    """From the table's base; 32-bit numbers."""
    chain: array[int]
    """Words of chains, as in :class:`~kcovdbg.model.frame_columns.FrameColumns`; 64-bit numbers."""
    bucket: array[int]
    """The index of the first row of each bucket, and the number of rows; 32-bit numbers."""


def merge_kinds(columns: Sequence[tuple[Iterable[int], int]]) -> MergedPoints:
    """Return points of all kinds as one.

    :param columns: PCs, ascending, and their kind, a number of 3 bits.
    """
    if has_native():
        return MergedPoints(*merge_points([(array("Q", pcs), kind) for pcs, kind in columns]))
    # As single numbers, they sort far faster than as pairs; each kind is ascending already.
    rows: list[int] = []
    for pcs, kind in columns:
        rows += [pc << KIND_BITS | kind for pc in pcs]
    rows.sort()
    return MergedPoints(array("Q", [row >> KIND_BITS for row in rows]), bytes([row & KIND_MASK for row in rows]))


def make_columns(
    pcs: Sequence[int], kinds: Sequence[int], chains: Sequence[int], base: int, chain_ends: array[int]
) -> RowColumns:
    """Return the columns of a table.

    :param pcs: ascending; those outside the 4 GiB after ``base`` are left out.
    :param kinds: of each PC.
    :param chains: the number of each PC's chain.
    :param chain_ends: where the frames of each chain end.
    """
    low, high = bisect_left(pcs, base), bisect_left(pcs, base + (1 << 32))
    pcs, kinds, chains = pcs[low:high], kinds[low:high], chains[low:high]
    buckets = (pcs[-1] - base >> BUCKET_SHIFT) + 2 if pcs else 1
    if has_native():
        columns = array("Q", pcs), bytes(kinds), array("I", chains)
        return RowColumns(*make_rows(*columns, base, chain_ends, BUCKET_SHIFT, buckets))
    offsets = array("I", [pc - base for pc in pcs])
    counts = array("I", bytes(4 * buckets))
    for bucket, found in Counter([offset >> BUCKET_SHIFT for offset in offsets]).items():
        counts[bucket + 1] = found
    # Of each chain, without a kind.
    words = [start << START_SHIFT | min(end - start, MAX_DEPTH) << KIND_BITS for start, end in pairwise((0, *chain_ends))]
    return RowColumns(offsets, array("Q", map(or_, map(words.__getitem__, chains), kinds)), array("I", accumulate(counts)))


def check_table(base: int, parts: Mapping[str, memoryview[int]], kind_count: int) -> bool:
    """Return whether the columns of a table fit together, and every number in them is in range.

    :param base: address that offsets count from.
    :param parts: the arrays of :mod:`.location_table`.
    :param kind_count: of :class:`~kcovdbg.symbols.coverage_points.PointKind`.
    """
    ffi, lib = load_native()
    table = ffi.new("struct kcovdbg_table *", {"base": base, "kind_count": kind_count})
    counts: dict[str, int] = {}
    kept = []
    for name, counter in _COUNTERS.items():
        values = parts[name]
        try:
            kept.append(column(values.format, values, counts.setdefault(counter, len(values))))  # type: ignore[arg-type]
        except ValueError:
            return False
        setattr(table, name, kept[-1])
    for counter, count in counts.items():
        setattr(table, counter, count)
    return not lib.kcovdbg_check_table(table)
