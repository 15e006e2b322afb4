# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the DWARF of an image by C code: source locations, compilation units and line tables.

The headers in native/ document the C functions.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.elf.shared_debug_info import SHARED_HINT, find_shared_file, find_shared_link
from kcovdbg.errors import CapabilityError
from kcovdbg.limits import MEMORY, over_limit
from kcovdbg.symbols.table_rows import Locations, check_status

NO_UNIT: Final = 0xFFFFFFFF
"""The number of the unit of an address that is in no unit, and of the location of an address whose
unit cannot be read.
"""

SECTIONS: Final = (
    "info",
    "abbrev",
    "line",
    "str",
    "line_str",
    "str_offsets",
    "addr",
    "ranges",
    "rnglists",
)
# The sections of the file of shared debug info that entries refer to. Its line tables only have the
# names of files.
_SHARED: Final = frozenset(("info", "abbrev", "line", "str"))
_NOWHERE: Final = (1 << 64) - 1
# Enough for the entry of the first unit, in a section of many MiB.
_FIRST_UNIT: Final = 1 << 16
_MOST_MEMBERS: Final = 64


def _text(pointer: Any) -> str | None:
    ffi, _ = load_native()
    return None if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


class CompileUnit(NamedTuple):
    """A compilation unit: the source file of one run of the compiler."""

    name: str
    """``DW_AT_name``: the source file as given to the compiler, relative to its directory or
    absolute.
    """
    directory: str | None
    """``DW_AT_comp_dir``: the directory in which the compiler was run."""


def _open_shared(elf: ElfFile) -> ElfFile | None:
    """Open the file with which an image shares debug info, None if the image has all of its own."""
    link = find_shared_link(elf)
    if link is None:
        return None
    path = find_shared_file(elf, link)
    if path is None:
        raise CapabilityError(
            f"{elf.name} shares debug info with '{link.name}', which is missing", hint=SHARED_HINT
        )
    return ElfFile(path)


class StructureMember(NamedTuple):
    """A member of a structure."""

    name: str
    offset: int
    """In bytes."""
    size: int
    """In bytes; 0 if it is unknown."""


class Structure(NamedTuple):
    """A structure of the kernel."""

    size: int
    """In bytes."""
    members: tuple[StructureMember, ...]


class FoundRows(NamedTuple):
    """Rows of line tables, and the code that was inlined."""

    columns: Any
    """C's structure."""
    strings: list[str]
    """The source files, counted from 1."""


class UnitContents(NamedTuple):
    """The contents of units."""

    chains: array[int]
    """The location of each address, :data:`NO_UNIT` if its unit cannot be read."""
    locations: Locations
    rows: FoundRows
    definitions: Locations
    """The definition of each function that has code, inlined or not, as a frame. Functions inside
    other entries, as in Rust, are left out.
    """


class DwarfReader:
    """The debug info of a linked image, mapped.

    :param elf: the image, or its file of debug info, which must stay open.
    :param contents: the contents of sections by name, in place of the image's own.
    :param shared: the file with which it shares debug info; None to find it, if there is one.
    """

    def __init__(
        self,
        elf: ElfFile,
        contents: Mapping[str, bytes] = MappingProxyType({}),
        *,
        shared: ElfFile | None = None,
    ) -> None:
        ffi, lib = load_native()
        given = ffi.new("struct kcovdbg_sections *")
        # The pointers that C has must remain valid.
        self._kept: list[Any] = [given]
        opened = None
        if shared is None and not contents:
            shared = opened = _open_shared(elf)
        for name in _SHARED:
            setattr(given, f"shared_{name}", _NOWHERE)
        for name in SECTIONS:
            data: bytes | memoryview | None = contents.get(name)
            if data is None:
                section = elf.debug_section(name)
                data = b"" if section is None else elf.map_section(section)
            if shared is not None and name in _SHARED:
                setattr(given, f"shared_{name}", len(data))
                section = shared.debug_section(name)
                data = bytes(data) + (b"" if section is None else shared.read_section(section))
            pointer = ffi.from_buffer(data)
            part = getattr(given, name)
            part.data, part.size = pointer, len(data)
            self._kept += [data, pointer]
        if opened is not None:
            opened.close()
        given.must_swap = elf.header.big_endian != (sys.byteorder == "big")
        self._dwarf = lib.kcovdbg_dwarf_new(given)
        if self._dwarf == ffi.NULL:
            raise over_limit(MEMORY, f"{elf.name}: the units in its debug info")
        self._dwarf = ffi.gc(self._dwarf, lib.kcovdbg_dwarf_free)
        self._units = lib.kcovdbg_dwarf_units(self._dwarf)
        self._count: int = lib.kcovdbg_dwarf_unit_count(self._dwarf)

    def __len__(self) -> int:
        """Return the number of units, including units that cannot be read."""
        return self._count

    def unit(self, number: int) -> CompileUnit | None:
        """Return a unit, None for a unit without code or without a name."""
        if not 0 <= number < self._count:
            return None
        unit = self._units[number]
        name = _text(unit.name)
        return None if name is None else CompileUnit(name, _text(unit.directory))

    @property
    def directory(self) -> str | None:
        """The directory of the first unit, whether it has code or not; None when there is none."""
        if not self._count:
            return None
        return _text(self._units[0].directory) or None

    def unit_size(self, number: int) -> int:
        """Return the size of a unit's entries in bytes, a measure of the time to read it."""
        return int(self._units[number].size)

    def structure(self, name: str) -> Structure | None:
        """Return the first members of a structure, None if debug info has no such structure.

        One of the first units has it in most images; if no unit has it, all are searched.
        """
        ffi, lib = load_native()
        members = ffi.new("struct kcovdbg_member[]", _MOST_MEMBERS)
        size = ffi.new("uint64_t *")
        count = lib.kcovdbg_dwarf_structure(
            self._dwarf, name.encode(), size, members, _MOST_MEMBERS
        )
        if not count:
            return None
        found = [
            StructureMember(_text(one.name) or "", one.offset, one.size) for one in members[0:count]
        ]
        return Structure(size[0], tuple(found))

    def functions_without_return(self) -> list[int]:
        """Return the first addresses of the functions that never return (``DW_AT_noreturn``), and
        of parts of them.
        """
        ffi, lib = load_native()
        count = lib.kcovdbg_dwarf_no_returns(self._dwarf, ffi.NULL, 0)
        found = ffi.new("uint64_t[]", count)
        lib.kcovdbg_dwarf_no_returns(self._dwarf, found, count)
        return list(found)

    def find_units(self, addresses: array[int]) -> array[int]:
        """Return the number of each address's unit, :data:`NO_UNIT` for an address in no unit.

        :param addresses: ascending.
        """
        _, lib = load_native()
        count = len(addresses)
        found = zeros("I", count)
        check_status(
            lib.kcovdbg_dwarf_find_units(
                self._dwarf, column("Q", addresses, count), count, column("I", found, count)
            )
        )
        return found

    def read(
        self,
        units: Sequence[int],
        ends: Sequence[int],
        addresses: array[int],
        *,
        everything: bool = True,
    ) -> UnitContents:
        """Read units, and locate addresses; several threads may do so.

        :param units: numbers of units.
        :param ends: the end of each unit's addresses in ``addresses``.
        :param addresses: ascending within a unit.
        :param everything: whether rows and definitions are wanted as well.
        """
        ffi, lib = load_native()
        locations, row_files, definitions = Locations(), Locations(), Locations()
        rows = ffi.gc(ffi.new("struct kcovdbg_found_rows *"), lib.kcovdbg_rows_free)
        contents = ffi.new("struct kcovdbg_contents *")
        contents.locations = locations.pointer
        if everything:
            contents.rows, contents.row_files = rows, row_files.pointer
            contents.definitions = definitions.pointer
        count = len(addresses)
        chains = zeros("I", count)
        if len(units) != len(ends):
            raise ValueError(f"{len(ends)} ends of {len(units)} units")
        status = lib.kcovdbg_dwarf_read(
            self._dwarf,
            ffi.new("uint32_t[]", units),
            ffi.new("size_t[]", ends),
            len(units),
            column("Q", addresses, count),
            count,
            contents,
            column("I", chains, count),
        )
        check_status(status)
        found = FoundRows(rows, row_files.arrays().strings())
        return UnitContents(chains, locations, found, definitions)


def read_comp_dir(elf: ElfFile) -> str | None:
    """Return the directory that an image was built in: ``DW_AT_comp_dir`` of its first unit.

    :return: None when its debug info has none, is damaged, or has it in an unknown form.
    """
    section = elf.debug_section("info")
    layout = struct.Struct(f"{elf.header.byte_order}I")
    try:
        start = b"" if section is None else elf.read_section(section, _FIRST_UNIT)
        (size,) = layout.unpack_from(start)
        # The unit is cut where the read bytes end. Larger sizes mark the 64-bit format.
        if size < 0xFFFFFFF0:
            size = min(size, len(start) - layout.size)
        unused = dict.fromkeys(("line", "addr", "ranges", "rnglists"), b"")
        return DwarfReader(
            elf, {"info": layout.pack(size) + start[layout.size :], **unused}
        ).directory
    except (ElfError, struct.error):
        # Source text is then searched for elsewhere.
        return None
