# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads what symbol look-up needs from an ELF file: sections, function symbols, relocations, the build-id.

Nothing but mmap, struct and zlib, so that it runs in GDB's Python as well. The layout of the structures is that of elf(5).
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from kcovdbg.errors import TargetError
from kcovdbg.target import elf
from kcovdbg.target.elf import SHT_NOBITS, SHT_SYMTAB, Section

EM_386: Final = 3
EM_ARM: Final = 40
EM_S390: Final = 22
EM_X86_64: Final = 62
EM_AARCH64: Final = 183

ET_REL: Final = 1

SHT_RELA: Final = 4
SHT_REL: Final = 9

SHF_COMPRESSED: Final = 0x800

_ELFCOMPRESS_ZLIB: Final = 1
_STT_NOTYPE: Final = 0
_STT_FUNC: Final = 2


class ElfSymbol(NamedTuple):
    """An entry of the symbol table."""

    name: str
    value: int
    """An address; an offset into its section in a relocatable file."""
    size: int
    is_function: bool
    section: int


class Relocation(NamedTuple):
    """Where an instruction of a relocatable file takes a symbol's address."""

    offset: int
    """Of the field in its section."""
    type: int
    symbol: int
    """Index into the symbol table."""


class ElfFile:
    """A mapped ELF file.

    :raises TargetError: when the file can't be read, or isn't an ELF file that makes sense.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # A map is read like a file as well, though its type doesn't say so.
            self._file = cast("BinaryIO", self._map)
        except (OSError, ValueError) as error:
            raise TargetError(f"{path}: {error}") from error
        try:
            self._read_header()
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            self._map.close()
            raise TargetError(f"{path} is not an ELF file that can be read: {error}") from error

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()

    def _read_header(self) -> None:
        self._header = elf.read_header(self._file)
        self.is_64bit = self._header.is_64
        self.big_endian = self._header.big_endian
        self._order = self._header.order
        self.machine: int = self._header.machine
        self.sections: tuple[Section, ...] = tuple(elf.read_sections(self._file, self._header))

    @property
    def is_relocatable(self) -> bool:
        """Whether addresses are still offsets into sections, as in a ``.ko``."""
        return self._header.type == ET_REL

    @property
    def has_lines(self) -> bool:
        """Whether there is debug info with source lines; slim debug info has types and symbols only, and zeros for code."""
        found = self.section(".debug_line") or self.section(".zdebug_line")
        return found is not None and found.size > 0

    def section(self, name: str) -> Section | None:
        """Find a section by name."""
        return next((section for section in self.sections if section.name == name), None)

    def text_sections(self) -> tuple[Section, ...]:
        """Return the sections that hold code, in the file's order; none in a file that has only debug info."""
        return tuple(section for section in self.sections if section.is_text and section.size)

    def read(self, section: Section, size: int | None = None) -> bytes:
        """Read a section's bytes, decompressed where it is compressed.

        :param size: read no more than this from its start.
        :raises TargetError: when it can't be decompressed.
        """
        if section.type == SHT_NOBITS:
            return b""
        if not section.flags & SHF_COMPRESSED:
            return self._map[section.offset : section.offset + (section.size if size is None else min(size, section.size))]
        layout = struct.Struct(self._order + ("IIQQ" if self.is_64bit else "III"))
        header = layout.unpack_from(self._map, section.offset)
        if header[0] != _ELFCOMPRESS_ZLIB:
            raise TargetError(f"{self.path}: {section.name} is compressed in a way that Python's zlib can't read")
        data = self._map[section.offset + layout.size : section.offset + section.size]
        try:
            # 0 is no limit here.
            return zlib.decompressobj().decompress(data, size or 0)
        except zlib.error as error:
            raise TargetError(f"{self.path}: {section.name}: {error}") from error

    def text_section_at(self, address: int) -> Section | None:
        """Find the section that an address of a linked file's code lies in."""
        for section in self.sections:
            if section.is_text and section.address <= address < section.address + section.size:
                return section
        return None

    def read_at(self, address: int, size: int) -> bytes:
        """Read code of a linked file by address; short where the section ends, empty where there is none."""
        section = self.text_section_at(address)
        if section is None:
            return b""
        start = section.offset + address - section.address
        return self._map[start : min(start + size, section.offset + section.size)]

    @property
    def build_id(self) -> str | None:
        """The GNU build-id in hexadecimal; None where the linker wrote none."""
        return elf.read_build_id(self._file, self._header)

    def symbols(self) -> list[ElfSymbol]:
        """Read the symbol table, all of it and in its order; empty where the file is stripped.

        :raises TargetError: when a name lies outside the string table.
        """
        table = next((section for section in self.sections if section.type == SHT_SYMTAB), None)
        if table is None:
            return []
        data = self.read(table)
        strings = self.read(self.sections[table.link])
        found: list[ElfSymbol] = []
        try:
            if self.is_64bit:
                for name, info, _, section, value, size in struct.iter_unpack(self._order + "IBBHQQ", data):
                    text = strings[name : strings.index(b"\0", name)].decode("utf-8", "replace")
                    found.append(ElfSymbol(text, value, size, info & 0xF == _STT_FUNC, section))
            else:
                for name, value, size, info, _, section in struct.iter_unpack(self._order + "IIIBBH", data):
                    text = strings[name : strings.index(b"\0", name)].decode("utf-8", "replace")
                    found.append(ElfSymbol(text, value, size, info & 0xF == _STT_FUNC, section))
        except (ValueError, struct.error) as error:
            raise TargetError(f"{self.path}: damaged symbol table: {error}") from error
        return found

    def relocations(self, section: Section) -> list[Relocation]:
        """Read the relocations of a section.

        :raises TargetError: when their table is damaged.
        """
        found: list[Relocation] = []
        for table in self.sections:
            if table.info != section.number or table.type not in (SHT_RELA, SHT_REL):
                continue
            data = self.read(table)
            # r_offset, r_info and, in some tables, r_addend, which a call doesn't need.
            word, shift = ("Q", 32) if self.is_64bit else ("I", 8)
            layout = self._order + word * (3 if table.type == SHT_RELA else 2)
            try:
                found.extend(
                    Relocation(entry[0], entry[1] & (1 << shift) - 1, entry[1] >> shift)
                    for entry in struct.iter_unpack(layout, data)
                )
            except struct.error as error:
                raise TargetError(f"{self.path}: damaged relocations: {error}") from error
        return found
