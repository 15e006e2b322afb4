# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs on riscv64: drgn walks no page tables there."""

import drgn
import pytest

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.elf.header import EM_RISCV
from kcovdbg.target.drgn.program_memory import add_kernel_memory, direct_map_start, open_empty_program, translate

KERNEL = 0xFFFF_FFFF_8000_0000
# 512 GiB of the same addresses, but for their upper bits: valid, readable, writable, executable.
ROOT, LAST_ENTRY = 0x8000_1000, bytes(8 * 511) + (0xF).to_bytes(8, "little")
VMCOREINFO = (
    b"OSRELEASE=6.12.0\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=ffffffff80001000\nNUMBER(VA_BITS)=48\nKERNELOFFSET=0\n"
    b"NUMBER(phys_ram_base)=2147483648\nNUMBER(PAGE_OFFSET)=0xffffaf8000000000\nNUMBER(va_kernel_pa_offset)=0xffffffff00000000\n"
)


def test_a_program_reads_virtual_memory():
    prog = open_empty_program(EM_RISCV, b"", VMCOREINFO)
    prog.add_memory_segment(ROOT, 4096, lambda address, count, *_: LAST_ENTRY[address - ROOT :][:count], physical=True)
    prog.add_memory_segment(0x7F_8000_0000, 8, lambda address, count, *_: b"contents"[address & 7 :][:count], physical=True)
    add_kernel_memory(prog)
    assert prog.read(KERNEL + 1, 4) == b"onte"
    assert translate(prog, KERNEL + 5) == 0x7F_8000_0005
    assert direct_map_start(prog) == 0xFFFF_AF80_0000_0000 - 0x8000_0000
    for address in (0x7F_8000_0000, KERNEL + 8, WORD_MASK, KERNEL - (1 << 39)):
        with pytest.raises(drgn.FaultError):
            prog.read(address, 1)
