# SPDX-License-Identifier: LGPL-2.1-or-later
"""Areas of memory, stacks, links of lists and locks."""

from __future__ import annotations

from typing import Literal, NamedTuple


class VmallocArea(NamedTuple):
    """One area of the kernel's vmalloc space."""

    start: int
    size: int
    """In bytes, without the guard page where the kernel stores the requested size."""
    caller: str
    """The function that allocated it, with the suffix of a compiler's clone."""
    has_user_pages: bool
    """``VM_USERMAP``: allocated for mapping into user space."""
    is_page_array: bool = False
    """Whether it is the page array of another area; both have the same caller."""

    @property
    def allocator(self) -> str:
        """The function that allocated it, without a clone's suffix."""
        return self.caller.split(".", 1)[0]


class StackFrame(NamedTuple):
    """One frame of a kernel stack, innermost first."""

    pc: int
    function: str | None
    file: str | None
    line: int | None
    column: int | None
    is_inline: bool


class ListLink(NamedTuple):
    """One element of a list, or the reason why the list could not be followed further."""

    list: str
    """``bucket 3``, ``task``, ``irq``."""
    address: int
    """Of the element; where ``problem`` is set, the address at which an element was expected."""
    back: int | None
    """The element's link back."""
    expected: int
    """The expected link back."""
    problem: str | None = None
    is_missing: bool = False
    """Whether the problem is unreadable memory at an address that may be right."""


class SpinLock(NamedTuple):
    """The member of a ``spinlock_t`` that shows whether it is held."""

    start: int
    size: int
    byteorder: Literal["little", "big"]
    has_owner: bool
    """Whether the member is an owner, as on PREEMPT_RT."""
    has_tickets: bool
    """Whether the member is a pair of tickets (arm; riscv and others before they queue)."""

    def is_held(self, lock: bytes) -> bool:
        """Return whether a lock is held.

        :param lock: a ``spinlock_t``.
        """
        word = lock[self.start :][: self.size]
        if self.has_owner:
            # The lowest bit says that there are waiters.
            return bool(int.from_bytes(word, self.byteorder) & ~1)
        if not any(word):
            return False
        # A ticket lock is free when it serves the next ticket to be drawn.
        return not self.has_tickets or word[:2] != word[2:4]
