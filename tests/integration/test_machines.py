# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs on riscv64, where drgn walks no page tables, and on s390x.

On s390x all memory of a guest is one segment at address 0, and VMCOREINFO is found by the lowcore.
"""

import drgn
import pytest

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK
from kcovdbg.elf.header import EM_RISCV, EM_S390, make_note
from kcovdbg.target.drgn import programs
from kcovdbg.target.drgn.program_memory import (
    add_kernel_memory,
    direct_map_start,
    open_empty_program,
    translate,
)
from kcovdbg.target.slice_file import build_slice

KERNEL = 0xFFFF_FFFF_8000_0000
# 512 GiB of the same addresses, but for their upper bits: valid, readable, writable, executable.
ROOT, LAST_ENTRY = 0x8000_1000, bytes(8 * 511) + (0xF).to_bytes(8, "little")
RISCV_VMCOREINFO = (
    b"OSRELEASE=6.12.0\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=ffffffff80001000\nNUMBER(VA_BITS)=48\nKERNELOFFSET=0\n"
    b"NUMBER(phys_ram_base)=2147483648\nNUMBER(PAGE_OFFSET)=0xffffaf8000000000\nNUMBER(va_kernel_pa_offset)=0xffffffff00000000\n"
)


def test_a_program_reads_virtual_memory():
    prog = open_empty_program(EM_RISCV, b"", RISCV_VMCOREINFO)
    prog.add_memory_segment(
        ROOT, 4096, lambda address, count, *_: LAST_ENTRY[address - ROOT :][:count], physical=True
    )
    prog.add_memory_segment(
        0x7F_8000_0000,
        8,
        lambda address, count, *_: b"contents"[address & 7 :][:count],
        physical=True,
    )
    add_kernel_memory(prog)
    assert prog.read(KERNEL + 1, 4) == b"onte"
    assert translate(prog, KERNEL + 5) == 0x7F_8000_0005
    assert direct_map_start(prog) == 0xFFFF_AF80_0000_0000 - 0x8000_0000
    for address in (0x7F_8000_0000, KERNEL + 8, WORD_MASK, KERNEL - (1 << 39)):
        with pytest.raises(drgn.FaultError):
            prog.read(address, 1)


S390X_VMCOREINFO = b"OSRELEASE=6.12.0\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=3ffffe00000\nKERNELOFFSET=3ffff700000\n"


@pytest.fixture
def dump(tmp_path):
    """A dump as QEMU makes it, of four pages: the lowcore names the second one, where the note
    is.
    """
    lowcore = bytearray(PAGE_SIZE)
    lowcore[0xE0C : 0xE0C + 8] = PAGE_SIZE.to_bytes(8, "big")
    note = make_note("VMCOREINFO", 0, S390X_VMCOREINFO, ">").ljust(PAGE_SIZE, b"\0")
    contents = (bytes(lowcore), note, bytes(PAGE_SIZE), b"end.".rjust(PAGE_SIZE))
    path = tmp_path / "dump"
    pages = {number * PAGE_SIZE: page for number, page in enumerate(contents)}
    path.write_bytes(b"".join(build_slice(EM_S390, b"", pages, 0, ())))
    return path


def test_vmcoreinfo_by_the_lowcore(dump):
    assert programs._complete_vmcoreinfo("dump", dump, ()) == S390X_VMCOREINFO


def test_physical_memory(dump):
    prog = programs._set_core("dump", dump, (), S390X_VMCOREINFO)
    assert prog.read(4 * PAGE_SIZE - 4, 4, True) == b"end."
    assert prog.read(0xE0C, 8, True) == PAGE_SIZE.to_bytes(8, "big")
    with pytest.raises(drgn.FaultError):
        prog.read(4 * PAGE_SIZE, 1, True)
