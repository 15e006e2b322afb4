# SPDX-License-Identifier: LGPL-2.1-or-later
"""Spinlocks by their bytes."""

from __future__ import annotations

from typing import Literal, NamedTuple


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
