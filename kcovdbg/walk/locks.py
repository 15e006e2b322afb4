# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a lock is held, by its bytes: what disagrees meanwhile may be about to be put right."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from kcovdbg.errors import KcovdbgError, MissingTypeError
from kcovdbg.target import Target

_SPINLOCK: Final = "spinlock_t"
# Of PREEMPT_RT, where a spinlock is a mutex with an owner: Linux kernel commit 0f383b6dc96e ("locking/spinlock: Provide RT
# variant") (in v5.15), and the series outside of mainline before it.
_OWNERS: Final = ("lock.owner", "lock.rtmutex.owner")
_RAW: Final = ("rlock.raw_lock", "rlock")


def is_preempt_rt(target: Target) -> bool:
    """Tell whether this is a PREEMPT_RT kernel: its spinlocks have an owner."""
    return any(_has(target, path) for path in _OWNERS)


class SpinLock(NamedTuple):
    """Where a ``spinlock_t`` says whether somebody holds it, on one kernel."""

    start: int
    size: int
    byteorder: Literal["little", "big"]
    has_owner: bool
    """Whether that is an owner, of PREEMPT_RT."""
    has_tickets: bool
    """Whether it is a pair of tickets (arm; riscv and others before they queue)."""

    def is_held(self, lock: bytes) -> bool:
        """Tell whether somebody holds a lock.

        :param lock: a ``spinlock_t``.
        """
        word = lock[self.start :][: self.size]
        if self.has_owner:
            # The lowest bit says that there are waiters.
            return bool(int.from_bytes(word, self.byteorder) & ~1)
        if not any(word):
            return False
        # Of tickets: free when the one being served is the next one to be drawn.
        return not self.has_tickets or word[:2] != word[2:4]


def find_spin_lock(target: Target) -> SpinLock:
    """Find out what a kernel's spinlocks look like."""
    order: Literal["little", "big"] = "big" if target.big_endian else "little"
    for path in _OWNERS:
        if _has(target, path):
            member = target.member(_SPINLOCK, path)
            return SpinLock(member.offset, member.size, order, has_owner=True, has_tickets=False)
    raw = next((target.member(_SPINLOCK, path) for path in _RAW if _has(target, path)), None)
    start, size = (0, 4) if raw is None else (raw.offset, min(raw.size, 4))
    tickets = _has(target, "rlock.raw_lock.tickets") or _has(target, "rlock.raw_lock.counter")
    return SpinLock(start, size, order, has_owner=False, has_tickets=tickets)


def is_symbol_held(target: Target, name: str) -> bool | None:
    """Tell whether somebody holds a global ``spinlock_t``, None where that can't be read."""
    try:
        symbol = target.symbol(name)
        size = target.type_size(_SPINLOCK)
        return find_spin_lock(target).is_held(target.read(symbol.address, size))
    except KcovdbgError:
        return None


def _has(target: Target, path: str) -> bool:
    try:
        target.member(_SPINLOCK, path)
    except MissingTypeError:
        return False
    return True
