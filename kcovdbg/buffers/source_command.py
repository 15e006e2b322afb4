# SPDX-License-Identifier: LGPL-2.1-or-later
"""``source``: source text with executed lines marked."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_coverage import LINE_MARKS, LineFinder
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import NUMBER, PATH, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Drawing, Fragment, Line, Lines, Table
from kcovdbg.console.text import find_hunks, highlight
from kcovdbg.inputs.buffer_sources import find_counts
from kcovdbg.inputs.code_names import check_code
from kcovdbg.records.coverage import LineCoverage
from kcovdbg.records.line_states import LineState, Quality
from kcovdbg.records.located_records import is_file_name

_NAMED: Final = 3
"""Limit for remarks on files without text."""


class _Row(NamedTuple):
    """A line with code or points, and its text."""

    coverage: LineCoverage
    text: str | None

    @property
    def state(self) -> LineState:
        """Whether it was executed."""
        return self.coverage.state


_COLUMNS: Final = (
    Column(
        "file",
        PATH,
        value="coverage.file",
        meaning="source file, relative to the build root",
    ),
    Column("line", NUMBER, value="coverage.line", meaning="line in the file"),
    Column(
        "hits",
        NUMBER,
        value="coverage.hits",
        meaning="records of the line's points or code",
        unit="records",
    ),
    Column(
        "points",
        NUMBER,
        value="coverage.points",
        meaning="coverage points on this line",
        unit="points",
    ),
    Column(
        "covered",
        NUMBER,
        value="coverage.covered",
        meaning="points on this line that the buffer has",
        unit="points",
    ),
    Column(
        "state",
        value=lambda row: LINE_MARKS[row.state].word,
        meaning="`executed`, `partly`, `not-executed`, `not-instrumented` or `unknown`",
    ),
    Column(
        "reason",
        value=lambda row: row.state.name.lower() if row.state.is_unknown else None,
        meaning="why the state is unknown: `undecided`, `moved`, `edges` or `outside`",
        null="it is known",
    ),
    Column("text"),
)


def _run(context: Context, args: Namespace) -> Lines:
    remarks = [*context.kernel.names.remarks]
    if args.place is not None:
        check_code([context.names], [args.place], are_files=is_file_name(args.place))
    counted = find_counts(context.inputs, args.what, takes_addresses=True)
    needs_points = not counted.trace.quality & Quality.EXACT
    find_table = partial(find_point_table, context, needs_points=needs_points)
    finder = LineFinder(context.kernel, find_table)
    (found,) = finder.find([counted.trace], args.place)
    remarks += (*counted.remarks, *found.remarks)
    tree = context.kernel.sources.tree
    rows = []
    problems = set()
    for coverage in found.files:
        text = tree.read(coverage.file)
        rows += [_Row(line, text.line(line.line)) for line in coverage.rows()]
        if text.remark:
            problems.add(text.remark)
    reasons = sorted(problems)
    remarks += reasons[:_NAMED]
    if len(reasons) > _NAMED:
        remarks.append(f"{len(reasons) - _NAMED} more files without text")
    if rows:
        least = "at least " if counted.is_incomplete else ""
        remarks.append(f"{least}{_count(rows)}, in {len(found.files)} files")
    empty = "no records"
    if counted.trace.counts:
        empty = "no source lines are known of its records"
    if args.place is not None:
        empty = f"nothing of '{args.place}' is covered"
    if counted.is_incomplete:
        empty += " in what could be read"
    errors = partial(_errors, is_incomplete=counted.is_incomplete)
    # A named place is in code at hand, not in a module whose lines are missing.
    unread = found.unread if not rows and args.place is None else ()
    data = Table(_COLUMNS, rows, errors=errors, unread=unread)
    drawing = Drawing(len(rows), lambda most: _lines(context, rows, empty, most, whole=args.all))
    return Lines(drawing, data=data, remarks=remarks)


def _count(rows: Sequence[_Row]) -> str:
    """Return how many lines were executed, in words."""
    executed = sum(row.state.was_executed for row in rows)
    unknown = sum(row.state.is_unknown for row in rows)
    text = f"{executed} of {len(rows)} lines are executed"
    if unknown:
        text += f", {unknown} are unknown"
    return text


def _errors(row: _Row, *, is_incomplete: bool) -> tuple[str, ...]:
    errors = []
    if row.text is None:
        errors.append("source text is missing")
    if is_incomplete and row.coverage.covered < row.coverage.points:
        errors.append("not every record could be read: more of its points may be covered")
    return tuple(errors)


def _lines(
    context: Context, rows: Sequence[_Row], empty: str, most: int, *, whole: bool
) -> Iterator[Line]:
    if not rows:
        yield (("remark", empty),)
    tree = context.kernel.sources.tree
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
        digits = len(str(len(text) or max(by_line)))
        if not text:
            for line, row in by_line.items():
                yield _line(line, row, [], digits)
            continue
        hunks = iter([(1, len(text))]) if whole else find_hunks(sorted(by_line), len(text))
        for part, (first, last) in enumerate(hunks):
            if part:
                yield (("gutter", "     ⋮"),)
            for line, shown in enumerate(highlight(text[first - 1 : last], file), first):
                yield _line(line, by_line.get(line), shown, digits)


def _line(number: int, row: _Row | None, shown: Sequence[Fragment], digits: int) -> list[Fragment]:
    if row is None:
        return [("gutter", f"{'':>8}   {number:>{digits}}  "), *shown]
    mark = LINE_MARKS[row.state]
    hits = str(row.coverage.hits) if row.state.was_executed else ""
    return [(mark.style, f"{hits:>8} {mark.sign} {number:>{digits}}  "), *shown]


COMMAND: Final = Command(
    name="source",
    summary="show source text with executed lines marked",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True, unread=True),),
    description=(
        "Each line of a function that was executed has a mark: + executed, with the number of "
        "records; ~ executed, but not all of its code; ! not executed; ? unknown; x without "
        "points. Lines without a point of their own get their state from the code around them. A "
        "line includes the points of functions inlined there. The text comes from the build's "
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
