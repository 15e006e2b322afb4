# SPDX-License-Identifier: LGPL-2.1-or-later
"""Virtual memory of 64-bit RISC-V kernels, whose page tables drgn does not walk.

The privileged architecture defines Sv39, Sv48 and Sv57, whose tables have 512 entries of 8 bytes
each, and Svnapot. A kernel's VMCOREINFO (arch/riscv/kernel/vmcore_info.c) leads to its tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kcovdbg.abi.address import PAGE_SIZE, ReadMemory, page_align_down
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import PT_LOAD, parse_vmcoreinfo
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.input_file import parse_number

_ENTRY_SIZE: Final = 8
_VALID: Final = 1
# Readable, writable, executable: an entry with any of these bits leads to a page, not to a table.
_LEAF: Final = 0xE
# Svnapot: the entry is for 16 pages in a row. The lowest bits of its page number encode that.
_NAPOT: Final = 1 << 63
_NAPOT_SIZE: Final = PAGE_SIZE << 4
_PAGE_NUMBER: Final = (1 << 44) - 1
_PAGE_SHIFT: Final = 12
_INDEX_BITS: Final = 9
_LEVELS: Final = {39: 3, 48: 4, 57: 5}


class PageTables:
    """The page tables of a kernel.

    :param read: reads physical memory.
    :param root: the physical address of the highest table.
    :param levels: the number of levels of tables.
    """

    def __init__(self, read: ReadMemory, root: int, levels: int) -> None:
        self._read = read
        self._root = root
        self._shift = _PAGE_SHIFT + _INDEX_BITS * (levels - 1)

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory.

        :raises ReadError: when a part of it is not mapped.
        """
        return b"".join(self._read(start, length) for start, length in self._pieces(address, size))

    def translate(self, address: int) -> int | None:
        """Return the physical address for a virtual address, None when it is not mapped."""
        found = self._walk(address)
        return None if found is None else found[0]

    def _pieces(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the pieces of virtual memory by mapping: physical address and size of each."""
        end = address + size
        while address < end:
            found = self._walk(address)
            if found is None:
                raise ReadError(f"{address:#x} is not mapped", address)
            length = min(found[1], end - address)
            yield found[0], length
            address += length

    def _walk(self, address: int) -> tuple[int, int] | None:
        """Return the physical address for a virtual address, and the bytes up to the end of its
        mapping; None when it is not mapped.
        """
        # All bits above the translated ones are copies of the highest translated bit.
        high = address >> self._shift + _INDEX_BITS - 1
        if high not in (0, (1 << 65 - self._shift - _INDEX_BITS) - 1):
            return None
        table = self._root
        for shift in range(self._shift, _PAGE_SHIFT - 1, -_INDEX_BITS):
            index = address >> shift & (1 << _INDEX_BITS) - 1
            entry = int.from_bytes(self._read(table + index * _ENTRY_SIZE, _ENTRY_SIZE), "little")
            if not entry & _VALID:
                return None
            physical = (entry >> 10 & _PAGE_NUMBER) << _PAGE_SHIFT
            if entry & _LEAF:
                size = _NAPOT_SIZE if entry & _NAPOT else 1 << shift
                offset = address & size - 1
                return (physical & -size) + offset, size - offset
            table = physical
        return None


def _number(vmcoreinfo: Mapping[str, str], key: str, base: int = 16) -> int:
    """Return a number in VMCOREINFO.

    :raises KeyError: when there is no line with this key.
    :raises ValueError: when its value is no number.
    """
    value = parse_number(vmcoreinfo[key], base)
    if value is None:
        raise ValueError(f"{key} is no number")
    return value


def find_page_tables(vmcoreinfo: Mapping[str, str], read: ReadMemory) -> PageTables:
    """Return the page tables of the kernel that VMCOREINFO describes.

    :param read: reads physical memory.
    :raises TargetError: when VMCOREINFO lacks their place.
    """
    try:
        root = _number(vmcoreinfo, "SYMBOL(swapper_pg_dir)")
        root -= _number(vmcoreinfo, "NUMBER(va_kernel_pa_offset)")
        levels = _LEVELS[_number(vmcoreinfo, "NUMBER(VA_BITS)", 10)]
    except (KeyError, ValueError) as error:
        raise TargetError(
            f"VMCOREINFO does not say where the page tables are: {error}",
            hint="the kernel may be too old for dumps",
        ) from None
    return PageTables(read, root, levels)


def find_direct_map(vmcoreinfo: Mapping[str, str]) -> int | None:
    """Return the virtual address of physical address 0, None when VMCOREINFO lacks it."""
    try:
        start = _number(vmcoreinfo, "NUMBER(PAGE_OFFSET)")
        return start - _number(vmcoreinfo, "NUMBER(phys_ram_base)", 10)
    except (KeyError, ValueError):
        return None


_FIRST_LINE: Final = b"OSRELEASE="
_CHUNK: Final = 16 << 20


def search_vmcoreinfo(core: ElfFile, read: ReadMemory) -> bytes | None:
    """Search a dump without a note of VMCOREINFO for the kernel's VMCOREINFO, None when there is
    none.

    VMCOREINFO is a page of the kernel's memory. A page is accepted if the page tables that it leads
    to map the kernel's text. QEMU cannot write the note for RISC-V machines, at least up to version
    7.2, as their configuration device comes too late.

    :param core: the dump.
    :param read: reads its physical memory; raises ReadError for missing memory.
    """
    for segment in core.segments:
        spans = core.find_extents(segment.offset, segment.filesz if segment.type == PT_LOAD else 0)
        for offset in (at for first, size in spans for at in range(first, first + size, _CHUNK)):
            # Start at a page of memory, which need not be at a multiple of its size in the file.
            start = segment.offset + page_align_down(offset - segment.offset)
            rest = segment.offset + segment.filesz - start
            data = core.read_at(start, min(_CHUNK + PAGE_SIZE, rest))
            at = data.find(_FIRST_LINE)
            while at >= 0:
                page = data[at : at + PAGE_SIZE].split(b"\0", 1)[0]
                if at % PAGE_SIZE == 0 and _is_kernels(parse_vmcoreinfo(page), read):
                    return page
                at = data.find(_FIRST_LINE, at + 1)
    return None


def _is_kernels(vmcoreinfo: Mapping[str, str], read: ReadMemory) -> bool:
    """Return whether the page tables of VMCOREINFO map the kernel's text to the address in
    VMCOREINFO.
    """
    try:
        text = _number(vmcoreinfo, "SYMBOL(_stext)")
        offset = _number(vmcoreinfo, "NUMBER(va_kernel_pa_offset)")
        return find_page_tables(vmcoreinfo, read).translate(text) == text - offset
    except (KeyError, ValueError, TargetError, ReadError):
        return False


LINKED_SYMBOLS: Final = ("_stext", "swapper_pg_dir")
"""Symbols with an address in VMCOREINFO."""


def add_kaslr_offset(vmcoreinfo: bytes, linked: Mapping[str, int]) -> bytes:
    """Return VMCOREINFO with the KASLR offset, which these kernels leave out.

    :param vmcoreinfo: the kernel's VMCOREINFO.
    :param linked: addresses of symbols in the vmlinux.
    """
    lines = parse_vmcoreinfo(vmcoreinfo)
    for name in LINKED_SYMBOLS:
        address = parse_number(lines.get(f"SYMBOL({name})", ""), 16)
        if "KERNELOFFSET" not in lines and address is not None and name in linked:
            line = f"\nKERNELOFFSET={address - linked[name]:x}\n"
            return vmcoreinfo.rstrip(b"\0\n") + line.encode()
    return vmcoreinfo
