# SPDX-License-Identifier: LGPL-2.1-or-later
"""The records that two ordered traces have in common, as blocks.

The compiled module aligns best. Without it, a search in Python finds where two traces of one workload resume alike after a
difference: it looks for a piece of one in the bytes of the other, so that the interpreter does no work per record. Small parts
in between are aligned exactly; larger ones count as different, and the alignment is marked as coarse.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.compiled_module import has_native
from kcovdbg.records.native_loops import Block, find_blocks
from kcovdbg.records.pc_counts import make_numbering, to_array

# Two traces meet again where both have a piece of this many records; shorter pieces recur everywhere.
_ANCHOR: Final = 24
# Records to search ahead for an anchor, at first and at most.
_NEAR: Final = 256
_FAR: Final = 1 << 15
# Parts with at most this many differences are aligned exactly, in quadratic time.
_EXACT: Final = 192
# Limit of searches per alignment, each of which scans up to _FAR records.
_SEARCHES: Final = 200_000
# PCs that agree but for this many low bits are mostly of one function: functions are a few hundred bytes long.
_FUNCTION_BITS: Final = 8
# Steps in C; takes less than half a second.
_BUDGET: Final = 200_000_000


class Alignment(NamedTuple):
    """How two traces compare in order."""

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


def align(left: Sequence[int], right: Sequence[int], *, native: bool | None = None) -> Alignment:
    """Align two traces.

    :param left: PCs.
    :param right: PCs.
    :param native: whether to use the compiled module; None to use it if it is there.
    """
    words = [to_array(side) for side in (left, right)]
    numbering = make_numbering(left, native=native)
    pcs = numbering.number(*words)
    sides = [numbering.ids(side) for side in words]
    if has_native() if native is None else native:
        blocks, is_coarse = find_blocks(sides[0], sides[1], budget=_BUDGET)
        if is_coarse:
            # Aligning whole functions first needs fewer steps.
            groups = array("I", _number(pc >> _FUNCTION_BITS for pc in pcs))
            by_function, is_still_coarse = find_blocks(sides[0], sides[1], groups, budget=_BUDGET)
            if not is_still_coarse or _count_records(by_function) > _count_records(blocks):
                blocks, is_coarse = by_function, is_still_coarse
    else:
        blocks, is_coarse = _Search(*sides).run()
    return Alignment(blocks, len(left), len(right), is_coarse)


def _count_records(blocks: Iterable[Block]) -> int:
    return sum(block.length for block in blocks)


def _number(values: Iterable[int]) -> Iterator[int]:
    """Number values in the order of their first occurrence."""
    numbers: dict[int, int] = {}
    return (numbers.setdefault(value, len(numbers)) for value in values)


class _Search:
    """The search of one alignment in Python.

    :param left: numbers of the left side's records.
    :param right: numbers of the right side's records.
    """

    def __init__(self, left: array[int], right: array[int]) -> None:
        self._left, self._right = left, right
        self._left_bytes, self._right_bytes = left.tobytes(), right.tobytes()
        self._width = left.itemsize
        self._searches = _SEARCHES
        self._blocks: list[Block] = []
        self._is_coarse = False

    def run(self) -> tuple[tuple[Block, ...], bool]:
        """Return the blocks, and whether the search was cut short."""
        self._find_blocks()
        return tuple(_join(self._blocks)), self._is_coarse

    def _find_blocks(self) -> None:
        left_end, right_end = len(self._left), len(self._right)
        i = j = 0
        while i < left_end and j < right_end:
            length = self._common_prefix(i, j)
            if length:
                self._blocks.append(Block(i, j, length))
                i, j = i + length, j + length
                continue
            anchor = self._find_anchor(i, j)
            if anchor is None:
                tail = self._common_suffix(i, j)
                self._between(i, left_end - tail, j, right_end - tail)
                if tail:
                    self._blocks.append(Block(left_end - tail, right_end - tail, tail))
                return
            self._between(i, anchor[0], j, anchor[1])
            i, j = anchor

    def _common_prefix(self, i: int, j: int) -> int:
        """Return the number of equal records from these on."""
        limit = min(len(self._left) - i, len(self._right) - j)
        width = self._width
        left, right = memoryview(self._left_bytes), memoryview(self._right_bytes)
        if not limit or self._left[i] != self._right[j]:
            return 0
        known, step = 1, 64
        while known < limit:
            step = min(step, limit - known)
            a, b = (i + known) * width, (j + known) * width
            if left[a : a + step * width] == right[b : b + step * width]:
                known += step
                step *= 2
            elif step == 1:
                break
            else:
                step = max(1, step // 8)
        return known

    def _common_suffix(self, i: int, j: int) -> int:
        """Return the number of equal records at both ends, not going back beyond these."""
        limit = min(len(self._left) - i, len(self._right) - j)
        length = 0
        while length < limit and self._left[-1 - length] == self._right[-1 - length]:
            length += 1
        return length

    def _find_anchor(self, i: int, j: int) -> tuple[int, int] | None:
        """Return the nearest place from here on where the sides meet again."""
        window = _NEAR
        while window <= _FAR:
            best: tuple[int, int, int] | None = None
            step = max(1, window // 64)
            for ahead in range(0, window, step):
                if best is not None and ahead >= best[0]:
                    break
                if self._searches <= 0:
                    self._is_coarse = True
                    return None if best is None else best[1:]
                self._searches -= 2
                at = self._search(self._left_bytes, i + ahead, self._right_bytes, j, window)
                if at is not None:
                    best = min(best or (1 << 62, 0, 0), (ahead + at - j, i + ahead, at))
                at = self._search(self._right_bytes, j + ahead, self._left_bytes, i, window)
                if at is not None:
                    best = min(best or (1 << 62, 0, 0), (ahead + at - i, at, j + ahead))
            if best is not None:
                return self._extend_back(best[1], best[2], i, j)
            if i + window >= len(self._left) and j + window >= len(self._right):
                return None
            window *= 8
        self._is_coarse = True
        return None

    def _search(self, needle: bytes, at: int, hay: bytes, start: int, window: int) -> int | None:
        """Return where in a window of one side a piece of the other side occurs."""
        width = self._width
        piece = needle[at * width : (at + _ANCHOR) * width]
        if len(piece) < _ANCHOR * width:
            return None
        position = start * width
        end = (start + window + _ANCHOR) * width
        while True:
            position = hay.find(piece, position, end)
            if position < 0:
                return None
            if position % width == 0:
                return position // width
            position += 1

    def _extend_back(self, left: int, right: int, i: int, j: int) -> tuple[int, int]:
        while left > i and right > j and self._left[left - 1] == self._right[right - 1]:
            left, right = left - 1, right - 1
        return left, right

    def _between(self, left: int, left_end: int, right: int, right_end: int) -> None:
        """Align a part exactly if its sides differ little."""
        if left == left_end or right == right_end:
            return
        blocks = exact_blocks(self._left[left:left_end], self._right[right:right_end], _EXACT)
        if blocks is None:
            self._is_coarse = True
            return
        self._blocks += [Block(left + block.left, right + block.right, block.length) for block in blocks]


def exact_blocks(left: Sequence[int], right: Sequence[int], limit: int) -> list[Block] | None:
    """Return the blocks of a longest common subsequence (E. Myers, 1986).

    :param limit: of records that differ; None is returned when there are more.
    """
    n, m = len(left), len(right)
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for d in range(min(n + m, limit) + 1):
        history.append(dict(furthest))
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and furthest.get(k - 1, -1) < furthest.get(k + 1, -1))
            x = furthest.get(k + 1, 0) if down else furthest.get(k - 1, 0) + 1
            y = x - k
            while x < n and y < m and left[x] == right[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= n and y >= m:
                return _trace_back(history, n, m)
    return None


def _trace_back(history: list[dict[int, int]], n: int, m: int) -> list[Block]:
    blocks: list[Block] = []
    x, y = n, m
    for d in range(len(history) - 1, -1, -1):
        furthest = history[d]
        k = x - y
        down = k == -d or (k != d and furthest.get(k - 1, -1) < furthest.get(k + 1, -1))
        before = k + 1 if down else k - 1
        old_x = furthest.get(before, 0)
        old_y = old_x - before
        start_x = old_x if down else old_x + 1
        if d == 0:
            start_x, old_x, old_y = 0, 0, 0
        if x > start_x:
            blocks.append(Block(start_x, start_x - k, x - start_x))
        x, y = old_x, old_y
    return blocks[::-1]


def _join(blocks: Sequence[Block]) -> list[Block]:
    """Join adjacent blocks."""
    found: list[Block] = []
    for block in blocks:
        if found and found[-1].left + found[-1].length == block.left and found[-1].right + found[-1].length == block.right:
            found[-1] = found[-1]._replace(length=found[-1].length + block.length)
        else:
            found.append(block)
    return found
