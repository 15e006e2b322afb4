# SPDX-License-Identifier: LGPL-2.1-or-later
"""The array of ``struct page``, and the address at which the kernel maps each page, over any target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.target.pointer import check_pointer, is_kernel_pointer, read_pointer, read_word, strip_tag
from kcovdbg.target.protocol import Target
from kcovdbg.target.struct_layout import find_member, find_page_size, read_partly

PAGE: Final = "struct page"
_PAGE_TYPE: Final = ("page_type", "_mapcount.counter")

# arch/x86/include/asm/sparsemem.h and that of riscv, where no map of a section's parts has as many bits; debug info has no
# macros.
_SECTION_BITS: Final = {"x86_64": 27, "riscv64": 27}
_MACHINES: Final = frozenset({*_SECTION_BITS, "aarch64", "s390x"})
# include/linux/mmzone.h: what can be present or absent in a section.
_SUBSECTION_BITS: Final = 21
# Flags of section_mem_map. The array of a section is aligned to a page.
_SECTION_FLAGS: Final = PAGE_SIZE - 1
_SECTION_PRESENT: Final = 1
# With five-level page tables a machine has 52 bits of physical addresses, as arm64 has at most.
_MAX_SECTIONS: Final = 1 << 52 - 27
# arch/x86/include/asm/page_64_types.h: since Linux kernel commit d52888aa2753 ("x86/mm: Move LDT remap out of KASLR region on
# 5-level paging") (in v4.20), and before.
_DIRECT_MAPS: Final = (0xFFFF_8880_0000_0000, 0xFFFF_8800_0000_0000)
# arch/arm64/mm/init.c: a kernel for 52 bits on a CPU for 48 moves memstart_addr by the difference, KASLR by less than half of
# the 52 bits.
_ARM64_WIDE_BITS: Final = 52
_ARM64_MOVED: Final = -(1 << _ARM64_WIDE_BITS - 1)
# A section's part of the array.
_CHUNK: Final = 2 << 20
# MAX_PAGE_ORDER is 10 on most machines, 13 on arm64 with pages of 64 KiB.
_MAX_ORDER: Final = 16
# Linux kernel commit 6e292b9be7f4 ("mm: split page_type out from _mapcount") (in v4.18): PG_buddy, 0x80, is cleared.
_OLD_BUDDY_TYPE: Final = 0xFFFF_FF7F
# After so many missing pages in a row, the rest of a part counts as missing: on a large machine, all of it may be missing.
_PATIENCE: Final = 4


class PageBlock(NamedTuple):
    """Consecutive elements of the array."""

    first: int
    """Page frame number of the first one."""
    address: int
    """``struct page *`` of the first one."""
    data: bytes
    """Whole elements; zero where memory is missing."""
    missing: int
    """Pages of the array that could not be read, those behind ``data`` included."""


class PageArray:
    """The array of ``struct page`` of an x86-64, arm64, riscv64 or s390x kernel.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info lacks its types, or for another machine.
    :raises MissingSymbolError: when the kernel has no such array.
    """

    def __init__(self, target: Target) -> None:
        if target.machine not in _MACHINES:
            raise MissingTypeError(f"the memory model of {target.machine} is unknown")
        self._target = target
        self.page_size = find_page_size(target)
        """Of the kernel, in bytes."""
        self.element_size = target.type_size(PAGE)
        """Of ``struct page``, in bytes."""
        self._free_order = _find_free_order(target) if target.connection.is_slow else None
        self._is_sparse = True
        try:
            self._sections = target.symbol("mem_section").address
        except MissingSymbolError:
            self._is_sparse = False
            self._array = target.symbol("mem_map").address
            self._end = target.symbol("max_pfn").address
            return
        self._section_size = target.type_size("struct mem_section")
        self._map = target.member("struct mem_section", "section_mem_map").offset
        # Linux kernel commit f46edbd1b151 ("mm/sparsemem: add helpers track active portions of a section at boot") (in v5.3).
        self._usage = find_member(target, "struct mem_section", ("usage",))
        self._present = find_member(target, "struct mem_section_usage", ("subsection_map",))
        if self._present is not None:
            # A bit for each part.
            self._section_bits = _SUBSECTION_BITS + (8 * self._present.size).bit_length() - 1
        elif target.machine in _SECTION_BITS:
            self._section_bits = _SECTION_BITS[target.machine]
        else:
            raise MissingTypeError("the size of sections of memory is unknown")
        self._last = target.symbol("__highest_present_section_nr").address
        kind, length = target.variable_type("mem_section")
        # A pointer to an array of roots, an array of roots, or with CONFIG_SPARSEMEM_EXTREME=n an array of arrays.
        self._has_pointer = length is None
        if length is not None and "*" not in kind:
            raise MissingTypeError("mem_section is an array of sections")

    def direct_map(self) -> int:
        """Return the address at which the kernel maps the first page of physical memory.

        :raises ReadError: when it cannot be read.
        """
        if self._target.machine == "riscv64":
            return self._read_variable("kernel_map", "struct kernel_mapping", "va_pa_offset")
        if self._target.machine == "s390x":
            return self._find_s390x_map()
        try:
            # With CONFIG_DYNAMIC_MEMORY_LAYOUT, which KASLR of memory and five-level page tables need.
            variable = self._target.symbol("page_offset_base").address
        except MissingSymbolError:
            # Some structure that is not in the image.
            cache = read_pointer(self._target, self._target.symbol("slab_caches").address)
            if self._target.machine == "aarch64":
                return self._find_arm64_map(cache)
            return next((base for base in _DIRECT_MAPS if base <= cache), _DIRECT_MAPS[-1])
        base = read_word(self._target, variable)
        check_pointer(self._target, base, "page_offset_base", PAGE_SIZE)
        return base

    def _read_variable(self, name: str, type_name: str, member: str) -> int:
        return read_word(self._target, self._target.symbol(name).address + self._target.member(type_name, member).offset)

    def _find_s390x_map(self) -> int:
        """Return the start of the direct map: 0, unless CONFIG_RANDOMIZE_IDENTITY_BASE (in v6.10) moves it."""
        try:
            return self._read_variable("vm_layout", "struct vm_layout", "identity_base")
        except MissingTypeError:
            return 0
        except ReadError:
            # Older slices lack it. It is moved behind all memory.
            end = read_word(self._target, self._last) + 1 << self._section_bits
            if read_pointer(self._target, self._target.symbol("slab_caches").address) >= end:
                raise
            return 0

    def _find_arm64_map(self, address: int) -> int:
        """Return the start of the direct map, by an address in it: ``__phys_to_virt()`` of 0."""
        start = read_word(self._target, self._target.symbol("memstart_addr").address)
        start -= (start >> 63) << 64
        # From -(1 << bits) up, half of all addresses are the direct map.
        bits = (~address & WORD_MASK).bit_length()
        if start <= _ARM64_MOVED:
            bits = _ARM64_WIDE_BITS
        return -(1 << bits) - start & WORD_MASK

    def for_each_block(self) -> Iterator[PageBlock]:
        """Yield the parts of the array, with what of them can be read.

        Through a slow connection, elements of free pages are not read: they are zero.

        :raises ReadError: when it cannot be found.
        """
        size = self.element_size
        for first, count, address in self._for_each_range():
            step = _CHUNK // size
            for start in range(0, count, step):
                length = min(step, count - start)
                data, gaps = self._read_elements(first + start, address + start * size, length * size)
                missing = sum(-(-gap // self.page_size) for _, gap in gaps)
                yield PageBlock(first + start, address + start * size, data[: len(data) // size * size], missing)

    def _read_elements(self, first: int, address: int, size: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Read elements as :func:`~kcovdbg.target.struct_layout.read_partly` does.

        :param first: page frame number of the first one.
        """
        data = bytearray()
        while self._free_order is not None and len(data) < size:
            start = address + len(data)
            try:
                page = self._target.read(start, min(PAGE_SIZE - start % PAGE_SIZE, size - len(data)))
            except ReadError:
                break
            index = len(data) // self.element_size
            data += page
            while (end := (index + 1) * self.element_size) <= len(data):
                order = self._free_order(bytes(data[end - self.element_size : end]))
                # The allocator aligns a block to its size.
                index += 1 << order if order <= _MAX_ORDER and not (first + index) % (1 << order) else 1
            data += bytes(max(min(index * self.element_size, size) - len(data), 0))
        rest, gaps = read_partly(self._target, address + len(data), size - len(data), _PATIENCE)
        return bytes(data) + rest, [(len(data) + offset, length) for offset, length in gaps]

    def find_frame(self, page: int) -> int | None:
        """Return the page frame number of a ``struct page *``, None when it is not in the array.

        :raises ReadError: when the array cannot be found.
        """
        for first, count, address in self._for_each_range():
            index, rest = divmod(page - address, self.element_size)
            if 0 <= index < count and not rest:
                return first + index
        return None

    def _for_each_range(self) -> Iterator[tuple[int, int, int]]:
        """Yield for each part its first page frame number, its length, and the address of its first element."""
        if not self._is_sparse:
            array = read_pointer(self._target, self._array)
            check_pointer(self._target, array, PAGE)
            yield 0, read_word(self._target, self._end), array
            return
        last = read_word(self._target, self._last)
        if last >= _MAX_SECTIONS:
            raise ReadError(f"__highest_present_section_nr is {last:#x}", self._last)
        frames = (1 << self._section_bits) // self.page_size
        per_root = self.page_size // self._section_size
        roots = read_pointer(self._target, self._sections) if self._has_pointer else self._sections
        check_pointer(self._target, roots, "mem_section")
        for number in range(0, last + 1, per_root):
            root = read_pointer(self._target, roots + number // per_root * self._target.word_size)
            if not root:
                continue
            check_pointer(self._target, root, "struct mem_section")
            count = min(per_root, last + 1 - number)
            data = self._target.read(root, count * self._section_size)
            for index in range(count):
                section = data[index * self._section_size : (index + 1) * self._section_size]
                encoded = self._word(section, self._map)
                # It is relative to the first page of the machine.
                first = (number + index) * frames
                address = (encoded & ~_SECTION_FLAGS) + first * self.element_size
                if encoded & _SECTION_PRESENT and is_kernel_pointer(self._target, address):
                    for start, length in self._find_present(section):
                        yield first + start, length, address + start * self.element_size

    def _find_present(self, section: bytes) -> Iterator[tuple[int, int]]:
        """Yield the spans of pages that a section has elements for: memory that was added to a machine may have fewer.

        :param section: ``struct mem_section``.
        """
        frames = (1 << _SUBSECTION_BITS) // self.page_size
        count = 1 << self._section_bits - _SUBSECTION_BITS
        present = (1 << count) - 1
        if self._usage is not None and self._present is not None:
            usage = strip_tag(self._target, self._word(section, self._usage.offset))
            try:
                check_pointer(self._target, usage, "struct mem_section_usage")
                data = self._target.read(usage + self._present.offset, self._present.size)
                # A bitmap of words, the lowest bits first.
                words = (self._word(data, at) for at in range(0, len(data), self._target.word_size))
                present = sum(word << 8 * self._target.word_size * index for index, word in enumerate(words)) or present
            except ReadError:
                # Then elements that never existed are reported as missing.
                pass
        for is_present, numbers in groupby(range(count), lambda number: present >> number & 1):
            if is_present:
                first, *others = numbers
                yield first * frames, (len(others) + 1) * frames

    def _word(self, data: bytes, offset: int) -> int:
        order = "big" if self._target.big_endian else "little"
        return int.from_bytes(data[offset : offset + self._target.word_size], order)  # type: ignore[arg-type]


def find_page_type(target: Target, name: str) -> Callable[[bytes], bool] | None:
    """Return a function that returns whether a ``struct page`` has a type, None if it is not one of ``enum pagetype``.

    :param name: ``slab`` or ``buddy``.
    :raises MissingTypeError: when the debug info lacks the member that has the type.
    """
    try:
        types = target.enumerators("enum pagetype")
    except MissingTypeError:
        return None
    if f"PGTY_{name}" in types:
        # Since Linux kernel commit 4ffca5a96678 ("mm: support only one page_type per page") (in v6.12).
        read, value = page_reader(target, _PAGE_TYPE), types[f"PGTY_{name}"]
        return lambda page: read(page) >> 24 == value
    if f"PG_{name}" in types:
        # Since Linux kernel commit ff202303c398 ("mm: convert page type macros to enum") (in v6.11): bits are cleared.
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
    order = "big" if target.big_endian else "little"
    return lambda page: int.from_bytes(page[member.offset : member.offset + member.size], order)  # type: ignore[arg-type]


def _find_free_order(target: Target) -> Callable[[bytes], int] | None:
    """Return a function that returns the order of the free block that begins with a ``struct page``, 0 for other pages.

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
