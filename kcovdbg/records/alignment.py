# SPDX-License-Identifier: LGPL-2.1-or-later
"""The records that two ordered traces have in common, as blocks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.records.pc_counts import make_numbering, to_array

_MAX_RECORDS: Final = 1 << 30
# Steps that take about a second.
_DIFF_BUDGET: Final = 600_000_000
# PCs that agree but for this many low bits are mostly of one function: functions are a few hundred bytes long.
_FUNCTION_BITS: Final = 8
# Steps in C; takes less than half a second.
_BUDGET: Final = 200_000_000
# Records that are compared at once.
_CHUNK: Final = 4096


class Block(NamedTuple):
    """Consecutive records that both of two sequences have."""

    left: int
    """Index of the first one on the left."""
    right: int
    length: int


class Alignment(NamedTuple):
    """Comparison of two traces in order."""

    blocks: tuple[Block, ...]
    """Ascending on both sides; the records in between are on one side only."""
    left: int
    """Records on the left."""
    right: int
    is_coarse: bool
    """Whether the search was cut short: the blocks are right, but there may be more."""

    @property
    def common(self) -> int:
        """Number of records that both sides have."""
        return _count_records(self.blocks)


def find_blocks(
    left: array[int], right: array[int], groups: array[int] | None = None, *, budget: int = _DIFF_BUDGET
) -> tuple[tuple[Block, ...], bool]:
    """Align two sequences of numbers.

    :param groups: the group of each number. Consecutive records of one group (for PCs, a function) are aligned as one first:
        sequences of a million nearly equal records take a fifth of a second.
    :param budget: limit of steps; the default takes about a second. What is not aligned by then counts as different.
    :return: the blocks that both sides have, ascending, and whether the budget was used up: then there may be more.
    :raises ValueError: when a sequence has 2^30 records or more, or a number has no group.
    """
    if len(left) >= _MAX_RECORDS or len(right) >= _MAX_RECORDS:
        raise ValueError("too many records")
    if groups is not None and max(max(left, default=-1), max(right, default=-1)) >= len(groups):
        raise ValueError("a number without a group")
    ffi, lib = load_native()
    diff = lib.kcovdbg_diff_new(
        column("I", left),
        len(left),
        column("I", right),
        len(right),
        ffi.NULL if groups is None else column("I", groups),
        0 if groups is None else len(groups),
        budget,
    )
    if diff == ffi.NULL:
        raise MemoryError
    try:
        flat = zeros("I", 3 * lib.kcovdbg_diff_count(diff))
        lib.kcovdbg_diff_blocks(diff, column("I", flat))
        is_coarse = bool(lib.kcovdbg_diff_is_coarse(diff))
    finally:
        lib.kcovdbg_diff_free(diff)
    numbers = iter(flat.tolist())
    return tuple(map(Block, numbers, numbers, numbers)), is_coarse


def align(left: Sequence[int], right: Sequence[int]) -> Alignment:
    """Align two traces.

    :param left: PCs.
    :param right: PCs.
    """
    words = [to_array(side) for side in (left, right)]
    numbering = make_numbering(left)
    pcs = numbering.number(*words)
    sides = [numbering.ids(side) for side in words]
    blocks, is_coarse = find_blocks(sides[0], sides[1], budget=_BUDGET)
    if is_coarse:
        # Aligning whole functions first needs fewer steps.
        groups = array("I", _number(pc >> _FUNCTION_BITS for pc in pcs))
        by_function, is_still_coarse = find_blocks(sides[0], sides[1], groups, budget=_BUDGET)
        if not is_still_coarse or _count_records(by_function) > _count_records(blocks):
            blocks, is_coarse = by_function, is_still_coarse
    return Alignment(blocks, len(left), len(right), is_coarse)


def align_by_index(left: Sequence[int], right: Sequence[int], width: int = 1) -> Alignment:
    """Pair the records of two traces by their indexes, as for two readings of one buffer.

    :param left: words of the records.
    :param width: words of a record; all of them are compared.
    """
    counts = len(left) // width, len(right) // width
    blocks: list[Block] = []

    def is_same(start: int, end: int) -> bool:
        return bool(left[start * width : end * width] == right[start * width : end * width])

    def add(start: int, end: int) -> None:
        if blocks and blocks[-1].left + blocks[-1].length == start:
            start = blocks.pop().left
        blocks.append(Block(start, start, end - start))

    for start in range(0, min(counts), _CHUNK):
        end = min(start + _CHUNK, *counts)
        # Only a chunk that differs is compared record by record.
        if is_same(start, end):
            add(start, end)
            continue
        for index in range(start, end):
            if is_same(index, index + 1):
                add(index, index + 1)
    return Alignment(tuple(blocks), *counts, is_coarse=False)


def _count_records(blocks: Iterable[Block]) -> int:
    return sum(block.length for block in blocks)


def _number(values: Iterable[int]) -> Iterator[int]:
    """Number values in the order of their first occurrence."""
    numbers: dict[int, int] = {}
    return (numbers.setdefault(value, len(numbers)) for value in values)
