# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel modules that traces have records in, known by the traces' side files and by files with debug info."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kcovdbg.abi.address import page_align, page_align_down
from kcovdbg.console.symbol_sources import find_module_sets
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NotElfError
from kcovdbg.model.location import Frame
from kcovdbg.model.module_place import ModuleMap, ModulePlace
from kcovdbg.records.pc_convention import PointSet
from kcovdbg.records.trace_file import TraceHeader
from kcovdbg.symbols.coverage_points import PointKind, find_place_points
from kcovdbg.symbols.symbolizer import Fallback
from kcovdbg.target.dump_file import unpack


class ModuleFile(NamedTuple):
    """A module's file with debug info."""

    build_id: str
    path: str
    """Of the file without compression."""


class TraceModules:
    """The modules of one build: where the first of its traces with records in each has it, which all are read for.

    :param headers: of the traces.
    :param files: of modules.
    :raises TargetError: when one of these cannot be used.
    """

    image = None

    def __init__(self, headers: Iterable[TraceHeader], files: Iterable[ModuleFile]) -> None:
        self.places = _choose_places(place for header in headers for place in header.recorded_modules)
        """With addresses as KCOV records them."""
        self._map = ModuleMap(self.places)
        self.problem: str | None = None
        """Why modules have no source lines, None where they may have."""
        self._find_frames: Fallback = _no_frames
        self._paths = {file.build_id: file.path for file in files}
        if any(place.build_id in self._paths for place in self.places):
            try:
                from kcovdbg.target.drgn.lines import ModuleLines
            except ImportError:
                self.problem = "records in modules have no source lines: these need drgn"
            else:
                self._find_frames = ModuleLines(self.places, self._paths).frames_at

    def find_points(self) -> Mapping[int, PointKind]:
        """Return the coverage points of the modules whose files are known, as KCOV records them."""
        points: dict[int, PointKind] = {}
        for place in self.places:
            path = self._paths.get(place.build_id or "")
            if path is not None:
                points.update(find_place_points(place, path))
        return points

    def find_sets(self) -> Sequence[PointSet]:
        """Return the same, by module."""
        return tuple(find_module_sets(self.places, self._paths))

    def module_places(self) -> tuple[ModulePlace, ...]:
        """Return where the code of the modules is."""
        return self.places

    def module_files(self) -> Iterator[str]:
        """Yield nothing: which files the modules are from is unknown."""
        yield from ()

    def name_at(self, address: int) -> str | None:
        """Return the name of the module that an instruction is in, None when it is in none."""
        found = self._map.find(address + 1)
        return None if found is None else found[0].name

    def may_hold(self, address: int) -> bool:
        """Return whether a module could be at an address: those with records are known."""
        return self.name_at(address) is not None

    def find_code(self, name: str) -> range | None:  # noqa: ARG002
        """Return None: symbols of modules are not read."""
        return None

    def has_function(self, name: str) -> bool:  # noqa: ARG002
        """Return True: which functions the modules have is unknown."""
        return True

    def has_file(self, path: str) -> bool:  # noqa: ARG002
        """Return True: which files the modules are from is unknown."""
        return True

    def frames_at(self, address: int) -> Sequence[Frame]:
        """Return the source location of an instruction, none where it is unknown."""
        return self._find_frames(address)


def _no_frames(address: int) -> tuple[Frame, ...]:  # noqa: ARG001
    return ()


def _choose_places(places: Iterable[ModulePlace]) -> tuple[ModulePlace, ...]:
    """Return one place for each module, behind all others where another boot had another module there."""
    found: dict[tuple[str, str | None], ModulePlace] = {}
    for place in places:
        if place.key in found or not place.sections:
            continue
        start, end = place.span
        spans = [other.span for other in found.values()]
        if any(start < other_end and other_start < end for other_start, other_end in spans):
            place = place.shift(page_align(max(other_end for _, other_end in spans)) - page_align_down(start))
        found[place.key] = place
    return tuple(found.values())


def find_module_files(names: Iterable[str]) -> Mapping[str, ModuleFile]:
    """Return those files that are modules, by the names that they were given by."""
    found: dict[str, ModuleFile] = {}
    for name in names:
        path = str(unpack(name).path)
        try:
            with ElfFile(path, name) as elf:
                if elf.is_relocatable and elf.build_id is not None:
                    found[name] = ModuleFile(elf.build_id, path)
        except NotElfError:
            continue
    return found
