# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage as other tools count it: by point, by line, by function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kcovdbg.model.location import Frame


class PointCoverage(NamedTuple):
    """One coverage point, and how often it was recorded."""

    pc: int
    """As recorded: the return address minus the KASLR offset."""
    call: int
    """The address of the call that it returns from; the PC itself where the length of a call is unknown."""
    module: str | None
    """Name of the module that it is in; None for the kernel's image, and where nobody knows."""
    offset: int | None
    """Of the call, from the start of the code of the image or the module; None where that is unknown."""
    hits: int
    """Records; 0 for a point that was not executed."""
    frames: tuple[Frame, ...]
    """Of the call; innermost first, empty where nothing is known."""
    symbol: str | None = None
    """The symbol that llvm-addr2line shows for the code; None where frames alone name it."""


class LineCoverage(NamedTuple):
    """What is known of one line of source."""

    file: str
    line: int
    hits: int
    """Records of the line's points."""
    points: int
    """Points that the compiler put there, those of functions inlined there too; at least as many as are covered."""
    covered: int
    """Points that were executed."""


class FileCoverage(NamedTuple):
    """What is known of the lines of a file that have points, in columns: a kernel has half a million of them."""

    file: str
    lines: Sequence[int]
    """Their numbers, ascending."""
    hits: Sequence[int]
    """Records of each line's points."""
    points: Sequence[int]
    """Points that the compiler put there, those of functions inlined there too; at least as many as are covered."""
    covered: Sequence[int]
    """Points that were executed."""

    @property
    def covered_lines(self) -> int:
        """How many of the lines were executed."""
        return sum(map(bool, self.covered))

    def rows(self) -> Iterator[LineCoverage]:
        """Iterate over the lines."""
        for row in zip(self.lines, self.hits, self.points, self.covered, strict=True):
            yield LineCoverage(self.file, *row)


class FunctionCoverage(NamedTuple):
    """How much of a function was executed: of the code that was compiled into its symbol."""

    file: str
    function: str
    covered: int
    """Points that were executed."""
    points: int
    """Points that the compiler put there; at least as many."""
