# SPDX-License-Identifier: LGPL-2.1-or-later
"""States of the lines of some files by several traces together, and which of the traces executed
each line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, count
from typing import Final, NamedTuple

from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame
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
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_rows import combine_flags

_UNIQUE: Final = "UNIQUE"
# Of a trace that says what was not executed without a look at blocks.
_KNOWS: Final = Quality.COMPLETE | Quality.ENDED


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
    is_call: bool = False
    """Whether it has no code of its own, but code of other lines was inlined at it."""


def name_trace(buffer: Buffer, records: TraceRecords) -> NamedTrace:
    """Return a buffer as a trace with a name.

    :param records: of the buffer.
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
    if buffer.full or buffer.was_full:
        reason = "overflowed"
    elif buffer.is_incomplete or buffer.gaps:
        reason = "not all of it could be read"
    elif buffer.bits_set is not None or _UNIQUE in (buffer.mode or ""):
        reason = "unique PCs"
    else:
        reason = "its mode does not record each execution of each block"
    return f"incomplete ({reason}): what has no record is unknown"


def join_states(
    table: LocationTable, traces: Sequence[NamedTrace], wanted: Mapping[str, Collection[int]]
) -> Mapping[str, Mapping[int, JoinedLine]]:
    """Return the lines of some files that have code, by file and number.

    :param table: of the kernel that was executed.
    :param traces: one or more.
    :param wanted: numbers of lines, by file as in debug info: of these, lines without code of their
        own are looked for that other code was inlined at.
    :raises CapabilityError: when the table has no blocks.
    """
    finder = make_finder(table)
    files = frozenset(wanted)
    groups = [finder.find_lines(records, files=files).files for records in _merge_records(traces)]
    executed = finder.find_executed({pc for trace in traces for pc in trace.records.counts})
    executed_by = _find_executing(finder, traces, groups, files)
    joined: dict[str, dict[int, JoinedLine]] = {}
    for file in files.intersection(*[group.keys() for group in groups]):
        lines: dict[int, JoinedLine] = {}
        for states in zip(*[group[file] for group in groups], strict=True):
            number = states[0].line
            state = _join([one.state for one in states])
            hits = executed_by.get((file, number), ()) if state.was_executed else ()
            lines[number] = JoinedLine(state, sum(one.hits for one in hits), hits)
        joined[file] = lines
    missing: dict[str, set[int]] = {}
    for file, numbers in wanted.items():
        own = joined.get(file, {})
        missing[file] = {number for number in numbers if _may_be_call(own.get(number))}
    kinds = frozenset[PointKind]().union(*(trace.records.kinds for trace in traces))
    is_complete = all(trace.records.quality & _KNOWS == _KNOWS for trace in traces)
    calls = _Calls(table, finder, frozenset(executed) if is_complete else None)
    found = {}
    inlined = _find_inlined(table, missing, kinds)
    if is_complete:
        calls.read_functions(inlined)
    for (file, number), points in inlined.items():
        line = calls.judge(traces, file, number, points, joined.get(file, {}))
        if number not in joined.get(file, {}):
            found[file, number] = line
        elif line.state.was_executed:
            # Its own code was not, but what was inlined there.
            found[file, number] = line._replace(state=LineState.PARTLY, is_call=False)
    for (file, number), line in found.items():
        joined.setdefault(file, {})[number] = line
    return joined


def join_places(
    lines: Mapping[int, JoinedLine], more: Mapping[int, JoinedLine]
) -> Mapping[int, JoinedLine]:
    """Return the lines of a file in the kernel's image and in a module."""
    joined = dict(lines)
    for number, other in more.items():
        one = joined.get(number)
        if one is None or (one.is_call and not other.is_call):
            joined[number] = other
        elif one.is_call == other.is_call:
            known = {hit.trace for hit in one.traces}
            added = [hit for hit in other.traces if hit.trace not in known]
            state = join_line_states({one.state, other.state})
            hits = one.hits + other.hits
            joined[number] = JoinedLine(state, hits, (*one.traces, *added), one.is_call)
    return joined


def _may_be_call(line: JoinedLine | None) -> bool:
    """Return whether code that was inlined at a line changes its state."""
    return line is None or line.state is LineState.NOT_EXECUTED


class _Calls:
    """Judges lines that have no code of their own, by the points of the code that was inlined
    there.

    :param executed: functions with records, by number; None where a trace does not say what was not
        executed.
    """

    def __init__(
        self, table: LocationTable, finder: StateFinder, executed: frozenset[int] | None
    ) -> None:
        self._table, self._finder, self._executed = table, finder, executed
        self._rows: dict[str, list[tuple[int, tuple[Frame, ...]]]] = {}

    def read_functions(self, inlined: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """Read the points of all functions that have some lines, together.

        :param inlined: points of the code that was inlined at these lines.
        """
        names = set()
        for frame in self._find_frames(set(chain.from_iterable(inlined.values()))):
            if frame.function is not None and (frame.file, frame.line) in inlined:
                names.add(frame.function)
        numbers = self._table.find_frames("frame_function", names)
        for pc, _, frames in _find_points(self._table, numbers):
            for name in names.intersection(frame.function for frame in frames):
                self._rows.setdefault(name, []).append((pc, frames))

    def _find_frames(self, pcs: Iterable[int]) -> Iterator[Frame]:
        for row in self._table.get_rows(pcs):
            if row is not None:
                yield from row[1]

    def judge(
        self,
        traces: Sequence[NamedTrace],
        file: str,
        number: int,
        points: Sequence[int],
        own: Mapping[int, JoinedLine],
    ) -> JoinedLine:
        """Return what is known of a line.

        :param points: of the code that was inlined there.
        :param own: lines of the file that have code of their own.
        """
        hits = []
        recorded: set[int] = set()
        for name, records, _ in traces:
            executed = [pc for pc in points if records.counts.get(pc, 0)]
            recorded.update(executed)
            if executed:
                most = max(map(records.counts.__getitem__, executed))
                hits.append(TraceHits(name, most))
        if hits:
            state = LineState.EXECUTED if recorded.issuperset(points) else LineState.PARTLY
            return JoinedLine(state, sum(one.hits for one in hits), hits, is_call=True)
        # More code may have been inlined there, without points: it was not executed if nothing of
        # its function was.
        state = LineState.NOT_EXECUTED
        functions = set()
        for frame in self._find_frames(points):
            if (frame.file, frame.line) == (file, number):
                functions.add(frame.function)
        if not all(self._is_unexecuted(function, file, own) for function in functions):
            state = LineState.UNDECIDED
        return JoinedLine(state, 0, (), is_call=True)

    def _is_unexecuted(
        self, function: str | None, file: str, own: Mapping[int, JoinedLine]
    ) -> bool:
        lines = self._find_unexecuted(function, file)
        if lines is None:
            return False
        return all(own[line].state is LineState.NOT_EXECUTED for line in lines if line in own)

    def _find_unexecuted(self, function: str | None, file: str) -> range | None:
        """Return the lines of a function that is not inlined, and has no record; None for another
        one.
        """
        executed = self._executed
        lines = []
        for pc, frames in self._rows.get(function or "", ()):
            if (
                executed is None
                or frames[-1].function != function
                or self._finder.find_function(pc - 1) in executed
            ):
                return None
            lines += [
                frame.line
                for frame in frames
                if frame[:2] == (function, file) and frame.line is not None
            ]
        return range(min(lines), max(lines) + 1) if lines else None


def _find_points(
    table: LocationTable, wanted: Iterable[int]
) -> list[tuple[int, int, tuple[Frame, ...]]]:
    """Return the points that have one of some frames: PC, kind and all of their frames."""
    columns = table.columns
    flags = bytearray(len(columns.frames.function))
    for index in wanted:
        flags[index] = 1
    if not any(flags):
        return []
    chosen = compress(count(), combine_flags(columns.frames, columns.chain, bytes(flags)))
    pcs = [columns.base + columns.offset[index] for index in chosen]
    rows = zip(pcs, table.get_rows(pcs), strict=True)
    return [(pc, *row) for pc, row in rows if row is not None and row[1]]


def _find_inlined(
    table: LocationTable, wanted: Mapping[str, Collection[int]], kinds: frozenset[PointKind]
) -> dict[tuple[str, int], list[int]]:
    """Return the points of the code that was inlined at some lines, by file and number.

    :param kinds: of points that the traces can have.
    """
    frames = table.columns.frames
    in_files = table.find_frames(
        "frame_file", [file for file, numbers in wanted.items() if numbers]
    )
    lines = set().union(*wanted.values())
    chosen = [index for index in in_files if frames.line[index] in lines]
    found: dict[tuple[str, int], list[int]] = {}
    for pc, kind, its_frames in _find_points(table, chosen):
        if kind not in kinds:
            continue
        for frame in its_frames:
            if (
                frame.file is not None
                and frame.line is not None
                and frame.line in wanted.get(frame.file, ())
            ):
                found.setdefault((frame.file, frame.line), []).append(pc)
    return found


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
            states = finder.find_lines(records, own, with_others=False, files=files).files
        for file, lines in states.items():
            for line in lines:
                if line.state.was_executed:
                    found.setdefault((file, line.line), []).append(TraceHits(name, line.hits))
    return found
