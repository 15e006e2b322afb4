# SPDX-License-Identifier: LGPL-2.1-or-later
"""Section headers."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

SHT_SYMTAB: Final = 2
SHT_NOTE: Final = 7
SHT_NOBITS: Final = 8

SHF_ALLOC: Final = 0x2
SHF_EXECINSTR: Final = 0x4
SHF_COMPRESSED: Final = 0x800

SHN_UNDEF: Final = 0
SHN_LORESERVE: Final = 0xFF00

ELFCOMPRESS_ZLIB: Final = 1
ELFCOMPRESS_ZSTD: Final = 2
OLD_COMPRESSED: Final = ".zdebug_"
"""How names of sections begin that GNU tools compressed before ELF had a flag for that."""
OLD_MAGIC: Final = b"ZLIB"
OLD_COMPRESSION: Final = struct.Struct(">4sQ")
"""What such a section starts with: the magic, and its size in bytes."""


class Section(NamedTuple):
    """A section header; offsets, addresses and sizes in bytes."""

    number: int
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int

    @property
    def is_text(self) -> bool:
        """Whether it holds instructions that run where they are, and the file has them."""
        return (
            self.type != SHT_NOBITS
            and self.flags & (SHF_ALLOC | SHF_EXECINSTR) == SHF_ALLOC | SHF_EXECINSTR
            # Alternatives are copied over the instructions that they replace.
            and self.name != ".altinstr_replacement"
        )


def section_layout(is_64bit: bool, byte_order: str) -> struct.Struct:
    """Return the layout of ``Elf64_Shdr`` or ``Elf32_Shdr``."""
    return struct.Struct(byte_order + ("IIQQQQIIQQ" if is_64bit else "IIIIIIIIII"))


def compression_layout(is_64bit: bool, byte_order: str) -> struct.Struct:
    """Return the layout of ``Elf64_Chdr`` or ``Elf32_Chdr``: method of compression, size, alignment."""
    return struct.Struct(byte_order + ("I4xQQ" if is_64bit else "III"))


def string_at(strings: bytes, offset: int) -> str:
    """Return a string of a string table.

    :raises ValueError: when the table does not hold all of it.
    """
    return strings[offset : strings.index(b"\0", offset)].decode("utf-8", "backslashreplace")
