# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where kernel modules are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


def is_code_section(name: str) -> bool:
    """Return whether a section has code that stays: that of .init.text is freed, and another module may be there then."""
    return "text" in name and not name.startswith(".init")


class ModulePlace(NamedTuple):
    """The address of one loaded module; modules of one name and build ID have the same code."""

    name: str
    build_id: str | None
    """Hexadecimal."""
    size: int
    """Bytes that the module takes: no section of it is longer."""
    sections: tuple[tuple[str, int], ...]
    """Names and addresses of its sections with code."""

    @property
    def key(self) -> tuple[str, str | None]:
        """Unique key: name and build ID."""
        return self.name, self.build_id

    @property
    def span(self) -> tuple[int, int]:
        """The first address of its code, and one that is behind all of it."""
        starts = [address for _, address in self.sections]
        return min(starts), max(starts) + self.size

    def shift(self, offset: int) -> ModulePlace:
        """Return the place with its addresses changed: minus the KASLR offset, they are as KCOV records PCs."""
        return self._replace(sections=tuple((name, address + offset) for name, address in self.sections))


class _Section(NamedTuple):
    start: int
    name: str
    module: ModulePlace


class ModuleMap:
    """Finds the modules that return addresses are in.

    :param places: of the modules.
    """

    def __init__(self, places: Iterable[ModulePlace]) -> None:
        self._sections = sorted(
            (_Section(address, name, place) for place in places for name, address in place.sections),
            key=lambda section: section.start,
        )

    def find(self, pc: int) -> tuple[ModulePlace, str, int] | None:
        """Return the module, the section and the offset in it that a return address is at, None for one in no module."""
        found = None
        # There are few: those that a trace has records in.
        for section in self._sections:
            if section.start >= pc:
                break
            found = section
        if found is None or pc > found.start + found.module.size:
            return None
        return found.module, found.name, pc - found.start


class ModuleMoves(NamedTuple):
    """Return addresses, translated for modules that are loaded elsewhere."""

    moved: dict[int, int]
    """Old -> new, of those that change."""
    lacking: dict[int, str]
    """Addresses in modules that are not loaded -> name of the module."""


def move_pcs(pcs: Iterable[int], old: Sequence[ModulePlace], new: Sequence[ModulePlace]) -> ModuleMoves:
    """Return where return addresses in modules are when these are loaded elsewhere.

    :param pcs: distinct.
    :param old: where the modules were.
    :param new: where they are.
    """
    modules = ModuleMap(old)
    starts = {(place.key, name): address for place in new for name, address in place.sections}
    moved: dict[int, int] = {}
    lacking: dict[int, str] = {}
    for pc in pcs:
        found = modules.find(pc)
        if found is None:
            continue
        place, section, offset = found
        start = starts.get((place.key, section))
        if start is None:
            lacking[pc] = place.name
        elif start + offset != pc:
            moved[pc] = start + offset
    return ModuleMoves(moved, lacking)
