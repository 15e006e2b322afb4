# SPDX-License-Identifier: LGPL-2.1-or-later
"""The compilation units of an image's debug info: the name of each, its directory and the addresses that it covers.

Forms are those of DWARF 4 and 5, section 7.5, in its 32-bit format; lists of ranges those of section 7.25 (2.17.3 in DWARF 4).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError

_NAME: Final = 0x03
_LOW_PC: Final = 0x11
_HIGH_PC: Final = 0x12
_COMP_DIR: Final = 0x1B
_RANGES: Final = 0x55
_STR_OFFSETS_BASE: Final = 0x72
_ADDR_BASE: Final = 0x73
_RNGLISTS_BASE: Final = 0x74

_COMPILE_UNIT: Final = 0x11

# Enough for the entry of the first unit, in a section of many MiB.
_FIRST_UNIT: Final = 1 << 16

_ADDRESS: Final = 0x01
_STRING: Final = 0x08
_STRP: Final = 0x0E
_SEC_OFFSET: Final = 0x17
_ADDRX: Final = 0x1B
_LINE_STRP: Final = 0x1F
_IMPLICIT_CONST: Final = 0x21
_RNGLISTX: Final = 0x23
# ULEB128: sdata and udata need no sign here; strx, addrx, loclistx, rnglistx.
_ULEB: Final = frozenset({0x0D, 0x0F, 0x15, 0x1A, _ADDRX, 0x22, _RNGLISTX})
_SIZES: Final = {
    0x05: 2,
    0x06: 4,
    0x07: 8,
    0x0B: 1,
    0x0C: 1,
    _STRP: 4,
    _SEC_OFFSET: 4,
    0x19: 0,
    _LINE_STRP: 4,
    0x25: 1,
    0x26: 2,
    0x28: 4,
    0x29: 1,
    0x2A: 2,
    0x2C: 4,
}
_STRX: Final = frozenset({0x1A, 0x25, 0x26, 0x28})
_ADDRX_FORMS: Final = frozenset({_ADDRX, 0x29, 0x2A, 0x2C})


class CompileUnit(NamedTuple):
    """A compilation unit: what the compiler was run on."""

    name: str
    """``DW_AT_name``: the source file as given to the compiler, relative to its directory or absolute."""
    directory: str | None
    """``DW_AT_comp_dir``: where the compiler was run."""
    ranges: tuple[tuple[int, int], ...]
    """First address and the address after the last one, of each part of its code."""


class _Cursor:
    def __init__(self, data: bytes, at: int, order: str) -> None:
        self.data = data
        self.at = at
        self._order: str = "big" if order == ">" else "little"

    def number(self, size: int) -> int:
        end = self.at + size
        if end > len(self.data):
            raise IndexError
        value = int.from_bytes(self.data[self.at : end], self._order)  # type: ignore[arg-type]
        self.at = end
        return value

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end]
        self.at = end + 1
        return text.decode("utf-8", "replace")


class _Unit(NamedTuple):
    """A unit's own entry."""

    version: int
    address_size: int
    values: Mapping[int, tuple[int, int | str]]
    """Attribute -> form and value; strings of the forms that hold them in place are text already."""


class _DebugInfo:
    def __init__(self, elf: ElfFile, limit: int | None = None) -> None:
        self._elf = elf
        self._limit = limit
        self._order = elf.header.byte_order
        self._sections: dict[str, bytes] = {}
        self._abbreviations: dict[int, dict[int, tuple[int, Sequence[tuple[int, int, int]]]]] = {}

    def _section(self, name: str) -> bytes:
        if name not in self._sections:
            section = self._elf.section(name)
            self._sections[name] = b"" if section is None else self._elf.read_section(section)
        return self._sections[name]

    def _cursor(self, section: str, at: int) -> _Cursor:
        return _Cursor(self._section(section), at, self._order)

    @cached_property
    def _info(self) -> bytes:
        section = self._elf.section(".debug_info")
        return b"" if section is None else self._elf.read_section(section, self._limit)

    def _version(self, at: int) -> tuple[int, int] | None:
        """Return the length of the unit at an offset and its version; None at the end and for unknown formats."""
        if at + 11 >= len(self._info):
            return None
        length, version = struct.unpack_from(self._order + "IH", self._info, at)
        # 0xffffffff introduces the 64-bit format, which kernels are not built with.
        return (length, version) if length < 0xFFFFFFF0 and version in (4, 5) else None

    def first_directory(self) -> str | None:
        """Return where the compiler was run for the first unit, of whatever kind."""
        found = self._version(0)
        return None if found is None else self._text(self._entry(0, found[1])[1], _COMP_DIR)

    def _entry(self, at: int, version: int) -> tuple[int, _Unit]:
        """Return the tag and the attributes of the entry of the unit at an offset."""
        if version == 5:
            # The kinds with a type signature or the id of a split unit have 12 or 8 bytes more.
            kind, address_size, abbreviations = self._info[at + 6], self._info[at + 7], at + 8
            entry = at + {2: 24, 4: 20, 5: 20, 6: 24}.get(kind, 12)
        else:
            abbreviations, address_size, entry = at + 6, self._info[at + 10], at + 11
        cursor = _Cursor(self._info, entry, self._order)
        table = self._table(_Cursor(self._info, abbreviations, self._order).number(4))
        tag, attributes = table[cursor.uleb()]
        values = {name: (form, self._value(cursor, form, address_size, constant)) for name, form, constant in attributes}
        return tag, _Unit(version, address_size, values)

    def _table(self, at: int) -> dict[int, tuple[int, Sequence[tuple[int, int, int]]]]:
        """Return abbreviations: code -> tag and the attributes with their forms and implicit constants."""
        found = self._abbreviations.get(at)
        if found is not None:
            return found
        found = self._abbreviations[at] = {}
        cursor = self._cursor(".debug_abbrev", at)
        while code := cursor.uleb():
            tag = cursor.uleb()
            # Whether it has children.
            cursor.at += 1
            attributes = []
            while True:
                attribute, form = cursor.uleb(), cursor.uleb()
                constant = cursor.uleb() if form == _IMPLICIT_CONST else 0
                if attribute == 0:
                    break
                attributes.append((attribute, form, constant))
            found[code] = tag, attributes
        return found

    @staticmethod
    def _value(cursor: _Cursor, form: int, address_size: int, constant: int) -> int | str:
        if form == _STRING:
            return cursor.string()
        if form == _IMPLICIT_CONST:
            return constant
        if form in _ULEB:
            return cursor.uleb()
        return cursor.number(address_size if form == _ADDRESS else _SIZES[form])

    @staticmethod
    def _number(unit: _Unit, attribute: int, default: int) -> int:
        value = unit.values.get(attribute, (0, default))[1]
        assert isinstance(value, int)
        return value

    def _text(self, unit: _Unit, attribute: int) -> str | None:
        form, value = unit.values.get(attribute, (0, ""))
        if isinstance(value, str):
            return value or None
        if form in _STRX:
            # Without a base, the offsets start after the header of the section's first table.
            base = self._number(unit, _STR_OFFSETS_BASE, 8)
            form, value = _STRP, self._cursor(".debug_str_offsets", base + 4 * value).number(4)
        return self._cursor(".debug_line_str" if form == _LINE_STRP else ".debug_str", value).string()


def read_comp_dir(elf: ElfFile) -> str | None:
    """Return the directory that an image was built in: ``DW_AT_comp_dir`` of its first unit.

    :return: None when its debug info has none, is damaged, or has it in an unknown form.
    """
    try:
        return _DebugInfo(elf, _FIRST_UNIT).first_directory()
    except (struct.error, IndexError, KeyError, ValueError, ElfError):
        # Source text is then looked for in other places.
        return None
