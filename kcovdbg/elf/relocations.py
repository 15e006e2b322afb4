# SPDX-License-Identifier: LGPL-2.1-or-later
"""Relocations of a relocatable file of 64 bits."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import damaged
from kcovdbg.elf.section import Section

_SHT_RELA: Final = 4
# Elf64_Rela: offset, info, addend.
_LAYOUT: Final = "QQq"


class Relocation(NamedTuple):
    """An entry of a section of relocations."""

    offset: int
    """In the section that it changes."""
    type: int
    """One of ``R_*`` of the machine."""
    symbol: int
    """Index in the symbol table."""


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
        for offset, info, _ in layout.iter_unpack(data):
            yield Relocation(offset, info & 0xFFFFFFFF, info >> 32)
