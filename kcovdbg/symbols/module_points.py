# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage points of a kernel module, found in its file: the calls of callbacks have relocations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64, EM_X86_64
from kcovdbg.elf.relocations import read_relocations
from kcovdbg.model.module_place import ModulePlace
from kcovdbg.symbols.coverage_points import PointKind, kind_of_callback

# R_X86_64_PC32 and R_X86_64_PLT32, which jumps have as well; R_AARCH64_CALL26, which only calls have.
_CALLS: Final = {EM_X86_64: frozenset((2, 4)), EM_AARCH64: frozenset((283,))}
_X86_CALL: Final = 0xE8
# Both are of the last 4 bytes of a call.
_SIZE: Final = 4


def find_file_points(elf: ElfFile) -> Mapping[str, Mapping[int, PointKind]]:
    """Return the points of each section with code: offsets of return addresses, with their kinds.

    There are none on other machines than x86-64 and arm64.

    :param elf: a relocatable file.
    :raises ElfError: when the file is damaged.
    """
    types = _CALLS.get(elf.header.machine)
    if types is None:
        return {}
    kinds = {number: kind for number, symbol in enumerate(elf.symbols) if (kind := kind_of_callback(symbol.name)) is not None}
    found: dict[str, Mapping[int, PointKind]] = {}
    for section in elf.text_sections():
        text = elf.read_section(section)
        found[section.name] = {
            entry.offset + _SIZE: kinds[entry.symbol]
            for entry in read_relocations(elf, section)
            if entry.type in types
            and entry.symbol in kinds
            and (elf.header.machine != EM_X86_64 or text[entry.offset - 1 : entry.offset] == bytes((_X86_CALL,)))
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
