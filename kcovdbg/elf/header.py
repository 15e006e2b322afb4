# SPDX-License-Identifier: LGPL-2.1-or-later
"""The headers of an ELF file, of its sections and of its segments, and notes: registers,
VMCOREINFO, build IDs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kcovdbg.errors import TargetError

MAGIC: Final = b"\x7fELF"
IDENT_SIZE: Final = 16

ET_REL: Final = 1
ET_CORE: Final = 4

EM_386: Final = 3
EM_PPC64: Final = 21
EM_S390: Final = 22
EM_ARM: Final = 40
EM_X86_64: Final = 62
EM_AARCH64: Final = 183
EM_RISCV: Final = 243

PN_XNUM: Final = 0xFFFF
"""In ``e_phnum``: the number of program headers is in ``sh_info`` of the first section header."""

_MACHINE_NAMES: Final = {
    2: "sparc",
    EM_386: "i686",
    8: "mips",
    15: "parisc",
    20: "ppc",
    EM_PPC64: "ppc64",
    EM_S390: "s390x",
    EM_ARM: "arm",
    43: "sparc64",
    EM_X86_64: "x86_64",
    EM_AARCH64: "aarch64",
    EM_RISCV: "riscv64",
    258: "loongarch64",
}


class ElfError(TargetError):
    """The file is not ELF, or is truncated or damaged."""


class NotElfError(ElfError):
    """The file has no ELF header."""


def damaged(name: str, problem: str) -> ElfError:
    """Return the error for an ELF file that contradicts its headers."""
    return ElfError(f"{name} is truncated or damaged: {problem}", hint="copy it again")


class Header(NamedTuple):
    """The ELF header; offsets and sizes in bytes."""

    is_64bit: bool
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
    def byte_order(self) -> str:
        """The prefix of a format of the struct module."""
        return ">" if self.big_endian else "<"

    @property
    def word_size(self) -> int:
        """Bytes of an address."""
        return 8 if self.is_64bit else 4

    @property
    def machine_name(self) -> str:
        """The machine as uname -m names it."""
        return _MACHINE_NAMES.get(self.machine, f"machine {self.machine}")


class ElfLayout(NamedTuple):
    """The layout of a structure in 64- and in 32-bit files."""

    of_64bit: str
    of_32bit: str

    def make(self, is_64bit: bool, byte_order: str) -> struct.Struct:
        """Return the structure's layout in a file."""
        return struct.Struct(byte_order + (self.of_64bit if is_64bit else self.of_32bit))


EHDR: Final = ElfLayout("HHIQQQIHHHHHH", "HHIIIIIHHHHHH")
"""``Elf64_Ehdr`` and ``Elf32_Ehdr`` behind ``e_ident``."""
PHDR: Final = ElfLayout("IIQQQQQQ", "IIIIIIII")
"""``Elf64_Phdr``, whose members are in the order of :class:`Segment`, and ``Elf32_Phdr``."""
SHDR: Final = ElfLayout("IIQQQQIIQQ", "IIIIIIIIII")
CHDR: Final = ElfLayout("I4xQQ", "III")
"""Method of compression, size, alignment."""


def decode_header(ident: bytes, rest: bytes) -> Header:
    """Decode an ELF header. Counts that do not fit in it are elsewhere.

    :param ident: ``e_ident`` of an ELF file.
    :raises struct.error: when it is cut off.
    """
    is_64bit, big_endian = ident[4] == 2, ident[5] == 2
    layout = EHDR.make(is_64bit, ">" if big_endian else "<")
    kind, machine, _, _, phoff, shoff, _, _, phentsize, phnum, *sections = layout.unpack_from(rest)
    return Header(is_64bit, big_endian, kind, machine, phoff, phentsize, phnum, shoff, *sections)


def is_elf(ident: bytes) -> bool:
    """Return whether ``e_ident`` shows an ELF file of a known class and byte order."""
    return (
        len(ident) >= IDENT_SIZE
        and ident.startswith(MAGIC)
        and ident[4] in (1, 2)
        and ident[5] in (1, 2)
    )


SHT_SYMTAB: Final = 2
SHT_RELA: Final = 4
SHT_NOTE: Final = 7
SHT_NOBITS: Final = 8
SHT_DYNSYM: Final = 11

SHF_ALLOC: Final = 0x2
SHF_EXECINSTR: Final = 0x4
SHF_COMPRESSED: Final = 0x800

SHN_UNDEF: Final = 0
SHN_LORESERVE: Final = 0xFF00
SHN_ABS: Final = 0xFFF1

ELFCOMPRESS_ZLIB: Final = 1
ELFCOMPRESS_ZSTD: Final = 2
OLD_COMPRESSED: Final = ".zdebug_"
"""Start of the names of compressed sections, before ELF had a flag for them."""
OLD_MAGIC: Final = b"ZLIB"
OLD_COMPRESSION: Final = struct.Struct(">4sQ")
"""Header of such a section: the magic, and the uncompressed size in bytes."""


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
    def is_compressed(self) -> bool:
        """Whether its contents are compressed, by the flag or by its name."""
        return bool(self.flags & SHF_COMPRESSED) or self.name.startswith(OLD_COMPRESSED)

    @property
    def is_text(self) -> bool:
        """Whether it holds instructions that are executed at its address, and has contents."""
        return (
            self.type != SHT_NOBITS
            and self.flags & (SHF_ALLOC | SHF_EXECINSTR) == SHF_ALLOC | SHF_EXECINSTR
            # Alternatives are copied over the instructions that they replace.
            and self.name != ".altinstr_replacement"
        )


def string_at(strings: bytes, offset: int) -> str:
    """Return a string of a string table.

    :raises ValueError: when the table does not hold all of it.
    """
    return decode_name(strings[offset : strings.index(b"\0", offset)])


def decode_name(name: bytes) -> str:
    """Return a string of a string table as text."""
    return name.decode("utf-8", "backslashreplace")


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


NT_PRSTATUS: Final = 1
NT_GNU_BUILD_ID: Final = 3
VMCOREINFO: Final = "VMCOREINFO"


class Note(NamedTuple):
    """A note: the name of its owner, its type, and its contents."""

    name: str
    type: int
    desc: bytes


def parse_notes(data: bytes, byte_order: str) -> Iterator[Note]:
    """Yield the notes of a segment or a section. A note that is cut off at the end is left out.

    Each part of a note is padded to 4 bytes, as in all notes of kernels and dumps.

    :param byte_order: ``<``, ``>`` or ``=``, as for the struct module.
    """
    layout = struct.Struct(byte_order + "III")
    position = 0
    while position + layout.size <= len(data):
        name_size, size, kind = layout.unpack_from(data, position)
        name_start = position + layout.size
        start = name_start + (name_size + 3 & ~3)
        if start + size > len(data):
            return
        name = data[name_start : name_start + name_size].rstrip(b"\0").decode(errors="replace")
        yield Note(name, kind, data[start : start + size])
        position = start + (size + 3 & ~3)


def make_note(name: str, kind: int, desc: bytes, byte_order: str = "<") -> bytes:
    """Return the bytes of a note, padded to 4."""
    text = name.encode() + b"\0"
    head = struct.pack(byte_order + "III", len(text), len(desc), kind)
    return head + text + bytes(-len(text) % 4) + desc + bytes(-len(desc) % 4)


def find_build_id(notes: Iterable[Note]) -> str | None:
    """Return the build ID in notes, hexadecimal; None when there is none."""
    for note in notes:
        if note.name == "GNU" and note.type == NT_GNU_BUILD_ID:
            return note.desc.hex()
    return None


def find_vmcoreinfo(notes: Iterable[Note]) -> bytes:
    """Return the VMCOREINFO in notes; empty when there is none."""
    return next((note.desc for note in notes if note.name == VMCOREINFO), b"")


def parse_vmcoreinfo(text: bytes) -> dict[str, str]:
    """Return the lines ``KEY=value`` of VMCOREINFO, in which a kernel describes its memory."""
    found: dict[str, str] = {}
    for line in text.rstrip(b"\0").decode("utf-8", "replace").splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found[key] = value
    return found
