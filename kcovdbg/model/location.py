# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source location of a program counter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.record import Record


class Frame(NamedTuple):
    """One level of a location: a function, or one that was inlined into it."""

    function: str | None
    file: str | None
    """Relative to the build's root."""
    line: int | None
    column: int | None


class Location(NamedTuple):
    """The code at an address."""

    address: int
    frames: tuple[Frame, ...]
    """Innermost first."""
    remark: str | None = None
    """Why there are no frames, or why they are approximate."""
    approximate: bool = False
    """Whether a tail call was recorded whose function is unknown: the frames are its caller's."""
    mangled: str | None = None
    """The name in the image of the outermost frame's function, where that is demangled."""

    @property
    def symbol(self) -> str | None:
        """The function that the code was compiled into, as the image names it: the outermost frame's."""
        return self.mangled or (self.frames[-1].function if self.frames else None)


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


class LocatedRecord(NamedTuple):
    """A record with its address and location."""

    record: Record
    address: int | None
    """PC plus KASLR offset; None where the record has no PC."""
    location: Location | None
    """None where the record has no PC, or only the page of one."""

    @property
    def symbol(self) -> str | None:
        """The function that the code was compiled into."""
        return None if self.location is None else self.location.symbol
