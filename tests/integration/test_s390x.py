# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs on s390x: all memory of a guest is one segment at address 0, and VMCOREINFO is found by the lowcore."""

import drgn
import pytest

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.elf.header import EM_S390, make_note
from kcovdbg.target.drgn import programs
from kcovdbg.target.slice_file import build_slice

VMCOREINFO = b"OSRELEASE=6.12.0\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=3ffffe00000\nKERNELOFFSET=3ffff700000\n"


@pytest.fixture
def dump(tmp_path):
    """A dump as QEMU makes it, of four pages: the lowcore names the second one, where the note is."""
    lowcore = bytearray(PAGE_SIZE)
    lowcore[0xE0C : 0xE0C + 8] = PAGE_SIZE.to_bytes(8, "big")
    note = make_note("VMCOREINFO", 0, VMCOREINFO, ">").ljust(PAGE_SIZE, b"\0")
    contents = (bytes(lowcore), note, bytes(PAGE_SIZE), b"end.".rjust(PAGE_SIZE))
    path = tmp_path / "dump"
    pages = {number * PAGE_SIZE: page for number, page in enumerate(contents)}
    path.write_bytes(b"".join(build_slice(EM_S390, b"", pages, 0, ())))
    return path


def test_vmcoreinfo_by_the_lowcore(dump):
    assert programs._complete_vmcoreinfo("dump", dump, ()) == VMCOREINFO


def test_physical_memory(dump):
    prog = programs._set_core("dump", dump, (), VMCOREINFO)
    assert prog.read(4 * PAGE_SIZE - 4, 4, True) == b"end."
    assert prog.read(0xE0C, 8, True) == PAGE_SIZE.to_bytes(8, "big")
    with pytest.raises(drgn.FaultError):
        prog.read(4 * PAGE_SIZE, 1, True)
