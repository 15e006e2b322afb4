# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel in the memory of an arm64 machine, found by the registers for address translation.

The kernel's top-level page tables are variables of its image, which is contiguous in physical
memory: the address of the table that a CPU uses shows where the image is. That also works for a CPU
in user space, where page-table isolation unmaps nearly all of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK, ReadMemory
from kcovdbg.errors import ReadError
from kcovdbg.target.missing_vmcoreinfo import (
    CheckImage,
    MismatchError,
    NotBootedError,
    make_virtual_reader,
    read_vmcoreinfo,
)

_KERNEL_TABLE: Final = "swapper_pg_dir"
# The tables that TTBR1 can point to: in the kernel, in user space with page-table isolation, and
# while the kernel changes from one table to another.
_TABLES: Final = (_KERNEL_TABLE, "tramp_pg_dir", "reserved_pg_dir")
# A virtual address in the image minus its physical address; since Linux kernel commit a7f8de168ace
# ("arm64: allow kernel Image to be loaded anywhere in physical memory") (in v4.6).
_IMAGE_SHIFT: Final = "kimage_voffset"
SYMBOLS: Final = (*_TABLES, _IMAGE_SHIFT)
"""The symbols of the vmlinux by which the image is found."""

# TTBR1_ELx: the ASID is above the address, and bit 0 is CnP.
_TABLE_ADDRESS: Final = 0x0000_FFFF_FFFF_FFFE
# TCR_ELx.TG1.
_BITS_OF_64K: Final = 16
_GRANULE_BITS: Final = {1: 14, 2: 12, 3: _BITS_OF_64K}
# TCR_ELx.DS: 52-bit addresses with pages of 4 and 16 KiB.
_DS: Final = 1 << 59
# TCR_ELx.TBI1: the top byte of the kernel's pointers is a tag.
_TBI: Final = 1 << 38
_TOP_BYTE: Final = 0xFF << 56
_IS_KERNEL: Final = 1 << 55
_VALID: Final = 1
# Blocks lack this bit.
_TABLE_OR_PAGE: Final = 2


class TranslationRegisters(NamedTuple):
    """The registers with which a CPU translates the kernel's addresses."""

    ttbr1: int
    tcr: int

    @property
    def granule_bits(self) -> int | None:
        """Number of the lowest bits of an address, which are the offset in a page; None for an
        invalid register.
        """
        return _GRANULE_BITS.get(self.tcr >> 30 & 3)

    @property
    def address_bits(self) -> int:
        """Number of the bits of an address that are translated; all higher bits are set."""
        return 64 - (self.tcr >> 16 & 0x3F)

    def translate(self, read: ReadMemory, address: int) -> int | None:
        """Return the physical address for a virtual address of the kernel, None when it is not
        mapped.

        :param read: reads physical memory.
        """
        page_bits = self.granule_bits
        bits = self.address_bits
        if self.tcr & _TBI and address & _IS_KERNEL:
            address |= _TOP_BYTE
        if page_bits is None or bits <= page_bits:
            return None
        if (address & WORD_MASK) >> bits != WORD_MASK >> bits:
            return None
        # A table fills a page with entries of 8 bytes.
        index_bits = page_bits - 3
        levels = math.ceil((bits - page_bits) / index_bits)
        found = self.ttbr1 & _TABLE_ADDRESS
        rest = address & (1 << bits) - 1
        for level in reversed(range(levels)):
            # The bits below the index of this level.
            shift = page_bits + index_bits * level
            try:
                entry = int.from_bytes(read(found + 8 * (rest >> shift), 8), "little")
            except ReadError:
                return None
            if not entry & _VALID:
                return None
            found = _output_address(entry, page_bits, self.tcr)
            rest &= (1 << shift) - 1
            if entry & _TABLE_OR_PAGE:
                continue
            # A block has more than one page: the last level has none.
            if level == 0:
                return None
            return found & -(1 << shift) | rest
        return found | rest

    def find_kernel(
        self, where: str, physical: ReadMemory, symbols: Mapping[str, int], check: CheckImage
    ) -> bytes:
        """Return the VMCOREINFO of the kernel in a machine.

        :param where: the machine's name in messages.
        :param physical: reads physical memory.
        :param symbols: addresses in the vmlinux of :data:`SYMBOLS` and of VMCOREINFO.
        :param check: compares the image with the vmlinux, before variables of the kernel are read.
        :raises MismatchError: when the machine has another kernel.
        :raises NotBootedError: when the kernel has not booted far enough.
        :raises TargetError: when the kernel cannot be described.
        """
        failure: MismatchError | None = None
        for table in _TABLES:
            image = _find_image(self, physical, symbols, table)
            if image is None:
                continue
            try:
                check(image.offset, make_virtual_reader(image.translate, physical))
            except MismatchError as error:
                failure = failure or error
                continue
            except ReadError as error:
                raise NotBootedError(
                    f"could not read the kernel's memory: {error}",
                    hint="let the kernel finish booting, then try again",
                ) from None
            in_kernel = self._replace(ttbr1=image.kernel_ttbr1)
            virtual = make_virtual_reader(partial(in_kernel.translate, physical), physical)
            return read_vmcoreinfo(virtual, symbols, image.offset)
        detail = failure or f"{_KERNEL_TABLE} is not where the CPU has its page table"
        raise MismatchError(
            f"the vmlinux does not match the kernel at {where}: {detail}",
            hint="give the vmlinux of the same build; or let the kernel finish booting, then try "
            "again",
        )


def read_registers(read: Callable[[str], int | None]) -> TranslationRegisters | None:
    """Return the registers of a CPU, None when they are unknown, or 0 before it uses page tables.

    :param read: returns a register by QEMU's name, None when there is no such register.
    """
    # A kernel with VHE, on a machine with virtualization, runs at EL2.
    for level in ("EL1", "EL2"):
        ttbr1, tcr = read(f"TTBR1_{level}"), read(f"TCR_{level}")
        if ttbr1 and tcr:
            return TranslationRegisters(ttbr1, tcr)
    return None


def _output_address(entry: int, page_bits: int, tcr: int) -> int:
    """Return the physical address in an entry of a page table."""
    page = (1 << page_bits) - 1
    if page_bits == _BITS_OF_64K:
        return entry & 0x0000_FFFF_FFFF_FFFF & ~page | (entry >> 12 & 0xF) << 48
    if tcr & _DS:
        return entry & 0x0003_FFFF_FFFF_FFFF & ~page | (entry >> 8 & 3) << 50
    return entry & 0x0000_FFFF_FFFF_FFFF & ~page


class _Image(NamedTuple):
    """Virtual and physical position of an image."""

    displacement: int
    """A physical address in the image minus its address in the vmlinux."""
    offset: int
    """The KASLR offset."""
    kernel_ttbr1: int
    """TTBR1's value in the kernel."""

    def translate(self, address: int) -> int:
        """Return the physical address for a virtual address in the image."""
        return address - self.offset + self.displacement & WORD_MASK


def _find_image(
    registers: TranslationRegisters, physical: ReadMemory, symbols: Mapping[str, int], table: str
) -> _Image | None:
    """Return the position of the image if the CPU uses one of its tables, None if that cannot be.

    :param table: the symbol of the table.
    """
    if registers.granule_bits is None:
        return None
    if not {table, _IMAGE_SHIFT, _KERNEL_TABLE}.issubset(symbols):
        return None
    base = registers.ttbr1 & _TABLE_ADDRESS
    # On a CPU with 48-bit addresses, a kernel for 52 bits lets TTBR1 point behind the start of its
    # table (TTBR1_BADDR_4852_OFFSET).
    start = base & -(1 << registers.granule_bits)
    displacement = start - symbols[table]
    try:
        shift = int.from_bytes(physical(symbols[_IMAGE_SHIFT] + displacement, 8), "little")
    except ReadError:
        return None
    offset = displacement + shift & WORD_MASK
    if not shift or offset % PAGE_SIZE or offset >> 63:
        return None
    kernel_start = symbols[_KERNEL_TABLE] + displacement
    return _Image(displacement, offset, kernel_start + base - start)
