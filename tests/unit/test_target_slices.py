# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slices hold the recorded pages, by each of their addresses, and nothing else."""

import io

import pytest

from kcovdbg.errors import TargetError
from kcovdbg.target import dumpfile, elf, slices
from kcovdbg.target.slices import PAGE, Run

DIRECT_MAP = 0xFFFF_8880_0000_0000
VMALLOC = 0xFFFF_C900_0000_0000
NOTES = elf.make_note("VMCOREINFO", 0, b"OSRELEASE=6.12.0\nPAGESIZE=4096\n")


def page(value):
    return bytes([value]) * PAGE


def build(pages, mapped=(), direct_map=DIRECT_MAP):
    return b"".join(slices.build_slice(62, NOTES, pages, direct_map, mapped))


def read_virtual(file, segments, address, size):
    """What GDB would read: the program header that holds the address."""
    for segment in segments:
        if segment.type == elf.PT_LOAD and segment.vaddr <= address < segment.vaddr + segment.memsz:
            return elf.read_at(file, segment.offset + address - segment.vaddr, size)
    return None


def parse(data):
    file = io.BytesIO(data)
    header = elf.read_header(file)
    return file, header, elf.read_segments(file, header)


def test_each_page_by_each_address():
    pages = {0x5000: page(5), 0x6000: page(6), 0x9000: page(9)}
    mapped = [Run(VMALLOC, 0x9000, PAGE), Run(VMALLOC + PAGE, 0x5000, PAGE)]
    file, header, segments = parse(build(pages, mapped))
    assert header.type == elf.ET_CORE
    assert elf.read_note_segments(file, header) == NOTES
    assert read_virtual(file, segments, DIRECT_MAP + 0x6000, PAGE) == page(6)
    assert read_virtual(file, segments, VMALLOC, PAGE) == page(9)
    assert read_virtual(file, segments, VMALLOC + PAGE, PAGE) == page(5)
    assert read_virtual(file, segments, DIRECT_MAP + 0x7000, 1) is None
    # Neighbours share a header, and no byte is there twice.
    assert [(s.paddr, s.memsz) for s in segments if s.type == elf.PT_LOAD][:2] == [(0x5000, 2 * PAGE), (0x9000, PAGE)]
    assert len(file.getvalue()) < 5 * PAGE
    assert all(s.filesz == s.memsz for s in segments)


def test_what_wasnt_recorded_is_left_out_of_mappings():
    file, _, segments = parse(build({0x5000: page(5), 0x7000: page(7)}, [Run(VMALLOC, 0x4000, 5 * PAGE)]))
    assert read_virtual(file, segments, VMALLOC, 1) is None
    assert read_virtual(file, segments, VMALLOC + PAGE, 1) == b"\5"
    assert read_virtual(file, segments, VMALLOC + 2 * PAGE, 1) is None
    assert read_virtual(file, segments, VMALLOC + 3 * PAGE, 1) == b"\7"


def test_more_segments_than_the_header_can_count():
    count = elf.PN_XNUM + 10
    pages = {2 * PAGE * number: b"" for number in range(count)}
    # Contents are of no matter here; without them the test is quick.
    data = b"".join(slices.build_slice(62, NOTES, pages, DIRECT_MAP, ()))
    _, header, segments = parse(data)
    assert header.phnum == len(segments) == count + 1
    assert segments[-1].paddr == 2 * PAGE * (count - 1)


def test_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.slice"
    path.write_bytes(b"old")

    def content():
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        slices.write_file(path, content())
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.slice"]
    assert slices.write_file(path, [b"new", b"er"]) == 5
    assert path.read_bytes() == b"newer"


def test_compressed_by_its_name(tmp_path):
    path = tmp_path / "a.slice.zst"
    data = build({0x5000: page(5)})
    assert slices.write_file(path, [data]) < len(data)
    unpacked = dumpfile.unpack(path)
    assert unpacked.path.read_bytes() == data
    assert dumpfile.identify(path) is dumpfile.FileKind.CORE
    assert dumpfile.check_whole(unpacked.path, "a") is dumpfile.FileKind.CORE


def test_unwritable(tmp_path):
    with pytest.raises(TargetError, match="can't be written: No such file or directory"):
        slices.write_file(tmp_path / "none" / "a.slice", [b""])
