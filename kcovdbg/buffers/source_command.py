# SPDX-License-Identifier: LGPL-2.1-or-later
"""``source``: source text with executed lines marked."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_coverage import CoveredLines, find_line_coverage
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import NUMBER, PATH, TEXT, Column, Meaning, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Drawing, Fragment, Line, Lines, Table
from kcovdbg.console.text import find_hunks, highlight
from kcovdbg.errors import CapabilityError
from kcovdbg.inputs.buffer_sources import find_counts
from kcovdbg.inputs.code_names import check_code
from kcovdbg.records.coverage import FileCoverage, LineCoverage
from kcovdbg.records.line_states import CodeLine, LineState, Quality, TraceRecords, make_finder
from kcovdbg.records.located_records import is_file_name, matches_function_or_file, matches_path


class _Row(NamedTuple):
    """A line with code and its text."""

    coverage: LineCoverage
    state: LineState
    text: str | None

    @property
    def hits(self) -> int:
        """Records of its points, or of its code."""
        return self.coverage.hits


# In text; what is executed has its number of records as well.
_MARKS: Final = {LineState.EXECUTED: "+", LineState.PARTLY: "~", LineState.NOT_EXECUTED: "!"}
_STATES: Final = {
    LineState.EXECUTED: "executed",
    LineState.PARTLY: "partly",
    LineState.NOT_EXECUTED: "not-executed",
    LineState.NOT_INSTRUMENTED: "not-instrumented",
}
_UNKNOWN: Final = "unknown"
_COLUMNS: Final = (
    Column(
        "file",
        PATH,
        value=lambda row: row.coverage.file,
        meaning="source file, relative to the build root",
    ),
    Column("line", NUMBER, value=lambda row: row.coverage.line, meaning="line in the file"),
    Column(
        "hits",
        NUMBER,
        value=lambda row: row.hits,
        meaning="records of the line's points or code",
        unit="records",
    ),
    Column(
        "points",
        NUMBER,
        value=lambda row: row.coverage.points,
        meaning="coverage points on this line",
        unit="points",
    ),
    Column("covered", NUMBER, value=lambda row: row.coverage.covered),
    Column("state", TEXT, value=lambda row: _STATES.get(row.state, _UNKNOWN)),
    Column(
        "reason", TEXT, value=lambda row: row.state.name.lower() if row.state.is_unknown else None
    ),
    Column("text", TEXT),
)


def _find_states(
    context: Context, trace: TraceRecords, place: str | None
) -> tuple[dict[tuple[str, int], CodeLine], list[str]]:
    """Return the lines that functions have code of which were executed, by file and number, and
    remarks.

    :param place: a function or file that is wanted, None for all.
    """
    try:
        table = find_point_table(context, needs_points=not trace.quality & Quality.EXACT)
        finder = make_finder(table)
    except CapabilityError as error:
        return {}, [f"only lines with points are known: {error}"]
    functions = finder.find_executed(trace.counts)
    if place is not None and not is_file_name(place):
        named = {finder.find_function(symbol.address) for symbol in table.functions_named(place)}
        functions = [function for function in functions if function in named]
    found = finder.find_lines(trace, functions)
    lines: dict[tuple[str, int], CodeLine] = {}
    for file, rows in found.files.items():
        if place is None or not is_file_name(place) or matches_path(place, file):
            lines.update(((file, row.line), row) for row in rows)
    remarks = []
    if found.contradictions:
        remarks.append(
            f"the records contradict the code of {found.contradictions} functions: is this "
            f"trace of another kernel?"
        )
    return lines, remarks


def _state_of(coverage: LineCoverage, line: CodeLine | None) -> LineState:
    """Return the state of a line; of one that other code was inlined at, and that has none of its
    own, by that one's points.
    """
    if line is not None:
        # Code that was inlined there was executed, though nothing that was written there.
        is_doubtful = line.state is LineState.NOT_EXECUTED and coverage.covered
        return LineState.UNDECIDED if is_doubtful else line.state
    if not coverage.covered:
        return LineState.UNDECIDED
    return LineState.EXECUTED if coverage.covered == coverage.points else LineState.PARTLY


def _join(
    files: Sequence[FileCoverage], lines: Mapping[tuple[str, int], CodeLine]
) -> list[tuple[LineCoverage, LineState]]:
    """Return lines with points and lines with states as one list, by file and number."""
    known = {(row.file, row.line): row for file in files for row in file.rows()}
    joined = []
    for key in sorted(known.keys() | lines.keys()):
        line = lines.get(key)
        coverage = known.get(key) or LineCoverage(*key, 0 if line is None else line.hits, 0, 0)
        joined.append((coverage, _state_of(coverage, line)))
    return joined


def _run(context: Context, args: Namespace) -> Lines:
    remarks = [*context.kernel.name_remarks]
    if args.place is not None:
        check_code([context.kernel.names], [args.place], are_files=is_file_name(args.place))
    counted = find_counts(context.inputs, args.what, takes_addresses=True)
    wanted = None if args.place is None else partial(matches_function_or_file, args.place)
    found = CoveredLines([], ())
    if counted.trace is None or not counted.trace.quality & Quality.EXACT:
        names = context.kernel.names
        found = find_line_coverage(
            names, partial(find_point_table, context), counted.counts, counted.kinds, wanted
        )
    remarks += (*counted.remarks, *found.remarks)
    lines: dict[tuple[str, int], CodeLine] = {}
    if counted.trace is not None:
        lines, its_remarks = _find_states(context, counted.trace, args.place)
        remarks += its_remarks
    tree = context.kernel.source
    joined = _join(found.files, lines)
    rows = [_Row(line, state, tree.read(line.file).line(line.line)) for line, state in joined]
    files = dict.fromkeys(row.coverage.file for row in rows)
    reasons = sorted({text.remark for file in files if (text := tree.read(file)).remark})
    remarks += reasons[:3] + (
        [f"{len(reasons) - 3} more files without text"] if len(reasons) > 3 else []
    )
    if rows:
        least = "at least " if counted.is_incomplete else ""
        remarks.append(f"{least}{_count(rows)}, in {len(files)} files")
    empty = f"nothing of '{args.place}' is covered" if args.place else "no records"
    if counted.is_incomplete:
        empty += " in what could be read"
    data = Table(_COLUMNS, rows, errors=partial(_errors, is_incomplete=counted.is_incomplete))
    drawing = Drawing(len(rows), lambda most: _lines(context, rows, empty, most, whole=args.all))
    return Lines(drawing, data=data, remarks=remarks)


def _count(rows: Sequence[_Row]) -> str:
    """Return how many lines were executed, in words."""
    executed = sum(row.state.was_executed for row in rows)
    unknown = sum(row.state.is_unknown for row in rows)
    text = f"{executed} of {len(rows)} lines are executed"
    return f"{text}, {unknown} are unknown" if unknown else text


def _errors(row: _Row, *, is_incomplete: bool) -> tuple[str, ...]:
    text = () if row.text is not None else ("source text is missing",)
    if is_incomplete and row.coverage.covered < row.coverage.points:
        return (*text, "not every record could be read: more of its points may be covered")
    return text


def _lines(
    context: Context, rows: Sequence[_Row], empty: str, most: int, *, whole: bool
) -> Iterator[Line]:
    if not rows:
        yield (("remark", empty),)
    tree = context.kernel.source
    for number, (file, members) in enumerate(groupby(rows, key=lambda row: row.coverage.file)):
        if most <= 0:
            return
        by_line = {row.coverage.line: row for row in members}
        if number:
            yield ()
        yield (("path", file), ("remark", f"  {_count([*by_line.values()])}"))
        text = tree.read(file).lines
        if most < len(by_line):
            by_line = dict(islice(by_line.items(), most))
            text = text[: max(by_line)]
        most -= len(by_line)
        if not text:
            for line, row in by_line.items():
                yield _line(line, row, [], len(str(max(by_line))))
            continue
        digits = len(str(len(text)))
        for part, (first, last) in enumerate(
            [(1, len(text))] if whole else find_hunks(sorted(by_line), len(text))
        ):
            if part:
                yield (("gutter", "     ⋮"),)
            for line, shown in enumerate(highlight(text[first - 1 : last], file), first):
                yield _line(line, by_line.get(line), shown, digits)


def _line(number: int, row: _Row | None, shown: Sequence[Fragment], digits: int) -> list[Fragment]:
    if row is None:
        gutter: list[Fragment] = [("gutter", f"{'':>8}   {number:>{digits}}  ")]
    elif row.state.was_executed:
        gutter = [("covered", f"{row.hits:>8} {_MARKS[row.state]} {number:>{digits}}  ")]
    elif row.state is LineState.NOT_EXECUTED:
        gutter = [("uncovered", f"{'':>8} {_MARKS[row.state]} {number:>{digits}}  ")]
    else:
        gutter = [("gutter", f"{'':>8} ? {number:>{digits}}  ")]
    return [*gutter, *shown]


COMMAND: Final = Command(
    name="source",
    summary="show source text with executed lines marked",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(
            _COLUMNS,
            {
                "covered": Meaning("points on this line that the buffer has", unit="points"),
                "state": Meaning(
                    "`executed`, `partly`, `not-executed`, `not-instrumented` or `unknown`"
                ),
                "reason": Meaning(
                    "why the state is unknown: `undecided`, `moved`, `edges` or `outside`",
                    null="it is known",
                ),
            },
            errors=True,
        ),
    ),
    description=(
        "Each line of a function that was executed has a mark: + executed, with the number of "
        "records; ~ executed, but not "
        "all of its code; ! not executed; ? unknown. Lines without points have the states that "
        "follow from others. A line "
        "includes the points of functions inlined there. The text comes from the build's "
        "source tree or from --source-dir."
    ),
    arguments=(
        Argument("what WHAT", Value.BUFFER, "the buffer"),
        Argument("place [FUNCTION|FILE]", Value.FUNCTION, "only this function or file"),
        Argument("--all", Value.FLAG, "show whole files instead of lines around points"),
        *TRACE_OPTIONS,
    ),
    examples=(Example("source 41 tcp_sendmsg_locked", "which branches did it take?"),),
    needs=frozenset(),
)
