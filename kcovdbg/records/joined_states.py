# SPDX-License-Identifier: LGPL-2.1-or-later
"""States of the lines of some files by several traces together, and which of the traces executed
each line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.model.buffer import Buffer
from kcovdbg.records.code_states import CodeStates
from kcovdbg.records.line_states import CodeLine, LineState, Quality, TraceRecords
from kcovdbg.records.source_coverage import merge_traces

_UNIQUE: Final = "UNIQUE"


class NamedTrace(NamedTuple):
    """A trace, with the name that answers show."""

    name: str
    records: TraceRecords
    quality: str
    """What is known about it, in words."""


class TraceHits(NamedTuple):
    """A trace that executed a line."""

    trace: str
    hits: int


class JoinedLine(NamedTuple):
    """A line that has code, and what all traces together say about it."""

    state: LineState
    hits: int
    """The sum over the traces."""
    traces: Sequence[TraceHits]
    """The traces that executed it."""


def name_trace(buffer: Buffer, records: TraceRecords) -> NamedTrace:
    """Return a buffer as a trace with a name.

    :param records: the buffer's records.
    """
    return NamedTrace(buffer.name, records, quality_text(buffer, records.quality))


def quality_text(buffer: Buffer, quality: Quality) -> str:
    """Return in words what is known about a trace."""
    if quality & Quality.EXACT:
        if quality & Quality.COMPLETE:
            return "all executed code"
        return "executed code: what is not listed is unknown"
    if quality & Quality.COMPLETE:
        if quality & Quality.PLACED:
            return "open: its task is inside the kernel, and its stack is known"
        if not quality & Quality.ENDED:
            return "open: its task may be inside the kernel"
        return "whole" if quality & Quality.COUNTED else "a set of PCs"
    if buffer.fit is not None and buffer.fit.is_low:
        reason = "most of its PCs are no coverage points of this kernel"
    elif buffer.full or buffer.was_full:
        reason = "overflowed"
    elif buffer.is_incomplete or buffer.gaps:
        reason = "not all of it could be read"
    elif buffer.bits_set is not None or _UNIQUE in (buffer.mode or ""):
        reason = "unique PCs"
    else:
        reason = "its mode does not record each execution of each block"
    return f"incomplete ({reason}): what has no record is unknown"


def join_states(
    code: CodeStates, traces: Sequence[NamedTrace], files: Collection[str]
) -> Mapping[str, Mapping[int, JoinedLine]]:
    """Return the lines of some files that have code, by file and number.

    :param code: the code that was executed.
    :param traces: one or more.
    :param files: as in debug info.
    """
    groups = []
    for records in _merge_records(traces):
        lines, _ = code.find_lines(records, None, files)
        groups.append(lines.rows())
    executed_by = _find_executing(code, traces, groups[0], files)
    joined: dict[str, dict[int, JoinedLine]] = {}
    # Each group has the same lines.
    for file in groups[0]:
        own = joined[file] = {}
        for states in zip(*[group[file] for group in groups], strict=True):
            number = states[0].line
            state = _join([one.state for one in states])
            hits = executed_by.get((file, number), ()) if state.was_executed else ()
            own[number] = JoinedLine(state, sum(one.hits for one in hits), hits)
    return joined


def _merge_records(traces: Sequence[NamedTrace]) -> Iterator[TraceRecords]:
    """Yield fewer traces, by which the states of lines are the same.

    Traces of tasks that returned to user space are added up: each task has left every block that it
    entered, and so the sum has as many exits as entries. The trace of a task that is inside the
    kernel stays alone.
    """
    groups: dict[tuple[object, ...], list[TraceRecords]] = {}
    for _, records, _ in traces:
        if not records.quality & Quality.ENDED:
            yield records
            continue
        is_complete = bool(records.quality & Quality.COMPLETE)
        is_exact = bool(records.quality & Quality.EXACT)
        groups.setdefault((is_complete, is_exact, records.kinds), []).append(records)
    yield from map(merge_traces, groups.values())


def _join(states: Sequence[LineState]) -> LineState:
    """Return what several traces say of a line: it was executed if one executed it, and was not if
    none did.
    """
    if len(states) == 1:
        return states[0]
    for state in (LineState.EXECUTED, LineState.PARTLY):
        if state in states:
            return state
    return next((state for state in states if state.is_unknown), states[0])


def _find_executing(
    code: CodeStates,
    traces: Sequence[NamedTrace],
    states: Mapping[str, Sequence[CodeLine]],
    files: Collection[str],
) -> dict[tuple[str, int], list[TraceHits]]:
    """Return which traces executed a line, by file and number.

    :param states: the states of lines, where there is one trace.
    """
    found: dict[tuple[str, int], list[TraceHits]] = {}
    for name, records, _ in traces:
        if len(traces) > 1:
            # It executed no line of other functions.
            own = code.find_executed(records.counts)
            lines, _ = code.find_lines(records, own, files, with_others=False)
            states = lines.rows()
        for file, rows in states.items():
            for line in rows:
                if line.state.was_executed:
                    found.setdefault((file, line.line), []).append(TraceHits(name, line.hits))
    return found
