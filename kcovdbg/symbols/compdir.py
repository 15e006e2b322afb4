# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the folder that an image was built in: ``DW_AT_comp_dir`` of its first compilation unit.

Forms are those of DWARF 4 and 5, section 7.5.
"""

from __future__ import annotations

import struct

from kcovdbg.errors import TargetError
from kcovdbg.symbols.elf import ElfFile

_DW_AT_COMP_DIR = 0x1B
_DW_FORM_IMPLICIT_CONST = 0x21
_DW_FORM_STRING = 0x08
_DW_FORM_STRP = 0x0E
_DW_FORM_LINE_STRP = 0x1F
_DW_FORM_UDATA = frozenset({0x0D, 0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23})
# Sizes of the forms that a compilation unit's own attributes have, in 32-bit DWARF; 0x01 is an address.
_FORM_SIZE = {
    0x05: 2,
    0x06: 4,
    0x07: 8,
    0x0B: 1,
    0x0C: 1,
    0x17: 4,
    0x19: 0,
    0x25: 1,
    0x26: 2,
    0x28: 4,
    0x29: 1,
    0x2A: 2,
    0x2C: 4,
}
_STRX = {0x1A: 0, 0x25: 1, 0x26: 2, 0x28: 4}
# Enough for the first unit's entry and its abbreviation; these sections have many MiB.
_START = 1 << 16


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def number(self, size: int, order: str) -> int:
        value = int.from_bytes(self.data[self.at : self.at + size], "big" if order == ">" else "little")
        self.at += size
        return value

    def string(self) -> bytes:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end]
        self.at = end + 1
        return text


def _section(elf: ElfFile, name: str, size: int | None = None) -> bytes:
    section = elf.section(name)
    return b"" if section is None else elf.read(section, size)


def _indexed_string(elf: ElfFile, index: int, order: str) -> bytes:
    # Behind the 8 bytes of the first unit's header.
    offsets = _section(elf, ".debug_str_offsets", 8 + 4 * (index + 1))
    at = _Reader(offsets, 8 + 4 * index).number(4, order)
    return _Reader(_section(elf, ".debug_str"), at).string()


def _attributes(abbreviations: _Reader, wanted: int) -> list[tuple[int, int]]:
    """Return an abbreviation's attributes and their forms; gcc gives the unit's own any place in the table."""
    while code := abbreviations.uleb():
        # The tag, and whether there are children.
        abbreviations.uleb()
        abbreviations.at += 1
        attributes = []
        while True:
            attribute, form = abbreviations.uleb(), abbreviations.uleb()
            if form == _DW_FORM_IMPLICIT_CONST:
                # A signed number, of the same length.
                abbreviations.uleb()
            if attribute == 0:
                break
            attributes.append((attribute, form))
        if code == wanted:
            return attributes
    return []


def read_build_directory(elf: ElfFile) -> str | None:
    """Return the folder that the image was built in; None where debug info has none or is of a form unknown here."""
    order = ">" if elf.big_endian else "<"
    try:
        info = _section(elf, ".debug_info", _START)
        length, version = struct.unpack_from(order + "IH", info)
        if length == 0xFFFFFFFF or version not in (4, 5):
            return None
        # DWARF 5 has the kind of unit and the address size first, DWARF 4 the offset of the abbreviations.
        abbreviations_at = struct.unpack_from(order + "I", info, 8 if version == 5 else 6)[0]
        address_size = info[7 if version == 5 else 10]
        entry = _Reader(info, 12 if version == 5 else 11)
        code = entry.uleb()
        abbreviation = _Reader(_section(elf, ".debug_abbrev", abbreviations_at + _START), abbreviations_at)
        for attribute, form in _attributes(abbreviation, code):
            if form == _DW_FORM_IMPLICIT_CONST:
                continue
            is_wanted = attribute == _DW_AT_COMP_DIR
            if form == _DW_FORM_STRING:
                text = entry.string()
                if is_wanted:
                    return text.decode("utf-8", "replace")
            elif form in (_DW_FORM_STRP, _DW_FORM_LINE_STRP):
                at = entry.number(4, order)
                if is_wanted:
                    name = ".debug_str" if form == _DW_FORM_STRP else ".debug_line_str"
                    return _Reader(_section(elf, name), at).string().decode("utf-8", "replace")
            elif form in _STRX and is_wanted:
                index = entry.number(_STRX[form], order) if _STRX[form] else entry.uleb()
                return _indexed_string(elf, index, order).decode("utf-8", "replace")
            elif form in _DW_FORM_UDATA:
                entry.uleb()
            else:
                entry.at += address_size if form == 0x01 else _FORM_SIZE[form]
    except (struct.error, IndexError, KeyError, ValueError, TargetError):
        # Without it, source text is looked for elsewhere.
        return None
    return None
