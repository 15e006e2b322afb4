# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lay out tables as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from kcovdbg.console.column import ABSENT, DETAIL, KEEP, PATH, Column
from kcovdbg.console.renderable import Line, Table, wrap_line
from kcovdbg.console.text import elide, elide_start, pad, text_width

_GAP: Final = "  "
# Only so many rows determine the widths, so that a long table need not be read before it is
# written.
_SAMPLE: Final = 8192
# Limit for notes on rows; further notes are counted.
_MAX_NOTES: Final = 20
_NEVER: Final = 1 << 30
_BLANK: Final = frozenset({"", ABSENT})
_EMPTY: Final = _BLANK | {"0", "no", "none"}


class _Notes:
    """Notes on unreadable parts of rows."""

    def __init__(self, table: Table) -> None:
        self._errors = table.errors
        self._label = table.label
        self._lines: list[str] = []
        self._more = 0

    def add(self, row: Any) -> None:
        if self._errors is None:
            return
        for error in self._errors(row):
            line = error if self._label is None else f"{self._label(row)}: {error}"
            # Several rows may have the same problem.
            if line in self._lines:
                continue
            if len(self._lines) < _MAX_NOTES:
                self._lines.append(line)
            else:
                self._more += 1

    def __iter__(self) -> Iterator[str]:
        yield from self._lines
        if self._more:
            yield f"{self._more} more notes on rows"


def remark_line(remark: str) -> Line:
    """Return the line of a remark."""
    return (("remark", f"note: {remark}"),)


def table_lines(table: Table, width: int | None) -> Iterator[Line]:
    """Yield a table's lines.

    :param width: the terminal's width; None for other output, where only a table with a
        ``piped_width`` is made to fit.
    """
    notes = _Notes(table)
    if table.is_vertical or table.is_record:
        yield from _vertical_lines(table, width, notes)
    else:
        yield from _row_lines(table, width, notes)
    yield from remark_lines(chain(table.remarks, notes), width)


def remark_lines(remarks: Iterable[str], width: int | None) -> Iterator[Line]:
    """Yield the lines of remarks, wrapped at the terminal's width."""
    for remark in remarks:
        yield from wrap_line(remark_line(remark), width)


def _row_lines(table: Table, width: int | None, notes: _Notes) -> Iterator[Line]:
    columns = table.text_columns
    room = table.piped_width if width is None else width
    if table.is_wide:
        room = None
    if room is not None and width is None:
        columns = [column for column in columns if column.priority < DETAIL]
    rows = iter(table.rows)
    sample = list(islice(rows, _SAMPLE))
    if not sample and table.empty is not None:
        remark = (("remark", table.empty),)
        if table.unread:
            yield from wrap_line(remark, width)
        else:
            yield remark
        return
    formatters = [column.formatter() for column in columns]
    cells = [[formatter(row) for formatter in formatters] for row in sample]
    widths: dict[int, int] = {}
    for index in find_shown(columns, cells):
        texts = [columns[index].heading, *(row[index] for row in cells)]
        widths[index] = max(map(text_width, texts))
    shown = widths
    if room is not None:
        shown = _fit(columns, widths, room, may_shorten=width is not None)
    dropped = [columns[index].heading for index in widths if index not in shown]
    columns = [columns[index] for index in shown]
    formatters = [formatters[index] for index in shown]
    finishers = []
    for column, size in zip(columns, shown.values(), strict=True):
        gap = "" if column is columns[-1] else _GAP
        finishers.append(_finisher(column, size, gap, may_elide=room is not None))
    headings = zip(finishers, columns, strict=True)
    yield tuple(("header", finish(column.heading)) for finish, column in headings)
    style = _row_styler(columns)
    sampled = zip(sample, ([row[index] for index in shown] for row in cells), strict=True)
    others = ((row, [formatter(row) for formatter in formatters]) for row in rows)
    # Where the last column begins.
    *before, _ = shown.values()
    indent = sum(before) + len(_GAP) * len(before)
    wraps = width is not None and room is not None and columns[-1].wraps
    for row, texts in chain(sampled, others):
        finished = [finish(text) for finish, text in zip(finishers, texts, strict=True)]
        line = list(zip(style(row), finished, strict=True))
        if wraps:
            *start, (last_style, last_text) = line
            yield from wrap_line((*start, (last_style, last_text.rstrip(" "))), room, indent)
        else:
            yield line
        notes.add(row)
        if table.details is not None:
            yield from table.details(row)
    if dropped:
        no_room = f"no room for {', '.join(dropped)}; --wide shows all columns"
        yield from remark_lines([no_room], width)


def _vertical_lines(table: Table, width: int | None, notes: _Notes) -> Iterator[Line]:
    """Yield the lines of a table with a line for each value. Rows of a table have a heading with
    their number; a record has none.
    """
    number = 0
    for number, row in enumerate(table.rows, 1):
        columns = table.text_columns
        if table.is_record:
            columns = [column for column in columns if not is_hidden(column, row)]
        else:
            yield (("header", f"-[ {number} ]-"),)
        indent = max((text_width(column.heading) for column in columns), default=0) + len(_GAP)
        for column, style in zip(columns, _row_styler(columns)(row), strict=True):
            line = ("key", pad(column.heading, indent)), (style, column.formatter()(row))
            yield from wrap_line(line, width, indent)
        notes.add(row)
        if table.details is not None:
            yield from table.details(row)
    if not number and table.empty is not None:
        yield (("remark", table.empty),)


def is_hidden(column: Column, row: Any) -> bool:
    """Return whether a record's value is empty and therefore not shown."""
    return column.hide_empty and column.formatter()(row) in _EMPTY


def find_shown(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the columns that are not empty. The first column is always shown, so
    that rows can be counted.
    """

    def is_shown(index: int, column: Column) -> bool:
        if index == 0 or column.is_chosen or not cells:
            return True
        empty = _EMPTY if column.hide_empty else _BLANK
        return any(row[index] not in empty for row in cells)

    return [index for index, column in enumerate(columns) if is_shown(index, column)]


def _fit(
    columns: Sequence[Column], widths: Mapping[int, int], room: int, *, may_shorten: bool
) -> dict[int, int]:
    """Drop and shorten columns until they fit.

    :param widths: index of a column -> its width.
    :return: the same for the columns that remain.
    :param may_shorten: whether to shorten columns before an important one is dropped.
    """
    left = dict(widths)
    # Only elastic columns are shortened.
    minima = dict.fromkeys(left, _NEVER)
    for index in left:
        elastic = columns[index].elastic
        if elastic is not None:
            minima[index] = max(elastic, text_width(columns[index].heading))

    def excess() -> int:
        return sum(left.values()) + len(_GAP) * (len(left) - 1) - room

    def spare() -> int:
        return sum(max(size - minima[index], 0) for index, size in left.items())

    while (over := excess()) > 0:
        last = max(left, key=lambda index: (columns[index].priority, index))
        priority = columns[last].priority
        if priority == KEEP or (may_shorten and priority < DETAIL and over <= spare()):
            break
        del left[last]
    for _ in range(min(excess(), spare())):
        _, widest = max((size, index) for index, size in left.items() if size > minima[index])
        left[widest] -= 1
    return left


def _finisher(column: Column, width: int, gap: str, *, may_elide: bool) -> Callable[[str], str]:
    """Return a function that pads a cell to its width and adds the gap to the next column."""
    right = column.kind.align_right
    if may_elide and column.elastic is not None and not (column.wraps and not gap):
        shorten = elide_start if column.kind is PATH else elide
        return lambda text: pad(shorten(text, width), width, right=right) + gap

    # A table may have a million rows. Most texts are ASCII, which str pads faster than pad().
    if right:
        return lambda text: (
            (text.rjust(width) if text.isascii() else pad(text, width, right=True)) + gap
        )
    return lambda text: (text.ljust(width) if text.isascii() else pad(text, width)) + gap


def _row_styler(columns: Sequence[Column]) -> Callable[[Any], Sequence[str]]:
    """Return a function that returns the style classes of a row's cells."""
    styles = [column.cell_style for column in columns]
    constant = [style for style in styles if isinstance(style, str)]
    if len(constant) == len(styles):
        return lambda _row: constant
    return lambda row: [style if isinstance(style, str) else style(row) for style in styles]
