# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every task of a kernel: all threads, idle and exiting ones included.

A task is read in one piece, list pointers included, so that walking costs one read per task. Lists
are followed with bounds: a cut or looped list gives the tasks that can be reached from either end,
and a remark.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kcovdbg.abi.generations import TASK
from kcovdbg.errors import MissingError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.state import Lack, Reading, Source
from kcovdbg.model.task import TaskFields
from kcovdbg.target.pointer import Remarks, check_pointer, read_pointer, read_task_of_cpu, read_word
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import TASK_LINKS, Layout

# PID_MAX_LIMIT on 64-bit kernels.
_MAX_PID: Final = 4 * 1024 * 1024
# Four times the default of pid_max, and some seconds of reading. A machine may have more, and then
# says so itself: nr_threads.
_MAX_TASKS: Final = 1 << 17


def decode_comm(data: bytes) -> str:
    r"""Decode ``task_struct.comm``, which holds any bytes but NUL.

    Bytes that are not UTF-8 become ``\xNN``; renderers escape control characters.
    """
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


class _LinkedTask(NamedTuple):
    """A task as read, and what leads to others: its links, and its ``signal``."""

    fields: TaskFields
    links: Mapping[str, int | None]
    """The links by the layout's names."""

    @property
    def is_leader(self) -> bool:
        """Whether this can be a thread group leader, whose pid is its tgid; zeroed memory is
        none.
        """
        pid, tgid = self.fields.pid, self.fields.tgid
        return is_pid(pid) and is_pid(tgid) and (None in (pid, tgid) or pid == tgid) and pid != 0


def _decode_task(layout: Layout, address: int, values: tuple[Any, ...]) -> _LinkedTask:
    members = dict(zip(layout.task.names, values, strict=True))
    links = {name: members.pop(name) for name in TASK_LINKS}
    comm = members.pop("comm")
    fields = TaskFields(
        address=address, comm=None if comm is None else decode_comm(comm), **members
    )
    return _LinkedTask(fields, links)


def is_pid(number: int | None) -> bool:
    """Return whether a number can be a thread id, or is unknown."""
    return number is None or 0 <= number <= _MAX_PID


class TaskWalk:
    """One walk over the tasks.

    Iterating yields :class:`TaskFields`; afterwards ``remarks`` holds what could not be reached or
    read.
    """

    def __init__(self, target: Target, layout: Layout) -> None:
        self._target = target
        self._layout = layout
        self._seen: set[int] = set()
        self._limit = _MAX_TASKS
        self._was_raised = False
        self._has_followed = False
        self.remarks = Remarks()
        # A live kernel's lists change between two reads, so that links back prove nothing.
        self._moving = target.live

    @property
    def lack(self) -> Lack:
        """The remarks; nothing could be read where the list of processes leads to none."""
        return Lack(tuple(self.remarks), is_total=not self._has_followed)

    def __iter__(self) -> Iterator[TaskFields]:
        try:
            init = self._target.symbol("init_task").address
            tasks_offset = self._layout.task.offset("tasks_next")
        except MissingError as error:
            self.remarks.note(f"the task list could not be found: {error}")
        else:
            yield from self._walk_processes(init, tasks_offset)
        yield from self._walk_cpus()

    def _read(self, address: int) -> _LinkedTask:
        """Read a task's members and links; a task with a missing page is read as far as it goes."""
        check_pointer(self._target, address, TASK)
        layout = self._layout.task
        try:
            values = layout.read(self._target, address)
        except ReadError:
            values, lost = layout.read_partly(self._target, address)
            self.remarks.note(f"task {address:#x}: {', '.join(lost)} could not be read")
        return _decode_task(self._layout, address, values)

    def _walk_processes(self, init: int, tasks_offset: int) -> Iterator[TaskFields]:
        try:
            first = self._read(init)
        except ReadError as error:
            self.remarks.note(f"the task list could not be read: {error}")
            return
        comm = first.fields.comm
        # INIT_TASK_COMM, to which each CPU's idle task adds its number. What else is read there is
        # no name.
        if comm is not None and not comm.startswith("swapper"):
            self.remarks.note(
                f"init_task is called {comm!r}, not swapper: its layout is not that of this debug "
                "info; it is another build's, or GCC's RANDSTRUCT plugin moved members, which "
                "GCC's debug info does not show"
            )
        yield from self._walk_group(first)
        broken = yield from self._follow(
            first.links["tasks_next"], init, tasks_offset, "tasks_next", "tasks_prev"
        )
        if broken is None:
            return
        self.remarks.note(
            f"the task list is broken: {broken}; what can be reached from its other end follows"
        )
        broken = yield from self._follow(
            first.links["tasks_prev"], init, tasks_offset, "tasks_prev", "tasks_next"
        )
        if broken is not None and "twice" not in broken:
            self.remarks.note(f"the task list is also broken from its other end: {broken}")

    def _follow(
        self, node: int | None, init: int, tasks_offset: int, link: str, back: str
    ) -> Generator[TaskFields, None, str | None]:
        """Follow the list of processes in one direction; return why it ended early, None where it
        came around.

        :param link: name of the link to follow.
        :param back: name of the other one.
        """
        before = init + tasks_offset
        while self._may_go_on():
            if node is None:
                return "a link could not be read"
            leader = node - tasks_offset
            if leader == init:
                return None
            if leader in self._seen:
                return f"task {leader:#x} is on it twice"
            try:
                task = self._read(leader)
            except ReadError as error:
                return str(error)
            if not task.is_leader:
                return f"{leader:#x}, to which it leads, is not a process"
            if not self._moving and task.links[back] not in (None, before):
                return f"{leader:#x}, to which it leads, does not link back"
            self._has_followed = True
            yield from self._walk_group(task)
            before, node = node, task.links[link]
        return f"it has more than {self._limit} tasks"

    def _may_go_on(self) -> bool:
        """Return whether there may be another task: with very many tasks, ``nr_threads`` is the
        limit.
        """
        if len(self._seen) < self._limit:
            return True
        if not self._was_raised:
            self._was_raised = True
            self._limit = max(self._limit, self._count_threads())
        return len(self._seen) < self._limit

    def _count_threads(self) -> int:
        """Return ``nr_threads``, an int, plus the idle tasks, which it does not count; 0 where it
        is unreadable.
        """
        try:
            count = read_word(self._target, self._target.symbol("nr_threads").address, 4)
        except (MissingSymbolError, ReadError):
            return 0
        return count + len(self._target.cpus()) if 0 < count <= _MAX_PID else 0

    def _walk_group(self, first: _LinkedTask) -> Iterator[TaskFields]:
        """Yield a process's threads, the leader first."""
        leader, tgid, links = first.fields.address, first.fields.tgid, first.links
        self._seen.add(leader)
        yield first.fields
        following, before, signal = links["thread_next"], links["thread_prev"], links["signal"]
        process = f"task {leader:#x}" if tgid is None else f"process {tgid}"
        try:
            # Linux kernel commit 0c740d0afc3b ("introduce for_each_thread() to replace the buggy
            # while_each_thread()") (in v3.14): the list's head is in signal_struct.
            head_offset = self._target.member("struct signal_struct", "thread_head").offset
            node_offset = self._layout.task.offset("thread_next")
            self._layout.task.offset("signal")
        except MissingTypeError as error:
            if not any(remark.startswith("threads could not") for remark in self.remarks):
                self.remarks.note(f"threads could not be followed: {error}")
            return
        if following is None or signal is None:
            self.remarks.note(
                f"the threads of {process} could not be followed: a link could not be read"
            )
            return
        if not signal:
            # An exiting leader has no signal_struct any more.
            return
        head = signal + head_offset
        if following == head == before:
            return
        start = leader + node_offset
        # Where the leader is the first on it, the head is the end and need not be read.
        broken = yield from self._follow_threads(
            following, start, head, tgid, 0, is_first=before == head
        )
        if broken is None:
            return
        self.remarks.note(f"the thread list of {process} is broken: {broken}")
        if before is not None:
            yield from self._follow_threads(before, start, head, tgid, self._target.word_size)

    def _follow_threads(
        self,
        node: int | None,
        start: int,
        head: int,
        tgid: int | None,
        way: int,
        *,
        is_first: bool = False,
    ) -> Generator[TaskFields, None, str | None]:
        """Follow a ring of threads from its leader on; return why it ended early, None where it
        came around.

        The leader is not always the first one: for example after execve() in another thread.

        :param start: the leader's own link.
        :param head: the ring's head, in ``struct signal_struct``, which is no thread.
        :param way: offset of the link to follow: 0 for the next one, a word for the one before.
        :param is_first: whether the leader is the first on it, so that the head is its end.
        """
        link, back = ("thread_prev", "thread_next") if way else ("thread_next", "thread_prev")
        before = start
        node_offset = self._layout.task.offset("thread_next")
        passed_head = False
        while self._may_go_on():
            if node is None:
                return "a link could not be read"
            if node == start or (is_first and node == head):
                return None
            if node == head:
                if passed_head:
                    return "it comes back to its head"
                passed_head = True
                try:
                    check_pointer(self._target, head, "signal_struct.thread_head")
                    before, node = node, read_pointer(self._target, head + way)
                except ReadError as error:
                    return str(error)
                continue
            thread = node - node_offset
            if thread in self._seen:
                return f"task {thread:#x} is on it twice"
            try:
                task = self._read(thread)
            except ReadError as error:
                return str(error)
            fields = task.fields
            is_other = fields.tgid != tgid and None not in (fields.tgid, tgid)
            if not is_pid(fields.pid) or fields.pid == 0 or is_other:
                return f"{thread:#x}, to which it leads, is not a thread of it"
            if not self._moving and task.links[back] not in (None, before):
                return f"{thread:#x}, to which it leads, does not link back"
            self._seen.add(thread)
            yield fields
            before, node = node, task.links[link]
        return f"there are more than {self._limit} tasks"

    def _walk_cpus(self) -> Iterator[TaskFields]:
        """Yield idle tasks, which are on no list, and running ones that the lists didn't lead
        to.
        """
        for cpu in self._target.cpus():
            for member, what in (("idle", "idle"), ("curr", "current")):
                try:
                    address = read_task_of_cpu(self._target, cpu, member)
                    # A possible CPU that was never online has no idle task.
                    if not address or address in self._seen:
                        continue
                    fields = self._read(address).fields
                except (MissingError, ReadError) as error:
                    self.remarks.note(f"CPU {cpu}'s {what} task could not be read: {error}")
                    continue
                if not (is_pid(fields.pid) and is_pid(fields.tgid)):
                    self.remarks.note(f"CPU {cpu}'s {what} task {address:#x} is not a task")
                    continue
                self._seen.add(address)
                yield fields


def read_current_tasks(target: Target) -> Reading[dict[int, int]]:
    """Read each CPU's current task, ``struct task_struct *``; CPUs where it is unreadable are left
    out.
    """
    found: dict[int, int] = {}
    remarks: list[str] = []
    for cpu in target.cpus():
        try:
            address = read_task_of_cpu(target, cpu, "curr")
        except (MissingError, ReadError) as error:
            remarks.append(f"CPU {cpu}'s current task could not be read: {error}")
            continue
        if address:
            found[cpu] = address
    return Reading.of(Source.CURRENT, found, remarks)


def find_current_tasks(target: Target) -> dict[int, int]:
    """Return each CPU's current task, ``struct task_struct *``; CPUs where it is unreadable are
    left out.
    """
    return read_current_tasks(target).found


def read_stack_cpu(target: Target, offsets: tuple[int, int], task: int) -> int | None:
    """Return the CPU of a task whose thread_info is at its stack's base, None where that is
    unreadable.

    :param offsets: as :attr:`Layout.stack_cpu`.
    """
    stack_offset, cpu_offset = offsets
    try:
        stack = read_pointer(target, task + stack_offset)
        check_pointer(target, stack, "task_struct.stack")
        cpu = read_word(target, stack + cpu_offset, 4)
    except ReadError:
        return None
    return cpu if cpu in target.cpus() else None


def read_task(target: Target, layout: Layout, address: int) -> TaskFields:
    """Read one task's fields.

    :param address: ``struct task_struct *``.
    :raises ReadError: when it is unreadable, or not a kernel address.
    """
    check_pointer(target, address, TASK)
    return _decode_task(layout, address, layout.task.read(target, address)).fields


def read_known_tasks(
    target: Target, layout: Layout, known: Iterable[TaskFields]
) -> Iterator[TaskFields]:
    """Read tasks again that an earlier look found; those that have ended are left out.

    The memory of a task that has ended may hold anything: it counts as the same task while it has
    the same ids.
    """
    for before in known:
        try:
            fields = read_task(target, layout, before.address)
        except ReadError:
            continue
        if (fields.pid, fields.tgid) == (before.pid, before.tgid):
            yield fields
