# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers of ``collect``: its buffers as parts, and tables of records, system calls and repeated
runs.
"""

from __future__ import annotations

import errno
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import Record
from kcovdbg.abi.syscall_names import argument_count, syscall_name
from kcovdbg.collect.command_run import Collected, TracedSyscall
from kcovdbg.console.buffer_arguments import make_filters
from kcovdbg.console.column import BOOL, COMM, LIST, NUMBER, PID, SYMBOL, WORD, Column, RowType
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import (
    RECORD_ROWS,
    frames_column,
    record_columns,
    record_errors,
    where_column,
)
from kcovdbg.console.renderable import Table
from kcovdbg.console.wording import place_text
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.records.joined_buffers import concatenate
from kcovdbg.records.located_records import find_indices, locate_records
from kcovdbg.records.pc_counts import count_pcs
from kcovdbg.records.run_counts import Occurrence, RunCounts, find_occurrences


class CollectedPart(NamedTuple):
    """One collected buffer."""

    label: str
    """Part of its file's name; empty if there is only one buffer."""
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
        for task in traced:
            if task.edges is not None:
                parts.append(CollectedPart(f"{task.tid}.edges", task.edges, task.pid))
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


def records_table(
    context: Context, parts: Sequence[CollectedPart], args: Namespace, remarks: Sequence[str]
) -> Table:
    """Return the table of all records that JSON and CSV have."""
    names = context.names
    (wanted,) = make_filters(args, names)

    def rows(part: CollectedPart) -> Iterator[_PartRow]:
        for row in locate_records(part.buffer, names, find_indices(part.buffer, wanted)):
            yield _PartRow(
                *row,
                row.symbol,
                part.buffer.pid,
                part.buffer.comm,
                "remote" if part.label == "remote" else "task",
            )

    return Table(
        _part_columns(record_columns(parts[0].buffer)),
        islice(chain.from_iterable(map(rows, parts)), args.n),
        remarks=[*remarks, *context.kernel.names.remarks],
        empty="no records",
        errors=record_errors,
    )


_NO_TASK: Final = "the record is of a remote section, or of several tasks"


def _part_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of records, and of the task that each belongs to."""
    return (
        *columns,
        Column("tid", PID, meaning="thread id of the task", null=_NO_TASK),
        Column("comm", COMM, meaning="name of the task", null=_NO_TASK),
        Column("part", meaning="`task`, or `remote` for remote sections"),
    )


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
    shown = [
        hex(value) if value > 9 else str(value) for value in call.arguments[: argument_count(name)]
    ]
    if call.text_argument is not None and call.text_argument < len(shown):
        shown[call.text_argument] = f'"{call.text}"'
    return f"{name}({', '.join(shown)})"


def _result_text(call: TracedSyscall) -> str:
    if call.result is None:
        return "-"
    if -4095 <= call.result < 0:
        return f"-{errno.errorcode.get(-call.result, -call.result)}"
    return str(call.result) if call.result < 1 << 16 else hex(call.result)


_CALL_COLUMNS: Final = (
    Column("tid", PID, value="call.tid", meaning="thread id of the task that made the call"),
    Column("comm", COMM, json_only=True, meaning="name of that task"),
    Column(
        "number",
        NUMBER,
        value="call.number",
        json_only=True,
        meaning="number of the system call",
    ),
    Column(
        "name",
        value=lambda row: None if row.call.is_compat else syscall_name(row.call.number),
        json_only=True,
        meaning="name of the system call",
        null="it is a 32-bit call",
    ),
    Column(
        "call",
        value=lambda row: call_text(row.call),
        elastic=30,
        meaning="the call as it is written in C",
    ),
    Column(
        "arguments",
        LIST,
        value=lambda row: [hex(value) for value in row.call.arguments],
        json_only=True,
        meaning="its arguments, in hexadecimal",
    ),
    Column(
        "text",
        value="call.text",
        json_only=True,
        meaning="the path or name among its arguments",
        null="it has none",
    ),
    Column(
        "result",
        NUMBER,
        value="call.result",
        text=lambda row: _result_text(row.call),
        meaning="what it returned; negative for an error",
        null="it did not return",
    ),
    Column(
        "first",
        NUMBER,
        value="call.first",
        json_only=True,
        meaning="index of its first record",
    ),
    Column(
        "count",
        NUMBER,
        title="RECORDS",
        value="records",
        meaning="number of its records",
        unit="records",
    ),
    Column("distinct", NUMBER, title="POINTS", priority=1),
    Column("functions", LIST, json_only=True, meaning="functions that it covers"),
    Column("covers", SYMBOL, text=lambda row: ", ".join(row.functions), elastic=30, text_only=True),
)


def calls_table(
    context: Context, collected: Collected, args: Namespace, remarks: Sequence[str]
) -> Table:
    """Return a table of system calls with the functions that each covers."""
    names = context.names
    (wanted,) = make_filters(args, names)
    calls = collected.calls
    if wanted.passes_all and args.n is not None:
        # Look up only the names that are shown: without a location table that is slow.
        calls = calls[: args.n]
    pcs_of = [_find_pcs(collected, call) for call in calls]
    names.prefetch(set(chain.from_iterable(pcs_of)))
    # Cached, because the same few thousand PCs are in every call.
    is_wanted = cache(wanted)

    @cache
    def functions_of(pc: int) -> tuple[str, ...]:
        return tuple(frame.function for frame in names[pc].frames if frame.function)

    def rows() -> Iterator[_CallRow]:
        for call, pcs in zip(calls, pcs_of, strict=True):
            without_ptrace = own_records([functions_of(pc) for pc in pcs])
            own = [pcs[index] for index in without_ptrace if is_wanted(pcs[index])]
            if not own and not wanted.passes_all:
                continue
            distinct = dict.fromkeys(own)
            # The names of all frames: users also look for inlined functions.
            functions: dict[str, None] = {}
            for pc in distinct:
                functions |= dict.fromkeys(reversed(functions_of(pc)))
            comm = collected.tasks[call.task].comm
            yield _CallRow(call, comm, list(functions), len(distinct), len(own))

    notes = [
        *remarks,
        "records of ptrace's stops at a call's entry and exit are left out",
        *context.kernel.names.remarks,
    ]
    if collected.request.mode.request.records_once:
        notes.append(
            "in this mode each point is recorded once per task: a call shows what no earlier "
            "call covered"
        )
    return Table(_CALL_COLUMNS, islice(rows(), args.n), remarks=notes, empty="no system call")


def _find_pcs(collected: Collected, call: TracedSyscall) -> list[int]:
    """Return the PCs of a call's records."""
    buffer = collected.tasks[call.task].buffer
    words = buffer.pc_words[call.first : call.end]
    return list(filter(None, record.pcs_in_order(words, buffer.encoding)))


# The stop at the entry of a call ends within its first so many records.
_ENTRY_RECORDS: Final = 200


def own_records(functions: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the indices of a call's records, without records of ptrace's stops.

    At the entry of a call, the task wakes in ptrace_stop(), which ends a few records later. At the
    exit, ptrace_notify() first runs the call's deferred work, and then stops in ptrace_do_notify().

    :param functions: for each record, the names of all its frames, innermost first.
    """
    start, end = 0, len(functions)
    for index, found in enumerate(functions[:_ENTRY_RECORDS]):
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
        index
        for index in range(start, end)
        if "ptrace_notify" not in functions[index] or "task_work_run" in functions[index]
    ]


class _OccurrenceRow(NamedTuple):
    occurrence: Occurrence
    total: int
    """Number of runs."""
    location: Location


_OCCURRENCE_COLUMNS: Final = (
    Column(
        "stable",
        BOOL,
        value="occurrence.is_stable",
        meaning="whether every run covers the point",
    ),
    Column(
        "runs",
        NUMBER,
        value="occurrence.runs",
        text=lambda row: f"{row.occurrence.runs}/{row.total}",
        meaning="number of runs that cover it",
        unit="runs",
    ),
    Column(
        "count",
        NUMBER,
        title="RECORDS",
        value="occurrence.records",
        meaning="number of records in all runs",
        unit="records",
    ),
    Column("pc", WORD, value="occurrence.pc", priority=2),
    Column("symbol", SYMBOL, title="FUNCTION", value="location.symbol", elastic=16),
    where_column(
        lambda row: place_text(row.location.frames[0]) if row.location.frames else "", priority=1
    ),
    frames_column(),
)


COLLECT_ROWS: Final = (
    *(
        row_type._replace(
            columns=_part_columns(row_type.columns), when=f"without options, {row_type.when}"
        )
        for row_type in RECORD_ROWS
    ),
    RowType(_CALL_COLUMNS, when="with `--syscall`"),
    RowType(_OCCURRENCE_COLUMNS, when="with `--repeat`"),
)
"""The rows of JSON that ``collect`` writes."""


def count_run(collected: Collected) -> Counter[int]:
    """Return how often each PC was recorded in one run of a command, by its tasks and in remote
    sections.
    """
    counts: Counter[int] = Counter()
    for buffer in collected.buffers:
        counts.update(count_pcs(buffer))
    return counts


def stability_table(
    context: Context, runs: RunCounts, args: Namespace, remarks: Sequence[str]
) -> Table:
    """Return a table of the points that flicker between runs; with ``--raw``, of all points."""
    names = context.names
    (wanted,) = make_filters(args, names)
    found = find_occurrences(runs)
    stable = sum(one.is_stable for one in found)
    summary = f"{runs.total} runs: {stable} points in all of them, {len(found) - stable} flicker"
    chosen = [one for one in found if wanted(one.pc)]
    if not args.raw:
        chosen = [one for one in chosen if not one.is_stable]
        summary += "; --raw also shows stable points"
    chosen = chosen[: args.n]
    names.prefetch(one.pc for one in chosen)
    rows = [_OccurrenceRow(one, runs.total, names[one.pc]) for one in chosen]
    return Table(
        _OCCURRENCE_COLUMNS,
        rows,
        remarks=[summary, *remarks, *context.kernel.names.remarks],
        empty="no point flickers",
    )
