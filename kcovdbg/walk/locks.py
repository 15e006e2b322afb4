# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a lock is held, by its bytes: what disagrees meanwhile may be about to be put right."""

from __future__ import annotations

from typing import Final

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


def is_held(target: Target, lock: bytes) -> bool:
    """Tell whether somebody holds a lock.

    :param lock: a ``spinlock_t``.
    """
    order = "big" if target.big_endian else "little"
    for path in _OWNERS:
        if _has(target, path):
            member = target.member(_SPINLOCK, path)
            # The lowest bit says that there are waiters.
            return bool(int.from_bytes(lock[member.offset :][: member.size], order) & ~1)  # type: ignore[arg-type]
    raw = next((target.member(_SPINLOCK, path) for path in _RAW if _has(target, path)), None)
    word = lock[raw.offset :][: min(raw.size, 4)] if raw is not None else lock[:4]
    if not any(word):
        return False
    if _has(target, "rlock.raw_lock.tickets") or _has(target, "rlock.raw_lock.counter"):
        # Tickets (arm; riscv and others before they queue): free when the one being served is the next one to be drawn.
        return word[:2] != word[2:4]
    return True


def is_symbol_held(target: Target, name: str) -> bool | None:
    """Tell whether somebody holds a global ``spinlock_t``, None where that can't be read."""
    try:
        symbol = target.symbol(name)
        size = target.type_size(_SPINLOCK)
        return is_held(target, target.read(symbol.address, size))
    except KcovdbgError:
        return None


def _has(target: Target, path: str) -> bool:
    try:
        target.member(_SPINLOCK, path)
    except MissingTypeError:
        return False
    return True
