# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remarks that name the system calls that tasks are in, or that a buffer has records of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kcovdbg.console.context import Context
from kcovdbg.console.wording import syscall_text
from kcovdbg.inputs.buffer_sources import USER
from kcovdbg.inputs.trace_paths import FILE
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.kcov import name_some, name_task
from kcovdbg.model.state import Part
from kcovdbg.model.task import TaskFields
from kcovdbg.records.located_records import find_recorded_syscalls
from kcovdbg.records.pc_locations import LocationCache

# Limit for system calls in a remark.
_CALLS: Final = 8


def syscall_remarks(context: Context, buffer: Buffer) -> tuple[str, ...]:
    """Return the system call that the task of a kernel's buffer is in, for a buffer that was just
    read from the kernel.
    """
    if buffer.pid is None or buffer.address is None or buffer.name.startswith((FILE, USER, "@")):
        return ()
    tasks = [
        task.fields for task in context.state(Part.TASKS).tasks if task.fields.pid == buffer.pid
    ]
    return syscall_lines(context, tasks)


def syscall_lines(context: Context, tasks: Collection[TaskFields]) -> tuple[str, ...]:
    """Return lines that name the system calls that tasks are in, or say why one is unknown."""
    state = context.reader.read(Part.NOTHING, syscalls=tasks)
    lines: list[str] = []
    for fields in tasks:
        found = state.syscalls[fields.address]
        if found.call is not None:
            lines.append(f"{name_task(fields)} is in {syscall_text(found.call)}")
        elif found.error is not None:
            lines.append(f"{name_task(fields)}: {found.error}")
    return tuple(lines)


def recorded_syscall_remarks(names: LocationCache, pcs: Iterable[int]) -> tuple[str, ...]:
    """Return a line that names the system calls that a buffer has records of: its task may have
    returned from them.

    :param pcs: the PC of each record, in order; 0 for a record without one.
    """
    distinct = dict.fromkeys(filter(None, pcs))
    names.prefetch(distinct)
    calls = find_recorded_syscalls(map(names.__getitem__, distinct))
    if not calls:
        return ()
    return (f"system calls in the records: {name_some(calls, _CALLS)}",)
