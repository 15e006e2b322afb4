# SPDX-License-Identifier: LGPL-2.1-or-later
"""``source``: source text with covered lines marked."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_coverage import find_line_coverage
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS, check_code
from kcovdbg.console.buffer_sources import find_counts
from kcovdbg.console.column import NUMBER, PATH, TEXT, Column, Meaning, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.coverage_points import find_point_table
from kcovdbg.console.renderable import Drawing, Fragment, Line, Lines, Table
from kcovdbg.console.text import find_hunks, highlight
from kcovdbg.records.coverage import LineCoverage
from kcovdbg.records.located_records import is_file_name, matches_function_or_file


class _Row(NamedTuple):
    """A line with points and its text."""

    coverage: LineCoverage
    text: str | None


_COLUMNS: Final = (
    Column("file", PATH, value=lambda row: row.coverage.file, meaning="source file, relative to the build root"),
    Column("line", NUMBER, value=lambda row: row.coverage.line, meaning="line in the file"),
    Column("hits", NUMBER, value=lambda row: row.coverage.hits, meaning="records of points on this line", unit="records"),
    Column("points", NUMBER, value=lambda row: row.coverage.points, meaning="coverage points on this line", unit="points"),
    Column("covered", NUMBER, value=lambda row: row.coverage.covered),
    Column("text", TEXT),
)


def _run(context: Context, args: Namespace) -> Lines:
    remarks = [*context.kernel.name_remarks]
    if args.place is not None:
        check_code([context.kernel.names], [args.place], are_files=is_file_name(args.place))
    counted = find_counts(context, args.what)
    wanted = None if args.place is None else partial(matches_function_or_file, args.place)
    found = find_line_coverage(context.kernel.names, partial(find_point_table, context), counted.counts, counted.kinds, wanted)
    remarks += (*counted.remarks, *found.remarks)
    tree = context.kernel.source
    rows = [_Row(line, tree.read(line.file).line(line.line)) for file in found.files for line in file.rows()]
    reasons = sorted({text.remark for file in found.files if (text := tree.read(file.file)).remark})
    remarks += reasons[:3] + ([f"{len(reasons) - 3} more files without text"] if len(reasons) > 3 else [])
    if rows:
        least = "at least " if counted.is_incomplete else ""
        remarks.append(f"{least}{found.covered} of {found.total} lines with points are covered, in {len(found.files)} files")
    empty = f"nothing of '{args.place}' is covered" if args.place else "no records"
    if counted.is_incomplete:
        empty += " in what could be read"
    data = Table(_COLUMNS, rows, errors=partial(_errors, is_incomplete=counted.is_incomplete))
    drawing = Drawing(len(rows), lambda most: _lines(context, rows, empty, most, whole=args.all))
    return Lines(drawing, data=data, remarks=remarks)


def _errors(row: _Row, *, is_incomplete: bool) -> tuple[str, ...]:
    text = () if row.text is not None else ("source text is missing",)
    if is_incomplete and row.coverage.covered < row.coverage.points:
        return (*text, "not every record could be read: more of its points may be covered")
    return text


def _lines(context: Context, rows: Sequence[_Row], empty: str, most: int, *, whole: bool) -> Iterator[Line]:
    if not rows:
        yield (("remark", empty),)
    tree = context.kernel.source
    for number, (file, members) in enumerate(groupby(rows, key=lambda row: row.coverage.file)):
        if most <= 0:
            return
        by_line = {row.coverage.line: row.coverage for row in members}
        if number:
            yield ()
        covered = sum(coverage.covered > 0 for coverage in by_line.values())
        yield (("path", file), ("remark", f"  {covered} of {len(by_line)} lines with points are covered"))
        text = tree.read(file).lines
        if most < len(by_line):
            by_line = dict(islice(by_line.items(), most))
            text = text[: max(by_line)]
        most -= len(by_line)
        if not text:
            for line, coverage in by_line.items():
                yield _line(line, coverage, [], len(str(max(by_line))))
            continue
        digits = len(str(len(text)))
        for part, (first, last) in enumerate([(1, len(text))] if whole else find_hunks(sorted(by_line), len(text))):
            if part:
                yield (("gutter", "     ⋮"),)
            for line, shown in enumerate(highlight(text[first - 1 : last], file), first):
                yield _line(line, by_line.get(line), shown, digits)


def _line(number: int, coverage: LineCoverage | None, shown: Sequence[Fragment], digits: int) -> list[Fragment]:
    if coverage is None:
        gutter: list[Fragment] = [("gutter", f"{'':>8}   {number:>{digits}}  ")]
    elif not coverage.covered:
        gutter = [("uncovered", f"{'':>8} ! {number:>{digits}}  ")]
    else:
        # A line can have covered and uncovered points.
        sign = "+" if coverage.covered == coverage.points else "~"
        gutter = [("covered", f"{coverage.hits:>8} {sign} {number:>{digits}}  ")]
    return [*gutter, *shown]


COMMAND: Final = Command(
    name="source",
    summary="show source text with covered lines marked",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(
            _COLUMNS,
            {"covered": Meaning("points on this line that the buffer has", unit="points")},
            errors=True,
        ),
    ),
    description=(
        "Each line with points has its number of records and a mark: + all points are covered, ~ some are, ! none is, though "
        "the function was executed. A line includes the points of functions inlined there. The text comes from the build's "
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
