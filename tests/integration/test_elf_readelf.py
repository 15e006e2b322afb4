# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ELF reader against readelf, on every kept image, dump and slice: 64 and 32 bits, little- and
big-endian.
"""

import re
import shutil
import struct
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NT_GNU_BUILD_ID, parse_notes
from kcovdbg.errors import TargetError
from kcovdbg.input_file import find_packing
from tests.support.programs import output_of

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")

ROOT = Path(__file__).parents[2]
_MACHINES = {
    "Advanced Micro Devices X86-64": "x86_64",
    "AArch64": "aarch64",
    "ARM": "arm",
    "IBM S/390": "s390x",
    "RISC-V": "riscv64",
}
_TYPES = {"REL": 1, "EXEC": 2, "DYN": 3, "CORE": 4}
_SECTION_TYPES = {
    "NULL": 0,
    "PROGBITS": 1,
    "SYMTAB": 2,
    "STRTAB": 3,
    "RELA": 4,
    "DYNAMIC": 6,
    "NOTE": 7,
    "NOBITS": 8,
    "REL": 9,
}
_SECTION_FLAGS = {
    "W": 1,
    "A": 2,
    "X": 4,
    "M": 0x10,
    "S": 0x20,
    "I": 0x40,
    "L": 0x80,
    "G": 0x200,
    "T": 0x400,
    "C": 0x800,
}
_SEGMENT_TYPES = {"LOAD": 1, "NOTE": 4}
_RESERVED_SECTIONS = {"UND": 0, "ABS": 0xFFF1, "COM": 0xFFF2}


def kept_files():
    """Yield the kept files that are ELF when they are decompressed."""
    for path in sorted(
        p for folder in ("tests", "examples") for p in (ROOT / folder).rglob("*.zst")
    ):
        with path.open("rb") as file:
            assert find_packing(file.read(4)) is not None, path
            file.seek(0)
            if zstandard.ZstdDecompressor().stream_reader(file).read(4) == b"\x7fELF":
                yield path


FILES = list(kept_files())


@pytest.fixture(params=FILES, ids=lambda path: str(path.relative_to(ROOT).with_suffix("")))
def elf(request, tmp_path):
    path = tmp_path / "file"
    with request.param.open("rb") as packed, path.open("wb") as plain:
        zstandard.ZstdDecompressor().copy_stream(packed, plain)
    with ElfFile(path) as found:
        yield found
    path.unlink()


def readelf(elf, *options):
    return output_of("env", "LC_ALL=C", "readelf", "--wide", *options, elf.path)


def number(text):
    return int(text.split()[0], 0)


def test_header(elf):
    said = dict(re.findall(r"^ +([\w ]+): +(.*)$", readelf(elf, "--file-header"), re.MULTILINE))
    header = elf.header
    assert header.is_64bit == (said["Class"] == "ELF64")
    assert header.big_endian == ("big endian" in said["Data"])
    assert header.type == _TYPES[said["Type"].split()[0]]
    assert header.machine_name == _MACHINES[said["Machine"]]
    assert header.phoff == number(said["Start of program headers"])
    assert header.shoff == number(said["Start of section headers"])
    assert header.phnum == number(said["Number of program headers"])
    assert header.shnum == number(said["Number of section headers"])
    assert header.shstrndx == number(said["Section header string table index"])
    if header.phnum:
        assert header.phentsize == number(said["Size of program headers"])
    if header.shnum:
        assert header.shentsize == number(said["Size of section headers"])


def test_segments(elf):
    pattern = r"^  (\w+) +(0x\w+) (0x\w+) (0x\w+) (0x\w+) (0x\w+) ([R ])([W ])([E ]) (0x\w+|0)$"
    rows = re.findall(pattern, readelf(elf, "--segments"), re.MULTILINE)
    assert len(rows) == len(elf.segments) == elf.header.phnum
    for (name, offset, vaddr, paddr, filesz, memsz, *flags, align), segment in zip(
        rows, elf.segments, strict=True
    ):
        if name in _SEGMENT_TYPES:
            assert segment.type == _SEGMENT_TYPES[name]
        values = [int(text, 16) for text in (offset, vaddr, paddr, filesz, memsz)]
        assert [
            segment.offset,
            segment.vaddr,
            segment.paddr,
            segment.filesz,
            segment.memsz,
        ] == values
        assert segment.flags == sum(
            bit for bit, flag in zip((4, 2, 1), flags, strict=True) if flag != " "
        )
        assert segment.align == int(align, 16)


def test_sections(elf):
    pattern = r"^  \[ *(\d+)\] (\S*) +(\S+) +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+) [0-9a-f]+ +([A-Za-z]*) +(\d+) +(\d+) +\d+$"
    rows = re.findall(pattern, readelf(elf, "--sections"), re.MULTILINE)
    assert len(rows) == len(elf.sections) == elf.header.shnum
    for (index, name, kind, address, offset, size, flags, link, info), section in zip(
        rows, elf.sections, strict=True
    ):
        assert section.number == int(index)
        assert section.name == name
        if kind in _SECTION_TYPES:
            assert section.type == _SECTION_TYPES[kind]
        assert [section.address, section.offset, section.size] == [
            int(text, 16) for text in (address, offset, size)
        ]
        assert section.flags == sum(_SECTION_FLAGS[flag] for flag in flags)
        assert (section.link, section.info) == (int(link), int(info))


def test_notes(elf):
    text = readelf(elf, "--notes")
    rows = re.findall(r"^  (\S+) +\t?(0x\w{8})\t", text, re.MULTILINE)
    assert [(note.name, len(note.desc)) for note in elf.notes] == [
        (name, int(size, 16)) for name, size in rows
    ]
    found = re.search(r"Build ID: ([0-9a-f]+)", text)
    assert elf.build_id == (found and found[1])
    assert (elf.build_id is not None) == any(
        note.type == NT_GNU_BUILD_ID and note.name == "GNU" for note in elf.notes
    )
    assert tuple(parse_notes(elf.read_notes(), elf.header.byte_order)) == elf.notes


def test_symbols(elf):
    pattern = r"^ *\d+: ([0-9a-f]+) +(\w+) (\w+) +\w+ +\w+ +(\w+)(?: (.*))?$"
    # Dynamic symbols are in a table of their own.
    text = readelf(elf, "--symbols").partition("Symbol table '.symtab'")[2]
    rows = re.findall(pattern, text, re.MULTILINE)
    assert len(rows) == len(elf.symbols)
    for (value, size, kind, section, name), symbol in zip(rows, elf.symbols, strict=True):
        assert symbol.address == int(value, 16)
        assert symbol.size == int(size, 0)
        assert symbol.is_function == (kind == "FUNC")
        assert symbol.section == (
            _RESERVED_SECTIONS[section] if section in _RESERVED_SECTIONS else int(section)
        )
        # readelf gives symbols of sections the names of these.
        if kind != "SECTION":
            # Compilers mark some labels with control characters, which readelf shows as ^A and so
            # on.
            assert (
                re.sub(r"[\x01-\x1f]", lambda found: f"^{chr(ord(found[0]) + 64)}", symbol.name)
                == name
            )


def test_symbols_by_name_and_address(elf):
    """test_symbols has compared the symbols with readelf's."""
    functions = [s for s in elf.symbols if s.is_function and s.size and s.section and s.name]
    for symbol in functions[:: max(1, len(functions) // 500)]:
        assert elf.symbols.find(symbol.name).name == symbol.name
        if not elf.is_relocatable:
            last = symbol.address + symbol.size - 1
            at = elf.symbols.find_at(last)
            assert at.address <= last < at.address + at.size
    assert elf.symbols.find("no such symbol") is None
    # The symbol before an address: of several at one address the last.
    for functions_only in (False, True):
        starts = {
            s.address: s
            for s in elf.symbols
            if (s.is_function if functions_only else s.section and s.name)
        }
        ascending = sorted(starts)
        asked, expected = [], []
        if ascending and ascending[0]:
            asked.append(ascending[0] - 1)
            expected.append(None)
        for start, following in list(pairwise([*ascending, 1 << 64]))[
            :: max(1, len(ascending) // 500)
        ]:
            for address in (start, following - 1):
                asked.append(address)
                expected.append(starts[start])
        found = elf.symbols.find_each_before(array("Q", asked), functions_only=functions_only)
        assert found == expected


def test_contents_of_sections(elf):
    """Both string tables, compressed sections decompressed, and code by its address."""
    sections = [
        section
        for section in elf.sections
        if section.name in (".shstrtab", ".strtab", ".comment", ".debug_abbrev")
    ]
    for section in sections:
        text = readelf(elf, f"--hex-dump={section.number}", "--decompress")
        lines = re.findall(r"^  0x[0-9a-f]{8} ((?:[0-9a-f]+ )+)", text, re.MULTILINE)
        assert elf.read_section(section) == bytes.fromhex("".join(lines))
    for section in elf.text_sections():
        start = elf.read_section(section, 64)
        if not elf.is_relocatable:
            assert elf.read(section.address, 64) == start
            assert (
                elf.read(section.address + section.size - 1, 64) == elf.read_section(section)[-1:]
            )


@pytest.mark.parametrize("field", ["names", "symbol name", "symbol strings", "note"])
def test_damaged_tables(tmp_path, field):
    """Each is refused with the name of the file; a note that is cut off ends the notes."""
    program = tmp_path / "a.o"
    source = (
        '.globl f\nf: nop\n.size f,1\n.type f,@function\n.section .note.x,"",@note\n.long '
        '4,4,1\n.asciz "abc"\n.long 7\n'
    )
    output_of("as", "-o", program, "-", stdin=source)
    with ElfFile(program) as whole:
        sections, header = {section.name: section for section in whole.sections}, whole.header
        assert [note.name for note in whole.notes] == ["abc"]
        assert whole.symbols.find("f") is not None
    data = bytearray(program.read_bytes())
    order = header.byte_order
    if field == "names":
        struct.pack_into(order + "I", data, header.shoff + header.shentsize, 1 << 30)
    elif field == "symbol name":
        struct.pack_into(
            order + "I", data, sections[".symtab"].offset + sections[".symtab"].size - 24, 1 << 30
        )
    elif field == "symbol strings":
        struct.pack_into(
            order + "I",
            data,
            header.shoff + header.shentsize * sections[".symtab"].number + 40,
            1 << 20,
        )
    else:
        struct.pack_into(order + "I", data, sections[".note.x"].offset + 4, 1 << 20)
    program.write_bytes(data)
    with ElfFile(program, "the file") as elf:
        if field == "note":
            assert elf.notes == ()
            return
        with pytest.raises(TargetError, match="the file"):
            list(elf.symbols)
