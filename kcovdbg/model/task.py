# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks: their KCOV fields, saved state, and what these mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kcovdbg.model.session import Role, Session

_PF_KTHREAD: Final = 0x00200000
_PF_EXITING: Final = 0x00000004
# PF_IO_WORKER of v5.12 and PF_USER_WORKER of v6.4; before, these bits had other meanings.
_PF_WORKERS: Final = 0x00004010


class SavedState(NamedTuple):
    """The fields of a session that a softirq section interrupted.

    Linux kernel commit 5ff3b30ab57d ("kcov: collect coverage from interrupts") (in v5.8) keeps it in
    ``struct kcov_percpu_data``; "kcov: fix data corruption and race conditions on PREEMPT_RT" (August 2026, back-ported to
    stable kernels) in ``struct task_struct``.
    """

    where: str
    """``cpu`` or ``task``: which structure holds it."""
    cpu: int | None
    task: int | None
    """``struct task_struct *`` whose session it is: the task itself, or the CPU's current one."""
    pid: int | None
    comm: str | None
    mode: int | None
    """``unsigned int``, flag bits included."""
    size: int | None
    """In words of the kernel."""
    area: int | None
    kcov: int | None
    sequence: int | None
    errors: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is saved: the kernel keeps all five members zero then."""
        return not (self.kcov or self.mode or self.size or self.area or self.sequence)


class CpuState(NamedTuple):
    """``struct kcov_percpu_data`` of one CPU (v5.8 up to August 2026)."""

    cpu: int
    irq_area: int | None
    saved: SavedState
    """Its task is unknown here: it is the CPU's current one."""


class TaskFields(NamedTuple):
    """``struct task_struct``, read in one piece; None is a member that this kernel does not have, or that is unreadable."""

    address: int
    pid: int | None
    tgid: int | None
    comm: str | None
    flags: int | None
    """``PF_*``."""
    cpu: int | None
    on_cpu: bool | None
    mm: int | None
    files: int | None
    kcov_mode: int | None
    """The word as stored, flag bits included."""
    kcov_size: int | None
    """In words of the kernel."""
    kcov_area: int | None
    kcov: int | None
    kcov_remote: int | None
    kcov_handle: int | None
    kcov_sequence: int | None
    kcov_softirq: int | None
    saved_mode: int | None
    saved_size: int | None
    saved_area: int | None
    saved_kcov: int | None
    saved_sequence: int | None
    trace: int | None = None
    """Address of the count word, in kernels whose buffers may have words before it."""
    trace_size: int | None = None
    """In words of the kernel, the count word included."""
    stack: int | None = None
    """The lowest address of its kernel stack."""

    @property
    def is_exiting(self) -> bool:
        """Whether the task exits: ``PF_EXITING``."""
        return bool((self.flags or 0) & _PF_EXITING)

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a kernel thread: ``PF_KTHREAD``."""
        return bool((self.flags or 0) & _PF_KTHREAD)

    @property
    def is_worker(self) -> bool:
        """Whether it may be a thread of a process that does background work, of io_uring or vhost; decided by its stack."""
        return bool((self.flags or 0) & _PF_WORKERS)


@dataclass(frozen=True, slots=True)
class Task:
    """A task with what its fields mean."""

    fields: TaskFields
    session: Session
    """The session that the task's own fields describe."""
    in_ctxsw: bool | None
    """``KCOV_IN_CTXSW``."""
    owns_remote: bool | None
    """Whether it is the owner of a KCOV_REMOTE_ENABLE; None where this kernel has none, or it is unknown."""
    count: int | None
    """The count word of the buffer that ``buffer TID`` shows: its own area, or the object's of a remote owner."""
    capacity: int | None
    """How many records fit that buffer."""
    full: bool | None
    saved: SavedState | None
    pauses: tuple[str, ...] = ()
    """Why nothing is recorded in it for the moment; of posted series."""
    interrupted: Session | None = None
    """The session in ``saved``, which a softirq section interrupted."""
    errors: tuple[str, ...] = ()

    @property
    def mode(self) -> str | None:
        """``enum kcov_mode`` without prefix, flags masked; None where it is unreadable."""
        return self.session.mode

    @property
    def role(self) -> Role | None:
        """The role of the current session; None if uncertain."""
        return self.session.certain_role

    @property
    def beneath(self) -> Role | None:
        """The role of the interrupted session; None where there is none, or it is not certain."""
        return None if self.interrupted is None else self.interrupted.certain_role


class Syscall(NamedTuple):
    """A system call with its arguments."""

    number: int
    name: str | None
    """None for a 32-bit call, whose numbers have other names."""
    args: tuple[int, ...]
    """As many as the call takes; all that registers hold where that is unknown."""


class TaskSyscall(NamedTuple):
    """The system call that a task is in, as far as known."""

    call: Syscall | None
    """None where it is in none, or that is unknown."""
    error: str | None = None
    """Why it is unknown."""
