# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks: whether one is held, by its bytes."""

from __future__ import annotations

from typing import Final, Literal

from kcovdbg.errors import KcovdbgError, MissingTypeError
from kcovdbg.model.memory import SpinLock
from kcovdbg.target.pointer import strip_tag
from kcovdbg.target.protocol import Target

_SPINLOCK: Final = "spinlock_t"
_PERCPU: Final = "struct kcov_percpu_data"
# Of PREEMPT_RT, where a spinlock is a mutex with an owner: Linux kernel commit 0f383b6dc96e ("locking/spinlock: Provide RT
# variant") (in v5.15), and the series outside of mainline before it.
_OWNERS: Final = ("lock.owner", "lock.rtmutex.owner")
_RAW: Final = ("rlock.raw_lock", "rlock")


def is_preempt_rt(target: Target) -> bool:
    """Return whether this is a PREEMPT_RT kernel: its spinlocks have an owner."""
    return any(_has(target, path) for path in _OWNERS)


def find_spin_lock(target: Target) -> SpinLock:
    """Return the layout of a kernel's spinlocks."""
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
    """Return whether a global ``spinlock_t`` is held, None where it is unreadable."""
    try:
        symbol = target.symbol(name)
        size = target.type_size(_SPINLOCK)
        return find_spin_lock(target).is_held(target.read(symbol.address, size))
    except KcovdbgError:
        return None


def read_cpu_lock_owner(target: Target, cpu: int) -> int | None:
    """Return the task, ``struct task_struct *``, that holds the lock of a CPU's ``kcov_percpu_data``; 0 when nobody does.

    On PREEMPT_RT the lock is a mutex with an owner; elsewhere it only has one with lock debugging.

    :return: None where the lock has no owner, or it is unreadable.
    """
    paths = ("lock.lock.owner", "lock.lock.rtmutex.owner") if is_preempt_rt(target) else ("lock.owner",)
    for path in paths:
        try:
            member = target.member(_PERCPU, path)
            data = target.read(target.per_cpu("kcov_percpu_data", cpu) + member.offset, member.size)
        except KcovdbgError:
            continue
        # The lowest bit says that there are waiters.
        return strip_tag(target, int.from_bytes(data, "big" if target.big_endian else "little") & ~1)
    return None


def _has(target: Target, path: str) -> bool:
    try:
        target.member(_SPINLOCK, path)
    except MissingTypeError:
        return False
    return True
