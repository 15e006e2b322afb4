# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locations of recorded PCs, looked up in batches and cached.

A trace of a million records holds a few thousand distinct PCs; each is looked up once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from kcovdbg.analysis.pc_columns import PcColumns, locate_columns
from kcovdbg.model.location import Frame, Location
from kcovdbg.symbols.location_table import LocationTable

Locate: TypeAlias = Callable[[Sequence[int]], Sequence[Location]]
"""From recorded PCs (return addresses minus the KASLR offset) to their locations, in the same order."""

UNKNOWN: Final = "?"
"""The function of a PC that has no name."""
_NOWHERE: Final = Frame(None, None, None, None)


class Names:
    """Cached locations of recorded PCs.

    :param locate: looks up locations.
    :param find_table: returns the location table that they are looked up in, None while there is none.
    """

    def __init__(self, locate: Locate, find_table: Callable[[], LocationTable | None] = lambda: None) -> None:
        self._locate = locate
        self._find_table = find_table
        self._known: dict[int, Location] = {}

    def learn(self, pcs: Iterable[int]) -> None:
        """Look up all PCs that are not cached, in one batch."""
        known = self._known
        # Lookups in debug info are fastest in ascending order.
        wanted = sorted({pc for pc in pcs if pc not in known})
        if wanted:
            known.update(zip(wanted, self._locate(wanted), strict=True))

    def columns(self, pcs: array[int]) -> PcColumns:
        """Return where PCs are, as columns; nothing is cached.

        :param pcs: ascending; type code Q.
        """
        return locate_columns(pcs, self._find_table(), self._locate)

    def __getitem__(self, pc: int) -> Location:
        """Return the location of a PC."""
        found = self._known.get(pc)
        if found is None:
            self.learn((pc,))
            found = self._known[pc]
        return found

    def frame(self, pc: int) -> Frame:
        """Return the innermost frame; its members are None if the location is unknown."""
        frames = self[pc].frames
        return frames[0] if frames else _NOWHERE

    def function(self, pc: int) -> str:
        """Return the innermost function, which may be inlined."""
        return self.frame(pc).function or UNKNOWN

    def symbol(self, pc: int) -> str:
        """Return the function into which the code was compiled: the outermost frame's."""
        frames = self[pc].frames
        return (frames[-1].function if frames else None) or UNKNOWN

    def file(self, pc: int) -> str | None:
        """Return the innermost frame's file."""
        return self.frame(pc).file
