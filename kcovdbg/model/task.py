# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks: their KCOV fields, sessions and saved state, their meaning, and the tasks that share a
file table or an address space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeAlias

from kcovdbg.abi import mode as modes
from kcovdbg.model.kcov import Reference


class Role(str, Enum):
    """The kinds of collection into a task."""

    NONE = "none"
    LOCAL = "local"
    REMOTE_SECTION = "remote-section"
    SOFTIRQ_SECTION = "softirq-section"


class Session(NamedTuple):
    """One session, by a task's fields or by a saved copy of them. Unknown members are None.

    :func:`kcovdbg.walk.sessions.SessionWalk.decide_session` decides the role of every session.
    """

    task: int | None
    """``struct task_struct *``; None for a saved session whose CPU's current task is unknown."""
    is_saved: bool
    """Whether a softirq section interrupted it."""
    mode: str | None
    """The name of its mode, without prefix and flags."""
    size: int | None
    """Size in words of the kernel."""
    area: int | None
    kcov: int | None
    sequence: int | None
    role: Role | None
    """The best judgment, None if nothing decides it. A session is LOCAL if it uses the object's own
    buffer, or if the object is enabled for this task.
    """
    is_certain: bool = True
    """Whether the role is certain: all members that decide it are readable, and agree."""
    errors: tuple[str, ...] = ()
    """Lines on unreadable or inconsistent data."""
    is_owner_mark: bool = False
    """Whether it only marks the owner of a KCOV_REMOTE_ENABLE, as kernels before v7.2 do."""
    unknown_bits: int = 0
    """The bits of its mode word that are neither part of a mode nor a known flag."""

    @property
    def certain_role(self) -> Role | None:
        """The role, None if there is a doubt."""
        return self.role if self.is_certain else None

    @property
    def is_tracing(self) -> bool:
        """Whether it records coverage."""
        return self.mode is not None and modes.is_tracing(self.mode)

    @property
    def is_local(self) -> bool:
        """Whether the task traces itself."""
        return self.role is Role.LOCAL

    @property
    def is_section(self) -> bool:
        """Whether it is a remote or softirq section that collects for an object, to which it then
        holds a reference.
        """
        if self.role not in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION) or not self.kcov:
            return False
        # A mode without a name may be one that records.
        return self.mode is None or not modes.is_known(self.mode) or modes.is_tracing(self.mode)


_PF_KTHREAD: Final = 0x00200000
_PF_EXITING: Final = 0x00000004
# PF_IO_WORKER of v5.12 and PF_USER_WORKER of v6.4; before, these bits had other meanings.
_PF_WORKERS: Final = 0x00004010


class SavedState(NamedTuple):
    """The fields of a session that a softirq section interrupted.

    Linux kernel commit 5ff3b30ab57d ("kcov: collect coverage from interrupts") (in v5.8) keeps it
    in ``struct kcov_percpu_data``; "kcov: fix data corruption and race conditions on PREEMPT_RT"
    (August 2026, back-ported to stable kernels) in ``struct task_struct``.
    """

    where: str
    """``cpu`` or ``task``: which structure holds it."""
    cpu: int | None
    task: int | None
    """``struct task_struct *`` of the session: the task itself, or the CPU's current task."""
    pid: int | None
    comm: str | None
    mode: int | None
    """``unsigned int``, flag bits included."""
    size: int | None
    """Size in words of the kernel."""
    area: int | None
    kcov: int | None
    sequence: int | None
    errors: tuple[str, ...] = ()
    irq_area: int | None = None
    """The CPU's area for softirq sections, if ``struct kcov_percpu_data`` has it (v5.8 up to August
    2026).
    """
    mode_flag: int | None = None
    """As :attr:`.KcovFields.mode_flag`."""

    @property
    def buffer(self) -> str:
        """The name of its buffer in commands."""
        return f"saved:t{self.pid}" if self.where == "task" else f"saved:{self.cpu}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is saved: all five members are then zero."""
        return not (self.kcov or self.mode or self.size or self.area or self.sequence)


class TaskFields(NamedTuple):
    """The members of a ``struct task_struct``; None is a member that this kernel lacks, or that is
    unreadable.
    """

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
    """Size in words of the kernel."""
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
    """Size in words of the kernel, the count word included."""
    mode_flag: int | None = None
    """As :attr:`.KcovFields.mode_flag`."""
    stack: int | None = None
    """The lowest address of its kernel stack."""

    @property
    def label(self) -> str:
        """``task 41``, with the address if the id is unknown."""
        return f"task {self.address:#x}" if self.pid is None else f"task {self.pid}"

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
        """Whether it may be a process's thread for background work of io_uring or vhost. Its stack
        decides.
        """
        return bool((self.flags or 0) & _PF_WORKERS)


@dataclass(frozen=True, slots=True)
class Task:
    """A task, and the meaning of its fields."""

    fields: TaskFields
    session: Session
    """The session that the task's own fields describe."""
    in_ctxsw: bool | None
    """``KCOV_IN_CTXSW``."""
    owns_remote: bool | None
    """Whether it owns an object by KCOV_REMOTE_ENABLE; None if this kernel lacks that, or it is
    unknown.
    """
    count: int | None
    """The count word of the buffer that ``buffer TID`` shows: of its own area, or of the object
    that it owns.
    """
    capacity: int | None
    """Capacity of that buffer in records."""
    full: bool | None
    saved: SavedState | None
    pauses: tuple[str, ...] = ()
    """Why nothing is recorded in it at the moment, in kernels with a posted series."""
    interrupted: Session | None = None
    """The session in ``saved``, which a softirq section interrupted."""
    errors: tuple[str, ...] = ()

    @property
    def mode(self) -> str | None:
        """The name of its mode, without prefix and flags; None if it is unreadable."""
        return self.session.mode

    @property
    def role(self) -> Role | None:
        """The role of the current session; None if uncertain."""
        return self.session.certain_role

    @property
    def beneath(self) -> Role | None:
        """The role of the interrupted session; None if there is none, or it is not certain."""
        return None if self.interrupted is None else self.interrupted.certain_role


class Syscall(NamedTuple):
    """A system call with its arguments."""

    number: int
    name: str | None
    """None for a 32-bit call, whose numbers have other names."""
    args: tuple[int, ...]
    """The call's arguments; if their number is unknown, all that registers may hold."""


class TaskSyscall(NamedTuple):
    """The system call that a task is in."""

    call: Syscall | None
    """None if it is in none, or that is unknown."""
    error: str | None = None
    """Why it is unknown."""


Holders: TypeAlias = Mapping[int, Mapping[int | None, TaskFields]]
"""Address of a table -> the ids that name it -> a task that has it.

The table of a thread group's leader, or of its first thread if the leader has exited, has the id of
the process. A thread's own table, after unshare(CLONE_FILES), has the id of the thread. The id is
None if the process is unknown.
"""


def find_holders(tasks: Iterable[TaskFields], member: Literal["files", "mm"]) -> Holders:
    """Return the tasks that have each ``struct files_struct`` or ``struct mm_struct``, in the order
    of the tasks.
    """
    table_of = attrgetter(member)
    processes: dict[int | None, list[TaskFields]] = {}
    for task in tasks:
        if table_of(task):
            processes.setdefault(task.tgid, []).append(task)
    found: dict[int, dict[int | None, TaskFields]] = {}
    for tgid, threads in processes.items():
        main = next((task for task in threads if task.pid == tgid), threads[0])
        named = {table_of(main): tgid}
        for task in (main, *threads):
            pid = named.setdefault(table_of(task), None if tgid is None else task.pid)
            found.setdefault(table_of(task), {}).setdefault(pid, task)
    return found


class TaskFiles:
    """The file table and the address space of a task, by the ids that name them."""

    def __init__(self, tasks: Iterable[TaskFields], task: TaskFields) -> None:
        tasks = tuple(tasks)
        # A leader that has exited has no files, but its threads still have the files that its pid
        # names.
        self.table_ids = {*find_holders(tasks, "files").get(task.files or 0, (task.pid,))}
        """The ids that name its file table."""
        self.space_ids = {*find_holders(tasks, "mm").get(task.mm or 0, (task.pid,))}
        """The ids that name its address space."""

    def has(self, reference: Reference) -> bool:
        """Return whether a reference is a descriptor or a mapping of the task."""
        ids = {"fd": self.table_ids, "vma": self.space_ids}.get(reference.kind, ())
        return reference.pid in ids
