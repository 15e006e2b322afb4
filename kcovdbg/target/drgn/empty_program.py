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
from kcovdbg.elf.header import EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_RISCV, EM_S390, EM_X86_64, Header
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


_ARCHITECTURES: Final = {
    EM_386: drgn.Architecture.I386,
    EM_PPC64: drgn.Architecture.PPC64,
    EM_S390: drgn.Architecture.S390X,
    EM_ARM: drgn.Architecture.ARM,
    EM_X86_64: drgn.Architecture.X86_64,
    EM_AARCH64: drgn.Architecture.AARCH64,
    EM_RISCV: drgn.Architecture.RISCV64,
}
SLICE_MACHINES: Final = {_ARCHITECTURES[machine]: machine for machine in (EM_X86_64, EM_AARCH64, EM_RISCV, EM_PPC64, EM_S390)}
"""``e_machine`` of the architectures whose kernels can be sliced."""


def platform_of(header: Header) -> drgn.Platform:
    """Return the platform that an ELF file is for."""
    flags = drgn.PlatformFlags(0)
    if header.is_64bit:
        flags |= drgn.PlatformFlags.IS_64_BIT
    if not header.big_endian:
        flags |= drgn.PlatformFlags.IS_LITTLE_ENDIAN
    return drgn.Platform(_ARCHITECTURES.get(header.machine, drgn.Architecture.UNKNOWN), flags)
