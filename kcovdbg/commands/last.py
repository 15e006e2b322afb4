# SPDX-License-Identifier: LGPL-2.1-or-later
"""``last``: what tasks executed last, beside their stacks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kcovdbg.abi import record
from kcovdbg.abi.record import Kind
from kcovdbg.analysis.ending import Ending, find_ending
from kcovdbg.analysis.folding import Run, find_runs
from kcovdbg.analysis.naming import Names
from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.buffer import FRAME_COLUMNS, Row, for_each_row, operand_text, symbol_of
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import name_remarks
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.task import Role, Task
from kcovdbg.render.column import Column
from kcovdbg.render.escape import escape
from kcovdbg.render.grid import table_lines
from kcovdbg.render.kind import ADDRESS, BOOL, COMM, NUMBER, PATH, PID, SYMBOL, TEXT, WORD
from kcovdbg.render.renderable import Line, Lines, Renderable, Table
from kcovdbg.render.wording import frame_text
from kcovdbg.target import StackFrame
from kcovdbg.walk.buffers import read_buffer

_LINES: Final = 30


@dataclass(frozen=True, slots=True)
class _Part:
    """One buffer of a task."""

    what: str
    buffer: Buffer
    pcs: Sequence[int]
    ending: Ending


@dataclass(slots=True)
class _Last:
    """What is known of a task's last steps."""

    task: Task
    stack: Sequence[StackFrame] = ()
    parts: list[_Part] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def named(self) -> str:
        fields = self.task.fields
        return f"task {fields.pid} ({fields.comm})"


@dataclass(frozen=True, slots=True)
class _Step:
    """A record, in JSON."""

    last: _Last
    part: _Part
    row: Row


@dataclass(frozen=True, slots=True)
class _Piece:
    """One line: records of one function."""

    index: int
    records: int
    function: str
    where: str
    stack: str


_PIECE_COLUMNS: Final = (
    Column("index", NUMBER),
    Column("records", NUMBER),
    Column("function", SYMBOL, elastic=16),
    Column("where", PATH, value=lambda piece: piece.where or None, elastic=16, elide_start=True, priority=1),
    Column("stack", SYMBOL, value=lambda piece: piece.stack or None, elastic=12),
)


def _comparison(name: str) -> Any:
    return lambda step: None if step.row.record.comparison is None else getattr(step.row.record.comparison, name)


_COLUMNS: Final = (
    Column("pid", PID, value=lambda step: step.last.task.fields.pid),
    Column("comm", COMM, value=lambda step: step.last.task.fields.comm),
    Column("buffer", TEXT, value=lambda step: step.part.what),
    Column("index", NUMBER, value=lambda step: step.row.record.number),
    Column("pc", WORD, value=lambda step: step.row.record.word),
    Column("address", ADDRESS, value=lambda step: step.row.address),
    Column("kind", TEXT, value=lambda step: step.row.record.kind),
    Column("size", NUMBER, value=_comparison("size")),
    Column("const", BOOL, value=_comparison("const")),
    Column("arg1", WORD, value=_comparison("arg1")),
    Column("arg2", WORD, value=_comparison("arg2")),
    Column("symbol", SYMBOL, value=lambda step: symbol_of(step.row)),
    Column("frames", TEXT, value=lambda step: step.row.location.frames if step.row.location else (), items=FRAME_COLUMNS),
    Column("stack", NUMBER, value=lambda step: next(iter(step.part.ending.meets.get(step.row.record.number, ())), None)),
    Column("full", BOOL, value=lambda step: step.part.buffer.full),
)


def _choose(context: Context, args: Namespace) -> tuple[list[Task], list[str], bool]:
    """Return the tasks to look at, remarks, and whether these were named."""
    census = context.census
    remarks: list[str] = []
    if args.tasks:
        tasks = census.tasks(all_tasks=True)
        found = []
        for tid in args.tasks:
            matching = [task for task in tasks if task.fields.pid == tid]
            if not matching:
                raise KcovdbgError(f"there is no task {tid}", hint="see: tasks -a")
            found.append(next((task for task in matching if task.fields.kcov_area), matching[0]))
        return found, remarks, True
    if args.all:
        return [task for task in census.tasks() if task.role is not Role.NONE or task.saved or task.owns_remote], remarks, True
    by_address = {task.fields.address: task for task in census.tasks(all_tasks=True)}
    stacks = context.target.stacks
    crashed = None
    if stacks is not None:
        try:
            crashed = stacks.crashed_task()
        except KcovdbgError as error:
            remarks.append(f"who crashed can't be told: {error}")
    if crashed is not None and crashed in by_address and not context.target.live:
        return [by_address[crashed]], remarks, True
    return [by_address[address] for address in census.current.values() if address in by_address], remarks, False


def _look(context: Context, task: Task) -> _Last:
    last = _Last(task)
    stacks = context.target.stacks
    if stacks is None:
        last.remarks.append(f"{last.named}: this target gives no stacks")
    else:
        try:
            last.stack = stacks.stack_trace(task.fields.address)
        except KcovdbgError as error:
            last.remarks.append(f"{last.named}: {error}")
    names = context.session.names
    places: list[tuple[str, str]] = []
    if task.saved is not None and task.saved.area:
        where = f"saved:t{task.fields.pid}" if task.saved.where == "task" else f"saved:{task.saved.cpu}"
        places.append((where, "what it did until the softirq came"))
    if task.fields.kcov_area and task.role in (Role.LOCAL, Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION, None):
        places.append((f"area:{task.fields.kcov_area:#x}" if task.role is Role.SOFTIRQ_SECTION else str(task.fields.pid), ""))
    for name, _ in places:
        try:
            buffer = read_buffer(context.target, context.layout, context.census, name)
        except KcovdbgError as error:
            last.remarks.append(f"{last.named}: {error}")
            continue
        last.parts.append(_make_part(name, buffer, names, last))
    if not places:
        why = "others collect for it: their coverage is in its buffer" if task.owns_remote else "KCOV isn't enabled in it"
        last.remarks.append(f"{last.named} had no coverage: {why}")
    return last


def _make_part(name: str, buffer: Buffer, names: Names, last: _Last) -> _Part:
    words = record.pc_words(buffer.words, buffer.encoding)
    distinct = record.pcs_of_words(set(words), buffer.encoding)
    pcs = [distinct.get(word, 0) for word in words[: buffer.count]]
    names.learn(pc for pc in distinct.values() if pc)
    ending = find_ending(pcs, names.symbol, last.stack)
    last.remarks += [f"{name}: {remark}" for remark in buffer.remarks if not remark.startswith("full")]
    if buffer.full and ending.end >= buffer.count:
        last.remarks.append(
            f"{name}: the buffer is FULL, so that this is not the last of what {last.named} did: what came later is lost"
        )
    if not buffer.count:
        last.remarks.append(f"{name}: the buffer is empty: it was reset, or nothing was executed since")
    if buffer.encoding.format is record.RecordFormat.TEXT_BITMAP:
        last.remarks.append(f"{name}: a bitmap of the text has no order of time")
    return _Part(name, buffer, pcs, ending)


def _steps(found: Sequence[_Last], limit: int, names: Names) -> Iterator[_Step]:
    for last in found:
        for part in last.parts:
            end = part.ending.end
            for row in for_each_row(part.buffer, names, range(max(0, end - limit), end)):
                yield _Step(last, part, row)


def _stack_text(stack: Sequence[StackFrame], numbers: Sequence[int]) -> str:
    return " ".join(f"#{number} {stack[number].function or '?'}" for number in numbers)


def _span(run: Run) -> range:
    return range(run.first, run.first + run.length)


def _pieces(part: _Part, last: _Last, names: Names, limit: int) -> list[_Piece]:
    end = part.ending.end
    # Runs are found from some way before: so many lines can't take more records than the buffer has.
    start = 0 if end < 1 << 16 else end - (1 << 16)

    def group(pc: int) -> object:
        return names.symbol(pc) if pc and names[pc].frames else pc

    pieces = []
    runs = list(find_runs(part.pcs, group, start, end))
    # Where it passed through the functions of its stack for the last time is the path, however long ago that was.
    path = [run for run in runs[: max(0, len(runs) - limit)] if any(index in part.ending.meets for index in _span(run))]
    for run in (*path, *runs[max(0, len(runs) - limit) :]):
        pcs = [pc for pc in part.pcs[run.first : run.first + run.length] if pc]
        numbers = [number for index in range(run.first, run.first + run.length) for number in part.ending.meets.get(index, ())]
        function, where = "no address", ""
        if pcs:
            frames = names[pcs[-1]].frames
            function = (frames[-1].function if frames else None) or f"{pcs[-1]:#x}"
            inner = frames[0] if frames else None
            if inner is not None:
                where = frame_text(inner)
                if len(frames) > 1 and inner.function:
                    function += f" → {inner.function}"
        pieces.append(_Piece(run.first, run.length, function, where, _stack_text(last.stack, numbers)))
    return pieces


def _comparison_lines(part: _Part, names: Names, limit: int) -> Iterator[Line]:
    end = part.ending.end
    for row in for_each_row(part.buffer, names, range(max(0, end - limit), end)):
        found = row.record.comparison
        text = (
            ""
            if found is None
            else " ? ".join(operand_text(value, found, part.buffer.encoding.big_endian) for value in (found.arg1, found.arg2))
        )
        frame = row.location.frames[0] if row.location and row.location.frames else None
        where = f"  {frame.function}  {frame_text(frame)}" if frame else ""
        yield (("", escape(f"  {row.record.number:>8}  {text}{where}")),)


def _lines(context: Context, found: Sequence[_Last], limit: int) -> Iterator[Line]:
    names = context.session.names
    for position, last in enumerate(found):
        if position:
            yield ()
        if not last.parts:
            yield (("header", escape(last.named)),)
        for part in last.parts:
            yield (("header", escape(f"{last.named}, {part.what}: {part.buffer.count} records")),)
            ending = part.ending
            if part.buffer.encoding.record_words > 1:
                yield from _comparison_lines(part, names, limit)
            elif ending.end:
                yield from table_lines(Table(_PIECE_COLUMNS, _pieces(part, last, names, limit)), context.width)
            if ending.fault is not None:
                rest = part.buffer.count - ending.end
                yield (("warning", escape(_crash_text(ending, rest))),)
        yield from _stack_lines(last)
        for remark in last.remarks:
            yield (("warning" if "FULL" in remark or "had no coverage" in remark else "remark", escape(f"  {remark}")),)


def _crash_text(ending: Ending, rest: int) -> str:
    text = f"  it crashed in {ending.fault}()"
    if not ending.is_covered:
        text += ", which has no coverage of its own: above is what led there"
    if rest:
        text += f"; {rest} records of the crash's handling follow"
    return text


def _stack_lines(last: _Last) -> Iterator[Line]:
    if not last.stack:
        return
    met = {number for part in last.parts for numbers in part.ending.meets.values() for number in numbers}
    yield (("key", "  stack"),)
    for number, frame in enumerate(last.stack):
        mark = "=" if number in met else " "
        place = f"  {frame.file}:{frame.line}" if frame.file else ""
        inline = " (inlined)" if frame.is_inline else ""
        yield (
            ("symbol" if number in met else "", escape(f"  {mark} #{number:<3} {frame.function or hex(frame.pc)}{inline}")),
            ("path", escape(place)),
        )


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    tasks, remarks, _ = _choose(context, args)
    found = [_look(context, task) for task in tasks]
    limit = args.n if args.n is not None else _LINES
    said = [*context.census.remarks(), *remarks, *name_remarks(context)]
    data = Table(
        _COLUMNS,
        _steps(found, limit, context.session.names),
        remarks=[*said, *(remark for last in found for remark in last.remarks)],
        errors=lambda step: () if step.row.location is not None or step.row.record.kind is Kind.EDGE else ("no address",),
    )
    if not found:
        said.append("no task has KCOV state" if args.all else "no CPU's current task can be read")
    yield Lines(_lines(context, found, limit), data=data, remarks=said if context.format.value == "text" else data.remarks)


LAST: Final = Command(
    name="last",
    summary="what a crashed task, or any other, executed last, beside its stack",
    run=_run,
    description=(
        "The newest records of the task that crashed, of each CPU's current task where none did, or of named ones; of a task "
        "that a softirq interrupted, those until then, too. What panic() executed itself is left out: the stack tells where "
        "the crash began. STACK tells which frame of the stack a line is the last of; '=' marks the frames that have one.\n\n"
        "A buffer that is full holds the first of what was executed, not the last, and this is said."
    ),
    arguments=(
        Argument(("tasks",), Value.TID, "thread ids", count=Count.ANY, metavar="TID"),
        Argument(("-a", "--all"), Value.FLAG, "every task with KCOV, a paragraph each, for a bug report"),
        Argument(("-n",), Value.NUMBER, f"so many lines of each buffer, of JSON: records; {_LINES} by default", metavar="N"),
    ),
    examples=(
        Example("last", "what led to this crash?"),
        Example("last 41", "what has task 41 executed last?"),
        Example("last --all > report.txt", "the end of everybody's coverage, for a bug report"),
    ),
)
