# SPDX-License-Identifier: LGPL-2.1-or-later
"""A drgn Program over a dump of notes without memory, to which the caller adds memory readers.

Unlike a Program of :meth:`drgn.Program.set_linux_kernel_custom` it has the registers of each CPU, which running tasks are
unwound with.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import drgn

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.target.slice_file import PageRun, build_slice

PHYSICAL_SIZE: Final = 1 << 52
"""Size of physical address spaces, in bytes: 52 bits are the most that a supported machine has."""
# Of the only page of the dump: no machine has these addresses.
_NOWHERE: Final = PageRun(0x8000_0000_0000_0000, PHYSICAL_SIZE - PAGE_SIZE, PAGE_SIZE)


def open_empty_program(machine: int, notes: bytes, vmcoreinfo: bytes | None = None) -> drgn.Program:
    """Return a Program of notes.

    :param machine: ``e_machine`` of a 64-bit kernel, whose byte order follows from it.
    :param notes: with VMCOREINFO.
    :param vmcoreinfo: used instead of the one among the notes.
    """
    content = build_slice(machine, notes, {_NOWHERE.paddr: bytes(PAGE_SIZE)}, _NOWHERE.vaddr - _NOWHERE.paddr, ())
    with tempfile.NamedTemporaryFile(prefix="kcovdbg-") as file:
        file.writelines(content)
        file.flush()
        prog = drgn.Program(vmcoreinfo=vmcoreinfo)
        # The Program keeps the file open when the name is removed.
        prog.set_core_dump(Path(file.name))
    return prog
