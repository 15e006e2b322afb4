# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``collect`` shows: records of tasks, system calls with what they cover, what is stable over several runs."""

from __future__ import annotations

from argparse import Namespace
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import Record
from kcovdbg.analysis.counting import count_pcs
from kcovdbg.analysis.naming import Names
from kcovdbg.analysis.stability import Occurrence, find_occurrences
from kcovdbg.collect.running import Call, Collected
from kcovdbg.collect.syscall_names import argument_count, syscall_name
from kcovdbg.commands.buffer import FRAME_COLUMNS, for_each_row, make_columns, present_indices, symbol_of
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import Filter, name_remarks
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.kind import BOOL, COMM, LIST, NUMBER, PATH, PID, SYMBOL, TEXT, WORD
from kcovdbg.render.renderable import Table


class Part(NamedTuple):
    """One buffer of what was collected."""

    label: str
    """What to put into the name of a file: empty of what is everything."""
    buffer: Buffer
    pid: int | None = None


def merge(buffers: Sequence[Buffer]) -> Buffer:
    """Put buffers one behind the other, in the order in which their tasks were created."""
    if len(buffers) == 1:
        return buffers[0]
    words = array(buffers[0].words.typecode)
    for buffer in buffers:
        words.extend(buffer.words)
    count = sum(buffer.count for buffer in buffers)
    full = [buffer.name for buffer in buffers if buffer.full]
    remarks = [f"the buffers of {len(buffers)} tasks, one behind the other: --per-thread keeps them apart"]
    if full:
        remarks.append(f"full: of {', '.join(full)}, so that what came later there may be missing")
    # What fits into one buffer says nothing about all of them.
    return replace(buffers[0], words=words, count=count, stored_count=count, capacity=None, size=None, remarks=tuple(remarks))


def make_parts(collected: Collected, *, per_thread: bool) -> list[Part]:
    """Return what is to be shown and written."""
    traced = [task for task in collected.tasks if task.problem is None]
    parts: list[Part] = []
    if per_thread:
        parts += [Part(str(task.tid), task.buffer, task.pid) for task in traced]
        parts += [Part(f"{task.tid}.edges", task.edges, task.pid) for task in traced if task.edges is not None]
    elif traced:
        parts.append(Part("", merge([task.buffer for task in traced]), traced[0].pid))
        edges = [task.edges for task in traced if task.edges is not None]
        if edges:
            parts.append(Part("edges", merge(edges), traced[0].pid))
    if collected.remote is not None:
        parts.append(Part("remote", collected.remote))
    return parts


class _PartRow(NamedTuple):
    """A record with the task that it is of."""

    record: Record
    address: int | None
    location: Location | None
    tid: int | None
    comm: str | None
    part: str


def records_table(context: Context, parts: Sequence[Part], args: Namespace, remarks: Sequence[str]) -> Table:
    """Make one table of all records, for programs."""
    names = context.session.names
    wanted = Filter(names, args.function or (), args.file or ())

    def rows(part: Part) -> Iterator[_PartRow]:
        indices = present_indices(part.buffer, wanted)
        for row in for_each_row(part.buffer, names, indices):
            yield _PartRow(*row, part.buffer.pid, part.buffer.comm, "remote" if part.label == "remote" else "task")

    every: Iterable[_PartRow] = chain.from_iterable(map(rows, parts))
    if args.n is not None:
        every = islice(every, args.n)
    columns = (
        *make_columns(parts[0].buffer),
        Column("tid", PID),
        Column("comm", COMM),
        Column("part", TEXT),
    )
    return Table(columns, every, remarks=[*remarks, *name_remarks(context)], empty="no records")


class _CallRow(NamedTuple):
    call: Call
    comm: str
    functions: list[str]
    distinct: int
    records: int


def call_text(call: Call) -> str:
    """Write a call as one does in C: ``openat(0xffffff9c, "/etc/passwd", 0x80000, 0)``."""
    if call.is_compat:
        return f"32-bit call {call.number}({', '.join(f'{value:#x}' for value in call.arguments)})"
    name = syscall_name(call.number)
    shown = [hex(value) if value > 9 else str(value) for value in call.arguments[: argument_count(name)]]
    if call.text_argument is not None and call.text_argument < len(shown):
        shown[call.text_argument] = '"' + call.text.decode("utf-8", "backslashreplace") + '"'
    return f"{name}({', '.join(shown)})"


def _result_text(call: Call) -> str:
    if call.result is None:
        return "-"
    if -4095 <= call.result < 0:
        import errno

        return f"-{errno.errorcode.get(-call.result, -call.result)}"
    return str(call.result) if call.result < 1 << 16 else hex(call.result)


_CALL_COLUMNS: Final = (
    Column("tid", PID, value=lambda row: row.call.tid),
    Column("comm", COMM, value=lambda row: row.comm, json_only=True),
    Column("number", NUMBER, value=lambda row: row.call.number, json_only=True),
    Column("name", TEXT, value=lambda row: None if row.call.is_compat else syscall_name(row.call.number), json_only=True),
    Column("call", TEXT, value=lambda row: call_text(row.call), elastic=30),
    Column("arguments", LIST, value=lambda row: [hex(value) for value in row.call.arguments], json_only=True),
    Column("text", TEXT, value=lambda row: _text(row.call), json_only=True),
    Column("result", NUMBER, value=lambda row: row.call.result, text=lambda row: _result_text(row.call)),
    Column("first", NUMBER, value=lambda row: row.call.first, json_only=True),
    Column("count", NUMBER, title="RECORDS", value=lambda row: row.records),
    Column("distinct", NUMBER, title="POINTS", priority=1),
    Column("functions", LIST, json_only=True),
    Column("covers", SYMBOL, text=lambda row: ", ".join(row.functions), elastic=30, text_only=True),
)


def _text(call: Call) -> str | None:
    return None if call.text_argument is None else call.text.decode("utf-8", "backslashreplace")


def calls_table(context: Context, collected: Collected, args: Namespace, remarks: Sequence[str]) -> Table:
    """Make a table of system calls, each with what it covers."""
    names = context.session.names
    wanted = Filter(names, args.function or (), args.file or ())
    functions = _Functions(names, wanted)
    # Without a table a name takes its time: those of calls that aren't shown needn't be known.
    shown = collected.calls[: args.n] if wanted.passes_all and args.n is not None else collected.calls
    functions.learn(chain.from_iterable(_call_pcs(collected, call).values() for call in shown))

    def rows() -> Iterator[_CallRow]:
        for call in shown:
            task = collected.tasks[call.task]
            row = functions.describe(call, task.comm, task.buffer)
            if wanted.passes_all or row.distinct:
                yield row

    told = [
        *remarks,
        "the records of ptrace's own stops at a call's entry and exit are left out of what it covers",
        *name_remarks(context),
    ]
    if collected.request.mode.is_unique:
        told.append("in this mode a task's buffer has everything once: a call shows what none before it covered")
    every: Iterable[_CallRow] = rows()
    if args.n is not None:
        every = islice(every, args.n)
    return Table(_CALL_COLUMNS, every, remarks=told, empty="no system call")


def _call_pcs(collected: Collected, call: Call) -> dict[int, int]:
    """Return the PCs that a call covers, by the words that they were recorded as."""
    buffer = collected.tasks[call.task].buffer
    return record.pcs_of_words(set(record.pc_words(buffer.words, buffer.encoding)[call.first : call.end]), buffer.encoding)


class _Functions:
    """The functions of PCs, frames and inlined ones, asked for once each: the same few thousand are in every call.

    :param names: of the PCs.
    :param wanted: which PCs count.
    """

    def __init__(self, names: Names, wanted: Filter) -> None:
        self._names = names
        self._wanted = wanted
        self._known: dict[int, tuple[str, ...]] = {}
        self._is_wanted: dict[int, bool] = {}

    def learn(self, pcs: Iterable[int]) -> None:
        """Look up those that aren't known yet, all at once."""
        missing = {pc for pc in pcs if pc not in self._known}
        self._names.learn(missing)
        for pc in missing:
            self._known[pc] = tuple(frame.function for frame in self._names[pc].frames if frame.function)
            self._is_wanted[pc] = self._wanted(pc)

    def describe(self, call: Call, comm: str, buffer: Buffer) -> _CallRow:
        """Tell what a call covers."""
        words = record.pc_words(buffer.words, buffer.encoding)[call.first : call.end]
        by_word = record.pcs_of_words(set(words), buffer.encoding)
        pcs = [pc for word in words if (pc := by_word.get(word)) is not None]
        self.learn(by_word.values())
        own = [pc for index in own_records([*map(self._known.__getitem__, pcs)]) if self._is_wanted[pc := pcs[index]]]
        # All frames: what was inlined is what people look for as well.
        functions = dict.fromkeys(name for pc in dict.fromkeys(own) for name in reversed(self._known[pc]))
        return _CallRow(call, comm, list(functions), len(set(own)), len(own))


# How far into a call's records the end of the stop at its entry may be.
_HEAD: Final = 200


def own_records(functions: Sequence[tuple[str, ...]]) -> list[int]:
    """Return which of a call's records aren't ptrace's.

    At its entry a call's task wakes in ptrace_stop(), which ends a few records later. At its exit ptrace_notify() runs the
    call's deferred work first, and then calls ptrace_do_notify() to stop.

    :param functions: of each record, the names of all its frames, innermost first.
    """
    start, end = 0, len(functions)
    for index, found in enumerate(functions[:_HEAD]):
        if "ptrace_do_notify" in found:
            break
        if "ptrace_stop" in found:
            start = index + 1
        elif start:
            break
    for index in range(len(functions) - 1, start - 1, -1):
        if "ptrace_do_notify" in functions[index]:
            end = index
            break
    return [
        index for index in range(start, end) if "ptrace_notify" not in functions[index] or "task_work_run" in functions[index]
    ]


class _OccurrenceRow(NamedTuple):
    occurrence: Occurrence
    of: int
    location: Location


_OCCURRENCE_COLUMNS: Final = (
    Column("stable", BOOL, value=lambda row: row.occurrence.is_stable),
    Column("runs", NUMBER, value=lambda row: row.occurrence.runs, text=lambda row: f"{row.occurrence.runs}/{row.of}"),
    Column("count", NUMBER, title="RECORDS", value=lambda row: row.occurrence.records),
    Column("pc", WORD, value=lambda row: row.occurrence.pc, priority=2),
    Column("symbol", SYMBOL, title="FUNCTION", value=lambda row: symbol_of(row), elastic=16),
    Column("where", PATH, text=lambda row: _place(row.location), text_only=True, elastic=16, elide_start=True, priority=1),
    Column("frames", value=lambda row: row.location.frames, items=FRAME_COLUMNS, json_only=True),
)


def _place(location: Location) -> str:
    if not location.frames:
        return ""
    frame = location.frames[0]
    return "" if frame.file is None else frame.file if frame.line is None else f"{frame.file}:{frame.line}"


def stability_table(context: Context, runs: Sequence[Collected], args: Namespace, remarks: Sequence[str]) -> Table:
    """Make a table of what several runs cover: what flickers, and what all have."""
    names = context.session.names
    wanted = Filter(names, args.function or (), args.file or ())
    counts = []
    for run in runs:
        counted: dict[int, int] = {}
        for buffer in run.buffers:
            for pc, count in count_pcs(buffer).items():
                counted[pc] = counted.get(pc, 0) + count
        counts.append(counted)
    found = find_occurrences(counts)
    stable = sum(one.is_stable for one in found)
    summary = f"{len(runs)} runs: {stable} points are in all of them, {len(found) - stable} flicker"
    chosen = [one for one in found if wanted(one.pc)]
    if not args.raw:
        chosen = [one for one in chosen if not one.is_stable]
        summary += "; --raw shows those that don't as well"
    if args.n is not None:
        chosen = chosen[: args.n]
    names.learn(one.pc for one in chosen)
    rows = [_OccurrenceRow(one, len(runs), names[one.pc]) for one in chosen]
    return Table(_OCCURRENCE_COLUMNS, rows, remarks=[summary, *remarks, *name_remarks(context)], empty="nothing flickers")


def flush_streams() -> None:
    """Get out what was written, before another program writes to the same streams."""
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
