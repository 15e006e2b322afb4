# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slices hold the recorded pages, by each of their addresses, and nothing else."""

import pytest

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import (
    EM_S390,
    PN_XNUM,
    PT_LOAD,
    find_vmcoreinfo,
    make_note,
    parse_vmcoreinfo,
)
from kcovdbg.errors import KcovdbgError
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target import slice_file as slices
from kcovdbg.target.slice_file import PageRun

DIRECT_MAP = 0xFFFF_8880_0000_0000
VMALLOC = 0xFFFF_C900_0000_0000
NOTES = make_note("VMCOREINFO", 0, b"OSRELEASE=6.12.0\nPAGESIZE=4096\n")


def page(value):
    return bytes([value]) * PAGE_SIZE


def build(pages, mapped=(), direct_map=DIRECT_MAP):
    return b"".join(slices.build_slice(62, NOTES, pages, direct_map, mapped))


def read_virtual(core, address, size):
    """Return what GDB would read, through the program header that has the address."""
    for segment in core.segments:
        if segment.type == PT_LOAD and segment.vaddr <= address < segment.vaddr + segment.memsz:
            return core.read_at(segment.offset + address - segment.vaddr, size)
    return None


@pytest.fixture
def open_slice(tmp_path):
    def open_slice(data):
        path = tmp_path / "slice"
        path.write_bytes(data)
        return ElfFile(path)

    return open_slice


def test_each_page_by_each_address(open_slice):
    pages = {0x5000: page(5), 0x6000: page(6), 0x9000: page(9)}
    mapped = [PageRun(VMALLOC, 0x9000, PAGE_SIZE), PageRun(VMALLOC + PAGE_SIZE, 0x5000, PAGE_SIZE)]
    data = build(pages, mapped)
    core = open_slice(data)
    assert core.is_core
    assert core.read_notes() == NOTES
    assert parse_vmcoreinfo(find_vmcoreinfo(core.notes)) == {
        "OSRELEASE": "6.12.0",
        "PAGESIZE": "4096",
    }
    assert read_virtual(core, DIRECT_MAP + 0x6000, PAGE_SIZE) == page(6)
    assert read_virtual(core, VMALLOC, PAGE_SIZE) == page(9)
    assert read_virtual(core, VMALLOC + PAGE_SIZE, PAGE_SIZE) == page(5)
    assert read_virtual(core, DIRECT_MAP + 0x7000, 1) is None
    # Contiguous pages share a header, and each page is in the file once.
    loads = [segment for segment in core.segments if segment.type == PT_LOAD]
    assert [(load.paddr, load.memsz) for load in loads][:2] == [
        (0x5000, 2 * PAGE_SIZE),
        (0x9000, PAGE_SIZE),
    ]
    assert len(data) < 5 * PAGE_SIZE
    assert all(segment.filesz == segment.memsz for segment in core.segments)


def test_pages_not_recorded_are_left_out_of_mappings(open_slice):
    core = open_slice(
        build({0x5000: page(5), 0x7000: page(7)}, [PageRun(VMALLOC, 0x4000, 5 * PAGE_SIZE)])
    )
    assert read_virtual(core, VMALLOC, 1) is None
    assert read_virtual(core, VMALLOC + PAGE_SIZE, 1) == b"\5"
    assert read_virtual(core, VMALLOC + 2 * PAGE_SIZE, 1) is None
    assert read_virtual(core, VMALLOC + 3 * PAGE_SIZE, 1) == b"\7"


def test_more_segments_than_the_header_can_count(open_slice):
    count = PN_XNUM + 10
    # Contents do not matter here; without them the test is quick.
    pages = {2 * PAGE_SIZE * number: b"" for number in range(count)}
    core = open_slice(build(pages))
    assert core.header.phnum == len(core.segments) == count + 1
    assert core.segments[-1].paddr == 2 * PAGE_SIZE * (count - 1)


def test_compressed_by_its_name(tmp_path):
    path = tmp_path / "a.slice.zst"
    data = build({0x5000: page(5)})
    assert slices.write_slice(path, [data]) < len(data)
    unpacked = dumpfile.unpack(path)
    assert unpacked.path.read_bytes() == data
    assert dumpfile.identify(path) is dumpfile.FileKind.CORE
    assert len(dumpfile.unpack_dump(path).notes) == len(unpacked.notes) == 1


def test_unwritable(tmp_path):
    with pytest.raises(KcovdbgError, match=r"a\.slice.*: No such file or directory"):
        slices.write_slice(tmp_path / "none" / "a.slice", [b""])


def test_s390x_slices_are_big_endian(open_slice):
    notes = make_note("VMCOREINFO", 0, b"OSRELEASE=6.12.0\n", ">")
    pages = {0x5000: page(5), 0x7000: page(7)}
    core = open_slice(
        b"".join(
            slices.build_slice(EM_S390, notes, pages, 0, [PageRun(VMALLOC, 0x7000, PAGE_SIZE)])
        )
    )
    assert (core.header.machine, core.header.big_endian, core.is_core) == (EM_S390, True, True)
    assert parse_vmcoreinfo(find_vmcoreinfo(core.notes)) == {"OSRELEASE": "6.12.0"}
    assert read_virtual(core, 0x5000, PAGE_SIZE) == page(5)
    assert read_virtual(core, VMALLOC, PAGE_SIZE) == page(7)
