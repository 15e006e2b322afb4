# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks of pointers found in a kernel's memory.

Reading a bad pointer need not fault: a QEMU dump without paging has physical memory at small addresses.
"""

from __future__ import annotations

from typing import Final

from kcovdbg.errors import PointerError
from kcovdbg.target.protocol import Target

UPPER_HALF_START: Final = 0xFF00_0000_0000_0000
"""The lowest address of a kernel in the upper half: five-level page tables (x86-64, riscv64) and 52-bit addresses (arm64) have
room for 56 bits at most.
"""


def is_kernel_pointer(target: Target, address: int, alignment: int | None = None) -> bool:
    """Return whether this can be the address of a structure in the kernel.

    :param alignment: in bytes; a word by default.
    """
    low, high = target.kernel_range
    return low <= address <= high and address % (alignment or target.word_size) == 0


def check_pointer(target: Target, address: int, what: str, alignment: int | None = None) -> None:
    """Check that this can be the address of a structure in the kernel.

    :param what: the structure, for the message.
    :raises PointerError: when it cannot.
    """
    if not is_kernel_pointer(target, address, alignment):
        raise PointerError(f"{what}: {address:#x} is not a kernel address", address)


def read_word(target: Target, address: int) -> int:
    """Read an ``unsigned long`` of the kernel.

    :raises ReadError: when it cannot be read.
    """
    return int.from_bytes(target.read(address, target.word_size), "big" if target.big_endian else "little")
