# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loops over every word of a buffer, in C; loops over locations are in :mod:`.chain_loops`."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros

NO_ID: Final = 0xFFFFFFFF
"""The number of a PC that has none."""

# More than any kernel's text; a bitmap of a larger range would cost more than it saves.
_MAX_TEXT: Final = 1 << 30
_MAX_RECORDS: Final = 1 << 30
# Steps that take about a second.
_DIFF_BUDGET: Final = 600_000_000


class Block(NamedTuple):
    """Consecutive records that both of two sequences have."""

    left: int
    """Index of the first one on the left."""
    right: int
    length: int


class Numbering:
    """Numbers for the distinct PCs of buffers, ascending by address. A buffer is an array of type ``Q`` or ``I``.

    Takes an eighth of the text's size in memory, which is reused by each call of :meth:`number`.

    :param text: first address of the kernel's code and the address after the last one, as recorded in buffers (minus the KASLR
        offset). PCs outside are numbered more slowly.
    """

    def __init__(self, text: tuple[int, int] = (0, 0)) -> None:
        ffi, lib = load_native()
        start, end = text
        size = min(max(0, end - start), _MAX_TEXT)
        self._text = lib.kcovdbg_text_new(start, size)
        if self._text == ffi.NULL:
            raise MemoryError
        self._text = ffi.gc(self._text, lib.kcovdbg_text_free, size // 8)
        self._count = 0

    def number(self, *buffers: array[int]) -> array[int]:
        """Return the distinct PCs of all the buffers, ascending; a PC's number is its index."""
        ffi, lib = load_native()
        lib.kcovdbg_text_reset(self._text)
        for words in buffers:
            if lib.kcovdbg_text_add(self._text, ffi.from_buffer(words), len(words), words.itemsize):
                raise MemoryError
        self._count = lib.kcovdbg_text_number(self._text)
        if self._count < 0:
            raise MemoryError
        pcs = zeros("Q", self._count)
        lib.kcovdbg_text_pcs(self._text, column("Q", pcs, self._count), self._count)
        return pcs

    def ids(self, words: array[int]) -> array[int]:
        """Return the number of each record's PC; :data:`NO_ID` for one that :meth:`number` was not given."""
        ffi, lib = load_native()
        ids = zeros("I", len(words))
        lib.kcovdbg_text_ids(self._text, ffi.from_buffer(words), len(words), words.itemsize, column("I", ids, len(words)))
        return ids

    def counts(self, *buffers: array[int]) -> array[int]:
        """Return how often each numbered PC occurs in the buffers."""
        ffi, lib = load_native()
        counts = zeros("Q", self._count)
        pointer = column("Q", counts, self._count)
        for words in buffers:
            lib.kcovdbg_text_count(self._text, ffi.from_buffer(words), len(words), words.itemsize, pointer, self._count)
        return counts


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
