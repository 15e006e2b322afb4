# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pointers found in a kernel's memory: their tags and their checks.

Reading a bad pointer need not fault: a QEMU dump without paging has physical memory at small addresses.

The top byte of an arm64 kernel's pointer may be a tag of KASAN's, which loads and stores ignore. It is removed where pointers
are read, by :func:`read_pointer`, :func:`strip_tag` and :class:`~kcovdbg.target.struct_layout.BlockLayout`: everything above
knows an object by one address, the one that debuggers take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.errors import MissingSymbolError, MissingTypeError, PointerError, ReadError
from kcovdbg.target.protocol import Target

UPPER_HALF_START: Final = 0xFF00_0000_0000_0000
"""The lowest address of a kernel in the upper half: five-level page tables (x86-64, riscv64) and 52-bit addresses (arm64) have
room for 56 bits at most.
"""
# The bits below the tag that are set in all addresses of arm64 kernels, which have 52 bits at most: a pointer that lacks one is
# damaged.
_ARM64_UPPER: Final = 0xF << 52
_TAG_SHIFT: Final = 56
# CONFIG_KASAN_SW_TAGS, since Linux kernel commit 7f94ffbc4c6a ("kasan: add hooks implementation for tag-based mode") (in v5.0):
# tags of 8 bits, by the callback of the compiler's own code. No other kernel has it.
_SOFTWARE_TAGS: Final = ("__hwasan_tag_memory", 0xFF)
# CONFIG_KASAN_HW_TAGS, since 2e903b914797 ("kasan, arm64: implement HW_TAGS runtime") (in v5.11): the tags of the Memory
# Tagging Extension, whose 4 bits have set ones above them.
_HARDWARE_TAGS: Final = ("kasan_init_hw_tags", 0x0F)
# Linux kernel commit 8028caaca7a8 ("kasan: add and integrate kasan boot parameters") (in v5.11): off without the extension.
_FLAG: Final = "kasan_flag_enabled"


def find_pointer_tag(target: Target) -> int:
    """Return the bits of a kernel's pointers that are a tag; 0 for a kernel without."""
    if target.machine != "aarch64":
        return 0
    for name, bits in (_SOFTWARE_TAGS, _HARDWARE_TAGS):
        try:
            target.symbol(name)
        except MissingSymbolError:
            continue
        return bits << _TAG_SHIFT if _is_kasan_enabled(target) else 0
    return 0


def _is_kasan_enabled(target: Target) -> bool:
    """Return whether KASAN is on; a kernel without the static key cannot turn it off."""
    try:
        enabled = target.member("struct static_key", "enabled")
        data = target.read(target.symbol(_FLAG).address + enabled.offset, enabled.size)
    except (MissingSymbolError, MissingTypeError, ReadError):
        return True
    return any(data)


def strip_tag(target: Target, pointer: int) -> int:
    """Return the address that a pointer stored in the kernel's memory leads to: the pointer itself in kernels without tags."""
    return pointer | target.pointer_tag if pointer & _ARM64_UPPER == _ARM64_UPPER else pointer


def tagged_pointers(target: Target, address: int) -> Iterator[int]:
    """Yield all pointers that lead to an address: one with each tag."""
    tag = target.pointer_tag
    unit = tag & -tag
    for value in range(tag // unit + 1 if tag else 1):
        yield address & ~tag | value * unit


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


def read_pointer(target: Target, address: int) -> int:
    """Read a pointer of the kernel, without its tag.

    :raises ReadError: when it cannot be read.
    """
    return strip_tag(target, read_word(target, address))


def read_word(target: Target, address: int) -> int:
    """Read an ``unsigned long`` of the kernel that is not a pointer.

    :raises ReadError: when it cannot be read.
    """
    return int.from_bytes(target.read(address, target.word_size), "big" if target.big_endian else "little")
