# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pointers in a kernel's memory: tags, checks, and walks of lists, which end at damage.

A pointer must be checked, as a read by a bad one need not fault: a QEMU dump without paging has
physical memory at small addresses.

On arm64, the top byte of a pointer may be a tag of KASAN, which loads and stores ignore.
:func:`read_pointer`, :func:`strip_tag` and :class:`~kcovdbg.target.struct_layout.BlockLayout` drop
it. So an object has one address everywhere else, which debuggers accept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from kcovdbg.abi.address import is_aligned_in
from kcovdbg.errors import MissingSymbolError, MissingTypeError, PointerError, ReadError
from kcovdbg.target.target import Target

UPPER_HALF_START: Final = 0xFF00_0000_0000_0000
"""The lowest address of a kernel in the upper half: five-level page tables (x86-64, riscv64) and
52-bit addresses (arm64) have room for 56 bits at most.
"""
# The bits below the tag: all are set in addresses of arm64 kernels, which have 52 bits at most.
_ARM64_UPPER: Final = 0xF << 52
_TAG_SHIFT: Final = 56
# A symbol of kernels with CONFIG_KASAN_SW_TAGS only, and the bits of a tag in the top byte; since
# Linux kernel commit 7f94ffbc4c6a ("kasan: add hooks implementation for tag-based mode") (in v5.0).
_SOFTWARE_TAGS: Final = ("__hwasan_tag_memory", 0xFF)
# The same of CONFIG_KASAN_HW_TAGS, which uses the Memory Tagging Extension; since Linux kernel
# commit 2e903b914797 ("kasan, arm64: implement HW_TAGS runtime") (in v5.11). The bits above the tag
# are set.
_HARDWARE_TAGS: Final = ("kasan_init_hw_tags", 0x0F)
# A static key that is off on machines without the extension; since Linux kernel commit 8028caaca7a8
# ("kasan: add and integrate kasan boot parameters") (in v5.11).
_FLAG: Final = "kasan_flag_enabled"


def find_pointer_tag(target: Target) -> int:
    """Return the bits of a kernel's pointers that hold a tag; 0 for a kernel without tags."""
    if target.machine != "aarch64":
        return 0
    for name, bits in (_SOFTWARE_TAGS, _HARDWARE_TAGS):
        try:
            target.symbol(name)
        except MissingSymbolError:
            continue
        if _is_kasan_enabled(target):
            return bits << _TAG_SHIFT
        break
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
    """Return the address in a pointer that is stored in the kernel's memory."""
    if pointer & _ARM64_UPPER != _ARM64_UPPER:
        # User space has such pointers, and damage.
        return pointer
    return pointer | target.pointer_tag


def tagged_pointers(target: Target, address: int) -> Iterator[int]:
    """Yield all pointers to an address, one for each tag."""
    tag = target.pointer_tag
    if not tag:
        yield address
        return
    for value in range(0, tag + 1, tag & -tag):
        yield address & ~tag | value


def is_kernel_pointer(target: Target, address: int, alignment: int | None = None) -> bool:
    """Return whether an address can be the address of a structure in the kernel.

    :param alignment: in bytes; a word by default.
    """
    return is_aligned_in(target.kernel_range, address, alignment or target.word_size)


def check_pointer(target: Target, address: int, what: str, alignment: int | None = None) -> None:
    """Check that an address can be the address of a structure in the kernel.

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


def read_task_of_cpu(target: Target, cpu: int, member: str) -> int:
    """Read a pointer to a task in the run queue of a CPU.

    :param member: of ``struct rq``.
    :raises MissingError: when this kernel has no such member.
    :raises ReadError: when it cannot be read.
    """
    offset = target.member("struct rq", member).offset
    return read_pointer(target, target.per_cpu("runqueues", cpu) + offset)


def read_word(target: Target, address: int, size: int | None = None) -> int:
    """Read an unsigned number of the kernel that is not a pointer.

    :param size: in bytes; by default the size of an ``unsigned long``.
    :raises ReadError: when it cannot be read.
    """
    return int.from_bytes(target.read(address, size or target.word_size), target.byte_order)


def read_words(target: Target, address: int, count: int) -> tuple[int, ...]:
    """Read an array of ``unsigned long``.

    :raises ReadError: when any of it cannot be read.
    """
    order = ">" if target.big_endian else "<"
    code = "Q" if target.word_size == 8 else "I"
    return struct.unpack(f"{order}{count}{code}", target.read(address, count * target.word_size))


# Limit for the remarks of a walk.
_SHOWN: Final = 40


class Remarks(list[str]):
    """The first remarks of a walk, and the number of further ones."""

    def __init__(self) -> None:
        super().__init__()
        self._more = 0

    def note(self, remark: str) -> None:
        """Add a remark; when there are many, only count it."""
        if len(self) < _SHOWN:
            self.append(remark)
            return
        self._more += 1
        if self._more > 1:
            self.pop()
        self.append(f"{self._more} more unreadable")


Node = TypeVar("Node")


class Links(NamedTuple):
    """The two links of an element; None for one that the debug info lacks."""

    following: int | None
    before: int | None


def read_links(target: Target, address: int) -> tuple[int, int]:
    """Return the two links of a ``struct list_head``.

    :raises ReadError: when it cannot be read.
    """
    following, before = read_words(target, address, 2)
    return strip_tag(target, following), strip_tag(target, before)


def follow_chain(
    first: int,
    end: int,
    read: Callable[[int, int], tuple[Node, int | None]],
    limit: int,
    start: int = 0,
) -> Generator[Node, None, str | None]:
    """Yield the elements of a hash chain, or of a list in one direction.

    :param first: the address of the first link.
    :param end: the link at the end: the address of the head of a ``list_head``, 0 for an
        ``hlist_head``.
    :param read: called with a link and the link before it; returns the element and the next link;
        raises :class:`ReadError` when the memory is unreadable or is not an element.
    :param limit: the greatest plausible number of elements.
    :param start: the link before the first one.
    :return: why the walk stopped before the end, None when it reached the end.
    """
    seen: set[int] = set()
    link: int | None = first
    before = start
    while link != end:
        if link is None:
            return "unknown link"
        if link in seen:
            return f"it loops back to {link:#x}"
        if len(seen) >= limit:
            return f"it has more than {limit} elements"
        seen.add(link)
        try:
            node, following = read(link, before)
        except ReadError as error:
            return str(error)
        yield node
        before, link = link, following
    return None


def finish(walk: Generator[Node, None, str | None]) -> tuple[list[Node], str | None]:
    """Return all elements of a walk, and why it stopped before the end, None when it did not."""
    found: list[Node] = []
    while True:
        try:
            found.append(next(walk))
        except StopIteration as stop:
            return found, stop.value


def follow_list(
    target: Target,
    head: int,
    read: Callable[[int], tuple[Node, Links]],
    limit: int,
    first: int | None = None,
) -> Generator[Node, None, str | None]:
    """Yield the elements of a ``list_head``; of a broken list, the elements that can be reached
    from either end.

    An element must link back to the one before it, as a stray pointer does not lead to such an
    element. A live kernel may change the list between two reads: its links back are not checked.

    :param head: the address of the head.
    :param read: returns the element at a link, and its links; raises :class:`ReadError` when the
        memory is unreadable or is not an element.
    :param first: the first link; None to read it from the head.
    :return: why the list is incomplete, None when it is complete.
    """
    found: set[int] = set()

    def check(link: int, before: int, back: int | None) -> None:
        if not target.live and back is not None and back != before:
            raise ReadError(f"{before:#x} links to {link:#x}, which links back to {back:#x}", link)

    def step_forwards(link: int, before: int) -> tuple[Node, int | None]:
        node, links = read(link)
        check(link, before, links.before)
        found.add(link)
        return node, links.following

    def step_back(link: int, before: int) -> tuple[Node, int | None]:
        if link in found:
            raise _MetError("", link)
        node, links = read(link)
        check(link, before, links.following)
        return node, links.before

    try:
        start = read_pointer(target, head) if first is None else first
    except ReadError as error:
        return str(error)
    broken = yield from follow_chain(start, head, step_forwards, limit, head)
    if broken is not None:
        # Follow the list from the other end up to the damage.
        with suppress(ReadError):
            last = read_pointer(target, head + target.word_size)
            yield from follow_chain(last, head, step_back, limit, head)
    return broken


class _MetError(ReadError):
    """The element was reached from the other end before."""
