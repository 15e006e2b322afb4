# SPDX-License-Identifier: LGPL-2.1-or-later
"""``source``: source text with what a buffer covers of it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.covering import find_line_coverage, matches_place
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import find_counts, name_remarks
from kcovdbg.model.coverage import LineCoverage
from kcovdbg.render.column import Column
from kcovdbg.render.highlight import highlight
from kcovdbg.render.kind import NUMBER, PATH, TEXT
from kcovdbg.render.renderable import Fragment, Line, Lines, Table

# Lines around those with points.
_CONTEXT: Final = 3


class _Row(NamedTuple):
    """A line with points and its text."""

    coverage: LineCoverage
    text: str | None


_COLUMNS: Final = (
    Column("file", PATH, value=lambda row: row.coverage.file),
    Column("line", NUMBER, value=lambda row: row.coverage.line),
    Column("hits", NUMBER, value=lambda row: row.coverage.hits),
    Column("points", NUMBER, value=lambda row: row.coverage.points),
    Column("covered", NUMBER, value=lambda row: row.coverage.covered),
    Column("text", TEXT),
)


def _run(context: Context, args: Namespace) -> Lines:
    remarks = [*name_remarks(context)]
    counts = find_counts(context, args.what, remarks)
    found = find_line_coverage(context, counts, lambda frame: args.place is None or matches_place(args.place, frame), remarks)
    tree = context.session.source
    rows = [_Row(coverage, tree.read(coverage.file).line(coverage.line)) for coverage in found]
    missing = {coverage.file: text.remark for coverage in found if (text := tree.read(coverage.file)).remark}
    reasons = sorted({reason for reason in missing.values() if reason})
    remarks += reasons[:3] + ([f"and {len(reasons) - 3} more files without text"] if len(reasons) > 3 else [])
    covered, total = sum(row.covered > 0 for row in found), len(found)
    if total:
        remarks.append(f"{covered} of {total} lines with points are covered, in {len({row.file for row in found})} files")
    empty = "nothing of it is covered" if args.place else "no records"
    data = Table(_COLUMNS, rows, errors=_errors)
    return Lines(_lines(context, rows, empty, whole=args.all), data=data, remarks=remarks)


def _errors(row: _Row) -> tuple[str, ...]:
    return () if row.text is not None else ("the source text isn't there",)


def _lines(context: Context, rows: Sequence[_Row], empty: str, *, whole: bool) -> Iterator[Line]:
    if not rows:
        yield (("remark", empty),)
    tree = context.session.source
    for number, (file, members) in enumerate(groupby(rows, key=lambda row: row.coverage.file)):
        by_line = {row.coverage.line: row.coverage for row in members}
        if number:
            yield ()
        covered = sum(coverage.covered > 0 for coverage in by_line.values())
        yield (("path", file), ("remark", f"  {covered} of {len(by_line)} lines with points are covered"))
        text = tree.read(file).lines
        if not text:
            for line, coverage in by_line.items():
                yield _line(line, coverage, [], len(str(max(by_line))))
            continue
        digits = len(str(len(text)))
        for part, (first, last) in enumerate(_hunks(sorted(by_line), len(text), whole=whole)):
            if part:
                yield (("gutter", "     ⋮"),)
            for line, shown in enumerate(highlight(text[first - 1 : last], file), first):
                yield _line(line, by_line.get(line), shown, digits)


def _hunks(lines: Sequence[int], length: int, *, whole: bool) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each part to show."""
    if whole:
        yield 1, length
        return
    start: int | None = None
    end = 0
    for line in lines:
        first, last = max(1, line - _CONTEXT), min(length, line + _CONTEXT)
        if start is not None and first > end + 1:
            yield start, end
            start = None
        start = first if start is None else start
        end = max(end, last)
    if start is not None and start <= length:
        yield start, end


def _line(number: int, coverage: LineCoverage | None, shown: Sequence[Fragment], digits: int) -> list[Fragment]:
    if coverage is None:
        gutter: list[Fragment] = [("gutter", f"{'':>8}   {number:>{digits}}  ")]
    elif not coverage.covered:
        gutter = [("uncovered", f"{'':>8} ! {number:>{digits}}  ")]
    else:
        # Some of the points of a line may be covered, and others not.
        sign = "+" if coverage.covered == coverage.points else "~"
        gutter = [("covered", f"{coverage.hits:>8} {sign} {number:>{digits}}  ")]
    return [*gutter, *shown]


SOURCE = Command(
    name="source",
    summary="source text with covered lines marked",
    run=_run,
    description=(
        "Marks: + all points of the line are covered, ~ some are, ! none is, though its function was executed; before them how "
        "often. A line counts what was inlined there. Text comes from the source tree of the build or that of --source-dir."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "which buffer", metavar="WHAT"),
        Argument(("place",), Value.FUNCTION, "only this", count=Count.OPTIONAL, metavar="FUNCTION|FILE"),
        Argument(("--all",), Value.FLAG, "whole files, not only what is around points"),
    ),
    examples=(
        Example("source 41 tcp_sendmsg_locked", "which branches did it take?"),
        Example("source '@a - @b' net/ipv4/tcp.c", "what only one of two traces executed"),
    ),
    needs=frozenset(),
)
