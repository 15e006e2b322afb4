# SPDX-License-Identifier: LGPL-2.1-or-later
"""The columns of a location table, in C: made, checked and searched."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.model.location import FrameColumns

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
    """A table's row for one PC."""

    offset: array[int]
    """From the table's base; 32-bit numbers."""
    chain: array[int]
    """Words of chains, as in :class:`~kcovdbg.model.location.FrameColumns`; 64-bit numbers."""
    bucket: array[int]
    """The index of the first row of each bucket, and the number of rows; 32-bit numbers."""


def merge_kinds(columns: Sequence[tuple[Iterable[int], int]]) -> MergedPoints:
    """Return points of all kinds as one.

    :param columns: PCs, ascending, and their kind, a number of 3 bits.
    """
    ffi, lib = load_native()
    arrays = [(array("Q", pcs), kind) for pcs, kind in columns]
    pointers = [column("Q", pcs, len(pcs)) for pcs, _ in arrays]
    given = ffi.new("struct kcovdbg_points[]", len(arrays))
    for one, pointer, (pcs, kind) in zip(given, pointers, arrays, strict=True):
        one.pcs, one.count, one.kind = pointer, len(pcs), kind
    size = sum(len(pcs) for pcs, _ in arrays)
    merged, kinds = zeros("Q", size), bytearray(size)
    if lib.kcovdbg_merge_points(given, len(arrays), column("Q", merged, size), column("B", kinds, size), size):
        raise ValueError("points of columns that do not ascend")
    return MergedPoints(merged, bytes(kinds))


def make_columns(
    pcs: Sequence[int], kinds: Sequence[int], chains: Sequence[int], base: int, chain_ends: array[int]
) -> RowColumns:
    """Return the columns of a table.

    :param pcs: ascending; those outside the 4 GiB after ``base`` are left out.
    :param kinds: of each PC.
    :param chains: the number of each PC's chain.
    :param chain_ends: where the frames of each chain end.
    :raises ValueError: when PCs do not ascend or have chains that there are not.
    """
    _, lib = load_native()
    low, high = bisect_left(pcs, base), bisect_left(pcs, base + (1 << 32))
    pcs, kinds, chains = array("Q", pcs[low:high]), bytes(kinds[low:high]), array("I", chains[low:high])
    count, bucket_count = len(pcs), (pcs[-1] - base >> BUCKET_SHIFT) + 2 if pcs else 1
    made = RowColumns(zeros("I", count), zeros("Q", count), zeros("I", bucket_count))
    failed = lib.kcovdbg_make_rows(
        column("Q", pcs, count),
        column("B", kinds, count),
        column("I", chains, count),
        count,
        base,
        column("I", chain_ends, len(chain_ends)),
        len(chain_ends),
        BUCKET_SHIFT,
        column("I", made.offset, count),
        column("Q", made.chain, count),
        column("I", made.bucket, bucket_count),
        bucket_count,
    )
    if failed:
        raise ValueError("PCs that do not ascend, or chains out of range")
    return made


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


def chain_pointer(frames: FrameColumns) -> Any:
    """Return the C structure; it is valid as long as the columns are."""
    ffi, _ = load_native()
    numbers = column("I", frames.chain_frame, len(frames.chain_frame))
    return ffi.new("struct kcovdbg_chains *", {"frames": numbers, "count": len(frames.chain_frame)}), numbers


def combine_flags(frames: FrameColumns, chains: Sequence[int], flags: bytes) -> bytes:
    """Return the flags of all frames of each chain, combined by "or".

    :param flags: of each frame.
    """
    _, lib = load_native()
    combined = bytearray(len(chains))
    within, _keep = chain_pointer(frames)
    lib.kcovdbg_chains_flags(
        within[0],
        column("Q", chains, len(chains)),
        len(chains),
        column("B", flags, len(flags)),
        len(flags),
        column("B", combined, len(chains)),
    )
    return bytes(combined)
