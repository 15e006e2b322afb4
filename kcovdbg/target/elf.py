# SPDX-License-Identifier: LGPL-2.1-or-later
"""As much of the ELF format as dumps, slices and a vmlinux ask for: headers, notes, sections, symbols.

64- and 32-bit files of either byte order are read. Sizes and offsets in a file are checked, not trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple

MAGIC: Final = b"\x7fELF"
ET_CORE: Final = 4
PT_LOAD: Final = 1
PT_NOTE: Final = 4
PN_XNUM: Final = 0xFFFF
NT_PRSTATUS: Final = 1
NT_GNU_BUILD_ID: Final = 3
SHT_SYMTAB: Final = 2
SHT_NOTE: Final = 7
SHT_NOBITS: Final = 8
SHF_ALLOC: Final = 2
SHF_EXECINSTR: Final = 4

# The largest table that is read whole. A vmlinux has some 60 sections, a dump of many terabytes some 100,000 segments.
_MAX_TABLE: Final = 64 << 20
_MAX_NOTES: Final = 256 << 20


class ElfError(ValueError):
    """The file isn't ELF, or is damaged; the message says how."""


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


class Section(NamedTuple):
    """A section header."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    """In the file, bytes."""
    size: int
    link: int
    info: int = 0
    number: int = 0

    @property
    def is_text(self) -> bool:
        """Whether it holds instructions that run where they are, and that the file has."""
        return (
            self.type != SHT_NOBITS
            and self.flags & (SHF_ALLOC | SHF_EXECINSTR) == SHF_ALLOC | SHF_EXECINSTR
            # Alternatives are copied over the instructions that they replace.
            and self.name != ".altinstr_replacement"
        )


class Note(NamedTuple):
    """One note: who defined it, its type there, what it holds."""

    name: str
    type: int
    desc: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What the ELF header says."""

    is_64: bool
    big_endian: bool
    type: int
    machine: int
    phoff: int
    phentsize: int
    phnum: int
    shoff: int
    shentsize: int
    shnum: int
    shstrndx: int

    @property
    def order(self) -> str:
        """Byte order, for the struct module."""
        return ">" if self.big_endian else "<"


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Read exactly so many bytes.

    :raises ElfError: when the file ends before.
    """
    try:
        file.seek(offset)
        data = file.read(size)
    except (OverflowError, ValueError, OSError):
        raise ElfError(f"it has no offset {offset:#x}") from None
    if len(data) != size:
        raise ElfError(f"it ends before offset {offset + size:#x}")
    return data


def read_header(file: BinaryIO) -> Header:
    """Read the ELF header.

    :raises ElfError: when the file isn't ELF.
    """
    ident = read_at(file, 0, 16)
    if ident[:4] != MAGIC or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError("it is no ELF file")
    is_64, big_endian = ident[4] == 2, ident[5] == 2
    order = ">" if big_endian else "<"
    layout = struct.Struct(order + ("HHIQQQIHHHHHH" if is_64 else "HHIIIIIHHHHHH"))
    fields = layout.unpack(read_at(file, 16, layout.size))
    kind, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, shstrndx = fields
    if shoff and (phnum == PN_XNUM or shnum == 0):
        # The first section header holds what has no room here.
        first = struct.unpack(order + ("IIQQQQIIQQ" if is_64 else "IIIIIIIIII"), read_at(file, shoff, 64 if is_64 else 40))
        phnum = first[7] if phnum == PN_XNUM else phnum
        shnum = first[5] if shnum == 0 else shnum
    return Header(is_64, big_endian, kind, machine, phoff, phentsize, phnum, shoff, shentsize, shnum, shstrndx)


def read_segments(file: BinaryIO, header: Header) -> list[Segment]:
    """Read the program headers.

    :raises ElfError: when the file ends before, or they are damaged.
    """
    layout = struct.Struct(header.order + ("IIQQQQQQ" if header.is_64 else "IIIIIIII"))
    found = []
    for fields in _read_table(file, header.phoff, header.phentsize, header.phnum, layout):
        if header.is_64:
            found.append(Segment(*fields))
        else:
            kind, offset, vaddr, paddr, filesz, memsz, flags, align = fields
            found.append(Segment(kind, flags, offset, vaddr, paddr, filesz, memsz, align))
    return found


def read_sections(file: BinaryIO, header: Header) -> list[Section]:
    """Read the section headers, names included.

    :raises ElfError: when the file ends before, or they are damaged.
    """
    layout = struct.Struct(header.order + ("IIQQQQIIQQ" if header.is_64 else "IIIIIIIIII"))
    rows = list(_read_table(file, header.shoff, header.shentsize, header.shnum, layout))
    if not rows:
        return []
    if header.shstrndx >= len(rows):
        raise ElfError("its section names are missing")
    _, _, _, _, offset, size = rows[header.shstrndx][:6]
    names = read_at(file, offset, min(size, _MAX_TABLE))
    found = []
    for number, (name, kind, flags, address, start, length, link, info, *_) in enumerate(rows):
        text = names[name : names.find(b"\0", name)] if name < len(names) else b""
        found.append(Section(text.decode(errors="replace"), kind, flags, address, start, length, link, info, number))
    return found


def parse_notes(data: bytes, order: str, align: int = 4) -> Iterator[Note]:
    """Yield the notes of a note segment or section; what is cut off at its end is left out."""
    position = 0
    align = 8 if align == 8 else 4
    while position + 12 <= len(data):
        namesz, descsz, kind = struct.unpack_from(order + "III", data, position)
        name_start = position + 12
        desc_start = name_start + (namesz + align - 1) // align * align
        position = desc_start + (descsz + align - 1) // align * align
        if desc_start + descsz > len(data):
            return
        name = data[name_start : name_start + namesz].rstrip(b"\0").decode(errors="replace")
        yield Note(name, kind, data[desc_start : desc_start + descsz])


def make_note(name: str, kind: int, desc: bytes, order: str = "<") -> bytes:
    """Build a note, padded to four bytes."""
    text = name.encode() + b"\0"
    return struct.pack(order + "III", len(text), len(desc), kind) + text + bytes(-len(text) % 4) + desc + bytes(-len(desc) % 4)


def read_note_segments(file: BinaryIO, header: Header) -> bytes:
    """Return the notes of a core file as they are, one note segment after the other.

    :raises ElfError: when the file ends before them.
    """
    return b"".join(
        read_at(file, segment.offset, min(segment.filesz, _MAX_NOTES))
        for segment in read_segments(file, header)
        if segment.type == PT_NOTE
    )


def read_build_id(file: BinaryIO, header: Header) -> str | None:
    """Return a program's or a module's build-id, hexadecimal; None where it has none.

    :raises ElfError: when the file is damaged.
    """
    for section in read_sections(file, header):
        if section.type != SHT_NOTE or section.size > _MAX_TABLE:
            continue
        build_id = find_build_id(parse_notes(read_at(file, section.offset, section.size), header.order))
        if build_id is not None:
            return build_id
    return None


def find_build_id(notes: Iterable[Note]) -> str | None:
    """Return the build-id among notes, hexadecimal; None where there is none."""
    return next((note.desc.hex() for note in notes if note.name == "GNU" and note.type == NT_GNU_BUILD_ID), None)


def has_dwarf(sections: list[Section]) -> bool:
    """Tell whether the file holds debug info in DWARF."""
    return any(
        section.name in (".debug_info", ".zdebug_info") and section.size and section.type != SHT_NOBITS for section in sections
    )


def read_symbols(file: BinaryIO, header: Header, names: frozenset[str]) -> dict[str, int]:
    """Return the link addresses of the symbols with these names; those that the file lacks are left out.

    :raises ElfError: when the file is damaged.
    """
    sections = read_sections(file, header)
    layout = struct.Struct(header.order + ("IBBHQQ" if header.is_64 else "IIIBBH"))
    found: dict[str, int] = {}
    for section in sections:
        if section.type != SHT_SYMTAB or section.link >= len(sections):
            continue
        strings = read_at(file, sections[section.link].offset, min(sections[section.link].size, _MAX_TABLE))
        table = read_at(file, section.offset, min(section.size, 4 * _MAX_TABLE) // layout.size * layout.size)
        wanted: dict[int, str] = {}
        for name in names:
            # The tail of a longer name may serve as a name as well.
            position = strings.find(name.encode() + b"\0")
            while position >= 0:
                wanted[position] = name
                position = strings.find(name.encode() + b"\0", position + 1)
        for fields in layout.iter_unpack(table):
            if fields[0] in wanted:
                found[wanted[fields[0]]] = fields[4] if header.is_64 else fields[1]
    return found


def _read_table(file: BinaryIO, offset: int, entry: int, count: int, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    if not offset or not count:
        return iter(())
    if entry != layout.size:
        raise ElfError(f"its table entries have {entry} bytes")
    if entry * count > _MAX_TABLE:
        raise ElfError(f"it says to have {count} table entries")
    return layout.iter_unpack(read_at(file, offset, entry * count))
