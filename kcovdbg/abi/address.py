# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arithmetic of kernel addresses: 64-bit words, pages, and PCs as KCOV records them.

``WORD_MASK`` and ``is_word()`` are for 64-bit words, ``word_mask()`` for words of any kernel.
``address_of()`` and ``pc_of()`` convert between a recorded PC and its address in the running
kernel. ``is_aligned_in()`` checks pointers. ``PAGE_SIZE``, ``page_align()``, ``page_align_down()``
and ``align()`` correspond to the kernel's macros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

ReadMemory: TypeAlias = Callable[[int, int], bytes]
"""Reads memory by an address and a size in bytes; raises ReadError."""

WORD_MASK: Final = (1 << 64) - 1
"""The bits of a 64-bit word; addresses wrap at its end."""

PAGE_SIZE: Final = 4096
"""The smallest page of the supported architectures, in bytes. Larger pages are multiples of it."""


def word_mask(word_size: int) -> int:
    """Return the bits of a kernel's ``unsigned long``.

    :param word_size: in bytes.
    """
    return (1 << 8 * word_size) - 1


def is_word(value: int) -> bool:
    """Return whether a number fits an unsigned 64-bit word."""
    return 0 <= value <= WORD_MASK


def address_of(pc: int, kaslr_offset: int) -> int:
    """Return the address of a recorded PC in the running kernel.

    KCOV subtracts the KASLR offset from all PCs, also from those in modules: Linux kernel commit
    4983f0ab7ffa ("kcov: make kcov work properly with KASLR enabled") (in v4.10).
    """
    return pc + kaslr_offset & WORD_MASK


def pc_of(address: int, kaslr_offset: int) -> int:
    """Return the PC that KCOV records for an address in the running kernel."""
    return address - kaslr_offset & WORD_MASK


def is_aligned_in(addresses: tuple[int, int], address: int, alignment: int) -> bool:
    """Return whether an address is aligned, and in a range.

    :param addresses: the first and the last address of the range.
    :param alignment: in bytes.
    """
    first, last = addresses
    return first <= address <= last and address % alignment == 0


def align(value: int, alignment: int) -> int:
    """Return the next multiple of an alignment, or the value itself if it is one."""
    return -(-value // alignment) * alignment


def page_align(value: int) -> int:
    """Return an address or a size in bytes, rounded up to a page."""
    return align(value, PAGE_SIZE)


def page_align_down(value: int) -> int:
    """Return an address or a size in bytes, rounded down to a page."""
    return value & -PAGE_SIZE
