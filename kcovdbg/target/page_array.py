# SPDX-License-Identifier: LGPL-2.1-or-later
"""The array of ``struct page``, and the addresses of the kernel's mappings of pages, in the memory
of any target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.target.pointer import check_pointer, read_pointer, read_word
from kcovdbg.target.struct_layout import find_kernel_symbol, find_member, read_partly
from kcovdbg.target.target import Target

PAGE: Final = "struct page"
_PAGE_TYPE: Final = ("page_type", "_mapcount.counter")

_MACHINES: Final = frozenset({"x86_64", "aarch64", "riscv64", "s390x"})
# arch/x86/include/asm/page_64_types.h: the address since Linux kernel commit d52888aa2753 ("x86/mm:
# Move LDT remap out of KASLR region on 5-level paging") (in v4.20), and the one before it.
_DIRECT_MAPS: Final = (0xFFFF_8880_0000_0000, 0xFFFF_8800_0000_0000)
# arch/arm64/mm/init.c: on a CPU with 48-bit addresses, a kernel for 52 bits moves memstart_addr by
# the difference; KASLR moves it by less than half of the 52 bits.
_ARM64_WIDE_BITS: Final = 52
_ARM64_MOVED: Final = -(1 << _ARM64_WIDE_BITS - 1)
# Bytes of the array that are read at once: the part of a section of memory.
_CHUNK: Final = 2 << 20
# MAX_PAGE_ORDER is 10 on most machines, 13 on arm64 with pages of 64 KiB.
_MAX_ORDER: Final = 16
# page_type of a free page, in which PG_buddy, 0x80, is cleared; since Linux kernel commit
# 6e292b9be7f4 ("mm: split page_type out from _mapcount") (in v4.18).
_OLD_BUDDY_TYPE: Final = 0xFFFF_FF7F
# Missing pages in a row after which the rest of a part counts as missing: on a large machine, all
# of it may be missing.
_PATIENCE: Final = 4


class PageBlock(NamedTuple):
    """Consecutive elements of the array."""

    first: int
    """Page frame number of the first element."""
    address: int
    """``struct page *`` of the first element."""
    data: bytes
    """Whole elements; zero if their memory is missing."""
    missing: int
    """The number of pages of the array that could not be read, also behind ``data``."""


class PageArray:
    """The array of ``struct page`` of an x86-64, arm64, riscv64 or s390x kernel.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info lacks a type, or for another machine.
    :raises MissingSymbolError: when the kernel has no such array.
    """

    def __init__(self, target: Target) -> None:
        if target.machine not in _MACHINES:
            raise MissingTypeError(f"the memory model of {target.machine} is unknown")
        self._target = target
        self.element_size = target.type_size(PAGE)
        """Size of ``struct page`` in bytes."""
        self._free_order = _find_free_order(target) if target.connection.is_slow else None

    def direct_map(self) -> int:
        """Return the address at which the kernel maps the first page of physical memory.

        :raises ReadError: when it cannot be read.
        """
        if self._target.machine == "riscv64":
            return self._read_variable("kernel_map", "struct kernel_mapping", "va_pa_offset")
        if self._target.machine == "s390x":
            return self._find_s390x_map()
        # A variable with CONFIG_DYNAMIC_MEMORY_LAYOUT, which KASLR of memory and five-level page
        # tables need.
        variable = find_kernel_symbol(self._target, "page_offset_base")
        if variable is None:
            # The address of a structure in the direct map.
            cache = read_pointer(self._target, self._target.symbol("slab_caches").address)
            if self._target.machine == "aarch64":
                return self._find_arm64_map(cache)
            return next((base for base in _DIRECT_MAPS if base <= cache), _DIRECT_MAPS[-1])
        base = read_word(self._target, variable.address)
        check_pointer(self._target, base, "page_offset_base", PAGE_SIZE)
        return base

    def _read_variable(self, name: str, type_name: str, member: str) -> int:
        return read_word(
            self._target,
            self._target.symbol(name).address + self._target.member(type_name, member).offset,
        )

    def _find_s390x_map(self) -> int:
        """Return the start of the direct map: 0, unless CONFIG_RANDOMIZE_IDENTITY_BASE (in v6.10)
        moves it.
        """
        try:
            return self._read_variable("vm_layout", "struct vm_layout", "identity_base")
        except MissingTypeError:
            return 0
        except ReadError:
            # Older slices lack the variable. If the map was moved, it starts behind all memory.
            pages = max(part.first + part.length for part in self._target.page_ranges())
            cache = read_pointer(self._target, self._target.symbol("slab_caches").address)
            if cache >= pages * self._target.page_size:
                raise
            return 0

    def _find_arm64_map(self, address: int) -> int:
        """Return the start of the direct map, ``__phys_to_virt()`` of 0, by an address in it."""
        start = read_word(self._target, self._target.symbol("memstart_addr").address)
        start -= (start >> 63) << 64
        # The direct map is the lower half of the addresses from -(1 << bits) on.
        bits = (~address & WORD_MASK).bit_length()
        if start <= _ARM64_MOVED:
            bits = _ARM64_WIDE_BITS
        return -(1 << bits) - start & WORD_MASK

    def for_each_block(self) -> Iterator[PageBlock]:
        """Yield the parts of the array. Through a slow connection, the elements of free pages are
        not read, and are zero.

        :raises ReadError: when the array cannot be found.
        """
        size = self.element_size
        for first, count, address in self._target.page_ranges():
            step = _CHUNK // size
            for index in range(0, count, step):
                frame, start = first + index, address + index * size
                data, gaps = self._read_elements(frame, start, min(step, count - index) * size)
                missing = sum(-(-gap // self._target.page_size) for _, gap in gaps)
                yield PageBlock(frame, start, data[: len(data) // size * size], missing)

    def _read_elements(
        self, first: int, address: int, size: int
    ) -> tuple[bytes, list[tuple[int, int]]]:
        """Read elements as :func:`~kcovdbg.target.struct_layout.read_partly` does.

        :param first: page frame number of the first one.
        """
        data = bytearray()
        while self._free_order is not None and len(data) < size:
            start = address + len(data)
            length = min(PAGE_SIZE - start % PAGE_SIZE, size - len(data))
            try:
                page = self._target.read(start, length)
            except ReadError:
                break
            index = len(data) // self.element_size
            data += page
            while (end := (index + 1) * self.element_size) <= len(data):
                order = self._free_order(bytes(data[end - self.element_size : end]))
                # The allocator aligns a block to its size.
                is_block = order <= _MAX_ORDER and not (first + index) % (1 << order)
                index += 1 << order if is_block else 1
            data += bytes(max(min(index * self.element_size, size) - len(data), 0))
        rest, gaps = read_partly(self._target, address + len(data), size - len(data), _PATIENCE)
        return bytes(data) + rest, [(len(data) + offset, length) for offset, length in gaps]

    def find_frame(self, page: int) -> int | None:
        """Return the page frame number of a ``struct page *``, None when it is not in the array.

        :raises ReadError: when the array cannot be found.
        """
        for first, count, address in self._target.page_ranges():
            index, rest = divmod(page - address, self.element_size)
            if 0 <= index < count and not rest:
                return first + index
        return None


def find_page_type(target: Target, name: str) -> Callable[[bytes], bool] | None:
    """Return a function that returns whether a ``struct page`` has a type, None if it is not one of
    ``enum pagetype``.

    :param name: ``slab`` or ``buddy``.
    :raises MissingTypeError: when the debug info lacks the member that has the type.
    """
    try:
        types = target.enumerators("enum pagetype")
    except MissingTypeError:
        return None
    if f"PGTY_{name}" in types:
        # Since Linux kernel commit 4ffca5a96678 ("mm: support only one page_type per page") (in
        # v6.12).
        read, value = page_reader(target, _PAGE_TYPE), types[f"PGTY_{name}"]
        return lambda page: read(page) >> 24 == value
    if f"PG_{name}" in types:
        # Since Linux kernel commit ff202303c398 ("mm: convert page type macros to enum") (in
        # v6.11): bits are cleared.
        read, value = page_reader(target, _PAGE_TYPE), types[f"PG_{name}"]
        return lambda page: not read(page) & value
    return None


def page_reader(target: Target, paths: Sequence[str]) -> Callable[[bytes], int]:
    """Return a function that returns a member of a ``struct page``.

    :raises MissingTypeError: when the debug info has none of these members.
    """
    member = find_member(target, PAGE, paths)
    if member is None:
        raise MissingTypeError(f"{PAGE} has none of {', '.join(paths)}")
    start, end = member.offset, member.offset + member.size
    return lambda page: int.from_bytes(page[start:end], target.byte_order)


def _find_free_order(target: Target) -> Callable[[bytes], int] | None:
    """Return a function that returns the order of the free block that begins with a ``struct
    page``, 0 for other pages.

    None if the debug info does not show which pages are free.
    """
    try:
        order = page_reader(target, ("private",))
        is_free = find_page_type(target, "buddy")
        if is_free is None:
            read = page_reader(target, ("page_type",))
            return lambda page: order(page) if read(page) == _OLD_BUDDY_TYPE else 0
    except MissingTypeError:
        return None
    return lambda page: order(page) if is_free(page) else 0
