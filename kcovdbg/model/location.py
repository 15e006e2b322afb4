# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a program counter is in the source."""

from __future__ import annotations

from typing import NamedTuple


class Frame(NamedTuple):
    """One level of a location: a function, or one that was inlined into it."""

    function: str | None
    file: str | None
    """Relative to the build's root."""
    line: int | None
    column: int | None


class Location(NamedTuple):
    """What is at an address."""

    address: int
    frames: tuple[Frame, ...]
    """Innermost first."""
    remark: str | None = None
    """Why there are no frames, or why they are approximate."""
    approximate: bool = False
    """Whether a tail call was recorded whose function is unknown: the frames are its caller's."""

    @property
    def symbol(self) -> str | None:
        """The function that the code was compiled into: the outermost frame's."""
        return self.frames[-1].function if self.frames else None
