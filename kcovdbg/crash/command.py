# SPDX-License-Identifier: LGPL-2.1-or-later
"""``last``: show the last records of tasks beside their kernel stacks, and what the kernel reported
about a crash.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import Record
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import BOOL, COMM, NUMBER, PATH, PID, SYMBOL, TEXT, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.grid import table_lines
from kcovdbg.console.log_lines import end_lines
from kcovdbg.console.record_columns import approximate_errors, make_record_columns
from kcovdbg.console.renderable import Line, Lines, Renderable, Table, wrap_line
from kcovdbg.console.syscall_remarks import syscall_lines
from kcovdbg.console.text import escape
from kcovdbg.console.wording import (
    NO_ADDRESS,
    function_text,
    place_text,
    record_text,
    stack_frame_line,
)
from kcovdbg.crash.crash_point import CrashPoint, find_crash_point
from kcovdbg.crash.crash_summary import CrashedTask, find_crashed_task, has_buffer
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.task_names import find_tids
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.kcov import name_task
from kcovdbg.model.location import Location
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.state import Extent, Part
from kcovdbg.model.task import Role, Task
from kcovdbg.records.function_trace import find_runs
from kcovdbg.records.located_records import locate_records
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.walk.buffers import read_buffer
from kcovdbg.walk.crash_evidence import read_crash_evidence, read_stack

# Default for -n.
_LINES: Final = 30
_LOG_LINES: Final = 10
# Only so many records before the end are grouped into lines.
_MAX_GROUPED: Final = 1 << 16


class _BufferPart(NamedTuple):
    """One buffer of a task."""

    buffer: Buffer
    pcs: Sequence[int]
    ending: CrashPoint


class _LastSteps(NamedTuple):
    """A task's last steps."""

    task: Task
    is_stuck: bool
    """Whether another task or CPU reported that the task hangs, and crashed the kernel."""
    stack: Sequence[StackFrame]
    parts: Sequence[_BufferPart]
    remarks: Sequence[tuple[str, str]]
    """The style and text of each remark."""

    @property
    def label(self) -> str:
        return name_task(self.task.fields)


class _Step(NamedTuple):
    """A record: a row of JSON."""

    last: _LastSteps
    part: _BufferPart
    record: Record
    address: int | None
    location: Location | None
    symbol: str | None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive records of one function: a line of the text view."""

    index: int
    records: int
    function: str
    where: str | None
    stack: str | None
    """The stack frames that these records belong to."""


_PIECE_COLUMNS: Final = (
    Column("index", NUMBER),
    Column("records", NUMBER),
    Column("function", SYMBOL, elastic=16),
    Column("where", PATH, elastic=16, priority=1),
    Column("stack", SYMBOL, elastic=12),
)


def _find_frame(step: _Step) -> int | None:
    """Return the number of the innermost stack frame that a record belongs to."""
    frames = step.part.ending.stack_frames.get(step.record.number, ())
    return frames[0] if frames else None


def _list_record_columns() -> Iterator[Column]:
    """Yield the columns of a record. Those of comparisons are null for other records."""
    for column in make_record_columns(is_comparison=True, has_offset=True, has_calls=True):
        if column.key in ("size", "const", "arg1", "arg2"):
            yield replace(column, null="the record is not a comparison")
        elif column.key not in ("type", "where"):
            yield column


_COLUMNS: Final = (
    Column("pid", PID, value="last.task.fields.pid"),
    Column("comm", COMM, value="last.task.fields.comm"),
    Column(
        "buffer",
        TEXT,
        value="part.buffer.name",
        meaning="name of the buffer, as commands take it",
    ),
    *_list_record_columns(),
    Column(
        "stack",
        NUMBER,
        value=_find_frame,
        meaning="number of the stack frame that the record's function was called from",
        null="no frame matches",
    ),
    Column("full", BOOL, value="part.buffer.full"),
)


def _choose(
    context: Context, args: Namespace, crashed: CrashedTask
) -> tuple[list[Task], list[str]]:
    """Return the tasks to show, and remarks on the choice."""
    if args.tasks:
        state = context.state(Part.ALL_TASKS)
        tids: dict[int, None] = {}
        for word in args.tasks:
            tids |= dict.fromkeys(find_tids(context.inputs, word))
        return list(map(state.find_task, tids)), []
    if args.all:
        return list(filter(_has_state, context.state(Part.TASKS).tasks)), []
    if crashed.task is not None:
        return [crashed.task], []
    remarks = []
    # Without stacks at all, there is a remark with each task.
    if crashed.error and context.target.stacks is not None:
        remarks.append(f"crashed task unknown: {crashed.error}")
    state = context.state(Part.ALL_TASKS | Part.CURRENT)
    by_address = {task.fields.address: task for task in state.all_tasks}
    current = filter(None, map(by_address.get, state.current.values()))
    return list(current), remarks


def _has_state(task: Task) -> bool:
    return bool(task.role is not Role.NONE or task.saved or task.owns_remote)


def _find_steps(context: Context, task: Task, crashed: CrashedTask) -> _LastSteps:
    label = name_task(task.fields)
    is_crashed = crashed.task is not None and task.fields.address == crashed.task.fields.address
    is_stuck = is_crashed and crashed.reporter is not None
    remarks = [("remark", line) for line in syscall_lines(context, (task.fields,))]
    stack = read_stack(context.target, task.fields.address)
    if stack.error is not None:
        remarks.append(("remark", f"{label}: {stack.error}"))
    buffer_names = _buffer_names(task)
    parts: list[_BufferPart] = []
    for name in buffer_names:
        try:
            buffer = read_buffer(context.target, context.layout, context.reader, name)
        except KcovdbgError as error:
            remarks.append(("remark", f"{label}: {error}"))
            continue
        words = buffer.pc_words
        pcs = record.pcs_in_order(words[: buffer.count], buffer.encoding)
        names = context.names
        names.prefetch({*pcs} - {0})
        ending = find_crash_point(
            pcs, names.symbol, stack.frames, is_crashed=is_crashed, is_stuck=is_stuck
        )
        part = _BufferPart(buffer, pcs, ending)
        parts.append(part)
        remarks += _part_remarks(part, label)
    if not buffer_names:
        remarks.append(("warning", f"{label} had no coverage: {_explain_nothing(task)}"))
    return _LastSteps(task, is_stuck, stack.frames, parts, remarks)


def _explain_nothing(task: Task) -> str:
    if task.owns_remote:
        if task.count == 0:
            return "remote owner: the coverage of no section is in its buffer"
        return "remote owner: its buffer holds its sections' coverage"
    if task.fields.is_exiting:
        return "it is exiting, which disables KCOV; whether it was enabled before is unknown"
    if task.session.is_tracing:
        return f"its mode is {task.mode}, but it has no buffer; check says what is wrong"
    if task.role is None:
        return "whether KCOV is enabled for it is unknown"
    return "KCOV is not enabled for it"


def _buffer_names(task: Task) -> list[str]:
    """Return the names of the buffers with a task's last records. If a softirq section interrupted
    the task, the task's own buffer comes first, then the section's area.
    """
    names: list[str] = []
    if task.saved is not None and task.saved.area:
        names.append(task.saved.buffer)
    if not has_buffer(task):
        return names
    if task.role is Role.SOFTIRQ_SECTION:
        return [*names, f"area:{task.fields.kcov_area:#x}"]
    return [*names, str(task.fields.pid)]


def _part_remarks(part: _BufferPart, label: str) -> Iterator[tuple[str, str]]:
    buffer = part.buffer
    for remark in buffer.remarks:
        if not remark.startswith("full"):
            yield "remark", f"{buffer.name}: {remark}"
    if buffer.full and part.ending.end >= buffer.count:
        yield "warning", f"{buffer.name}: the buffer is FULL: later records of {label} are lost"
    # With a remark, the count may be wrong: then 0 does not mean an empty buffer.
    if not buffer.count and not buffer.remarks:
        yield (
            "remark",
            f"{buffer.name}: the buffer is empty: nothing was recorded since it was reset",
        )


def _steps(found: Sequence[_LastSteps], limit: int, names: LocationCache) -> Iterator[_Step]:
    for last in found:
        for part in last.parts:
            end = part.ending.end
            for row in locate_records(part.buffer, names, range(max(0, end - limit), end)):
                yield _Step(last, part, *row, row.symbol)


def _pieces(
    part: _BufferPart, last: _LastSteps, names: LocationCache, limit: int
) -> Iterator[_Piece]:
    """Yield the last lines of a buffer, and all lines with a record that belongs to a stack frame:
    they are part of the path, however long ago.
    """
    end = part.ending.end

    def group(pc: int) -> object:
        if not pc or not names[pc].frames:
            return pc
        return names.symbol(pc)

    runs = list(find_runs(part.pcs, group, max(0, end - _MAX_GROUPED), end))
    for position, run in enumerate(runs):
        indexes = range(run.first, run.first + run.length)
        frames: list[str] = []
        for index in indexes:
            numbers = part.ending.stack_frames.get(index, ())
            frames += [f"#{number} {last.stack[number].function or '?'}" for number in numbers]
        if position < len(runs) - limit and not frames:
            continue
        pcs = list(filter(None, part.pcs[run.first : indexes.stop]))
        function, where = NO_ADDRESS, None
        if pcs:
            location = names[pcs[-1]]
            function = f"{pcs[-1]:#x}"
            if location.frames:
                function = function_text(location)
                where = place_text(location.frames[0]) or None
        yield _Piece(run.first, run.length, function, where, " ".join(frames) or None)


def _comparison_lines(part: _BufferPart, names: LocationCache, limit: int) -> Iterator[Line]:
    end = part.ending.end
    for row in locate_records(part.buffer, names, range(max(0, end - limit), end)):
        text = record_text(row, big_endian=part.buffer.encoding.big_endian)
        words = "  ".join(filter(None, (text.operands, text.function, text.place)))
        yield (("", escape(f"  {row.record.number:>8}  {words}")),)


def _lines(context: Context, found: Sequence[_LastSteps], limit: int) -> Iterator[Line]:
    names = context.names
    for position, last in enumerate(found):
        if position:
            yield ()
        if not last.parts:
            yield (("header", escape(last.label)),)
        for part in last.parts:
            heading = f"{last.label}, {part.buffer.name}: {part.buffer.count} records"
            yield (("header", escape(heading)),)
            ending = part.ending
            if part.buffer.encoding.record_words > 1:
                yield from _comparison_lines(part, names, limit)
            elif ending.end:
                pieces = list(_pieces(part, last, names, limit))
                yield from table_lines(Table(_PIECE_COLUMNS, pieces), context.width)
            if ending.fault is not None:
                rest = part.buffer.count - ending.end
                crash = escape(_crash_text(ending, rest, last.is_stuck))
                yield from wrap_line((("warning", crash),), context.width)
        yield from _stack_lines(last)
        for style, text in last.remarks:
            yield from wrap_line(((style, escape(f"  {text}")),), context.width)


def _crash_lines(crashed: CrashedTask, width: int | None) -> Iterator[Line]:
    """Yield the title of the report, the text of panic(), and the task that noticed the crash."""
    texts = {"report": crashed.report.title, "panic": crashed.report.panic}
    if crashed.reporter is not None:
        texts["noticed by"] = name_task(crashed.reporter.fields)
    for key, text in texts.items():
        if text is not None:
            yield from wrap_line((("key", f"{key}  "), ("error", escape(text))), width)


def _crash_text(ending: CrashPoint, rest: int, is_stuck: bool) -> str:
    text = f"  {'stuck' if is_stuck else 'crashed'} in {ending.fault}()"
    if not ending.is_covered:
        text += ", which has no coverage itself; above is the path to it"
    if rest:
        text += f"; {rest} later records are of the crash handling"
    return text


def _stack_lines(last: _LastSteps) -> Iterator[Line]:
    if not last.stack:
        return
    met: set[int] = set()
    for part in last.parts:
        met.update(*part.ending.stack_frames.values())
    yield (("key", "  stack"),)
    for number, frame in enumerate(last.stack):
        mark, style = ("=", "symbol") if number in met else (" ", "")
        yield stack_frame_line(number, frame, mark, style)


def _step_errors(step: _Step) -> tuple[str, ...]:
    if step.location is None and step.record.partial is None:
        return ("no address",)
    return approximate_errors(step)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    crashed = find_crashed_task(read_crash_evidence(context.target, context.reader))
    tasks, remarks = _choose(context, args, crashed)
    found = [_find_steps(context, task, crashed) for task in tasks]
    limit = _LINES if args.n is None else args.n
    texts: list[str] = []
    for last in found:
        texts += [text for _, text in last.remarks]
    said = [*context.notes, *remarks, *context.kernel.names.remarks]
    data = Table(
        _COLUMNS,
        _steps(found, limit, context.names),
        remarks=texts,
        errors=_step_errors,
    )
    if not found:
        state = context.state(Part.TASKS | Part.CURRENT)
        if state.extent(Part.TASKS) is Extent.NONE or not args.all:
            context.status = 2
        if args.all:
            said.append(state.say_absent("no task with KCOV state", Part.TASKS))
        else:
            said.append("could not read any CPU's current task")
    yield Lines(_crash_lines(crashed, context.width))
    yield Lines(_lines(context, found, limit), data=data, remarks=said)
    yield Lines(end_lines(crashed.log[-_LOG_LINES:], context.width))


COMMAND: Final = Command(
    name="last",
    summary="show what the crashed task, or another, executed last, beside its stack",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "Shows the newest records of the crashed task; without a crash, of each CPU's current "
        "task; with arguments, of the named tasks. If the kernel reported a hang or stall, the "
        "crashed task is the one that hangs. If a softirq section interrupted a task, the task's "
        "own records come before the section's. Records of the crash handling, such as panic(), "
        "are left out: the stack says where the crash began. STACK is the stack frame that the "
        "records of a line belong to; '=' marks the frames with such a line. The last lines of "
        "the kernel's log, and its lines about the crash, come below.\n\n"
        "A full buffer holds the first records, not the last ones; a note says so."
    ),
    arguments=(
        Argument(
            "tasks [TID|NAME…]", Value.TASK, "thread ids, names of tasks, patterns of names, or all"
        ),
        Argument("-a, --all", Value.FLAG, "show every task with KCOV state, for a bug report"),
        Argument(
            "-n N",
            Value.NUMBER,
            f"show N lines of each buffer; with --json, N records; default {_LINES}",
        ),
    ),
    examples=(
        Example("last", "what led to this crash?"),
        Example("last 41", "what did task 41 execute last?"),
        Example("last --all > report.txt", "the last steps of every task, for a bug report"),
    ),
)
