# SPDX-License-Identifier: LGPL-2.1-or-later
"""``catch``: stop the kernel at the write that breaks a rule of check."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.generations import AREA, KCOV, TASK
from kcovdbg.catch.write_catch import Catch, CaughtWrite, WatchedField, catch_write
from kcovdbg.check.runner import find_rule
from kcovdbg.console.argument import Argument, Value, parse_address
from kcovdbg.console.column import (
    ADDRESS,
    ANY,
    BOOL,
    COMM,
    CPU,
    NUMBER,
    PATH,
    PID,
    SYMBOL,
    WORD,
    Column,
    RowType,
)
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Line, Lines, Renderable, Table
from kcovdbg.console.text import escape
from kcovdbg.console.wording import stack_frame_line
from kcovdbg.console.writer import Format
from kcovdbg.errors import INTERRUPTED, KcovdbgError, WordError
from kcovdbg.inputs.task_names import find_tid, suggest_task
from kcovdbg.model.state import Part
from kcovdbg.target.pointer import strip_tag
from kcovdbg.target.watchpoints import RunEnd

_FORMS: Final = "catch 41 kcov_mode, catch kcov:0xffff… refcount, catch area:0xffff… header"
_TYPES: Final = {"kcov": KCOV, "area": AREA}

_FINDING_COLUMNS: Final = (
    Column("rule", meaning="name of the rule"),
    Column("severity", meaning="`error` or `warning`"),
    Column("object", meaning="what the finding is about"),
    Column("message", meaning="what is wrong with it"),
)
_STACK_COLUMNS: Final = (
    Column(
        "address",
        ADDRESS,
        value=lambda frame: frame.pc,
        meaning="address in the function; of the innermost frame, in the instruction that wrote",
    ),
    Column("function", SYMBOL, meaning="name of the function", null="no symbol has its address"),
    Column(
        "file",
        PATH,
        meaning="source file, relative to the build root",
        null="debug info does not cover it",
    ),
    Column("line", NUMBER, meaning="line in the file", null="debug info does not cover it"),
    Column(
        "inline",
        BOOL,
        value=lambda frame: frame.is_inline,
        meaning="whether the function is inlined into the function of the next frame",
    ),
)
_COLUMNS: Final = (
    Column("memory", ADDRESS, meaning="address of what was written"),
    Column("old", WORD, meaning="its value before the write"),
    Column("new", WORD, meaning="its value after the write"),
    Column("cpu", CPU, meaning="CPU that wrote", null="the machine does not report it"),
    Column("pid", PID, meaning="thread id of the task on that CPU", null="it is unknown"),
    Column("comm", COMM, meaning="name of that task", null="it is unknown"),
    Column(
        "function",
        SYMBOL,
        value=lambda caught: next((frame.function for frame in caught.stack), None),
        meaning="function that wrote, the innermost inlined one",
        null="no symbol has its address",
    ),
    Column(
        "reason", meaning="why another CPU may have written", null="it is certain that this one did"
    ),
    Column(
        "findings",
        ANY,
        items=_FINDING_COLUMNS,
        meaning="the rules that the write broke, as `check` reports them",
    ),
    Column(
        "stack",
        ANY,
        items=_STACK_COLUMNS,
        meaning="stack of the CPU that wrote, the innermost frame first",
    ),
)


def _find_watched(context: Context, what: str, field: str) -> WatchedField:
    """Find the field of the structure that an argument names."""
    kind, colon, rest = what.partition(":")
    if colon:
        if kind not in _TYPES:
            raise WordError(f"'{what}' has no field to watch", what, hint=_FORMS)
        try:
            return WatchedField(_TYPES[kind], strip_tag(context.target, parse_address(rest)), field)
        except ValueError:
            raise WordError(f"'{rest}' is not an address", what, hint=_FORMS) from None
    similar = None
    if what.isdecimal():
        tid: int | None = int(what)
    else:
        tid = find_tid(context.inputs, what, is_any=True)
        similar = suggest_task(context.inputs, what, is_any=True)
    for task in context.state(Part.TASKS).task_fields:
        if tid is not None and task.pid == tid:
            return WatchedField(TASK, task.address, field, tid, task.comm)
    raise KcovdbgError(f"no task {what}", hint=similar or "tasks -a lists all")


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    watched = _find_watched(context, args.what, args.field)
    if context.terminal.is_terminal and context.format is Format.TEXT:
        text = f"the kernel runs until a wrong write to {escape(watched.name)}; C-c ends"
        context.terminal.show([[("remark", text)]])
    catch = catch_write(context.target, context.layout, watched, args.seconds)
    caught = catch.caught
    if caught is not None:
        context.status = 1
        context.workspace.stop_reason = f"where {watched.name} was broken"
    elif catch.end is RunEnd.INTERRUPT:
        context.status = INTERRUPTED
    data = Table(_COLUMNS, () if caught is None else (caught,))
    yield Lines(_lines(watched, catch), data=data, remarks=_remarks(watched, catch), is_prose=True)


def _remarks(watched: WatchedField, catch: Catch) -> Iterator[str]:
    for when, findings in (
        ("before the first write", catch.broken_before),
        ("at the end, by a write that was missed", catch.broken_after),
    ):
        for finding in findings:
            yield f"broken {when}: {finding.rule}, {finding.object}: {finding.message}"
    if catch.caught is not None:
        if catch.caught.stack_problem is not None:
            yield f"the callers are unknown: {catch.caught.stack_problem}"
        return
    writes = f"{catch.writes} writes to {watched.name}"
    reason = catch.reason
    if reason is None and catch.end is RunEnd.OTHER:
        reason = "something else stopped the machine"
    if reason is None:
        yield f"{writes} broke no rule"
    else:
        yield f"{reason}; {writes} before broke no rule"


def _lines(watched: WatchedField, catch: Catch) -> Iterator[Line]:
    caught = catch.caught
    if caught is None:
        return
    yield (
        ("error", "caught: "),
        ("header", escape(watched.name)),
        (
            "",
            f" changed from {caught.old:#x} to {caught.new:#x} at {caught.memory:#x}, after "
            f"{catch.writes - 1} other writes",
        ),
    )
    for finding in caught.findings:
        yield (
            ("key", f"  {finding.rule} "),
            ("header", escape(f"{finding.object}: ")),
            ("", escape(finding.message)),
        )
        rule = find_rule(finding.rule)
        if rule is not None:
            yield (("remark", f"  {finding.rule}: {rule.sentence}"),)
    writer = _describe_writer(caught)
    if caught.reason is not None:
        writer += f"; likely: {caught.reason}"
    yield (("", f"  by {writer}"),)
    for number, frame in enumerate(caught.stack):
        yield stack_frame_line(number, frame)


def _describe_writer(caught: CaughtWrite) -> str:
    where = "an unknown CPU" if caught.cpu is None else f"CPU {caught.cpu}"
    if caught.pid is None:
        return where
    return f"{where} in task {caught.pid} ({escape(caught.comm or '')})"


COMMAND: Final = Command(
    name="catch",
    summary="stop the kernel at the write that breaks a rule of check",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Sets a hardware watchpoint on a field and lets the kernel run, through a GDB stub or in "
        "GDB. The rules of check judge each write; the kernel goes on after a write that breaks "
        "none. The answer is the stack of the CPU that wrote, the old and the new value, and the "
        "rules.\n\n"
        "Writes by KCOV's own functions pass, because they change several fields one after the "
        "other; so does the scheduler's flag for tasks that are switched out. The header of an "
        "area is watched while the area is on a list of free areas.\n\n"
        "On a terminal, the shell opens with the kernel stopped at the write; elsewhere the "
        "kernel stays stopped until resume lets it go on. Nothing is written to the kernel's "
        "memory. C-c and the end of the time remove the watchpoint. The exit status is 1 if a "
        "write was caught.\n\n"
        "Fields of a task: kcov_mode, kcov, kcov_size, kcov_area, kcov_sequence, kcov_handle and "
        "others with the prefix kcov or saved_; of an object: refcount, mode, size, area, t, "
        "remote, remote_size, sequence; of an area: header."
    ),
    arguments=(
        Argument(
            "what TASK|kcov:ADDR|area:ADDR", Value.BUFFER, "a task, kcov:ADDRESS or area:ADDRESS"
        ),
        Argument("field FIELD", Value.TEXT, "the field to watch"),
        Argument(
            "--for TIME", Value.SECONDS, "give up after this time: 60, 60s, 5m", key="seconds"
        ),
    ),
    examples=(
        Example("catch 41 kcov_mode", "who changes the mode of task 41 to something wrong?"),
        Example(
            "catch kcov:0xffff888004a3c000 refcount --for 60s",
            "who changes a refcount without a reference?",
        ),
    ),
    endless=True,
    acts=True,
)
