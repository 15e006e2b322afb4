# SPDX-License-Identifier: LGPL-2.1-or-later
"""Relocations of a relocatable file of 64 bits, and the code that its loader makes of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64, EM_X86_64, Section, damaged

_SHT_RELA: Final = 4
# Elf64_Rela: offset, info, addend.
_LAYOUT: Final = "QQq"
# Of branches: R_X86_64_PC32 and R_X86_64_PLT32; R_AARCH64_JUMP26 and R_AARCH64_CALL26, whose words have 26 bits for it.
_X86_BRANCHES: Final = frozenset((2, 4))
_ARM64_BRANCHES: Final = frozenset((282, 283))
_ARM64_DISPLACEMENT: Final = 0x3FFFFFF


class Relocation(NamedTuple):
    """An entry of a section of relocations."""

    offset: int
    """In the section that it changes."""
    type: int
    """One of ``R_*`` of the machine."""
    symbol: int
    """Index in the symbol table."""
    addend: int


def read_relocations(elf: ElfFile, section: Section) -> Iterator[Relocation]:
    """Iterate over the relocations of a section.

    :param elf: of 64 bits.
    :raises ElfError: when the file is damaged.
    """
    layout = struct.Struct(elf.header.byte_order + _LAYOUT)
    for table in elf.sections:
        if table.type != _SHT_RELA or table.info != section.number:
            continue
        data = elf.read_section(table)
        if len(data) % layout.size:
            raise damaged(elf.name, f"{table.name} of {len(data)} bytes, {layout.size} for each relocation")
        for offset, info, addend in layout.iter_unpack(data):
            yield Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)


def link_section(elf: ElfFile, section: Section, address: int, find_address: Callable[[int], int | None]) -> bytes:
    """Return a section with code as it is when it is loaded, as far as calls and jumps go; on x86-64 and arm64 only.

    :param address: where it is loaded.
    :param find_address: returns the address of a symbol by its index, None for an unknown one, whose branches stay as they are.
    :raises ElfError: when the file is damaged.
    """
    data = bytearray(elf.read_section(section))
    machine = elf.header.machine
    for entry in read_relocations(elf, section):
        is_x86 = machine == EM_X86_64 and entry.type in _X86_BRANCHES
        is_arm64 = machine == EM_AARCH64 and entry.type in _ARM64_BRANCHES
        target = find_address(entry.symbol) if is_x86 or is_arm64 else None
        if target is None:
            continue
        if entry.offset + 4 > len(data):
            raise damaged(elf.name, f"a relocation behind the end of {section.name}")
        displacement = target + entry.addend - address - entry.offset
        if is_arm64:
            (word,) = struct.unpack_from("<I", data, entry.offset)
            displacement = word & ~_ARM64_DISPLACEMENT | displacement >> 2 & _ARM64_DISPLACEMENT
        struct.pack_into("<I", data, entry.offset, displacement & 0xFFFFFFFF)
    return bytes(data)
