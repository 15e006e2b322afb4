# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loops over every word of a buffer, and over the chains of frames of many PCs, in C.

Numbers of a damaged table that are beyond a column's end are skipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.model.location import FrameColumns
from kcovdbg.symbols.location_table import TableColumns
from kcovdbg.symbols.table_rows import chain_pointer

NO_ID: Final = 0xFFFFFFFF
"""The number of a PC that has none."""

# More than any kernel's text; a bitmap of a larger range would cost more than it saves.
_MAX_TEXT: Final = 1 << 30


class Numbering:
    """Numbers for the distinct PCs of buffers, ascending by address. A buffer is an array of type
    ``Q`` or ``I``.

    Takes an eighth of the text's size in memory, which is reused by each call of :meth:`number`.

    :param text: first address of the kernel's code and the address after the last one, as recorded
        in buffers (minus the KASLR offset). PCs outside are numbered more slowly.
    """

    def __init__(self, text: tuple[int, int] = (0, 0)) -> None:
        ffi, lib = load_native()
        start, end = text
        size = min(max(0, end - start), _MAX_TEXT)
        self._text = lib.kcovdbg_pcs_new(start, size)
        if self._text == ffi.NULL:
            raise MemoryError
        self._text = ffi.gc(self._text, lib.kcovdbg_pcs_free, size // 8)
        self._count = 0

    def number(self, *buffers: array[int]) -> array[int]:
        """Return the distinct PCs of all the buffers, ascending; a PC's number is its index."""
        ffi, lib = load_native()
        lib.kcovdbg_pcs_reset(self._text)
        for words in buffers:
            if lib.kcovdbg_pcs_add(self._text, ffi.from_buffer(words), len(words), words.itemsize):
                raise MemoryError
        self._count = lib.kcovdbg_pcs_number(self._text)
        if self._count < 0:
            raise MemoryError
        pcs = zeros("Q", self._count)
        lib.kcovdbg_pcs_copy(self._text, column("Q", pcs, self._count), self._count)
        return pcs

    def ids(self, words: array[int]) -> array[int]:
        """Return the number of each record's PC; :data:`NO_ID` for one that :meth:`number` was not
        given.
        """
        ffi, lib = load_native()
        ids = zeros("I", len(words))
        lib.kcovdbg_pcs_ids(
            self._text,
            ffi.from_buffer(words),
            len(words),
            words.itemsize,
            column("I", ids, len(words)),
        )
        return ids

    def counts(self, *buffers: array[int]) -> array[int]:
        """Return how often each numbered PC occurs in the buffers."""
        ffi, lib = load_native()
        counts = zeros("Q", self._count)
        pointer = column("Q", counts, self._count)
        for words in buffers:
            lib.kcovdbg_pcs_count(
                self._text, ffi.from_buffer(words), len(words), words.itemsize, pointer, self._count
            )
        return counts


class FoundChains(NamedTuple):
    """The chains of PCs in a location table."""

    chains: array[int]
    """The chain of each PC; NO_CHAIN if the table has no frames of it. Type code Q."""
    rest: array[int]
    """Indexes of the PCs without a chain. Type code I."""
    seen: bytearray
    """For each row of the table, 1 if it has one of the PCs, otherwise 0."""


class LineSums(NamedTuple):
    """Counts for each line, by its number."""

    hits: array[int]
    points: array[int]
    covered: array[int]


def find_chains(pcs: array[int], table: TableColumns) -> FoundChains:
    """Find the chains of PCs in a table.

    :param pcs: ascending; type code Q.
    """
    chains, seen = zeros("Q", len(pcs)), bytearray(len(table.offset))
    _, lib = load_native()
    rest = zeros("I", len(pcs))
    missing = lib.kcovdbg_chains_find(
        column("Q", pcs),
        len(pcs),
        table.base,
        column("I", table.offset),
        column("Q", table.chain, len(table.offset)),
        len(table.offset),
        column("Q", chains, len(pcs)),
        column("I", rest, len(pcs)),
        column("B", seen, len(table.offset)),
    )
    return FoundChains(chains, rest[:missing], seen)


def _find_ends(frames: FrameColumns, chains: Sequence[int], outermost: bool) -> array[int]:
    _, lib = load_native()
    found = zeros("I", len(chains))
    within, _keep = chain_pointer(frames)
    lib.kcovdbg_chains_ends(
        within[0], column("Q", chains), len(chains), outermost, column("I", found, len(chains))
    )
    return found


def find_innermost(frames: FrameColumns, chains: array[int]) -> array[int]:
    """Return the number of each chain's innermost frame, :data:`NO_ID` of an empty one."""
    return _find_ends(frames, chains, False)


def find_outermost(frames: FrameColumns, chains: Sequence[int]) -> array[int]:
    """Return the number of each chain's outermost frame, :data:`NO_ID` of an empty one."""
    return _find_ends(frames, chains, True)


def flatten_chains(frames: FrameColumns, chains: array[int]) -> tuple[array[int], array[int]]:
    """Return the length of each chain, and the numbers of the frames of all of them, innermost
    first.
    """
    ffi, lib = load_native()
    lengths = zeros("I", len(chains))
    within, _keep = chain_pointer(frames)
    arguments = within[0], column("Q", chains), len(chains), column("I", lengths, len(chains))
    numbers = zeros("I", lib.kcovdbg_chains_flatten(*arguments, ffi.NULL, 0))
    lib.kcovdbg_chains_flatten(*arguments, column("I", numbers), len(numbers))
    return lengths, numbers


_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


def narrow(words: array[int]) -> array[int]:
    """Return words of 32 or 64 bits in an array of as few bits as hold them: 8, 16, 32 or 64."""
    ffi, lib = load_native()
    count, size = len(words), words.itemsize
    given = ffi.from_buffer(words)
    width = lib.kcovdbg_width(given, count, size)
    narrowed = array(_CODES[width], bytes(width * count))
    lib.kcovdbg_narrow(given, count, size, ffi.from_buffer(narrowed), width)
    return narrowed


def add_lines(
    frames: FrameColumns,
    groups: Iterable[tuple[array[int], array[int] | None]],
    lines: array[int],
    line_count: int,
) -> LineSums:
    """Count each chain for the lines of its frames, once for each line.

    :param groups: chains, with the hits of each; None for no hits.
    :param lines: the number of each frame's line.
    :param line_count: number of lines.
    """
    sums = LineSums(*(zeros(code, line_count) for code in "QII"))
    ffi, lib = load_native()
    within, _keep = chain_pointer(frames)
    for chains, hits in groups:
        failed = lib.kcovdbg_chains_add(
            within[0],
            column("Q", chains),
            ffi.NULL if hits is None else column("Q", hits, len(chains)),
            len(chains),
            column("I", lines),
            len(lines),
            line_count,
            column("Q", sums.hits, line_count),
            column("I", sums.points, line_count),
            column("I", sums.covered, line_count),
        )
        if failed:
            raise MemoryError
    return sums
