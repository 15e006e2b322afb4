# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading of an image's code and debug info in C: branches to functions, and source locations from DWARF.

Callers have something slower for installations without the compiled module. The headers in native/ document the C functions.
"""

from __future__ import annotations

import mmap
import os
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import Any, Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.elf.compile_units import CompileUnit
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_386, EM_AARCH64, EM_X86_64
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.numbered_locations import LocationArrays, LocationError

NO_UNIT: Final = 0xFFFFFFFF
"""The number of the unit of an address that is in none; of the chain of one whose unit cannot be read."""

SEARCHED: Final = {
    EM_X86_64: "kcovdbg_x86_branches",
    EM_386: "kcovdbg_x86_branches",
    EM_AARCH64: "kcovdbg_arm64_branches",
}
"""The machines whose branches the compiled module finds, each with the function that does."""
# BranchColumns in one call.
_BRANCHES: Final = 1 << 12
# Bytes of text for a thread; in whole instructions of arm64.
_SEARCHED_BYTES: Final = 1 << 20
SECTIONS: Final = ("info", "abbrev", "line", "str", "line_str", "str_offsets", "addr", "ranges", "rnglists")


class BranchColumns(NamedTuple):
    """Calls, or jumps, with a fixed target: two columns, as there are hundreds of thousands."""

    back: array[int]
    """The address after each."""
    target: array[int]


class BranchKind(IntEnum):
    """The kinds of branches, as native/branches.h numbers them."""

    CALL = 0
    JUMP = 1
    SHORT_JUMP = 2
    INDIRECT_CALL = 3
    INDIRECT_JUMP = 4


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def find_branches(
    texts: Sequence[tuple[int, bytes | memoryview]], machine: int, targets: Collection[int], kind: BranchKind
) -> BranchColumns:
    """Return the branches of a kind in some texts that lead to targets; all cores search.

    Of indirect calls, all are returned but those that end where a call of a target does.

    :param texts: addresses and contents.
    :param machine: a key of :data:`SEARCHED`.
    """
    ffi, lib = load_native()
    search = getattr(lib, SEARCHED[machine])
    wanted = lib.kcovdbg_targets_new(column("Q", array("Q", targets), len(targets)), len(targets))
    if wanted == ffi.NULL:
        raise MemoryError
    wanted = ffi.gc(wanted, lib.kcovdbg_targets_free)

    def find(part: tuple[int, Any, int]) -> BranchColumns:
        address, text, first = part
        found = BranchColumns(array("Q"), array("Q"))
        columns = [zeros("Q", _BRANCHES) for _ in found]
        pointers = [column("Q", part, _BRANCHES) for part in columns]
        start, stop = ffi.new("size_t *", first), first + _SEARCHED_BYTES
        while start[0] < stop:
            count = search(text, len(text), address, kind, wanted, start, stop, *pointers, _BRANCHES)
            for whole, piece in zip(found, columns, strict=True):
                whole.extend(piece[:count])
        return found

    parts = [
        (address, ffi.from_buffer(text), first) for address, text in texts for first in range(0, len(text), _SEARCHED_BYTES)
    ]
    found = BranchColumns(array("Q"), array("Q"))
    with ThreadPoolExecutor(core_count()) as pool:
        # C code runs in parallel.
        for more in pool.map(find, parts):
            for whole, piece in zip(found, more, strict=True):
                whole.extend(piece)
    return found


def merge_points(columns: Sequence[tuple[array[int], int]]) -> tuple[array[int], bytes]:
    """Merge columns of PCs, each with their kind, into the ascending PCs and the kind of each."""
    ffi, lib = load_native()
    pointers = [column("Q", pcs, len(pcs)) for pcs, _ in columns]
    given = ffi.new("struct kcovdbg_points[]", len(columns))
    for one, pointer, (pcs, kind) in zip(given, pointers, columns, strict=True):
        one.pcs, one.count, one.kind = pointer, len(pcs), kind
    size = sum(len(pcs) for pcs, _ in columns)
    merged, kinds = zeros("Q", size), bytearray(size)
    if lib.kcovdbg_merge_points(given, len(columns), column("Q", merged, size), column("B", kinds, size), size):
        raise ValueError("points of columns that do not ascend")
    return merged, bytes(kinds)


def make_rows(
    pcs: array[int],
    kinds: bytes,
    chains: array[int],
    base: int,
    chain_ends: array[int],
    shift: int,
    bucket_count: int,
) -> tuple[array[int], array[int], array[int]]:
    """Return the offset of each PC, the word of its chain, and buckets of offsets.

    :raises ValueError: when PCs do not ascend or have chains that there are not.
    """
    _, lib = load_native()
    count = len(pcs)
    offsets, rows, buckets = zeros("I", count), zeros("Q", count), zeros("I", bucket_count)
    failed = lib.kcovdbg_make_rows(
        column("Q", pcs, count),
        column("B", kinds, count),
        column("I", chains, count),
        count,
        base,
        column("I", chain_ends, len(chain_ends)),
        len(chain_ends),
        shift,
        column("I", offsets, count),
        column("Q", rows, count),
        column("I", buckets, bucket_count),
        bucket_count,
    )
    if failed:
        raise ValueError("PCs that do not ascend, or chains out of range")
    return offsets, rows, buckets


def _check(status: int) -> None:
    """Raise what a function of native/locations.h or native/dwarf.h says.

    :raises CapabilityError: when the locations take more memory than there is, or than those of any kernel.
    :raises LocationError: when they are damaged.
    """
    if status == -1:
        raise CapabilityError("its debug info has more locations than fit into memory")
    if status < 0:
        raise LocationError("numbers out of range")


class NativeLocations:
    """Numbered locations, kept in C: :class:`~kcovdbg.symbols.numbered_locations.Locations`."""

    def __init__(self) -> None:
        ffi, lib = load_native()
        self.pointer = lib.kcovdbg_locations_new()
        if self.pointer == ffi.NULL:
            raise MemoryError
        self.pointer = ffi.gc(self.pointer, lib.kcovdbg_locations_free)

    def arrays(self) -> LocationArrays:
        """Return a copy of what there is."""
        ffi, lib = load_native()
        found = ffi.new("struct kcovdbg_location_arrays *")
        lib.kcovdbg_locations_arrays(self.pointer, found)

        def copy(pointer: Any, count: int) -> array[int]:
            numbers = array("I")
            if count:
                numbers.frombytes(ffi.buffer(pointer, 4 * count))
            return numbers

        text = bytes(ffi.buffer(found.text, found.text_size)) if found.text_size else b""
        return LocationArrays(
            text,
            copy(found.frames, 4 * found.frame_count),
            copy(found.chain_ends, found.chain_count),
            copy(found.chain_frames, found.chain_frame_count),
        )

    def add(self, more: LocationArrays) -> array[int]:
        """Add locations; return the number that each of them has here.

        :raises LocationError: when they are damaged.
        """
        ffi, lib = load_native()
        given = ffi.new("struct kcovdbg_location_arrays *")
        text = ffi.from_buffer(more.text)
        if len(more.frames) % 4:
            raise LocationError("numbers out of range")
        pointers = [column("I", numbers, len(numbers)) for numbers in more[1:]]
        given.text, given.text_size = text, len(more.text)
        given.frames, given.frame_count = pointers[0], len(more.frames) // 4
        given.chain_ends, given.chain_count = pointers[1], len(more.chain_ends)
        given.chain_frames, given.chain_frame_count = pointers[2], len(more.chain_frames)
        numbers = zeros("I", len(more.chain_ends))
        _check(lib.kcovdbg_locations_add(self.pointer, given, column("I", numbers, len(numbers))))
        return numbers

    def common(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Return what the locations of each group have in common: all of it, or the outermost function alone, or nothing."""
        _, lib = load_native()
        numbers = zeros("I", 1)
        common = column("I", numbers, 1)
        found = []
        for group in groups:
            _check(lib.kcovdbg_locations_common(self.pointer, group, len(group), common))
            found.append(numbers[0])
        return found


class DwarfReader:
    """The debug info of a linked image, mapped.

    :param elf: the image, or its file of debug info; open as long as this is used.
    """

    def __init__(self, elf: ElfFile) -> None:
        ffi, lib = load_native()
        given = ffi.new("struct kcovdbg_sections *")
        # The pointers that C has must remain valid.
        self._kept: list[Any] = [given]
        for name in SECTIONS:
            section = elf.debug_section(name)
            data: bytes | mmap.mmap | memoryview = b"" if section is None else elf.map_section(section)
            pointer = ffi.from_buffer(data)
            part = getattr(given, name)
            part.data, part.size = pointer, len(data)
            self._kept += [data, pointer]
        given.must_swap = elf.header.big_endian != (sys.byteorder == "big")
        self._dwarf = lib.kcovdbg_dwarf_new(given)
        if self._dwarf == ffi.NULL:
            raise CapabilityError("its debug info has more units than fit into memory")
        self._dwarf = ffi.gc(self._dwarf, lib.kcovdbg_dwarf_free)
        self._units = lib.kcovdbg_dwarf_units(self._dwarf)
        self._count: int = lib.kcovdbg_dwarf_unit_count(self._dwarf)

    def units(self) -> Iterator[CompileUnit]:
        """Iterate over the units with code or a name."""
        ffi, lib = load_native()
        ranges = lib.kcovdbg_dwarf_ranges(self._dwarf)

        def text(pointer: Any) -> str | None:
            return None if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")

        for index in range(self._count):
            unit = self._units[index]
            name = text(unit.name)
            if name is not None:
                first = range(unit.first_range, unit.first_range + unit.range_count)
                yield CompileUnit(name, text(unit.directory), tuple((ranges[2 * at], ranges[2 * at + 1]) for at in first))

    def unit_sizes(self) -> list[int]:
        """Return the size of each unit's entries in bytes, which tells how long it takes to read."""
        return [self._units[index].size for index in range(self._count)]

    def find_units(self, addresses: array[int]) -> array[int]:
        """Return the number of the unit of each address, :data:`NO_UNIT` for those in none."""
        _, lib = load_native()
        count = len(addresses)
        found = zeros("I", count)
        _check(lib.kcovdbg_dwarf_find_units(self._dwarf, column("Q", addresses, count), count, column("I", found, count)))
        return found

    def locate(self, units: Sequence[int], ends: Sequence[int], addresses: array[int]) -> tuple[array[int], LocationArrays]:
        """Locate addresses; several threads may do so.

        :param units: numbers of units.
        :param ends: where the addresses of each unit end; those of one are ascending.
        :return: the chain of each address, :data:`NO_UNIT` where its unit cannot be read; and the chains.
        """
        ffi, lib = load_native()
        locations = NativeLocations()
        count = len(addresses)
        chains = zeros("I", count)
        if len(units) != len(ends):
            raise ValueError(f"{len(ends)} ends of {len(units)} units")
        status = lib.kcovdbg_dwarf_locate(
            self._dwarf,
            ffi.new("uint32_t[]", units),
            ffi.new("size_t[]", ends),
            len(units),
            column("Q", addresses, count),
            count,
            locations.pointer,
            column("I", chains, count),
        )
        _check(status)
        return chains, locations.arrays()
