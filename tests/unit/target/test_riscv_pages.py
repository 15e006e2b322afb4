# SPDX-License-Identifier: LGPL-2.1-or-later
"""Page tables of RISC-V made in memory: each number of levels, large pages, and what is not
mapped.
"""

import pytest

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_RISCV, parse_vmcoreinfo
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target.riscv_pages import (
    PageTables,
    add_kaslr_offset,
    find_page_tables,
    search_vmcoreinfo,
)
from kcovdbg.target.slice_file import build_slice
from tests.support.page_tables import TableMemory

ROOT = 0x8000_1000
KERNEL = 0xFFFF_FFFF_8000_0000
V, RW, NAPOT = 1, 6, 1 << 63


def encode(physical, level, flags=V | RW):
    return physical >> 2 | (V if level is None else flags)


def make_memory(levels):
    return TableMemory(ROOT, ROOT + PAGE_SIZE, levels, encode)


@pytest.fixture(params=[3, 4, 5])
def memory(request):
    return make_memory(request.param)


def tables_of(memory):
    return PageTables(memory.read, memory.root, memory.levels)


def test_pages_of_each_size(memory):
    memory.map(KERNEL, 0x8040_0000)
    memory.map(KERNEL + 0x20_0000, 0x8080_0000, level=1)
    memory.map(KERNEL + 0x4000_0000, 0x8000_0000, level=2)
    tables = tables_of(memory)
    assert tables.translate(KERNEL + 0x123) == 0x8040_0123
    assert tables.translate(KERNEL + 0x20_0000 + 0x1F_FFFF) == 0x809F_FFFF
    assert tables.translate(KERNEL + 0x4123_4567) == 0x8123_4567
    assert tables.translate(KERNEL + 0x1000) is None


def test_contiguous_pages_share_an_entry(memory):
    """Svnapot: 64 KiB whose page number ends in 1000."""
    for page in range(16):
        memory.map(KERNEL + page * PAGE_SIZE, 0x8041_8000, flags=V | RW | NAPOT)
    assert tables_of(memory).translate(KERNEL + 0xA123) == 0x8041_A123


def test_reads_cross_pages(memory):
    memory.map(KERNEL, 0x8047_0000)
    memory.map(KERNEL + PAGE_SIZE, 0x8042_0000)
    memory.write(0x8047_0FFE, b"\x70\x70")
    memory.write(0x8042_0000, b"\x20\x20")
    assert tables_of(memory).read(KERNEL + 0xFFE, 4) == bytes([0x70, 0x70, 0x20, 0x20])
    with pytest.raises(ReadError) as caught:
        tables_of(memory).read(KERNEL + PAGE_SIZE, PAGE_SIZE + 1)
    assert caught.value.address == KERNEL + 2 * PAGE_SIZE


def test_addresses_that_the_tables_do_not_reach(memory):
    """The bits above the highest table's are those of its highest index bit."""
    memory.map(KERNEL, 0x8040_0000)
    wrong = KERNEL & (1 << 12 + 9 * memory.levels) - 1
    assert tables_of(memory).translate(wrong) is None


def test_pages_that_are_swapped_out_or_missing(memory):
    memory.map(KERNEL, 0x8040_0000, flags=RW)
    assert tables_of(memory).translate(KERNEL) is None
    memory.map(KERNEL, 0x1000, flags=V)
    with pytest.raises(ReadError):
        # A last table outside of memory.
        PageTables(memory.read, 0x1000, memory.levels).translate(KERNEL)


VMCOREINFO = (
    b"OSRELEASE=6.12.0\nPAGESIZE=4096\nSYMBOL(_stext)=ffffffff92002000\nSYMBOL(swapper_pg_dir)=ffffffff92001000\n"
    b"NUMBER(phys_ram_base)=2147483648\nNUMBER(VA_BITS)=48\nNUMBER(PAGE_OFFSET)=0xffffaf8000000000\n"
    b"NUMBER(va_kernel_pa_offset)=0xffffffff12000000\n"
)


def test_vmcoreinfo_has_where_the_tables_are():
    memory = make_memory(4)
    memory.map(KERNEL, 0x8040_0000)
    assert (
        find_page_tables(parse_vmcoreinfo(VMCOREINFO), memory.read).translate(KERNEL) == 0x8040_0000
    )
    with pytest.raises(TargetError):
        find_page_tables(
            parse_vmcoreinfo(VMCOREINFO.replace(b"va_kernel_pa_offset", b"other")), memory.read
        )


def test_kaslr_offset_is_that_of_a_symbol():
    completed = add_kaslr_offset(VMCOREINFO, {"_stext": 0xFFFF_FFFF_8000_2000})
    assert parse_vmcoreinfo(completed) == {
        **parse_vmcoreinfo(VMCOREINFO),
        "KERNELOFFSET": "12000000",
    }
    assert add_kaslr_offset(completed, {"_stext": 0}) == completed
    assert add_kaslr_offset(VMCOREINFO, {}) == VMCOREINFO


def dump_of(pages):
    """A dump without VMCOREINFO, of physical pages."""
    return b"".join(
        build_slice(
            EM_RISCV,
            b"",
            {at: data.ljust(PAGE_SIZE, b"\0") for at, data in pages.items()},
            None,
            (),
        )
    )


def test_vmcoreinfo_is_found_in_a_dump(tmp_path):
    """Its page is the one whose tables map the text where it says; copies of it are in other
    places, and other kernels'.
    """
    memory = make_memory(4)
    memory.map(0xFFFF_FFFF_9200_0000, 0x8000_0000, level=1)
    other = VMCOREINFO.replace(b"NUMBER(VA_BITS)=48", b"NUMBER(VA_BITS)=39")
    path = tmp_path / "dump"
    path.write_bytes(
        dump_of({0x8100_0000: b"x" + VMCOREINFO, 0x8200_0000: other, 0x8300_0000: VMCOREINFO})
    )
    with ElfFile(path) as core:
        assert search_vmcoreinfo(core, memory.read) == VMCOREINFO
    path.write_bytes(dump_of({0x8100_0000: b"x" + VMCOREINFO, 0x8200_0000: other}))
    with ElfFile(path) as core:
        assert search_vmcoreinfo(core, memory.read) is None
