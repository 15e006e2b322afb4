# SPDX-License-Identifier: LGPL-2.1-or-later
"""ELF files read as they are: the symbol table of a vmlinux at its link addresses, and what a core says of itself.

A debugger's own symbols may have been relocated by its user, and looking one up may read debug info; the file's table is
neither. 64-bit and 32-bit files of either byte order; standard library only, as GDB's Python loads this.
"""

from __future__ import annotations

import bisect
import io
import mmap
import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from kcovdbg.errors import TargetError
from kcovdbg.target import Symbol, elf
from kcovdbg.target.elf import Note, Section

# The types of symbols that name code or data: none (of assembly), data, function, and GNU's indirect function.
_NAMING: Final = frozenset({0, 1, 2, 10})
_MAX_NESTING: Final = 64
_MACHINES: Final = {
    2: "sparc",
    3: "i686",
    8: "mips",
    15: "parisc",
    20: "ppc",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    43: "sparc64",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}


class Segment(NamedTuple):
    """What a PT_LOAD puts where; only what is in the file counts."""

    address: int
    physical: int
    offset: int
    size: int


class ElfFile:
    """An ELF file, mapped.

    :param path: of the file.
    :raises TargetError: when it can't be opened or is no ELF file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                status = path.stat()
                # /proc/kcore can't be mapped, and says nothing of its size; its headers are all that is wanted of it.
                self._data: bytes | mmap.mmap
                try:
                    self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except (OSError, ValueError):
                    self._data = file.read(1 << 20)
        except OSError as error:
            raise TargetError(f"{path} can't be read: {error.strerror}") from None
        self.stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        """Changes when the file does."""
        # A map is read like a file as well, though its type doesn't say so.
        self._file = io.BytesIO(self._data) if isinstance(self._data, bytes) else cast("BinaryIO", self._data)
        try:
            self._header = elf.read_header(self._file)
        except elf.ElfError as error:
            raise TargetError(f"{path} is no ELF file: {error}") from None
        self.word_size = 8 if self._header.is_64 else 4
        self.big_endian = self._header.big_endian
        self._order = self._header.order
        self.machine = _MACHINES.get(self._header.machine, f"machine {self._header.machine}")
        """As uname -m says."""
        self.is_core = self._header.type == elf.ET_CORE
        self._found: dict[str, Symbol | None] = {}

    @cached_property
    def sections(self) -> Sequence[Section]:
        """The section headers."""
        try:
            return elf.read_sections(self._file, self._header)
        except elf.ElfError:
            # The headers come last in a file: one that is cut off has lost them.
            return ()

    @cached_property
    def _program_headers(self) -> Sequence[elf.Segment]:
        try:
            return elf.read_segments(self._file, self._header)
        except elf.ElfError as error:
            raise TargetError(f"{self.path} is damaged: {error}") from None

    @cached_property
    def segments(self) -> Sequence[Segment]:
        """The PT_LOADs that have contents, by address."""
        return sorted(
            Segment(segment.vaddr, segment.paddr, segment.offset, segment.filesz)
            for segment in self._program_headers
            if segment.type == elf.PT_LOAD and segment.filesz
        )

    def _text(self, offset: int) -> str:
        end = self._data.find(b"\0", offset)
        return self._data[offset:end].decode("utf-8", "backslashreplace")

    @cached_property
    def notes(self) -> Sequence[Note]:
        """The notes, of a core's segments or of an image's sections."""
        spans = [(segment.offset, segment.filesz) for segment in self._program_headers if segment.type == elf.PT_NOTE]
        spans += [(section.offset, section.size) for section in self.sections if section.type == elf.SHT_NOTE]
        found: dict[Note, None] = {}
        for offset, size in spans:
            found.update(dict.fromkeys(elf.parse_notes(self._data[offset : offset + size], self._order)))
        return list(found)

    @cached_property
    def build_id(self) -> str | None:
        """Of an image, hexadecimal."""
        return elf.find_build_id(self.notes)

    @cached_property
    def vmcoreinfo(self) -> Mapping[str, str]:
        """A core's VMCOREINFO, empty where it has none."""
        for note in self.notes:
            if note.name == "VMCOREINFO":
                text = note.desc.decode("utf-8", "replace").rstrip("\0")
                return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return {}

    def holds(self, address: int, size: int) -> bool:
        """Tell whether the segments hold all of a span of virtual memory."""
        starts = self._segment_starts
        while size > 0:
            index = bisect.bisect_right(starts, address) - 1
            # Segments may overlap: a long one may lie before the nearest.
            while index >= 0 and address >= self._segment_reach[index]:
                return False
            while index >= 0 and address >= self.segments[index].address + self.segments[index].size:
                index -= 1
            if index < 0:
                return False
            here = self.segments[index].address + self.segments[index].size - address
            address += here
            size -= here
        return True

    @cached_property
    def _segment_starts(self) -> list[int]:
        return [segment.address for segment in self.segments]

    @cached_property
    def _segment_reach(self) -> list[int]:
        """For each segment the end of all up to it: what lies behind it no earlier segment holds."""
        reach: list[int] = []
        for segment in self.segments:
            end = segment.address + segment.size
            reach.append(max(end, reach[-1]) if reach else end)
        return reach

    # Symbols.

    @cached_property
    def _table(self) -> tuple[Section, int] | None:
        """The symbol table, and where its names start."""
        for section in self.sections:
            if section.type == elf.SHT_SYMTAB and section.link < len(self.sections):
                return section, self.sections[section.link].offset
        return None

    @property
    def has_symbols(self) -> bool:
        """Whether the file has a symbol table."""
        return self._table is not None

    @property
    def _entry(self) -> struct.Struct:
        # 64-bit: name, info, other, section, value, size; 32-bit: name, value, size, info, other, section.
        return struct.Struct(self._order + ("IBBHQQ" if self.word_size == 8 else "IIIBBH"))

    @cached_property
    def _index(self) -> Mapping[int, int]:
        """Symbol numbers by their names' offsets. Local symbols come first in a table: a global one takes its name."""
        if self._table is None:
            return {}
        section, _ = self._table
        data = self._data[section.offset : section.offset + section.size]
        step = self._entry.size
        if self.big_endian == (struct.pack("=H", 1) == b"\0\1"):
            names = memoryview(data)[: len(data) // step * step].cast("I")[:: step // 4].tolist()
        else:
            names = [entry[0] for entry in struct.iter_unpack(f"{self._order}I{step - 4}x", data[: len(data) // step * step])]
        return dict(zip(names, range(len(names)), strict=True))

    def _symbol_at(self, index: int) -> tuple[int, int, int, int, int]:
        """Return (name, value, size, info, section)."""
        assert self._table is not None
        fields = self._entry.unpack_from(self._data, self._table[0].offset + index * self._entry.size)
        if self.word_size == 8:
            name, info, _, section, value, size = fields
        else:
            name, value, size, info, _, section = fields
        return name, value, size, info, section

    def symbol(self, name: str) -> Symbol | None:
        """Find a symbol by its name, at its link address; None where the file has none."""
        if name not in self._found:
            self._found[name] = self._find_symbol(name)
        return self._found[name]

    def _find_symbol(self, name: str) -> Symbol | None:
        if self._table is None:
            return None
        _, strings = self._table
        section = self.sections[self._table[0].link]
        wanted = name.encode() + b"\0"
        position = self._data.find(wanted, strings, strings + section.size)
        while position >= 0:
            # Linkers store a name that ends another one inside it, so any place will do.
            index = self._index.get(position - strings)
            if index is not None:
                _, value, size, info, where = self._symbol_at(index)
                if where and info & 15 in _NAMING:
                    return Symbol(name, value, size)
            position = self._data.find(wanted, position + 1, strings + section.size)
        return None

    @cached_property
    def _by_address(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Addresses of code and data in order, and (size, name) of each."""
        if self._table is None:
            return [], []
        section, _ = self._table
        data = self._data[section.offset : section.offset + section.size]
        data = data[: len(data) // self._entry.size * self._entry.size]
        wide = self.word_size == 8
        found: list[tuple[int, int, int]] = []
        for fields in self._entry.iter_unpack(data):
            if wide:
                name, info, _, where, value, size = fields
            else:
                name, value, size, info, _, where = fields
            if where and name and info & 15 in _NAMING and where < 0xFF00:
                found.append((value, size, name))
        found.sort()
        return [entry[0] for entry in found], [(entry[1], entry[2]) for entry in found]

    def symbol_name(self, address: int) -> str | None:
        """Name the symbol that a link address lies in, None where none does."""
        addresses, entries = self._by_address
        index = bisect.bisect_right(addresses, address) - 1
        # Labels of assembly and functions' local parts may lie between the start of a symbol and the address.
        for _ in range(min(index + 1, _MAX_NESTING)):
            size, name = entries[index]
            if address < addresses[index] + size:
                assert self._table is not None
                return self._text(self._table[1] + name)
            index -= 1
        return None

    def contents(self, address: int, size: int) -> bytes | None:
        """Return what the image holds at a link address, None where it holds nothing."""
        for section in self.sections:
            if section.flags & elf.SHF_ALLOC and section.type != elf.SHT_NOBITS and section.address <= address:
                start = address - section.address
                if start + size <= section.size:
                    return self._data[section.offset + start : section.offset + start + size]
        return None
