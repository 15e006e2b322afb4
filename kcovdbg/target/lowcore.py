# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lowcore of s390x: the two pages at physical address 0, which the architecture and the kernel use together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.elf.note import VMCOREINFO, parse_notes
from kcovdbg.errors import TargetError
from kcovdbg.target.rsp import StubReadError

# The member vmcore_info of struct lowcore (arch/s390/include/asm/lowcore.h), which dumpers read at this address; odd while the
# kernel boots.
_VMCORE_INFO: Final = 0x0E0C
# VMCOREINFO_BYTES and the head of a note, in whole pages.
_NOTE_SIZE: Final = 2 * PAGE_SIZE


def read_lowcore_vmcoreinfo(read: Callable[[int, int], bytes]) -> bytes:
    """Return the VMCOREINFO of an s390x kernel, whose address is in its lowcore: QEMU's dumps have no note of it.

    :param read: reads physical memory; raises StubReadError where there is none.
    :raises TargetError: when there is none.
    """
    try:
        address = int.from_bytes(read(_VMCORE_INFO, 8), "big")
        data = b"" if not address or address & 1 else read(address, _NOTE_SIZE)
    except StubReadError as error:
        raise TargetError(f"could not read the lowcore: {error}", hint="the dump may be truncated or damaged") from None
    for note in parse_notes(data, ">"):
        if note.name == VMCOREINFO:
            return note.desc.rstrip(b"\0")
    raise TargetError("the lowcore has no VMCOREINFO", hint="the guest needs CONFIG_KEXEC, and to have booted")
