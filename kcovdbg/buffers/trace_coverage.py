# SPDX-License-Identifier: LGPL-2.1-or-later
"""States of source lines by traces, for every command that shows source text or compares lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.errors import CapabilityError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.location import Frame
from kcovdbg.records.coverage import (
    NO_POINT_LINES,
    FileCoverage,
    PointLines,
    fill_lines,
    find_lines,
    join_code,
)
from kcovdbg.records.line_states import (
    NO_CODE_LINES,
    CodeColumns,
    CodeLine,
    LineState,
    Quality,
    StateFinder,
    TraceRecords,
    find_code_columns,
    join_code_columns,
    make_finder,
    select_code_records,
)
from kcovdbg.records.located_records import is_file_name, matches_function_or_file, matches_path
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.symbols.location_table import LocationTable


class LineMark(NamedTuple):
    """How the state of a line is shown."""

    style: str
    sign: str
    word: str
    """As in JSON."""


NO_MARK: Final = LineMark("gutter", " ", "no-code")
"""The mark of a line without code."""
LINE_MARKS: Final = {
    LineState.EXECUTED: LineMark("covered", "+", "executed"),
    LineState.PARTLY: LineMark("covered", "~", "partly"),
    LineState.NOT_EXECUTED: LineMark("uncovered", "!", "not-executed"),
    LineState.NOT_INSTRUMENTED: LineMark("gutter", "x", "not-instrumented"),
    LineState.UNDECIDED: LineMark("gutter", "?", "unknown"),
    LineState.MOVED: LineMark("gutter", "?", "unknown"),
    LineState.EDGES: LineMark("gutter", "?", "unknown"),
    LineState.OUTSIDE: LineMark("gutter", "?", "unknown"),
}
"""The marks of lines that have code, by state."""


class CoveredLines(NamedTuple):
    """The lines with points or code, by one trace."""

    files: Sequence[FileCoverage]
    """By name."""
    remarks: tuple[str, ...]
    """What is missing, and why."""
    unread: tuple[str, ...] = ()
    """The remarks on modules whose lines are missing."""


class LineFinder:
    """Finds the states of lines by traces of one kernel and its modules.

    :param find_table: waits for the table of the kernel's points, and raises CapabilityError when
        there is none.
    """

    def __init__(self, kernel: Kernel, find_table: Callable[[], LocationTable]) -> None:
        self._names = kernel.names.locations
        self._points = kernel.points
        self._finder: StateFinder | None = None
        self._remarks: tuple[str, ...] = ()
        try:
            self._table = find_table()
            self._finder = make_finder(self._table)
        except CapabilityError as error:
            self._remarks = (f"only lines with points are known: {error}",)

    def find(
        self,
        traces: Sequence[TraceRecords],
        place: str | None = None,
        *,
        files: Collection[str] | None = None,
        has_unexecuted: bool = False,
    ) -> list[CoveredLines]:
        """Return the lines of functions that any of the traces executed, with their states by each
        trace.

        :param place: a function, or a pattern of files; None for all.
        :param files: names as in debug info; None for all.
        :param has_unexecuted: whether lines of all other functions are wanted as well.
        :return: for each trace, all with the same lines.
        """
        # None stands for all functions.
        functions: list[int] | None = None
        if self._finder is not None and not has_unexecuted:
            functions = _find_executed(self._finder, self._table, traces, place)
        starts: Mapping[str, Collection[int]] = {}
        if self._finder is not None:
            starts = self._table.definition_lines()
        joined: list[list[FileCoverage]] = []
        all_remarks = []
        about_modules = self._points.explain_modules(self._points.find_outside(traces))
        for trace in traces:
            points, remarks = self._find_points(trace, place, files, has_unexecuted)
            remarks += about_modules
            code = NO_CODE_LINES
            if self._finder is not None:
                states = self._finder.find_columns(trace, functions)
                code = find_code_columns(states, files)
                code = self._add_modules(code, trace, traces, place, files)
                if place is not None and is_file_name(place):
                    spans = {
                        name: code.spans[name] for name in code.spans if matches_path(place, name)
                    }
                    code = code._replace(spans=spans)
                if states.contradictions:
                    remarks.append(
                        f"the records contradict the code of {states.contradictions} functions: "
                        f"is this trace of another kernel?"
                    )
            joined.append(join_code(points, code, starts).files())
            all_remarks.append((*self._remarks, *remarks))
        if len(traces) > 1:
            # A trace lacks lines whose code was inlined only into functions of other traces.
            joined = fill_lines(joined, [_state_of_missing(trace) for trace in traces])
        unread = tuple(about_modules)
        return [
            CoveredLines(found, remarks, unread)
            for found, remarks in zip(joined, all_remarks, strict=True)
        ]

    def _add_modules(
        self,
        code: CodeColumns,
        trace: TraceRecords,
        traces: Sequence[TraceRecords],
        place: str | None,
        files: Collection[str] | None,
    ) -> CodeColumns:
        """Return lines with those of functions of modules that any of the traces executed."""
        for table in self._points.find_module_tables(self._points.find_outside(traces)):
            finder = make_finder(table)
            functions = _find_executed(finder, table, traces, place)
            states = finder.find_columns(select_code_records(trace, table), functions)
            code = join_code_columns(code, find_code_columns(states, files))
        return code

    def find_points(self, trace: TraceRecords) -> CoveredLines:
        """Return the lines with points in functions that a trace executed, by points alone."""
        points, remarks = self._find_points(trace, None, None, False)
        files = join_code(points, NO_CODE_LINES, {}).files()
        return CoveredLines(files, (*self._remarks, *remarks))

    def find_file(self, trace: TraceRecords, file: str) -> Mapping[int, CodeLine]:
        """Return the lines of a file in functions that a trace executed, by number.

        :param file: as in debug info.
        """
        if self._finder is None:
            return {}
        functions = self._finder.find_executed(trace.counts)
        code = find_code_columns(self._finder.find_columns(trace, functions), {file})
        code = self._add_modules(code, trace, [trace], None, {file})
        return {line.line: line for line in code.rows().get(file, ())}

    def _find_points(
        self,
        trace: TraceRecords,
        place: str | None,
        files: Collection[str] | None,
        has_unexecuted: bool,
    ) -> tuple[PointLines, list[str]]:
        """Return the lines with points, and remarks on records without a line."""
        if trace.quality & Quality.EXACT:
            # An executed address need not be that of a point.
            return NO_POINT_LINES, []
        wanted: Callable[[Frame], bool] | None = None
        if place is not None:
            wanted = partial(matches_function_or_file, place)
        elif files is not None:
            wanted = partial(_is_of_files, files)
        counts = as_counts(trace.counts)
        columns = self._names.columns(counts.pcs)
        found = find_lines(
            columns, counts.records, trace.kinds, wanted, has_unexecuted=has_unexecuted
        )
        # An approximate location outside of the table is that of no point; one of the table is
        # that of a tail call.
        no_points = sum(columns.approximate[index] for index in columns.unlisted)
        tail_calls = columns.approximate.count(1) - no_points
        remarks = []
        for number, reason in (
            (no_points, "no coverage points of this kernel"),
            (tail_calls, "recorded by tail calls from unknown functions"),
        ):
            if number:
                remarks.append(f"{number} of {len(counts)} PCs are left out: {reason}")
        return found, remarks


def _find_executed(
    finder: StateFinder, table: LocationTable, traces: Sequence[TraceRecords], place: str | None
) -> list[int]:
    """Return the numbers of the functions that any of the traces executed, of a place."""
    executed: set[int] = set()
    for trace in traces:
        executed.update(finder.find_executed(trace.counts))
    if place is not None and not is_file_name(place):
        symbols = table.functions_named(place)
        executed &= {finder.find_function(symbol.address) for symbol in symbols}
    return sorted(executed)


def _state_of_missing(trace: TraceRecords) -> LineState:
    """Return the state of lines in functions that have no record in a trace."""
    knows = Quality.COMPLETE | Quality.ENDED
    if trace.quality & knows == knows:
        return LineState.NOT_EXECUTED
    return LineState.UNDECIDED


def _is_of_files(files: Collection[str], frame: Frame) -> bool:
    return frame.file in files
