# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compilation units of an image's debug info, and the directory that it was built in.

Forms are those of DWARF 4 and 5, section 7.5, in its 32-bit format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError

_COMP_DIR: Final = 0x1B
_STR_OFFSETS_BASE: Final = 0x72
# Enough for the entry of the first unit, in a section of many MiB.
_FIRST_UNIT: Final = 1 << 16

_ADDRESS: Final = 0x01
_STRING: Final = 0x08
_LINE_STRP: Final = 0x1F
_IMPLICIT_CONST: Final = 0x21
# ULEB128: sdata and udata need no sign here; strx, addrx, loclistx, rnglistx.
_ULEB: Final = frozenset({0x0D, 0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23})
_SIZES: Final = {
    **dict.fromkeys((0x0B, 0x0C, 0x25, 0x29), 1),
    **dict.fromkeys((0x05, 0x26, 0x2A), 2),
    **dict.fromkeys((0x06, 0x0E, 0x17, _LINE_STRP, 0x28, 0x2C), 4),
    0x07: 8,
    0x19: 0,
}
_STRX: Final = frozenset({0x1A, 0x25, 0x26, 0x28})


class CompileUnit(NamedTuple):
    """A compilation unit: what the compiler was run on."""

    name: str
    """``DW_AT_name``: the source file as given to the compiler, relative to its directory or absolute."""
    directory: str | None
    """``DW_AT_comp_dir``: where the compiler was run."""
    ranges: tuple[tuple[int, int], ...]
    """First address and the address after the last one, of each part of its code."""


class _Cursor:
    """A position in a section of debug info; beyond its end, IndexError and ValueError are raised."""

    def __init__(self, elf: ElfFile, kind: str, at: int = 0, limit: int | None = None) -> None:
        section = elf.debug_section(kind)
        self._data = b"" if section is None else elf.read_section(section, limit)
        self._is_big = elf.header.big_endian
        self.at = at

    def number(self, size: int) -> int:
        self.at += size
        if self.at > len(self._data):
            raise IndexError
        return int.from_bytes(self._data[self.at - size : self.at], "big" if self._is_big else "little")

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def string(self) -> str:
        start, end = self.at, self._data.index(b"\0", self.at)
        self.at = end + 1
        return self._data[start:end].decode("utf-8", "replace")


def read_comp_dir(elf: ElfFile) -> str | None:
    """Return the directory that an image was built in: ``DW_AT_comp_dir`` of its first unit.

    :return: None when its debug info has none, is damaged, or has it in an unknown form.
    """
    try:
        return _find_comp_dir(elf)
    except (IndexError, KeyError, ValueError, ElfError):
        # Source text is then looked for in other places.
        return None


def _find_comp_dir(elf: ElfFile) -> str | None:
    info = _Cursor(elf, "info", limit=_FIRST_UNIT)
    # 0xffffffff introduces the 64-bit format, which kernels are not built with.
    length, version = info.number(4), info.number(2)
    if length >= 0xFFFFFFF0 or version not in (4, 5):
        return None
    if version == 5:
        kind, address_size, abbreviations = info.number(1), info.number(1), info.number(4)
        # The kinds with a type signature or the id of a split unit have 12 or 8 bytes more.
        info.at += {2: 12, 4: 8, 5: 8, 6: 12}.get(kind, 0)
    else:
        abbreviations, address_size = info.number(4), info.number(1)
    directory: int | str | None = None
    form_of_directory = 0
    # Without a base, the offsets start after the header of the section's first table.
    base: int | str = 8
    for attribute, form, constant in _read_abbreviation(_Cursor(elf, "abbrev", abbreviations), info.uleb()):
        value = constant if form == _IMPLICIT_CONST else _read_value(info, form, address_size)
        if attribute == _COMP_DIR:
            form_of_directory, directory = form, value
        elif attribute == _STR_OFFSETS_BASE:
            base = value
    if isinstance(directory, int):
        if form_of_directory in _STRX and isinstance(base, int):
            directory = _Cursor(elf, "str_offsets", base + 4 * directory).number(4)
        directory = _Cursor(elf, "line_str" if form_of_directory == _LINE_STRP else "str", directory).string()
    return directory or None


def _read_abbreviation(table: _Cursor, code: int) -> Iterator[tuple[int, int, int]]:
    """Yield the attributes of an abbreviation: name, form and implicit constant."""
    while found := table.uleb():
        # The tag, and whether it has children.
        table.uleb()
        table.number(1)
        while True:
            attribute, form = table.uleb(), table.uleb()
            constant = table.uleb() if form == _IMPLICIT_CONST else 0
            if attribute == 0:
                break
            if found == code:
                yield attribute, form, constant
        if found == code:
            return
    raise KeyError(code)


def _read_value(info: _Cursor, form: int, address_size: int) -> int | str:
    if form == _STRING:
        return info.string()
    if form in _ULEB:
        return info.uleb()
    return info.number(address_size if form == _ADDRESS else _SIZES[form])
