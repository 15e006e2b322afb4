# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn's architectures by ``e_machine``."""

from __future__ import annotations

from typing import Final

import drgn

from kcovdbg.elf.header import EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_RISCV, EM_S390, EM_X86_64, Header

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
