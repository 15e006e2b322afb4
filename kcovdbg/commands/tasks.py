# SPDX-License-Identifier: LGPL-2.1-or-later
"""``tasks``: tasks and their KCOV state."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kcovdbg.console.argument import Argument, Value, matches_name, select_rows
from kcovdbg.console.column import ADDRESS, ANY, BOOL, NUMBER, SYSCALL, UNREAD, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import PIPED_WIDTH, Table
from kcovdbg.console.state_columns import TASK_COLUMNS
from kcovdbg.console.wording import device_session_text, syscall_text
from kcovdbg.console.writer import Format
from kcovdbg.errors import WordError, suggest
from kcovdbg.model.device import DeviceSession
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Syscall, Task


def _syscall_column(state: State) -> Column:
    """Return the column of the system calls that a state has."""

    def find(task: Task) -> Syscall | None:
        return state.syscalls[task.fields.address].call

    def text(task: Task) -> str | None:
        call = find(task)
        if call is None:
            return None
        return syscall_text(call)

    return Column(
        "syscall", SYSCALL, value=find, text=text, elastic=12, priority=2, hide_empty=True
    )


_NO_MEMBER: Final = "tasks of this kernel have no such member"
_SESSION_COLUMNS: Final = (
    Column("device", meaning="name of the device"),
    Column(
        "kcov",
        ADDRESS,
        meaning="address of the device's object",
        null="tasks of this kernel do not name it",
    ),
    Column(
        "area",
        ADDRESS,
        meaning="address of the buffer or area",
        null=_NO_MEMBER,
    ),
    Column(
        "size",
        NUMBER,
        meaning="its size",
        null=_NO_MEMBER,
        unit="words",
    ),
    Column(
        "sequence",
        NUMBER,
        meaning="sequence number of the last record",
        null=_NO_MEMBER,
    ),
    Column(
        "role",
        meaning="`local`, or `remote-section` inside a remote section",
        null="tasks of this kernel do not say",
    ),
    Column(
        "enabled",
        BOOL,
        meaning="whether records are written",
        null=_NO_MEMBER,
    ),
    Column("count", NUMBER, meaning="words in use", null=UNREAD, unit="words"),
    Column("full", BOOL, meaning="whether no record fits into the rest", null=UNREAD),
)


def _devices_column(sessions: Mapping[int, Sequence[DeviceSession]]) -> Column:
    """Return the column of what devices of posted series collect into tasks."""

    def find(task: Task) -> Sequence[DeviceSession]:
        return sessions.get(task.fields.address, ())

    def text(task: Task) -> str | None:
        return ", ".join(map(device_session_text, find(task))) or None

    return Column(
        "devices",
        ANY,
        value=find,
        text=text,
        items=_SESSION_COLUMNS,
        elastic=12,
        priority=1,
        hide_empty=True,
        meaning="what devices of posted series collect into the task",
    )


_SHOWN: Final = (
    "pid comm kcov_mode count role devices syscall kcov kcov_handle kcov_remote cpu kcov_area "
    "task tgid kcov_size kcov_sequence"
).split()


_NO_TASK: Final = "no task with KCOV state"


def _matches(task: Task, wanted: str) -> bool:
    """Return whether a word selects a task: its thread id, a pattern of its name, or a part of its
    name.
    """
    if wanted.isdecimal():
        return int(wanted) == task.fields.pid
    return matches_name(wanted, (task.fields.comm or "",))


def _with_state(context: Context, sessions: Mapping[int, object]) -> Sequence[Task]:
    """Return the tasks with KCOV state, and tasks that only a device of a posted series collects
    into.
    """
    state = context.state(Part.TASKS)
    if sessions.keys() <= state.tasks_with_state.keys():
        return state.tasks
    known = state.tasks_with_state
    return tuple(
        known.get(fields.address) or context.reader.interpret(fields)
        for fields in state.task_fields
        if fields.address in sessions or fields.address in known
    )


def _unknown_calls(state: State) -> Iterator[str]:
    """Yield one remark on all tasks whose system calls are unknown."""
    errors = [call.error for call in state.syscalls.values() if call.error is not None]
    if len(errors) == 1:
        yield errors[0]
    elif errors:
        yield f"{errors[0]} ({len(errors)} tasks)"


def _run(context: Context, args: Namespace) -> Table:
    modes = sorted(context.layout.mode_names)
    if args.mode is not None and modes and args.mode not in modes:
        hint = suggest(args.mode, modes) or f"its modes: {', '.join(modes)}"
        raise WordError(f"this kernel has no mode '{args.mode}'", "--mode", hint=hint)
    # A task that is named by its id is shown even without KCOV state.
    by_tid = any(word.isdecimal() for word in args.tasks)
    every = args.all or by_tid
    sessions: dict[int, list[DeviceSession]] = {}
    for device in context.state(Part.DEVICES).devices:
        for session in device.sessions:
            sessions.setdefault(session.task, []).append(session)
    tasks: Sequence[Task]
    if every:
        others, parts = "no task", Part.ALL_TASKS
        tasks = context.state(parts).all_tasks
    else:
        others, parts = _NO_TASK, Part.TASKS
        tasks = _with_state(context, sessions)
    remarks: list[str] = []
    empty = "no task" if args.all else _NO_TASK
    if args.mode:
        empty = "no such task"
    if args.tasks:
        tasks, missed = select_rows(tasks, args.tasks, _matches)
        for word in missed:
            said = f"{others} matches '{word}'"
            if word.isdecimal():
                said = f"no task {word}"
            remarks.append(context.state(parts).say_absent(said, parts))
        if missed and not every:
            remarks.append("tasks -a also lists tasks without KCOV state")
        if missed and not tasks:
            context.status = 2
            if context.format is Format.TEXT:
                empty, *remarks = remarks
    if args.mode is not None:
        tasks = [task for task in tasks if task.mode == args.mode]
    state = context.reader.read(Part.NOTHING, syscalls=[task.fields for task in tasks])

    def errors(task: Task) -> tuple[str, ...]:
        error = state.syscalls[task.fields.address].error
        if error is None or context.format is Format.TEXT:
            return task.errors
        return (*task.errors, error)

    if context.format is Format.TEXT:
        # JSON has the error of each task.
        remarks += _unknown_calls(state)
    return Table(
        (*TASK_COLUMNS, _devices_column(sessions), _syscall_column(state)),
        tasks,
        remarks=(*context.notes, *remarks),
        empty=empty,
        errors=errors,
        label=lambda task: task.fields.label,
        show=_SHOWN,
        piped_width=PIPED_WIDTH,
    )


COMMAND: Final = Command(
    name="tasks",
    summary="list tasks with KCOV state: mode, buffer, and what collects into them",
    topic=Topic.STATE,
    run=_run,
    row_types=(
        RowType(
            (*TASK_COLUMNS, _devices_column({}), Column("syscall", SYSCALL)),
            errors=True,
            unread=True,
        ),
    ),
    description=(
        "COUNT is the number of records in the task's buffer and its capacity, KCOV the object "
        "that owns the buffer. ROLE is what collects into the task now: local (the task traces "
        "itself), remote-section (a background thread works under another task's handle), "
        "softirq-section (a softirq interrupted the task; the interrupted role follows 'over'), "
        "remote owner (the task did KCOV_REMOTE_ENABLE, others collect for it). SYSCALL is the "
        "system call that the task is in, by the registers saved on its stack. A task that runs "
        "on a CPU may be in none: without the CPU's registers that is unknown.\n\n"
        "Tasks that no longer collect keep the sequence number of their last session; only -a "
        "lists them."
    ),
    arguments=(
        Argument("-a, --all", Value.FLAG, "also list tasks without KCOV state"),
        Argument("--mode M", Value.MODE, "list only tasks in this mode, such as trace-pc"),
        Argument(
            "tasks [PATTERN|TID…]", Value.TASK, "thread ids, patterns (syz*) or parts of names"
        ),
    ),
    examples=(
        Example("tasks", "which tasks collect coverage, and how full are their buffers?"),
        Example("tasks --mode trace-pc 'syz*'", "executors that trace PCs"),
        Example("tasks -a --json", "every task, for a script"),
    ),
)
