# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel in the memory of an arm64 machine, found by the registers for address translation.

The page tables of the kernel are variables of its image, which is contiguous in physical memory:
the table that a CPU uses says where the image is, whether the CPU was stopped in the kernel or in
user space, where page-table isolation unmaps nearly all of it.
"""

from __future__ import annotations

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

# Values of TTBR1 in the kernel, in user space with page-table isolation, and between two tables.
_TABLES: Final = ("swapper_pg_dir", "tramp_pg_dir", "reserved_pg_dir")
# Addresses minus physical addresses in the image; since Linux kernel commit a7f8de168ace ("arm64:
# allow kernel Image to be loaded anywhere in physical memory") (in v4.6).
_IMAGE_SHIFT: Final = "kimage_voffset"
SYMBOLS: Final = (*_TABLES, _IMAGE_SHIFT)
"""Facts found by symbols of the vmlinux."""

# TTBR1_ELx: above the address the ASID, in bit 0 CnP.
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
_TABLE: Final = 2


class TranslationRegisters(NamedTuple):
    """The registers with which a CPU translates the kernel's addresses."""

    ttbr1: int
    tcr: int

    @property
    def granule_bits(self) -> int | None:
        """The bits of an address within a page, None for an invalid value."""
        return _GRANULE_BITS.get(self.tcr >> 30 & 3)

    @property
    def address_bits(self) -> int:
        """The bits of an address that are translated; those above are all set."""
        return 64 - (self.tcr >> 16 & 0x3F)

    def translate(self, read: ReadMemory, address: int) -> int | None:
        """Return the physical address of a kernel's virtual one, None when it is not mapped."""
        page_bits = self.granule_bits
        bits = self.address_bits
        if self.tcr & _TBI and address & _IS_KERNEL:
            address |= _TOP_BYTE
        if page_bits is None or bits <= page_bits:
            return None
        if (address & WORD_MASK) >> bits != WORD_MASK >> bits:
            return None
        index_bits = page_bits - 3
        levels = -(-(bits - page_bits) // index_bits)
        table = self.ttbr1 & _TABLE_ADDRESS
        rest = address & (1 << bits) - 1
        for shift in range(page_bits + index_bits * (levels - 1), page_bits - 1, -index_bits):
            try:
                entry = int.from_bytes(read(table + 8 * (rest >> shift), 8), "little")
            except ReadError:
                return None
            if not entry & _VALID:
                return None
            table = _output_address(entry, page_bits, self.tcr)
            rest &= (1 << shift) - 1
            # Tables and pages have this bit, blocks lack it.
            if not entry & _TABLE:
                return None if shift == page_bits else table & -(1 << shift) | rest
        return table | rest

    def find_kernel(
        self, where: str, physical: ReadMemory, symbols: Mapping[str, int], check: CheckImage
    ) -> bytes:
        """Return the VMCOREINFO of the kernel in a machine, whose KASLR offset is found by the
        table of a CPU.

        :param where: what messages call the machine.
        :param physical: reads physical memory.
        :param symbols: addresses in the vmlinux of :data:`SYMBOLS` and of VMCOREINFO.
        :param check: compares the image, before variables of the kernel are read.
        :raises MismatchError: when it is another kernel.
        :raises NotBootedError: when it is too early in its boot.
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
            virtual = make_virtual_reader(
                partial(self._replace(ttbr1=image.root).translate, physical), physical
            )
            return read_vmcoreinfo(virtual, symbols, image.offset)
        detail = failure or f"{_TABLES[0]} is not where the CPU has its page table"
        raise MismatchError(
            f"the vmlinux does not match the kernel at {where}: {detail}",
            hint="give the vmlinux of the same build; or let the kernel finish booting, then try "
            "again",
        )


def read_registers(read: Callable[[str], int | None]) -> TranslationRegisters | None:
    """Return the registers of a CPU, None when they are unknown or it translates nothing yet.

    :param read: returns a register by QEMU's name, None when there is none.
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
    """Physical minus linked address."""
    offset: int
    """The KASLR offset."""
    root: int
    """TTBR1's value in the kernel."""

    def translate(self, address: int) -> int:
        """Return the physical address of one in the image."""
        return address - self.offset + self.displacement & WORD_MASK


def _find_image(
    registers: TranslationRegisters, physical: ReadMemory, symbols: Mapping[str, int], table: str
) -> _Image | None:
    """Return the image whose table of a name the CPU uses, None where there is none."""
    if registers.granule_bits is None or table not in symbols or _IMAGE_SHIFT not in symbols:
        return None
    base = registers.ttbr1 & _TABLE_ADDRESS
    # A kernel for 52-bit addresses on a CPU for 48 has TTBR1 point behind the start of its table
    # (TTBR1_BADDR_4852_OFFSET).
    start = base & -(1 << registers.granule_bits)
    displacement = start - symbols[table]
    try:
        shift = int.from_bytes(physical(symbols[_IMAGE_SHIFT] + displacement, 8), "little")
    except ReadError:
        return None
    offset = displacement + shift & WORD_MASK
    if not shift or offset % PAGE_SIZE or offset >> 63 or _TABLES[0] not in symbols:
        return None
    return _Image(displacement, offset, symbols[_TABLES[0]] + displacement + base - start)
