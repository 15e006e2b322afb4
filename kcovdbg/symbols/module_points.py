# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage points of a kernel module, found in its file: the calls of callbacks have relocations."""

from __future__ import annotations

from collections.abc import Mapping

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.relocations import read_relocations
from kcovdbg.model.module_place import ModulePlace
from kcovdbg.symbols.arch import ARCHITECTURES, BranchKind, can_find_branches
from kcovdbg.symbols.compiled_reader import find_branches
from kcovdbg.symbols.coverage_points import PointKind, kind_of_callback


def find_file_points(elf: ElfFile) -> Mapping[str, Mapping[int, PointKind]]:
    """Return the points of each section with code: offsets of return addresses, with their kinds.

    :param elf: a relocatable file.
    :raises ElfError: when the file is damaged.
    """
    machine = elf.header.machine
    if not can_find_branches(machine):
        return {}
    sizes = ARCHITECTURES[machine].relocations
    kinds = {number: kind for number, symbol in enumerate(elf.symbols) if (kind := kind_of_callback(symbol.name)) is not None}
    found: dict[str, Mapping[int, PointKind]] = {}
    for section in elf.text_sections():
        calls = set(find_branches([(0, elf.map_section(section))], machine, BranchKind.CALL).back)
        found[section.name] = {
            back: kinds[entry.symbol]
            for entry in read_relocations(elf, section)
            if entry.symbol in kinds and (back := entry.offset + sizes.get(entry.type, 0)) in calls
        }
    return found


def find_place_points(place: ModulePlace, path: str) -> Mapping[int, PointKind]:
    """Return the points of a module where it is loaded.

    :param path: of its file.
    :raises ElfError: when that is damaged.
    """
    with ElfFile(path) as elf:
        of_section = find_file_points(elf)
    return {address + offset: kind for name, address in place.sections for offset, kind in of_section.get(name, {}).items()}
