# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locations of many PCs as columns of numbers: a million of them take some megabytes, and loops in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

NO_CHAIN: Final = 0
"""The chain of a PC that has no frames."""
KIND_BITS: Final = 3
KIND_MASK: Final = (1 << KIND_BITS) - 1
START_SHIFT: Final = 16
MAX_DEPTH: Final = (1 << START_SHIFT - KIND_BITS) - 1


class FrameColumns(NamedTuple):
    """The frames that chains are made of.

    A chain is a word. From the lowest bit: kind of point (3 bits), number of frames (13), index of the first one, the
    innermost, in ``chain_frame``. Columns are arrays or views of 32-bit numbers.
    """

    chain_frame: Sequence[int]
    """Numbers of frames, which are indexes of the columns below."""
    function: Sequence[int]
    """Number of a string."""
    file: Sequence[int]
    """Number of a string."""
    line: Sequence[int]
    """0 where it is unknown."""
    column: Sequence[int]
    """0 where it is unknown."""
    strings: Sequence[str | None]
    """The first stands for None; no other two are equal."""


def chain_word(kind: int, start: int, length: int) -> int:
    """Return the word of a chain."""
    return start << START_SHIFT | min(length, MAX_DEPTH) << KIND_BITS | kind


def frames_of_chain(columns: FrameColumns, chain: int) -> Sequence[int]:
    """Return the numbers of a chain's frames, innermost first."""
    start = chain >> START_SHIFT
    return columns.chain_frame[start : start + (chain >> KIND_BITS & MAX_DEPTH)]
