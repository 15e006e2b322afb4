# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads every task of a kernel: all threads, and idle and exiting tasks.

Most tasks take one read, which has the pointers of the lists as well. A cut or looped list gives
the tasks that can be reached from either end, and a remark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from kcovdbg.abi.generations import TASK
from kcovdbg.errors import MissingError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.state import Lack, Reading, Source
from kcovdbg.model.task import TaskFields
from kcovdbg.target.pointer import (
    Links,
    Remarks,
    check_pointer,
    finish,
    follow_list,
    read_links,
    read_pointer,
    read_task_of_cpu,
    read_word,
)
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import TASK_LINKS, Layout

# PID_MAX_LIMIT on 64-bit kernels.
_MAX_PID: Final = 4 * 1024 * 1024
# Limit for tasks, which take some seconds to read; a machine with more has their number in
# nr_threads. The default of pid_max is a fourth of it.
_MAX_TASKS: Final = 1 << 17


def decode_comm(data: bytes) -> str:
    r"""Decode ``task_struct.comm``, which holds any bytes but NUL.

    Bytes that are not UTF-8 become ``\xNN``; renderers escape control characters.
    """
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


class _LinkedTask(NamedTuple):
    """A task as read, with its links to other tasks and its ``signal``."""

    fields: TaskFields
    links: Mapping[str, int | None]
    """The links by the layout's names."""

    @property
    def is_leader(self) -> bool:
        """Whether it can be a thread group leader, whose pid is its tgid. Zeroed memory cannot."""
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
    """One walk over the tasks. After the iteration, ``remarks`` has the problems."""

    def __init__(self, target: Target, layout: Layout) -> None:
        self._target = target
        self._layout = layout
        self._seen: set[int] = set()
        self._has_followed = False
        self.remarks = Remarks()

    @property
    def lack(self) -> Lack:
        """The remarks; the lack is total if the list of processes led to no process."""
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
        """Read a task's members and links. If a page is missing, the members on it are None."""
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
        # INIT_TASK_COMM. Other bytes are no name.
        if comm is not None and not comm.startswith("swapper"):
            self.remarks.note(
                f"init_task is called {comm!r}, not swapper: its layout is not that of this debug "
                "info; it is another build's, or GCC's RANDSTRUCT plugin moved members, which "
                "GCC's debug info does not show"
            )
        yield from self._walk_group(first)

        def read_leader(link: int) -> tuple[_LinkedTask, Links]:
            leader = self._read_new(link - tasks_offset)
            if not leader.is_leader:
                raise ReadError(
                    f"{leader.fields.address:#x}, to which it leads, is not a process", link
                )
            self._has_followed = True
            return leader, Links(leader.links["tasks_next"], leader.links["tasks_prev"])

        head = init + tasks_offset
        leaders, broken = finish(
            follow_list(self._target, head, read_leader, self._limit, first.links["tasks_next"])
        )
        for leader in leaders:
            yield from self._walk_group(leader)
        if broken is not None:
            self.remarks.note(f"the task list is broken: {broken}")

    def _read_new(self, address: int) -> _LinkedTask:
        """Read a task that no list has led to yet."""
        if address in self._seen:
            raise ReadError(f"task {address:#x} is on a list twice", address)
        if len(self._seen) >= self._limit:
            raise ReadError(f"there are more than {self._limit} tasks", address)
        return self._read(address)

    @cached_property
    def _limit(self) -> int:
        """Limit for the number of tasks."""
        return max(_MAX_TASKS, self._count_threads())

    def _count_threads(self) -> int:
        """Return ``nr_threads``, an int, plus the number of idle tasks, which it does not count; 0
        if it is unreadable.
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
            # An exiting leader may have lost its signal_struct.
            return
        head, start = signal + head_offset, leader + node_offset
        if following == head == before:
            return

        def read_thread(link: int) -> tuple[TaskFields | None, Links]:
            if link == head:
                try:
                    check_pointer(self._target, head, "signal_struct.thread_head")
                    return None, Links(*read_links(self._target, head))
                except ReadError:
                    if before != head:
                        raise
                    # The leader is the first one: all others come before the head.
                    return None, Links(start, None)
            thread = self._read_new(link - node_offset)
            fields = thread.fields
            is_other = fields.tgid != tgid and None not in (fields.tgid, tgid)
            if not is_pid(fields.pid) or fields.pid == 0 or is_other:
                raise ReadError(
                    f"{fields.address:#x}, to which it leads, is not a thread of it", link
                )
            return fields, Links(thread.links["thread_next"], thread.links["thread_prev"])

        # The walk starts at the leader, which need not be the first one on the list: for example
        # after execve() in another thread.
        threads, broken = finish(
            follow_list(self._target, start, read_thread, self._limit, following)
        )
        for fields in filter(None, threads):
            self._seen.add(fields.address)
            yield fields
        if broken is not None:
            self.remarks.note(f"the thread list of {process} is broken: {broken}")

    def _walk_cpus(self) -> Iterator[TaskFields]:
        """Yield idle tasks, which are on no list, and running tasks that the lists did not lead
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
    """Read each CPU's current task, ``struct task_struct *``; unreadable ones are left out."""
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


def read_stack_cpu(target: Target, offsets: tuple[int, int], task: int) -> int | None:
    """Return the CPU of a task whose thread_info is at its stack's base, None if it is unreadable.

    :param offsets: :attr:`Layout.stack_cpu`.
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
    :raises ReadError: when it is unreadable, or is not at a kernel address.
    """
    check_pointer(target, address, TASK)
    return _decode_task(layout, address, layout.task.read(target, address)).fields


def read_known_tasks(
    target: Target, layout: Layout, known: Iterable[TaskFields]
) -> Iterator[TaskFields]:
    """Read the tasks of an earlier look again; tasks that have ended are left out.

    A task counts as the same one while its memory has the same ids.
    """
    for before in known:
        try:
            fields = read_task(target, layout, before.address)
        except ReadError:
            continue
        if (fields.pid, fields.tgid) == (before.pid, before.tgid):
            yield fields
