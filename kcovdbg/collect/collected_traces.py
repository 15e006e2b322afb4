# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers of ``collect``: its buffers as parts, and tables of records, system calls and repeated runs."""

from __future__ import annotations

import errno
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import Record
from kcovdbg.abi.syscall_names import argument_count, syscall_name
from kcovdbg.collect.command_run import Collected, TracedSyscall
from kcovdbg.console.buffer_arguments import make_filters
from kcovdbg.console.column import BOOL, COMM, LIST, NUMBER, PID, SYMBOL, TEXT, WORD, Column, Meaning, RowType
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import RECORD_ROWS, frames_column, record_columns, record_errors, where_column
from kcovdbg.console.renderable import Table
from kcovdbg.console.wording import place_text
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.records.located_records import PcFilter, find_indices, locate_records
from kcovdbg.records.pc_counts import Occurrence, RunCounts, count_pcs, find_occurrences
from kcovdbg.records.pc_names import LocationCache
from kcovdbg.records.trace_file import concatenate


class CollectedPart(NamedTuple):
    """One buffer of what was collected."""

    label: str
    """Part of its file's name; empty where one buffer holds everything."""
    buffer: Buffer
    pid: int | None = None


def merge(buffers: Sequence[Buffer]) -> Buffer:
    """Concatenate buffers, in the order in which their tasks were created."""
    if len(buffers) == 1:
        return buffers[0]
    full = [buffer.name for buffer in buffers if buffer.full]
    remarks = [f"the buffers of {len(buffers)} tasks, concatenated; --per-thread keeps them apart"]
    if full:
        remarks.append(f"full: {', '.join(full)}; later records of these may be missing")
    return concatenate(buffers, remarks)


def make_parts(collected: Collected, *, per_thread: bool) -> list[CollectedPart]:
    """Return the buffers to show or write."""
    traced = [task for task in collected.tasks if task.problem is None]
    parts: list[CollectedPart] = []
    if per_thread:
        parts += [CollectedPart(str(task.tid), task.buffer, task.pid) for task in traced]
        parts += [CollectedPart(f"{task.tid}.edges", task.edges, task.pid) for task in traced if task.edges is not None]
    elif traced:
        parts.append(CollectedPart("", merge([task.buffer for task in traced]), traced[0].pid))
        edges = [task.edges for task in traced if task.edges is not None]
        if edges:
            parts.append(CollectedPart("edges", merge(edges), traced[0].pid))
    if collected.remote is not None:
        parts.append(CollectedPart("remote", collected.remote))
    return parts


class _PartRow(NamedTuple):
    """A :class:`~kcovdbg.model.location.LocatedRecord` with its task."""

    record: Record
    address: int | None
    location: Location | None
    symbol: str | None
    tid: int | None
    comm: str | None
    part: str


def records_table(context: Context, parts: Sequence[CollectedPart], args: Namespace, remarks: Sequence[str]) -> Table:
    """Return one table of all records, for programs."""
    names = context.kernel.names
    (wanted,) = make_filters(args, names)

    def rows(part: CollectedPart) -> Iterator[_PartRow]:
        for row in locate_records(part.buffer, names, find_indices(part.buffer, wanted)):
            yield _PartRow(*row, row.symbol, part.buffer.pid, part.buffer.comm, "remote" if part.label == "remote" else "task")

    every: Iterable[_PartRow] = chain.from_iterable(map(rows, parts))
    if args.n is not None:
        every = islice(every, args.n)
    return Table(
        _part_columns(record_columns(parts[0].buffer)),
        every,
        remarks=[*remarks, *context.kernel.name_remarks],
        empty="no records",
        errors=record_errors,
    )


def _part_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of records with the task that each is of."""
    return (*columns, Column("tid", PID), Column("comm", COMM), Column("part", TEXT))


class _CallRow(NamedTuple):
    call: TracedSyscall
    comm: str
    functions: list[str]
    distinct: int
    records: int


def call_text(call: TracedSyscall) -> str:
    """Return a call as it is written in C: ``openat(0xffffff9c, "/etc/passwd", 0x80000, 0)``."""
    if call.is_compat:
        return f"32-bit call {call.number}({', '.join(f'{value:#x}' for value in call.arguments)})"
    name = syscall_name(call.number)
    shown = [hex(value) if value > 9 else str(value) for value in call.arguments[: argument_count(name)]]
    if call.text_argument is not None and call.text_argument < len(shown):
        shown[call.text_argument] = '"' + call.text.decode("utf-8", "backslashreplace") + '"'
    return f"{name}({', '.join(shown)})"


def _result_text(call: TracedSyscall) -> str:
    if call.result is None:
        return "-"
    if -4095 <= call.result < 0:
        return f"-{errno.errorcode.get(-call.result, -call.result)}"
    return str(call.result) if call.result < 1 << 16 else hex(call.result)


_CALL_COLUMNS: Final = (
    Column("tid", PID, value=lambda row: row.call.tid),
    Column("comm", COMM, value=lambda row: row.comm, json_only=True),
    Column("number", NUMBER, value=lambda row: row.call.number, json_only=True, meaning="number of the system call"),
    Column("name", TEXT, value=lambda row: None if row.call.is_compat else syscall_name(row.call.number), json_only=True),
    Column("call", TEXT, value=lambda row: call_text(row.call), elastic=30, meaning="the call as it is written in C"),
    Column("arguments", LIST, value=lambda row: [hex(value) for value in row.call.arguments], json_only=True),
    Column("text", TEXT, value=lambda row: _text(row.call), json_only=True),
    Column("result", NUMBER, value=lambda row: row.call.result, text=lambda row: _result_text(row.call)),
    Column("first", NUMBER, value=lambda row: row.call.first, json_only=True, meaning="index of its first record"),
    Column("count", NUMBER, title="RECORDS", value=lambda row: row.records, meaning="number of its records", unit="records"),
    Column("distinct", NUMBER, title="POINTS", priority=1),
    Column("functions", LIST, json_only=True, meaning="functions that it covers"),
    Column("covers", SYMBOL, text=lambda row: ", ".join(row.functions), elastic=30, text_only=True),
)


def _text(call: TracedSyscall) -> str | None:
    return None if call.text_argument is None else call.text.decode("utf-8", "backslashreplace")


def calls_table(context: Context, collected: Collected, args: Namespace, remarks: Sequence[str]) -> Table:
    """Return a table of system calls, each with what it covers."""
    names = context.kernel.names
    (wanted,) = make_filters(args, names)
    functions = _Functions(names, wanted)
    # Without a table of locations each name is slow to find: skip those of calls that are not shown.
    shown = collected.calls[: args.n] if wanted.passes_all and args.n is not None else collected.calls
    functions.prefetch(chain.from_iterable(_call_pcs(collected, call).values() for call in shown))

    def rows() -> Iterator[_CallRow]:
        for call in shown:
            task = collected.tasks[call.task]
            row = functions.describe(call, task.comm, task.buffer)
            if wanted.passes_all or row.distinct:
                yield row

    notes = [
        *remarks,
        "records of ptrace's stops at a call's entry and exit are left out",
        *context.kernel.name_remarks,
    ]
    if collected.request.mode.request.records_once:
        notes.append("in this mode each point is recorded once per task: a call shows what no earlier call covered")
    every: Iterable[_CallRow] = rows()
    if args.n is not None:
        every = islice(every, args.n)
    return Table(_CALL_COLUMNS, every, remarks=notes, empty="no system call")


def _call_pcs(collected: Collected, call: TracedSyscall) -> dict[int, int]:
    """Return the PCs that a call covers, by the words that they were recorded as."""
    buffer = collected.tasks[call.task].buffer
    return record.pcs_of_words(set(record.pc_words(buffer.words, buffer.encoding)[call.first : call.end]), buffer.encoding)


class _Functions:
    """The functions of PCs, inlined ones included, looked up once each: the same few thousand are in every call.

    :param names: of the PCs.
    :param wanted: which PCs count.
    """

    def __init__(self, names: LocationCache, wanted: PcFilter) -> None:
        self._names = names
        self._wanted = wanted
        self._known: dict[int, tuple[str, ...]] = {}
        self._is_wanted: dict[int, bool] = {}

    def prefetch(self, pcs: Iterable[int]) -> None:
        """Look up those that are not known yet, all at once."""
        missing = {pc for pc in pcs if pc not in self._known}
        self._names.prefetch(missing)
        for pc in missing:
            self._known[pc] = tuple(frame.function for frame in self._names[pc].frames if frame.function)
            self._is_wanted[pc] = self._wanted(pc)

    def describe(self, call: TracedSyscall, comm: str, buffer: Buffer) -> _CallRow:
        """Return what a call covers."""
        words = record.pc_words(buffer.words, buffer.encoding)[call.first : call.end]
        by_word = record.pcs_of_words(set(words), buffer.encoding)
        pcs = [pc for word in words if (pc := by_word.get(word)) is not None]
        self.prefetch(by_word.values())
        own = [pc for index in own_records([*map(self._known.__getitem__, pcs)]) if self._is_wanted[pc := pcs[index]]]
        # All frames: users look for inlined functions as well.
        functions = dict.fromkeys(name for pc in dict.fromkeys(own) for name in reversed(self._known[pc]))
        return _CallRow(call, comm, list(functions), len(set(own)), len(own))


# How far into a call's records the end of the stop at its entry may be.
_HEAD: Final = 200


def own_records(functions: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the indices of a call's records that are not ptrace's.

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
    Column("stable", BOOL, value=lambda row: row.occurrence.is_stable, meaning="whether every run covers the point"),
    Column("runs", NUMBER, value=lambda row: row.occurrence.runs, text=lambda row: f"{row.occurrence.runs}/{row.of}"),
    Column("count", NUMBER, title="RECORDS", value=lambda row: row.occurrence.records),
    Column("pc", WORD, value=lambda row: row.occurrence.pc, priority=2),
    Column("symbol", SYMBOL, title="FUNCTION", value=lambda row: row.location.symbol, elastic=16),
    where_column(lambda row: place_text(row.location.frames[0]) if row.location.frames else "", priority=1),
    frames_column(lambda row: row.location.frames),
)


_PART_MEANINGS: Final = {
    "tid": Meaning("thread id of the task", "the record is of a remote section, or of several tasks"),
    "comm": Meaning("name of the task", "the record is of a remote section, or of several tasks"),
    "part": Meaning("`task`, or `remote` for remote sections"),
}
COLLECT_ROWS: Final = (
    *(
        row_type._replace(
            columns=_part_columns(row_type.columns),
            meanings={**row_type.meanings, **_PART_MEANINGS},
            when=f"without options, {row_type.when}",
        )
        for row_type in RECORD_ROWS
    ),
    RowType(
        _CALL_COLUMNS,
        {
            "name": Meaning("name of the system call", "it is a 32-bit call"),
            "arguments": Meaning("its arguments, in hexadecimal"),
            "text": Meaning("the path or name among its arguments", "it has none"),
            "result": Meaning("what it returned; negative for an error", "it did not return"),
        },
        when="with `--syscall`",
    ),
    RowType(
        _OCCURRENCE_COLUMNS,
        {
            "runs": Meaning("number of runs that cover it", unit="runs"),
            "count": Meaning("number of records in all runs", unit="records"),
        },
        when="with `--repeat`",
    ),
)
"""The rows of JSON that ``collect`` writes."""


def count_run(collected: Collected) -> Counter[int]:
    """Return how often each PC was recorded in one run of a command: by its tasks, and for it in the background."""
    counts: Counter[int] = Counter()
    for buffer in collected.buffers:
        counts.update(count_pcs(buffer))
    return counts


def stability_table(context: Context, runs: RunCounts, args: Namespace, remarks: Sequence[str]) -> Table:
    """Return a table of the points that several runs cover: those that flicker, and with ``--raw`` those that are stable."""
    names = context.kernel.names
    (wanted,) = make_filters(args, names)
    found = find_occurrences(runs)
    stable = sum(one.is_stable for one in found)
    summary = f"{runs.total} runs: {stable} points in all of them, {len(found) - stable} flicker"
    chosen = [one for one in found if wanted(one.pc)]
    if not args.raw:
        chosen = [one for one in chosen if not one.is_stable]
        summary += "; --raw also shows the stable ones"
    if args.n is not None:
        chosen = chosen[: args.n]
    names.prefetch(one.pc for one in chosen)
    rows = [_OccurrenceRow(one, runs.total, names[one.pc]) for one in chosen]
    return Table(_OCCURRENCE_COLUMNS, rows, remarks=[summary, *remarks, *context.kernel.name_remarks], empty="nothing flickers")
