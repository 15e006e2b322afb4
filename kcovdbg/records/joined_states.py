# SPDX-License-Identifier: LGPL-2.1-or-later
"""States of the lines of some files by several traces together, and which of the traces executed
each line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.model.buffer import Buffer
from kcovdbg.records.line_states import (
    CodeLine,
    LineState,
    Quality,
    StateFinder,
    TraceRecords,
    join_line_states,
    make_finder,
)
from kcovdbg.records.source_coverage import merge_traces
from kcovdbg.symbols.location_table import LocationTable

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
    """Those that executed it."""


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
    table: LocationTable, traces: Sequence[NamedTrace], files: Collection[str]
) -> Mapping[str, Mapping[int, JoinedLine]]:
    """Return the lines of some files that have code, by file and number.

    :param table: the table of the kernel that was executed.
    :param traces: one or more.
    :param files: as in debug info.
    :raises CapabilityError: when the table has no blocks.
    """
    finder = make_finder(table)
    wanted = frozenset(files)
    groups = [finder.find_lines(records, files=wanted) for records in _merge_records(traces)]
    executed_by = _find_executing(finder, traces, groups, wanted)
    joined: dict[str, dict[int, JoinedLine]] = {}
    for file in wanted:
        if not all(file in group for group in groups):
            continue
        lines: dict[int, JoinedLine] = {}
        for states in zip(*[group[file] for group in groups], strict=True):
            number = states[0].line
            state = _join([one.state for one in states])
            hits = executed_by.get((file, number), ()) if state.was_executed else ()
            lines[number] = JoinedLine(state, sum(one.hits for one in hits), hits)
        joined[file] = lines
    return joined


def join_places(
    lines: Mapping[int, JoinedLine], more: Mapping[int, JoinedLine]
) -> Mapping[int, JoinedLine]:
    """Return the lines of a file in the kernel's image and in a module."""
    joined = dict(lines)
    for number, other in more.items():
        one = joined.get(number)
        if one is None:
            joined[number] = other
            continue
        known = {hit.trace for hit in one.traces}
        added = [hit for hit in other.traces if hit.trace not in known]
        state = join_line_states({one.state, other.state})
        joined[number] = JoinedLine(state, one.hits + other.hits, (*one.traces, *added))
    return joined


def _merge_records(traces: Sequence[NamedTrace]) -> Iterator[TraceRecords]:
    """Yield traces that say what all of them together do.

    What enters a block leaves it in the sum of whole traces as in each of them. Where a task was in
    the kernel says something of its own trace alone.
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
    finder: StateFinder,
    traces: Sequence[NamedTrace],
    groups: Sequence[Mapping[str, Sequence[CodeLine]]],
    files: frozenset[str],
) -> dict[tuple[str, int], list[TraceHits]]:
    """Return which traces executed a line, by file and number.

    :param groups: the states of lines by traces that say the same together.
    """
    found: dict[tuple[str, int], list[TraceHits]] = {}
    for name, records, _ in traces:
        states = groups[0]
        if len(traces) > 1:
            # It executed no line of other functions.
            own = finder.find_executed(records.counts)
            states = finder.find_lines(records, own, with_others=False, files=files)
        for file, lines in states.items():
            for line in lines:
                if line.state.was_executed:
                    found.setdefault((file, line.line), []).append(TraceHits(name, line.hits))
    return found
