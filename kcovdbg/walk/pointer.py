# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pointers found in a kernel's memory are checked, not trusted.

A fault isn't what tells a bad pointer: a QEMU dump without paging answers reads of small addresses with physical memory.
"""

from __future__ import annotations

from kcovdbg.errors import ReadError
from kcovdbg.target import Target


def is_kernel_pointer(target: Target, address: int, alignment: int | None = None) -> bool:
    """Tell whether this can be the address of a structure in the kernel.

    :param alignment: in bytes; the kernel's word by default.
    """
    low, high = target.kernel_range
    return low <= address <= high and address % (alignment or target.word_size) == 0


def check_pointer(target: Target, address: int, what: str, alignment: int | None = None) -> None:
    """Refuse what can't be the address of a structure in the kernel.

    :param what: what should be there, for the message.
    :raises ReadError: when it can't.
    """
    if not is_kernel_pointer(target, address, alignment):
        raise ReadError(f"{what}: {address:#x} is no kernel address", address)


def read_word(target: Target, address: int) -> int:
    """Read one ``unsigned long`` of the kernel.

    :raises ReadError: when it can't be read.
    """
    return int.from_bytes(target.read(address, target.word_size), "big" if target.big_endian else "little")
