# SPDX-License-Identifier: LGPL-2.1-or-later
"""Program headers: which part of the file is at which address."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PT_LOAD: Final = 1
PT_NOTE: Final = 4


class Segment(NamedTuple):
    """A program header; offsets, addresses and sizes in bytes."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


def segment_layout(is_64bit: bool, byte_order: str) -> struct.Struct:
    """Return the layout of ``Elf64_Phdr``, whose members are in the order of :class:`Segment`, or of ``Elf32_Phdr``."""
    return struct.Struct(byte_order + ("IIQQQQQQ" if is_64bit else "IIIIIIII"))


def decode_segments(data: bytes, is_64bit: bool, byte_order: str) -> tuple[Segment, ...]:
    """Decode a table of program headers."""
    rows = segment_layout(is_64bit, byte_order).iter_unpack(data)
    if is_64bit:
        return tuple(map(Segment._make, rows))
    return tuple(
        Segment(kind, flags, offset, vaddr, paddr, filesz, memsz, align)
        for kind, offset, vaddr, paddr, filesz, memsz, flags, align in rows
    )
