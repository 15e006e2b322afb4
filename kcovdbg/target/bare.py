# SPDX-License-Identifier: LGPL-2.1-or-later
"""A drgn Program over a dump that holds notes and no memory; whoever opens it adds readers of memory.

Unlike a Program of :meth:`drgn.Program.set_linux_kernel_custom` it has the registers of each CPU, so that running tasks can be
unwound.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import drgn

from kcovdbg.target import slices
from kcovdbg.target.slices import PAGE, Run

# 52 bits of physical address are the most that any of these machines has.
PHYSICAL_SIZE: Final = 1 << 52
# Where the dump pretends to have its only page: neither address exists on any machine.
_NOWHERE: Final = Run(0x8000_0000_0000_0000, PHYSICAL_SIZE - PAGE, PAGE)


def open_bare(machine: int, notes: bytes) -> drgn.Program:
    """Make a Program of notes.

    :param machine: ``e_machine``; 64-bit and little-endian.
    :param notes: with VMCOREINFO.
    """
    content = slices.build_slice(machine, notes, {_NOWHERE.paddr: bytes(PAGE)}, _NOWHERE.vaddr - _NOWHERE.paddr, ())
    with tempfile.NamedTemporaryFile(prefix="kcovdbg-") as file:
        file.writelines(content)
        file.flush()
        prog = drgn.Program()
        # It keeps the file open, and the name isn't needed any more.
        prog.set_core_dump(Path(file.name))
    return prog
