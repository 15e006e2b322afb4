# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locations of recorded PCs, looked up in batches and cached.

A trace of a million records holds a few thousand distinct PCs; each is looked up once.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

from kcovdbg.elf.symbol_table import demangle
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.pc_columns import PcColumns, locate_columns
from kcovdbg.symbols.location_table import LocationTable

Locate: TypeAlias = Callable[[Sequence[int]], Sequence[Location]]
"""From recorded PCs (return addresses minus the KASLR offset) to their locations, in the same order."""

UNKNOWN: Final = "?"
"""The function of a PC that has no name."""


def is_pattern(text: str) -> bool:
    """Return whether a name is a pattern, as of :mod:`fnmatch`."""
    return any(character in text for character in "*?[")


@lru_cache(64)
def name_matcher(name: str) -> Callable[[str], bool]:
    """Return a test whether a function has a name, in either form where it is of Rust, or matches a pattern.

    Rust's names have brackets and asterisks that are no pattern.
    """
    wanted = (name, demangle(name))
    matches = re.compile(translate(name)).fullmatch if is_pattern(name) else lambda _: None

    def has_name(function: str) -> bool:
        shown = demangle(function)
        return function in wanted or shown == name or matches(shown) is not None

    return has_name


class OtherCode(Protocol):
    """A kernel's code beside the location table: that of modules."""

    def find_code(self, name: str) -> range | None:
        """Return the code of the symbol with a name, without the KASLR offset; None where there is none."""

    def has_function(self, name: str) -> bool:
        """Return whether debug info has a function with a name, one that is inlined everywhere included."""

    def has_file(self, path: str) -> bool:
        """Return whether a module has code of a file or directory, or of one that matches a pattern."""


class LocationCache:
    """Cached locations of recorded PCs.

    :param locate: looks up locations.
    :param find_table: returns the location table that they are looked up in, None while there is none.
    :param other: the code that the table does not have; None where nothing is known of it.
    """

    def __init__(
        self,
        locate: Locate,
        find_table: Callable[[], LocationTable | None] = lambda: None,
        other: OtherCode | None = None,
    ) -> None:
        self._locate = locate
        self._find_table = find_table
        self.other = other
        self._known: dict[int, Location] = {}

    @property
    def table(self) -> LocationTable | None:
        """The location table, None while there is none."""
        return self._find_table()

    def find_code(self, name: str) -> Sequence[range]:
        """Return the code of the symbols of functions that have a name, or match a pattern, with addresses as in the image."""
        table = self.table
        symbols = () if table is None else table.find_functions(name_matcher(name))
        if symbols or is_pattern(name):
            return [range(symbol.address, symbol.address + symbol.size) for symbol in symbols]
        found = None if self.other is None else self.other.find_code(name)
        return [] if found is None else [found]

    def prefetch(self, pcs: Iterable[int]) -> None:
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
            self.prefetch((pc,))
            found = self._known[pc]
        return found

    def frame(self, pc: int) -> Frame:
        """Return the innermost frame; its members are None if the location is unknown."""
        return self[pc].innermost

    def symbol(self, pc: int) -> str:
        """Return the function into which the code was compiled: the outermost frame's."""
        return self[pc].outermost.function or UNKNOWN
