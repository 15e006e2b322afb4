# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the states of source lines by traces, for every command that shows source text or compares
lines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from kcovdbg.errors import CapabilityError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.location import Frame
from kcovdbg.records.code_states import CodeStates
from kcovdbg.records.coverage import (
    NO_POINT_LINES,
    FileCoverage,
    PointLines,
    fill_lines,
    find_lines,
    join_code,
)
from kcovdbg.records.line_states import NO_CODE_LINES, CodeLine, LineState, Quality, TraceRecords
from kcovdbg.records.located_records import is_file_name, matches_function_or_file, matches_path
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.symbols.location_table import LocationTable


class LineMark(NamedTuple):
    """How the state of a line is shown."""

    style: str
    sign: str
    word: str
    """The state in JSON."""


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
        self._image: CodeStates | None = None
        self._remarks: tuple[str, ...] = ()
        try:
            self._image = CodeStates([find_table()])
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
        code = self._join_modules(traces)
        functions: Collection[int] | None = None
        if code is not None and not has_unexecuted:
            functions = _find_functions(code, traces, place)
        starts: Mapping[str, Collection[int]] = {}
        if code is not None:
            starts = code.tables[0].definition_lines()
        joined: list[list[FileCoverage]] = []
        all_remarks = []
        about_modules = self._points.explain_modules(traces)
        for trace in traces:
            points, remarks = self._find_points(trace, place, files, has_unexecuted)
            remarks += about_modules
            lines, contradictions = NO_CODE_LINES, 0
            if code is not None:
                lines, contradictions = code.find_lines(trace, functions, files)
            if place is not None and is_file_name(place):
                spans = {
                    name: span for name, span in lines.spans.items() if matches_path(place, name)
                }
                lines = lines._replace(spans=spans)
            if contradictions:
                remarks.append(
                    f"the records contradict the code of {contradictions} functions: is this trace "
                    f"of another kernel?"
                )
            joined.append(join_code(points, lines, starts).files())
            all_remarks.append((*self._remarks, *remarks))
        if len(traces) > 1:
            # A trace lacks lines whose code was inlined only into functions of other traces.
            joined = fill_lines(joined, [_state_of_missing(trace) for trace in traces])
        unread = tuple(about_modules)
        return [
            CoveredLines(found, remarks, unread)
            for found, remarks in zip(joined, all_remarks, strict=True)
        ]

    def _join_modules(self, traces: Sequence[TraceRecords]) -> CodeStates | None:
        """Return the code of the image and of the modules in which traces have records; None if the
        blocks of the image are unknown.
        """
        if self._image is None:
            return None
        return CodeStates([*self._image.tables, *self._points.find_module_tables(traces)])

    def find_points(self, trace: TraceRecords) -> CoveredLines:
        """Return the lines with points in functions that a trace executed, by points alone."""
        points, remarks = self._find_points(trace, None, None, False)
        files = join_code(points, NO_CODE_LINES, {}).files()
        return CoveredLines(files, (*self._remarks, *remarks))

    def find_file(self, trace: TraceRecords, file: str) -> Mapping[int, CodeLine]:
        """Return the lines of a file in functions that a trace executed, by number.

        :param file: as in debug info.
        """
        code = self._join_modules([trace])
        if code is None:
            return {}
        lines, _ = code.find_lines(trace, code.find_executed(trace.counts), {file})
        return {line.line: line for line in lines.rows().get(file, ())}

    def _find_points(
        self,
        trace: TraceRecords,
        place: str | None,
        files: Collection[str] | None,
        has_unexecuted: bool,
    ) -> tuple[PointLines, list[str]]:
        """Return the lines with points, and remarks on records without a line."""
        if trace.quality & Quality.EXACT:
            # An executed address need not be a point.
            return NO_POINT_LINES, []
        wanted: Callable[[Frame], bool] | None = None
        if place is not None:
            wanted = partial(matches_function_or_file, place)
        elif files is not None:
            wanted = partial(lambda names, frame: frame.file in names, files)
        counts = as_counts(trace.counts)
        columns = self._names.columns(counts.pcs)
        found = find_lines(
            columns, counts.records, trace.kinds, wanted, has_unexecuted=has_unexecuted
        )
        # A PC with an approximate location is no point if the table lacks it, and otherwise was
        # recorded by a tail call.
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


def _find_functions(
    code: CodeStates, traces: Iterable[TraceRecords], place: str | None
) -> Collection[int]:
    """Return the functions that any of the traces executed.

    :param place: as for :meth:`LineFinder.find`.
    """
    found: set[int] = set()
    for trace in traces:
        found.update(code.find_executed(trace.counts))
    if place is None or is_file_name(place):
        return found
    named = chain.from_iterable(table.functions_named(place) for table in code.tables)
    return found & {code.function_at(symbol.address) for symbol in named}


def _state_of_missing(trace: TraceRecords) -> LineState:
    """Return the state of lines in functions that have no record in a trace."""
    knows = Quality.COMPLETE | Quality.ENDED
    if trace.quality & knows == knows:
        return LineState.NOT_EXECUTED
    return LineState.UNDECIDED
