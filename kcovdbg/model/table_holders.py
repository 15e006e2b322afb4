# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which tasks have a file table or an address space: threads share both, processes may (CLONE_FILES, CLONE_VM, vfork)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from kcovdbg.model.kcov import Reference
from kcovdbg.model.task import TaskFields

Holders: TypeAlias = Mapping[int, Mapping[int | None, TaskFields]]
"""Address of a table -> the ids that name it -> a task that has it.

The table of a thread group's leader, or of its first thread where that has exited, is named by the process; one that a thread
has for itself, after unshare(CLONE_FILES), by the thread. The id is None where the process is unknown.
"""


def _find_holders(tasks: Iterable[TaskFields], table_of: Callable[[TaskFields], int | None]) -> Holders:
    processes: dict[int | None, list[TaskFields]] = {}
    for task in tasks:
        if table_of(task):
            processes.setdefault(task.tgid, []).append(task)
    found: dict[int, dict[int | None, TaskFields]] = {}
    for tgid, threads in processes.items():
        main = next((task for task in threads if task.pid == tgid), threads[0])
        named = {table_of(main): tgid}
        for task in (main, *threads):
            table = table_of(task)
            pid = named.setdefault(table, None if tgid is None else task.pid)
            if table:
                found.setdefault(table, {}).setdefault(pid, task)
    return found


def find_table_holders(tasks: Iterable[TaskFields]) -> Holders:
    """Return who has each ``struct files_struct``, in the order of the tasks."""
    return _find_holders(tasks, lambda task: task.files)


def find_space_holders(tasks: Iterable[TaskFields]) -> Holders:
    """Return who has each ``struct mm_struct``, in the order of the tasks."""
    return _find_holders(tasks, lambda task: task.mm)


class TaskFiles:
    """The file table and the address space of a task, by the ids that name them.

    :param tasks: all tasks.
    """

    def __init__(self, tasks: Iterable[TaskFields], task: TaskFields) -> None:
        tasks = tuple(tasks)
        # A leader that has exited has none, but its threads still have what is named by it.
        self.table_ids = {*find_table_holders(tasks).get(task.files or 0, (task.pid,))}
        """The ids that name its file table."""
        self.space_ids = {*find_space_holders(tasks).get(task.mm or 0, (task.pid,))}
        """The ids that name its address space."""

    def has(self, reference: Reference) -> bool:
        """Return whether a reference is a descriptor or a mapping of the task."""
        return reference.pid in {"fd": self.table_ids, "vma": self.space_ids}.get(reference.kind, ())
