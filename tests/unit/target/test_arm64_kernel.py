# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finding an arm64 kernel by the page table of a CPU, in memory made here: every page size, KASLR,
isolation, 52 bits.
"""

from __future__ import annotations

import dataclasses
import struct

import pytest

from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target import arm64_kernel
from kcovdbg.target.arm64_kernel import TranslationRegisters
from kcovdbg.target.missing_vmcoreinfo import MismatchError, NotBootedError
from tests.support.page_tables import TableMemory

IMAGE = 0xFFFF_8000_8000_0000
PHYSICAL = 0x4020_0000
SWAPPER, TRAMP, VOFFSET, BANNER, POINTERS = 0x50_0000, 0x4F_0000, 0x60_0000, 0x40_0000, 0x61_0000
SYMBOLS = {
    "swapper_pg_dir": IMAGE + SWAPPER,
    "tramp_pg_dir": IMAGE + TRAMP,
    "kimage_voffset": IMAGE + VOFFSET,
    "vmcoreinfo_data": IMAGE + POINTERS,
    "vmcoreinfo_size": IMAGE + POINTERS + 8,
}
TEXT = b"OSRELEASE=6.12.0\nKERNELOFFSET=2a9a20400000\n" + b"x" * 100


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A granule and a number of address bits, as the architecture's manual has them."""

    granule: int
    bits: int
    tg1: int
    levels: int
    ds: bool = False

    @property
    def tcr(self) -> int:
        return self.tg1 << 30 | (64 - self.bits) << 16 | int(self.ds) << 59 | 0x10


GEOMETRIES = [
    Geometry(12, 48, 2, 4),
    Geometry(12, 39, 2, 3),
    Geometry(12, 52, 2, 5, ds=True),
    Geometry(14, 47, 1, 3),
    Geometry(14, 48, 1, 4),
    Geometry(14, 52, 1, 4, ds=True),
    Geometry(16, 48, 3, 3),
    Geometry(16, 52, 3, 3),
    Geometry(16, 42, 3, 2),
]


def empty_machine(geometry: Geometry) -> TableMemory:
    def encode(physical: int, level: int | None) -> int:
        # Execute-never and accessed; shareability is where DS puts bits of the address.
        attributes = (
            3
            if level is None
            else 0x40 << 48 | 0x400 | (0 if geometry.ds else 0x300) | (1 if level else 3)
        )
        if geometry.granule == 16:
            return physical & 0xFFFF_FFFF_FFFF | physical >> 48 << 12 | attributes
        return (
            physical & (1 << 50) - 1 | physical >> 50 << 8 if geometry.ds else physical
        ) | attributes

    return TableMemory(
        PHYSICAL + SWAPPER,
        0x6000_0000,
        geometry.levels,
        encode,
        granule=geometry.granule,
        bits=geometry.bits,
    )


def make_machine(geometry: Geometry, offset: int = 0x2A9A_2040_0000) -> TableMemory:
    machine = empty_machine(geometry)
    machine.write(PHYSICAL + VOFFSET, struct.pack("<Q", IMAGE + offset - PHYSICAL))
    machine.write(PHYSICAL + BANNER, b"Linux version 6.12.0 ")
    data = (
        -(1 << geometry.bits - 1 if geometry.bits == 52 else 1 << geometry.bits) + 0x1234_0FF0
        & (1 << 64) - 1
    )
    machine.write(PHYSICAL + POINTERS, struct.pack("<QQ", data, len(TEXT)))
    page = 1 << geometry.granule
    machine.map(IMAGE + offset + POINTERS, PHYSICAL + POINTERS & -page)
    # The text of VMCOREINFO crosses a page of 4 KiB.
    machine.map(data, 0x7123_0000)
    machine.write(0x7123_0000 + data % page, TEXT[:16])
    if (data + 16) % page:
        machine.write(0x7123_0000 + (data + 16) % page, TEXT[16:])
    else:
        machine.map(data + 16, 0x7200_0000)
        machine.write(0x7200_0000, TEXT[16:])
    return machine


def registers_of(geometry: Geometry, table: int = SWAPPER, low: int = 0) -> TranslationRegisters:
    # With an ASID, and CnP.
    return TranslationRegisters(0x5A << 48 | PHYSICAL + table + low | 1, geometry.tcr)


def check(offset: int, read: object) -> None:
    assert callable(read)
    if read(IMAGE + BANNER + offset, 13) != b"Linux version":
        raise MismatchError("another kernel")


# Of 39 and 42 bits, the image would lie elsewhere.
@pytest.mark.parametrize("geometry", [one for one in GEOMETRIES if one.bits >= 47], ids=str)
@pytest.mark.parametrize("offset", [0, 0x2A9A_2040_0000])
@pytest.mark.parametrize("table", [SWAPPER, TRAMP])
def test_the_kernel_is_found(geometry: Geometry, offset: int, table: int) -> None:
    machine = make_machine(geometry, offset)
    assert registers_of(geometry, table).find_kernel("stub", machine.read, SYMBOLS, check) == TEXT


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_pages_and_blocks(geometry: Geometry) -> None:
    machine = empty_machine(geometry)
    low = -(1 << geometry.bits) & (1 << 64) - 1
    high_memory = (1 << 51) + (1 << 49) if geometry.ds or geometry.granule == 16 else 0
    machine.map(low + (5 << geometry.granule), high_memory + (0x4000 << 16))
    block = 1 << 2 * geometry.granule - 3
    machine.map((1 << 64) - block, high_memory + 7 * block, level=1)
    registers = registers_of(geometry)

    def translate(address: int) -> int | None:
        return registers.translate(machine.read, address)

    assert translate(low + (5 << geometry.granule) + 0x123) == high_memory + (0x4000 << 16) + 0x123
    assert translate((1 << 64) - 0x1001) == high_memory + 8 * block - 0x1001
    # Not mapped, of user space, and below what is translated.
    assert translate(low + (6 << geometry.granule)) is None
    assert translate(5 << geometry.granule) is None
    assert translate(low - 8) is None


def test_52_bits_on_a_cpu_for_48() -> None:
    """The kernel's table is one for 52 bits, of which the CPU gets the last 64 entries."""
    machine = make_machine(Geometry(16, 52, 3, 3))
    cpu = registers_of(Geometry(16, 48, 3, 3), low=0x1E00)
    # Of the linear map the upper part is used.
    data = 0xFFFF_0000_1234_0FF0
    machine.write(PHYSICAL + POINTERS, struct.pack("<QQ", data, len(TEXT)))
    machine.map(data, 0x7123_0000)
    machine.write(0x7123_0FF0, TEXT)
    assert cpu.find_kernel("stub", machine.read, SYMBOLS, check) == TEXT


def test_another_kernel() -> None:
    machine = make_machine(GEOMETRIES[0])
    machine.write(PHYSICAL + BANNER, b"Something else entirely")
    with pytest.raises(MismatchError):
        registers_of(GEOMETRIES[0]).find_kernel("stub", machine.read, SYMBOLS, check)
    # Of another layout: where the vmlinux has kimage_voffset there is nothing.
    with pytest.raises(MismatchError):
        registers_of(GEOMETRIES[0], low=0x10_0000).find_kernel("stub", machine.read, SYMBOLS, check)


def test_a_kernel_that_boots() -> None:
    machine = make_machine(GEOMETRIES[0])
    machine.write(PHYSICAL + POINTERS, struct.pack("<QQ", 0, 0))
    with pytest.raises(NotBootedError):
        registers_of(GEOMETRIES[0]).find_kernel("stub", machine.read, SYMBOLS, check)

    def fail(offset: int, read: object) -> None:
        raise ReadError("no", 0)

    with pytest.raises(NotBootedError):
        registers_of(GEOMETRIES[0]).find_kernel("stub", machine.read, SYMBOLS, fail)


def test_registers_by_name() -> None:
    # Without virtualization there is no second level, and before the kernel has set it up there is
    # no table.
    one = {"TTBR1_EL1": 0x4070_0001, "TCR_EL1": 0x100}
    assert arm64_kernel.read_registers(one.get) == (0x4070_0001, 0x100)
    two = {"TTBR1_EL1": 0, "TCR_EL1": 0, "TTBR1_EL2": 0x4070_0001, "TCR_EL2": 0x200}
    assert arm64_kernel.read_registers(two.get) == (0x4070_0001, 0x200)
    assert arm64_kernel.read_registers({"TTBR1_EL1": 0, "TCR_EL1": 5}.get) is None
    assert arm64_kernel.read_registers({}.get) is None


def test_an_invalid_granule() -> None:
    machine = make_machine(GEOMETRIES[0])
    registers = TranslationRegisters(PHYSICAL + SWAPPER, 0x10 << 16)
    with pytest.raises(TargetError):
        registers.find_kernel("stub", machine.read, SYMBOLS, check)


@pytest.mark.parametrize("ignores_top_byte", [False, True])
def test_tags_of_pointers(ignores_top_byte: bool) -> None:
    """With KASAN's tags VMCOREINFO has one: the CPU ignores it."""
    machine = make_machine(GEOMETRIES[4])
    data = int.from_bytes(machine.read(PHYSICAL + POINTERS, 8), "little")
    machine.write(PHYSICAL + POINTERS, struct.pack("<Q", data & ~(0xFF << 56) | 0x3C << 56))
    registers = registers_of(GEOMETRIES[4])
    registers = registers._replace(tcr=registers.tcr | int(ignores_top_byte) << 38)
    if ignores_top_byte:
        assert registers.find_kernel("stub", machine.read, SYMBOLS, check) == TEXT
        # Addresses of user space have no tag here.
        assert registers.translate(machine.read, 0xFF << 56) is None
    else:
        with pytest.raises(NotBootedError):
            registers.find_kernel("stub", machine.read, SYMBOLS, check)
