# SPDX-License-Identifier: LGPL-2.1-or-later
"""An ELF file: a dump, a slice, a vmlinux or a module; and a module's code after relocation."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kcovdbg.elf.header import (
    CHDR,
    ELFCOMPRESS_ZLIB,
    ELFCOMPRESS_ZSTD,
    EM_AARCH64,
    EM_X86_64,
    ET_CORE,
    ET_REL,
    IDENT_SIZE,
    OLD_COMPRESSED,
    OLD_COMPRESSION,
    OLD_MAGIC,
    PHDR,
    PN_XNUM,
    PT_NOTE,
    SHDR,
    SHF_ALLOC,
    SHT_NOBITS,
    SHT_NOTE,
    SHT_RELA,
    SHT_SYMTAB,
    ElfError,
    ElfLayout,
    Header,
    Note,
    NotElfError,
    Section,
    Segment,
    damaged,
    decode_header,
    find_build_id,
    is_elf,
    parse_notes,
    string_at,
)
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.input_file import FrameReader, PathName, find_extents, open_input, start_zstd
from kcovdbg.limits import UNPACKED_SIZE, find_limit, over_limit

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from kcovdbg.elf.symbol_table import SymbolTable

# Limits for the bytes of tables: a vmlinux has some 60 sections, a dump of many terabytes some
# 100,000 segments.
_MAX_HEADERS: Final = 64 << 20
_MAX_NOTES: Final = 256 << 20


class ElfFile:
    """An open ELF file. Its parts are read on first use. Its sizes and offsets are checked, not
    trusted.

    :param name: its name in messages, by default its path.
    :raises NotElfError: when it is not an ELF file.
    :raises ElfError: when it is unreadable, truncated or damaged; all methods and properties raise
        it as well.
    """

    def __init__(self, path: PathName, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or str(path)
        self._unpacked = 0
        try:
            self._file = open_input(self.path)
        except (OSError, ValueError) as error:
            raise ElfError(f"{self.name}: {getattr(error, 'strerror', None) or error}") from None
        try:
            status = os.fstat(self._file.fileno())
            # stat() has no size for a device.
            self._size = status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else None
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; parts that were read stay usable."""
        self._file.close()

    def __enter__(self) -> Self:
        """Return the file, which is closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    @property
    def is_core(self) -> bool:
        """Whether it is a core: a dump or a slice."""
        return self.header.type == ET_CORE

    @property
    def is_relocatable(self) -> bool:
        """Whether addresses are offsets into sections, as in a ``.ko``."""
        return self.header.type == ET_REL

    def _damaged(self, problem: str) -> ElfError:
        return damaged(self.name, problem)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly this many bytes of the file."""
        if self._size is not None and offset + size > self._size:
            raise self._damaged(f"it ends before offset {offset + size:#x}")
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except (OverflowError, ValueError, MemoryError):
            raise self._damaged(f"no {size:#x} bytes at offset {offset:#x}") from None
        except OSError as error:
            raise ElfError(f"{self.name}: {error.strerror or error}") from None
        if len(data) != size:
            raise self._damaged(f"it ends before offset {offset + size:#x}")
        return data

    def find_extents(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Iterate over the pieces of a part of the file that are not holes: offset and size."""
        return find_extents(self._file, offset, offset + size)

    def _read_header(self) -> Header:
        ident = self._file.read(IDENT_SIZE)
        if not is_elf(ident):
            raise NotElfError(f"{self.name} is not an ELF file", wrong_file=self.name)
        try:
            header = decode_header(ident, self._file.read(64))
        except struct.error:
            raise self._damaged("its header is incomplete") from None
        if header.shoff and (header.phnum == PN_XNUM or header.shnum == 0):
            # The first section header has the counts that do not fit in the ELF header.
            layout = SHDR.make(header.is_64bit, header.byte_order)
            first = layout.unpack(self.read_at(header.shoff, layout.size))
            if header.phnum == PN_XNUM:
                header = header._replace(phnum=first[7])
            if header.shnum == 0:
                header = header._replace(shnum=first[5])
        return header

    def _read_table(
        self, offset: int, count: int, entry_size: int, of_kind: ElfLayout
    ) -> list[tuple[int, ...]]:
        layout = of_kind.make(self.header.is_64bit, self.header.byte_order)
        if not offset or not count:
            return []
        if entry_size != layout.size:
            raise self._damaged(f"table entries of {entry_size} bytes")
        if entry_size * count > _MAX_HEADERS:
            raise self._damaged(f"a table of {count} entries")
        return list(layout.iter_unpack(self.read_at(offset, entry_size * count)))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The program headers."""
        header = self.header
        rows = self._read_table(header.phoff, header.phnum, header.phentsize, PHDR)
        if not header.is_64bit:
            # In Elf32_Phdr, the flags are the seventh member.
            rows = [(row[0], row[6], *row[1:6], row[7]) for row in rows]
        return tuple(Segment(*row) for row in rows)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The section headers."""
        header = self.header
        rows = self._read_table(header.shoff, header.shnum, header.shentsize, SHDR)
        if not rows:
            return ()
        if header.shstrndx >= len(rows):
            raise self._damaged("no names of sections")
        offset, size = rows[header.shstrndx][4:6]
        names = self.read_at(offset, min(size, _MAX_HEADERS))
        try:
            return tuple(
                Section(number, string_at(names, row[0]), *row[1:8])
                for number, row in enumerate(rows)
            )
        except ValueError:
            raise self._damaged("a name of a section is outside their string table") from None

    def section(self, name: str) -> Section | None:
        """Find a section by name."""
        return next((section for section in self.sections if section.name == name), None)

    def debug_section(self, kind: str) -> Section | None:
        """Find a section of debug info by its kind, such as "line". In old files, compressed
        sections have other names.
        """
        return self.section(f".debug_{kind}") or self.section(f"{OLD_COMPRESSED}{kind}")

    def section_at(self, address: int) -> Section | None:
        """Find the section with contents at an address of a linked file."""
        for section in self.sections:
            has_contents = section.flags & SHF_ALLOC and section.type != SHT_NOBITS
            if has_contents and 0 <= address - section.address < section.size:
                return section
        return None

    def text_sections(self) -> tuple[Section, ...]:
        """Return the sections with code, in the order of the file; a file with debug info alone has
        none.

        :raises ElfError: when sections of a linked file overlap, or are not in the file.
        """
        found = tuple(section for section in self.sections if section.is_text and section.size)
        if self.is_relocatable:
            return found
        end = 0
        for section in sorted(found, key=lambda section: section.address):
            if section.address < end:
                raise self._damaged(f"{section.name} overlaps other code")
            end = section.address + section.size
            is_cut = self._size is not None and section.offset + section.size > self._size
            if is_cut or end > 1 << 8 * self.header.word_size:
                raise self._damaged(f"the file has not all of {section.name}")
        return found

    def read_section(self, section: Section, limit: int = sys.maxsize) -> bytes:
        """Return the contents of a section, decompressed; empty for a section without contents.

        :param limit: return at most this many bytes.
        """
        if section.type == SHT_NOBITS:
            return b""
        if not section.is_compressed:
            return self.read_at(section.offset, min(limit, section.size))
        layout = OLD_COMPRESSION
        if not section.name.startswith(OLD_COMPRESSED):
            layout = CHDR.make(self.header.is_64bit, self.header.byte_order)
        data = self.read_at(section.offset, section.size)
        if len(data) < layout.size:
            raise self._damaged(f"{section.name} is incomplete")
        method, size, *_ = layout.unpack_from(data)
        wanted = min(limit, size)
        self._unpacked += wanted
        allowed = max(find_limit(UNPACKED_SIZE), 100 * (self._size or 0))
        if self._unpacked > allowed:
            raise over_limit(UNPACKED_SIZE, f"{self.name}: its compressed sections", allowed)
        start = {
            ELFCOMPRESS_ZLIB: zlib.decompressobj,
            OLD_MAGIC: zlib.decompressobj,
            ELFCOMPRESS_ZSTD: start_zstd,
        }.get(method)
        if start is None:
            raise ElfError(
                f"{self.name}: {section.name} is compressed with method {method}, which is unknown"
            )
        try:
            found = FrameReader(start, BytesIO(memoryview(data)[layout.size :])).read_first(wanted)
        except CapabilityError as error:
            raise CapabilityError(f"{self.name}: {error}", hint=error.hint) from None
        except KcovdbgError:
            raise
        except Exception as error:  # noqa: BLE001 - each module has its own exceptions
            raise self._damaged(f"{section.name}: {error or 'too large'}") from None
        if len(found) < wanted:
            raise self._damaged(f"{section.name} is incomplete")
        return found

    @cached_property
    def relocation_tables(self) -> Mapping[int, Sequence[Section]]:
        """The tables of relocations of each section, by its number."""
        found: dict[int, list[Section]] = {}
        total = 0
        for section in self.sections:
            if section.type == SHT_RELA:
                found.setdefault(section.info, []).append(section)
                total += section.size
        # In a damaged file, many tables may be at one place.
        if self._size is not None and total > self._size:
            raise self._damaged(f"tables of relocations of {total} bytes together")
        return found

    def map_code(self) -> list[tuple[int, bytes | memoryview]]:
        """Return the address and the contents of each section with code, by address."""
        code = [(section.address, self.map_section(section)) for section in self.text_sections()]
        return sorted(code, key=itemgetter(0))

    def map_section(self, section: Section) -> bytes | memoryview:
        """Return the contents of a section. If possible they are mapped, to save memory."""
        start = section.offset - section.offset % mmap.ALLOCATIONGRANULARITY
        end = section.offset + section.size
        is_plain = section.type != SHT_NOBITS and not section.is_compressed and section.size
        if is_plain and self._size is not None and end <= self._size:
            with contextlib.suppress(OSError, ValueError, OverflowError):
                mapped = mmap.mmap(
                    self._file.fileno(), end - start, access=mmap.ACCESS_READ, offset=start
                )
                return memoryview(mapped)[section.offset - start :]
        return self.read_section(section)

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address of a linked file, up to the end of their section; empty
        outside of sections.
        """
        section = self.section_at(address)
        if section is None:
            return b""
        start = address - section.address
        return self.read_at(section.offset + start, min(size, section.size - start))

    @property
    def has_debug_info(self) -> bool:
        """Whether it has debug info in DWARF."""
        return self._has_dwarf("info")

    @property
    def has_lines(self) -> bool:
        """Whether its debug info has source lines; slim debug info has only types and symbols."""
        return self._has_dwarf("line")

    def _has_dwarf(self, kind: str) -> bool:
        found = self.debug_section(kind)
        return found is not None and found.size > 0 and found.type != SHT_NOBITS

    def read_notes(self) -> bytes:
        """Return the bytes of the notes: in a core the notes of segments, otherwise of sections."""
        if self.is_core:
            spans = [(part.offset, part.filesz) for part in self.segments if part.type == PT_NOTE]
        else:
            spans = [(part.offset, part.size) for part in self.sections if part.type == SHT_NOTE]
        notes = b""
        for offset, size in spans:
            if len(notes) + size > _MAX_NOTES:
                raise self._damaged(f"notes of more than {_MAX_NOTES >> 20} MiB")
            # The next note must start at a multiple of 4 bytes.
            notes += self.read_at(offset, size) + bytes(-size % 4)
        return notes

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """The notes."""
        return tuple(parse_notes(self.read_notes(), self.header.byte_order))

    @property
    def build_id(self) -> str | None:
        """The GNU build ID, hexadecimal; None when there is none."""
        return find_build_id(self.notes)

    @cached_property
    def symbols(self) -> SymbolTable:
        """The symbol table; empty when the file is stripped."""
        from kcovdbg.elf.symbol_table import SymbolTable

        table = names = b""
        for section in self.sections:
            if section.type == SHT_SYMTAB:
                if section.link >= len(self.sections):
                    raise self._damaged("no names of symbols")
                table = self.read_section(section)
                names = self.read_section(self.sections[section.link])
                break
        return SymbolTable(table, names, self.header, self.name)


def open_image(path: PathName, code: PathName | None) -> ElfFile:
    """Open a kernel's image. A stripped image gets the symbols of its file with debug info.

    :param path: the image, or its file with debug info.
    :param code: the stripped image, if ``path`` is its file with debug info; otherwise None.
    :raises ElfError: when one of them is unreadable or damaged, or when they are of different
        builds.
    """
    if code is None:
        return ElfFile(path)
    image = ElfFile(code)
    with ElfFile(path) as debug_file:
        if image.build_id != debug_file.build_id:
            raise ElfError(f"{image.name} and {debug_file.name} are of different builds")
        if not len(image.symbols):
            image.symbols = debug_file.symbols
    return image


# Elf64_Rela: offset, info, addend.
_LAYOUT: Final = "QQq"
_WORD: Final = struct.Struct("<I")
_LONG_WORD: Final = struct.Struct("<Q")
# Types of relocations that store an address (R_X86_64_64, 32, 32S; R_AARCH64_ABS64, ABS32), and
# those that store a distance from their place (R_X86_64_PC64, PC32, PLT32; R_AARCH64_PREL64,
# PREL32, and branches).
_ABSOLUTE: Final = {
    EM_X86_64: {1: _LONG_WORD, 10: _WORD, 11: _WORD},
    EM_AARCH64: {257: _LONG_WORD, 258: _WORD},
}
_RELATIVE: Final = {
    EM_X86_64: {24: _LONG_WORD, 2: _WORD, 4: _WORD},
    EM_AARCH64: {260: _LONG_WORD, 261: _WORD, **dict.fromkeys((279, 280, 282, 283), _WORD)},
}
# R_AARCH64_TSTBR14, CONDBR19, JUMP26, CALL26: the bits of the instruction that hold the distance,
# counted in instructions, and the number of the lowest bit.
_ARM64_BRANCHES: Final = {
    279: (0x7FFE0, 5),
    280: (0xFFFFE0, 5),
    282: (0x3FFFFFF, 0),
    283: (0x3FFFFFF, 0),
}
LINKABLE: Final = frozenset(_ABSOLUTE)
"""The machines whose relocations are known."""


class Relocation(NamedTuple):
    """An entry of a section of relocations."""

    offset: int
    """Place in the section that it changes."""
    type: int
    """One of ``R_*`` of the machine."""
    symbol: int
    """Index in the symbol table."""
    addend: int


def read_relocations(elf: ElfFile, section: Section) -> Iterator[Relocation]:
    """Iterate over the relocations of a section.

    :param elf: a 64-bit file.
    :raises ElfError: when the file is damaged.
    """
    for table in elf.relocation_tables.get(section.number, ()):
        yield from read_relocation_table(elf, table)


def read_relocation_table(elf: ElfFile, table: Section) -> Iterator[Relocation]:
    """Iterate over the relocations in a table, as :func:`read_relocations` does.

    :param table: of type ``SHT_RELA``.
    """
    layout = struct.Struct(elf.header.byte_order + _LAYOUT)
    data = elf.read_section(table)
    if len(data) % layout.size:
        raise damaged(
            elf.name, f"{table.name} of {len(data)} bytes, {layout.size} for each relocation"
        )
    for offset, info, addend in layout.iter_unpack(data):
        yield Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)


def link_section(
    elf: ElfFile, section: Section, address: int, find_address: Callable[[int], int | None]
) -> bytes:
    """Return the contents of a section as in a loaded module, with relocations applied. Only the
    relocations of the machines in :data:`LINKABLE` are known.

    :param address: the address at which it is loaded.
    :param find_address: returns the address of a symbol by its index. Relocations of a symbol are
        left out if it returns None.
    :raises ElfError: when the file is damaged.
    """
    data = bytearray(elf.read_section(section))
    machine = elf.header.machine
    absolute, relative = _ABSOLUTE.get(machine, {}), _RELATIVE.get(machine, {})
    symbols = len(elf.symbols)
    for entry in read_relocations(elf, section):
        if entry.symbol >= symbols:
            raise damaged(elf.name, f"a relocation of symbol {entry.symbol} of {symbols}")
        layout = absolute.get(entry.type) or relative.get(entry.type)
        target = None if layout is None else find_address(entry.symbol)
        if layout is None or target is None:
            continue
        if entry.offset + layout.size > len(data):
            raise damaged(elf.name, f"a relocation behind the end of {section.name}")
        value = target + entry.addend
        if entry.type in relative:
            value -= address + entry.offset
        if machine == EM_AARCH64 and entry.type in _ARM64_BRANCHES:
            (word,) = _WORD.unpack_from(data, entry.offset)
            bits, lowest = _ARM64_BRANCHES[entry.type]
            value = word & ~bits | value >> 2 << lowest & bits
        layout.pack_into(data, entry.offset, value % (1 << 8 * layout.size))
    return bytes(data)
