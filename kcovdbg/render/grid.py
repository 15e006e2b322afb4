# SPDX-License-Identifier: LGPL-2.1-or-later
"""Table and record -> styled lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from kcovdbg.render.column import DETAIL, KEEP, Column
from kcovdbg.render.kind import ABSENT
from kcovdbg.render.renderable import Line, Record, Table
from kcovdbg.render.width import elide, elide_start, pad, text_width

_GAP: Final = "  "
# Widths are those of the first rows: a table of any length starts to be written after so many.
_SAMPLE: Final = 8192
# Notes about rows are listed up to here, and then counted.
_MAX_NOTES: Final = 20
_NEVER: Final = 1 << 30
_EMPTY: Final = frozenset({"", ABSENT, "0", "no", "none"})


class _Notes:
    """What the rows say that couldn't be read of them."""

    def __init__(self, table: Table) -> None:
        self._errors = table.errors
        self._label = table.label
        self._lines: list[str] = []
        self._more = 0

    def add(self, row: Any) -> None:
        if self._errors is None:
            return
        for error in self._errors(row):
            if len(self._lines) < _MAX_NOTES:
                self._lines.append(f"{self._label(row)}: {error}" if self._label is not None else error)
            else:
                self._more += 1

    def __iter__(self) -> Iterator[str]:
        yield from self._lines
        if self._more:
            yield f"… and {self._more} more like these"


def remark_line(remark: str) -> Line:
    """Return a remark as it is shown below an answer."""
    return (("remark", f"note: {remark}"),)


def table_lines(table: Table, width: int | None) -> Iterator[Line]:
    """Yield a table's lines.

    :param width: of the terminal; None where the output goes anywhere else, and then nothing is dropped or shortened.
    """
    columns = table.text_columns
    notes = _Notes(table)
    rows = iter(table.rows)
    sample = list(islice(rows, _SAMPLE))
    if not sample and table.empty is not None:
        yield (("remark", table.empty),)
    else:
        formatters = [column.formatter() for column in columns]
        cells = [[formatter(row) for formatter in formatters] for row in sample]
        shown = find_shown(columns, cells)
        widths = [max(text_width(columns[index].heading), *_widths(cells, index)) for index in shown]
        dropped = _fit([columns[index] for index in shown], shown, widths, width)
        cells = [[row[index] for index in shown] for row in cells]
        columns = [columns[index] for index in shown]
        finishers = _finishers(columns, widths, may_elide=width is not None)
        yield tuple(("header", finish(column.heading)) for finish, column in zip(finishers, columns, strict=True))
        style = _row_styler(columns)
        makers = [(column.formatter(), finish) for column, finish in zip(columns, finishers, strict=True)]
        known = (
            (row, [finish(text) for finish, text in zip(finishers, texts, strict=True)])
            for row, texts in zip(sample, cells, strict=True)
        )
        further = ((row, [finish(formatter(row)) for formatter, finish in makers]) for row in rows)
        for row, texts in chain(known, further):
            yield list(zip(style(row), texts, strict=True))
            notes.add(row)
            if table.details is not None:
                yield from table.details(row)
        if dropped:
            yield remark_line(f"no room for {', '.join(dropped)}: --json has all, a wider terminal more")
    for remark in chain(table.remarks, notes):
        yield remark_line(remark)


def record_lines(record: Record, width: int | None) -> Iterator[Line]:  # noqa: ARG001 - the same call as a table's
    """Yield a record's lines: values below each other, each behind its name."""
    columns = [column for column in record.columns if not column.json_only]
    texts = [column.formatter()(record.row) for column in columns]
    lines = [(column, text) for column, text in zip(columns, texts, strict=True) if not (column.hide_empty and text in _EMPTY)]
    widest = max((text_width(column.heading) for column, _ in lines), default=0)
    for column, text in lines:
        yield (("key", pad(column.heading, widest + len(_GAP))), (_row_styler((column,))(record.row)[0], text))
    for remark in chain(record.remarks, record.errors(record.row) if record.errors is not None else ()):
        yield remark_line(remark)


def find_shown(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the columns in which there is something to see."""
    return [
        index for index, column in enumerate(columns) if not (column.hide_empty and all(row[index] in _EMPTY for row in cells))
    ]


def _widths(cells: Sequence[Sequence[str]], index: int) -> Iterator[int]:
    yield 0
    for row in cells:
        yield text_width(row[index])


def _fit(columns: list[Column], shown: list[int], widths: list[int], width: int | None) -> list[str]:
    """Drop and narrow columns, in place, until they fit; return the headings of those that were dropped."""
    dropped: list[str] = []
    if width is None:
        return dropped

    def excess() -> int:
        return sum(widths) + len(_GAP) * (len(widths) - 1) - width

    def spare() -> int:
        return sum(max(have - least, 0) for have, least in zip(widths, _least_widths(columns), strict=True))

    while (over := excess()) > 0:
        priority, index = max(((column.priority, index) for index, column in enumerate(columns)), default=(KEEP, 0))
        # A shortened column says more than none, but for mere details nothing is shortened.
        if priority == KEEP or (priority < DETAIL and over <= spare()):
            break
        dropped.insert(0, columns[index].heading)
        del columns[index], shown[index], widths[index]
    least = _least_widths(columns)
    for _ in range(min(excess(), spare())):
        # The widest gives first.
        _, index = max((have, index) for index, have in enumerate(widths) if have > least[index])
        widths[index] -= 1
    return dropped


def _least_widths(columns: Iterable[Column]) -> list[int]:
    # A column that isn't elastic can spare nothing, however wide it is.
    return [_NEVER if column.elastic is None else max(column.elastic, text_width(column.heading)) for column in columns]


def _finishers(columns: Sequence[Column], widths: Sequence[int], *, may_elide: bool) -> list[Callable[[str], str]]:
    """Return for each column the function that makes a cell as wide as the column, the gap to the next one included."""
    last = len(columns) - 1
    return [
        _finisher(column, width, "" if index == last else _GAP, may_elide=may_elide)
        for index, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]


def _finisher(column: Column, width: int, gap: str, *, may_elide: bool) -> Callable[[str], str]:
    right = column.is_right
    if may_elide and column.elastic is not None:
        shorten = elide_start if column.elide_start else elide
        return lambda text: pad(shorten(text, width), width, right=right) + gap

    # Called for every cell of a million rows: what is ASCII, nearly everything, is padded right here.
    if right:
        return lambda text: (text.rjust(width) if text.isascii() else pad(text, width, right=True)) + gap
    return lambda text: (text.ljust(width) if text.isascii() else pad(text, width)) + gap


def _row_styler(columns: Sequence[Column]) -> Callable[[Any], Sequence[str]]:
    """Return the function from a row to its cells' style classes."""
    styles = [column.cell_style for column in columns]
    constant = [style for style in styles if isinstance(style, str)]
    if len(constant) == len(styles):
        return lambda _row: constant
    return lambda row: [style if isinstance(style, str) else style(row) for style in styles]
