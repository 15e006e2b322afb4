# SPDX-License-Identifier: LGPL-2.1-or-later
"""Table and record -> styled lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from kcovdbg.render.column import KEEP, Column
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
        shown = _find_shown(columns, cells)
        widths = [max(text_width(columns[index].heading), *_widths(cells, index)) for index in shown]
        dropped = _fit([columns[index] for index in shown], shown, widths, width)
        cells = [[row[index] for index in shown] for row in cells]
        columns = [columns[index] for index in shown]
        formatters = [column.formatter() for column in columns]
        yield tuple(("header", text) for text in _pad_cells(columns, widths, [column.heading for column in columns]))
        stylers = [column.styler() for column in columns]
        elides = _eliders(columns, widths) if width is not None else []
        further = ((row, [formatter(row) for formatter in formatters]) for row in rows)
        for row, texts in chain(zip(sample, cells, strict=True), further):
            for index, shorten in elides:
                texts[index] = shorten(texts[index])
            padded = _pad_cells(columns, widths, texts)
            yield [(styler(row), text) for styler, text in zip(stylers, padded, strict=True)]
            notes.add(row)
            if table.details is not None:
                yield from table.details(row)
        if dropped:
            yield remark_line(f"no room for {', '.join(dropped)}")
    for remark in chain(table.remarks, notes):
        yield remark_line(remark)


def record_lines(record: Record, width: int | None) -> Iterator[Line]:  # noqa: ARG001 - the same call as a table's
    """Yield a record's lines: values below each other, each behind its name."""
    columns = [column for column in record.columns if not column.json_only]
    texts = [column.formatter()(record.row) for column in columns]
    lines = [(column, text) for column, text in zip(columns, texts, strict=True) if not (column.hide_empty and text in _EMPTY)]
    widest = max((text_width(column.heading) for column, _ in lines), default=0)
    for column, text in lines:
        yield (("key", pad(column.heading, widest + len(_GAP))), (column.styler()(record.row), text))
    for remark in chain(record.remarks, record.errors(record.row) if record.errors is not None else ()):
        yield remark_line(remark)


def _find_shown(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
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

    # First give away what elastic columns can spare, since a shortened column says more than none ...
    spare = sum(max(have - least, 0) for have, least in zip(widths, _least_widths(columns), strict=True))
    # ... and drop whole columns, the least important first, as long as that isn't enough.
    while excess() > spare:
        priority, index = max(((column.priority, index) for index, column in enumerate(columns)), default=(KEEP, 0))
        if priority == KEEP:
            break
        dropped.insert(0, columns[index].heading)
        del columns[index], shown[index], widths[index]
        spare = sum(max(have - least, 0) for have, least in zip(widths, _least_widths(columns), strict=True))
    least = _least_widths(columns)
    while (over := excess()) > 0:
        spares = [have - minimum for have, minimum in zip(widths, least, strict=True)]
        most = max(spares, default=0)
        if most <= 0:
            break
        widths[spares.index(most)] -= min(over, most)
    return dropped


def _least_widths(columns: Iterable[Column]) -> list[int]:
    # A column that isn't elastic can spare nothing, however wide it is.
    return [_NEVER if column.elastic is None else max(column.elastic, text_width(column.heading)) for column in columns]


def _eliders(columns: Sequence[Column], widths: Sequence[int]) -> list[tuple[int, Callable[[str], str]]]:
    return [
        (index, partial(elide_start if column.elide_start else elide, width=width))
        for index, (column, width) in enumerate(zip(columns, widths, strict=True))
        if column.elastic is not None
    ]


def _pad_cells(columns: Sequence[Column], widths: Sequence[int], texts: Sequence[str]) -> list[str]:
    """Pad cells to their columns' widths, the gap to the next one included."""
    last = len(columns) - 1
    padded: list[str] = []
    for index, text in enumerate(texts):
        cell = pad(text, widths[index], right=columns[index].is_right)
        padded.append(cell if index == last else cell + _GAP)
    return padded
