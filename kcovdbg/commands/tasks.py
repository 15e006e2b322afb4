# SPDX-License-Identifier: LGPL-2.1-or-later
"""``tasks``: what KCOV does in each task."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from kcovdbg.abi.mode import PREFIX
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.suggest import suggest
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.task import Role, Task
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ADDRESS, BOOL, COMM, CPU, HANDLE, MODE, NUMBER, PID, TEXT, WORD
from kcovdbg.render.renderable import Table
from kcovdbg.walk.objects import find_capacity


def _field(name: str) -> Callable[[Task], Any]:
    return lambda task: getattr(task.fields, name)


def role_text(task: Task) -> str:
    """Say in one word or a few what collects into a task."""
    role = "?" if task.role is None else "-" if task.role is Role.NONE else task.role.value
    if task.beneath is not None and task.beneath is not Role.NONE:
        role += f" over {task.beneath.value}"
    if task.owns_remote:
        role = "remote owner" if role == "-" else f"{role}, remote owner"
    return role


def count_text(count: int | None, capacity: int | None, full: bool | None) -> str | None:
    """Show how full a buffer is: ``11/65535``, ``FULL 65535/65535``."""
    if count is None:
        return None
    text = str(count) if capacity is None else f"{count}/{capacity}"
    return f"FULL {text}" if full else text


def make_columns(context: Context) -> tuple[Column, ...]:
    """Return the columns of a table of tasks."""

    def capacity(task: Task) -> int | None:
        fields = task.fields
        if fields.kcov_area or not task.owns_remote:
            return find_capacity(context.layout, task.mode, fields.kcov_size, fields.trace_size)
        # The count is that of the buffer that the owner of remote handles maps.
        pointer = fields.kcov_remote or fields.kcov
        try:
            kcov = context.census.kcov(pointer) if pointer else None
        except KcovdbgError:
            return None
        if kcov is None or kcov.mode is None:
            return None
        return find_capacity(context.layout, context.layout.object_mode_name(kcov.mode), kcov.size, kcov.trace_size)

    return (
        Column("pid", PID, value=_field("pid")),
        Column("tgid", PID, value=_field("tgid"), priority=6),
        Column("comm", COMM, value=_field("comm"), elastic=8),
        Column("task", ADDRESS, value=_field("address"), priority=5),
        Column("cpu", CPU, value=_field("cpu"), priority=3),
        Column("kcov", ADDRESS, value=_field("kcov")),
        Column("kcov_remote", ADDRESS, value=_field("kcov_remote"), priority=2, hide_empty=True),
        Column("kcov_mode", MODE, title="MODE", value=lambda task: task.mode),
        Column("kcov_mode_raw", WORD, value=_field("kcov_mode")),
        Column("in_ctxsw", BOOL),
        Column("kcov_size", NUMBER, title="SIZE", value=_field("kcov_size"), priority=7, hide_empty=True),
        Column("kcov_area", ADDRESS, title="AREA", value=_field("kcov_area"), priority=4, hide_empty=True),
        Column("kcov_sequence", NUMBER, title="SEQUENCE", value=_field("kcov_sequence"), priority=8, hide_empty=True),
        Column("kcov_handle", HANDLE, title="HANDLE", value=_field("kcov_handle"), priority=1, hide_empty=True),
        Column("kcov_softirq", NUMBER, value=_field("kcov_softirq")),
        Column("role", TEXT, text=role_text, elastic=12),
        Column("beneath", TEXT),
        Column("owns_remote", BOOL),
        Column(
            "count",
            NUMBER,
            text=lambda task: count_text(task.count, capacity(task), task.full),
            style=lambda task: "warning" if task.full else "number",
        ),
        Column("full", BOOL),
    )


_SHOWN = (
    "pid",
    "comm",
    "kcov_mode",
    "count",
    "role",
    "kcov",
    "kcov_handle",
    "kcov_remote",
    "cpu",
    "kcov_area",
    "task",
    "tgid",
    "kcov_size",
    "kcov_sequence",
)


def _matches(task: Task, wanted: str) -> bool:
    """Tell whether a task is meant by a word: its tid, a pattern of names or a part of its name."""
    if wanted.isdecimal():
        return int(wanted) == task.fields.pid
    if any(character in wanted for character in "*?["):
        return fnmatchcase(task.fields.comm or "", wanted)
    return wanted in (task.fields.comm or "")


def select(tasks: Iterable[Task], wanted: Sequence[str]) -> tuple[list[Task], list[str]]:
    """Return the tasks that any of these words means, and the words that mean none."""
    found: list[Task] = []
    missed = dict.fromkeys(wanted)
    for task in tasks:
        matching = [word for word in wanted if _matches(task, word)]
        if matching:
            found.append(task)
            for word in matching:
                missed.pop(word, None)
    return found, list(missed)


def _run(context: Context, args: Namespace) -> Table:
    modes = sorted(name.upper().removeprefix(PREFIX) for name in context.layout.modes)
    if args.mode is not None and modes and args.mode not in modes:
        hint = suggest(args.mode, modes) or f"it has {', '.join(modes)}"
        raise WordError(f"this kernel has no mode {args.mode}", None, hint=hint)
    # Whoever names a task wants to see it, whether KCOV has to do with it or not.
    by_tid = any(word.isdecimal() for word in args.tasks)
    tasks: Sequence[Task] = context.census.tasks(all_tasks=args.all or by_tid)
    remarks: list[str] = []
    if args.tasks:
        tasks, missed = select(tasks, args.tasks)
        remarks = [f"no task {'is' if word.isdecimal() else 'with KCOV state matches'} {word}" for word in missed]
        if missed and not tasks:
            context.status = 2
    if args.mode is not None:
        tasks = [task for task in tasks if task.mode == args.mode]
    return Table(
        make_columns(context),
        tasks,
        remarks=(*context.census.remarks(), *remarks),
        empty="no such task" if args.tasks or args.mode else "no task" if args.all else "no task has KCOV state",
        errors=lambda task: task.errors,
        label=lambda task: f"task {task.fields.pid}",
        show=_SHOWN,
    )


TASKS = Command(
    name="tasks",
    summary="tasks with KCOV state: mode, buffer, who collects into them",
    run=_run,
    description=(
        "COUNT is the number of records in the task's buffer and how many fit. ROLE tells what collects into the task now: "
        "local (it traces itself), remote-section (it is a background thread working for somebody else's handle), "
        "softirq-section (it is interrupted by one; what it did before follows 'over'), remote owner (it did "
        "KCOV_REMOTE_ENABLE, others collect for it).\n\n"
        "A sequence number alone is no state, and is left out but with -a: tasks keep it when they stop."
    ),
    arguments=(
        Argument(("-a", "--all"), Value.FLAG, "tasks without KCOV state too"),
        Argument(("--mode",), Value.MODE, "only tasks in this mode, such as trace-pc", metavar="M"),
        Argument(
            ("tasks",), Value.TASK, "thread ids, patterns (syz*) or parts of names", count=Count.ANY, metavar="PATTERN|TID"
        ),
    ),
    examples=(
        Example("tasks", "who has KCOV open, and how full are the buffers?"),
        Example("tasks --mode trace-pc 'syz*'", "executors that trace PCs"),
        Example("tasks -a --json", "every task, for a script"),
    ),
)
