# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the answers of commands in the requested format, with the columns and fields that options
choose.
"""

from __future__ import annotations

import csv
import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, TextIO

from kcovdbg.console.column import KEEP, Column, encoder_of, to_json
from kcovdbg.console.grid import remark_lines, table_lines
from kcovdbg.console.renderable import Drawing, Line, Lines, Renderable, Table, find_data, wrap_line
from kcovdbg.console.terminal import Terminal, write_remarks
from kcovdbg.console.text import escape
from kcovdbg.errors import UsageError, suggest

_ERRORS: Final = "errors"
# The row in place of rows that could not be read.
_UNREAD: Final = object()


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns and rows that the user wants to see."""

    columns: tuple[str, ...] = ()
    """Keys or headings of the columns in text, in order; empty for the command's own choice."""
    fields: tuple[str, ...] = ()
    """Keys in JSON and CSV, in order; empty for all."""
    is_wide: bool = False
    is_vertical: bool = False
    origin: str | None = None
    """The file that names the columns, for errors; None if the command line does."""
    most_rows: int | None = None
    """Limit for rows, or for lines that are not drawn from rows."""
    sort: str | None = None
    """Key or heading of the column that sorts the rows, after a minus for the largest first; None
    for the command's order.
    """

    def apply(self, answer: Renderable) -> Renderable:
        """Return an answer with the chosen columns or fields. Text in lines is replaced by a table
        of its data.

        :raises UsageError: when the answer lacks a column.
        """
        data = find_data(answer)
        if data is None:
            return answer
        if self.sort is not None:
            # The answer is now a table: lines would keep their order.
            answer = data = _sort_rows(data, self.sort)
        if self.fields:
            data = self._select(data)
            answer = replace(answer, data=data) if isinstance(answer, Lines) else data
        elif self.columns or self.is_wide or self.is_vertical:
            if isinstance(answer, Lines):
                data = replace(data, remarks=(*data.remarks, *answer.remarks))
            answer = data = self._arrange(data)
        if self.most_rows is None:
            return answer
        rows = _Limited(data.rows, self.most_rows)
        data = replace(data, rows=rows, remarks=chain(data.remarks, rows.remarks()))
        if not isinstance(answer, Lines):
            return data
        drawn = answer.lines
        most = self.most_rows
        lines: Drawing | _Limited = _Limited(drawn, most, "lines")
        if isinstance(drawn, Drawing):
            lines = replace(drawn, most=most)
        return replace(
            answer, lines=lines, data=data, remarks=chain(answer.remarks, lines.remarks())
        )

    def _arrange(self, data: Table) -> Table:
        if self.columns:
            known, names = _columns_by_name(data.columns), map(str.lower, self.columns)
            # Chosen columns are shown even if they are empty or there is little room.
            chosen = [
                replace(column, json_only=False, hide_empty=False, is_chosen=True, priority=KEEP)
                for column in _pick(known, names, "column", self.origin)
            ]
            data = replace(data, columns=chosen, show=None, piped_width=None)
        return replace(data, is_wide=self.is_wide, is_vertical=self.is_vertical)

    def _select(self, data: Table) -> Table:
        by_key = _columns_by_name(column for column in data.columns if not column.text_only)
        if data.errors is not None:
            by_key[_ERRORS] = None
        chosen = _pick(by_key, map(str.lower, self.fields), "field")
        return replace(data, columns=chosen, errors=data.errors if _ERRORS in self.fields else None)


def _sort_rows(table: Table, choice: str) -> Table:
    """Return a table in the order of a column's values; rows without a value come last.

    :param choice: see :attr:`ColumnChoice.sort`.
    :raises UsageError: when there is no such column.
    """
    (column,) = _pick(_columns_by_name(table.columns), [choice.removeprefix("-").lower()], "column")
    read, show = column.reader(), column.formatter()
    known: list[tuple[Any, Any]] = []
    unknown: list[Any] = []
    for row in table.rows:
        value = read(row)
        if value is None:
            unknown.append(row)
        else:
            if not isinstance(value, (int, float, str)):
                # Structures are sorted by their text.
                value = show(row)
            known.append((value, row))
    known.sort(key=itemgetter(0), reverse=choice.startswith("-"))
    return replace(table, rows=[*(row for _, row in known), *unknown])


def _columns_by_name(columns: Iterable[Column]) -> dict[str, Column | None]:
    """Return columns by their headings and keys in lower case."""
    by_heading: dict[str, Column | None] = {}
    by_key = {}
    for column in columns:
        by_heading[column.heading.lower()] = column
        by_key[column.key.lower()] = column
    return by_heading | by_key


class _Limited:
    """The first rows, or lines, of an answer."""

    def __init__(self, rows: Iterable[Any], most: int, noun: str = "rows") -> None:
        self._rows = rows
        self._most = most
        self._noun = noun
        self._has_more = False

    def __iter__(self) -> Iterator[Any]:
        rows = iter(self._rows)
        yield from islice(rows, self._most)
        self._has_more = next(rows, self) is not self

    def remarks(self) -> Iterator[str]:
        """Yield a remark on the other rows, once the first ones were read."""
        if self._has_more:
            number = ""
            if isinstance(self._rows, Sized):
                number = f"{len(self._rows) - self._most} "
            yield f"{number}more {self._noun}"


def _pick(
    known: Mapping[str, Column | None], names: Iterable[str], noun: str, origin: str | None = None
) -> list[Column]:
    picked: list[Column] = []
    for name in names:
        if name not in known:
            hint = suggest(name, known) or f"{noun}s: {', '.join(known)}"
            where = "" if origin is None else f"{origin}: "
            raise UsageError(f"{where}unknown {noun} '{name}'", hint=hint)
        column = known[name]
        if column is not None:
            picked.append(column)
    return picked


def read_choice(
    args: Namespace, output_format: Format, default: Sequence[str], origin: str | None
) -> ColumnChoice:
    """Return the choice of columns and rows in the arguments.

    :param default: the columns in text if the arguments choose none.
    :param origin: the file that names these columns, for errors.
    :raises UsageError: when an argument does not suit the format.
    """
    columns, fields = _split(args.columns, "--columns"), _split(args.fields, "--fields")
    if output_format is Format.TEXT:
        if fields:
            raise UsageError(
                "--fields applies to JSON and CSV",
                hint="add --json, --jsonl or --csv; --columns is for text",
            )
        if columns or args.wide or args.vertical:
            default, origin = columns, None
        return ColumnChoice(
            tuple(default),
            is_wide=args.wide,
            is_vertical=args.vertical,
            origin=origin,
            most_rows=args.most_rows,
            sort=args.sort,
        )
    given = {"--columns": columns, "--wide": args.wide, "--vertical": args.vertical}
    for option in filter(given.get, given):
        hint = "--fields selects what JSON and CSV contain"
        raise UsageError(f"{option} applies to text", hint=hint)
    return ColumnChoice(fields=fields, most_rows=args.most_rows, sort=args.sort)


def _split(text: str | None, option: str) -> tuple[str, ...]:
    every = map(str.strip, (text or "").split(","))
    names = tuple(dict.fromkeys(filter(None, every)))
    if text is not None and not names:
        raise UsageError(f"{option}: expected names separated by commas, not '{text}'")
    return names


def row_encoder(table: Table) -> Callable[[Any], dict[str, object]]:
    """Return a function that returns the JSON object of a row, with all keys in the order of the
    columns.
    """
    errors = table.errors
    if table.unread and errors is not None:
        unread: dict[str, object] = dict.fromkeys(_keys_of(table))
        unread[_ERRORS] = [to_json(line) for line in table.unread]
        return lambda _row: unread
    encode = encoder_of(table.columns)
    if errors is None:
        return encode

    def encode_row(row: Any) -> dict[str, object]:
        encoded = encode(row)
        encoded[_ERRORS] = [to_json(error) for error in errors(row)]
        return encoded

    return encode_row


def _keys_of(table: Table) -> list[str]:
    """Return the keys of a row in JSON, in the order of the columns."""
    keys = [column.key for column in table.columns if not column.text_only]
    if table.errors is not None:
        keys.append(_ERRORS)
    return keys


def encode_rows(table: Table) -> Iterator[dict[str, object]]:
    """Yield the rows as JSON objects."""
    return map(row_encoder(table), rows_of(table))


def rows_of(table: Table) -> Iterable[Any]:
    """Return the rows of JSON; one row stands for rows that could not be read."""
    if table.unread and table.errors is not None:
        return (_UNREAD,)
    return table.rows


def json_lines(table: Table) -> Iterator[str]:
    """Yield the rows as JSON objects, each on a line."""
    encode = json.JSONEncoder(ensure_ascii=True).encode
    for row in encode_rows(table):
        # JSON does not escape this control character.
        yield encode(row).replace("\x7f", "\\u007f") + "\n"


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return value


def write_csv(table: Table, stream: TextIO) -> None:
    """Write a head line with the keys, and a line per row."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_keys_of(table))
    writer.writerows([_cell(value) for value in row.values()] for row in encode_rows(table))


class Format(str, Enum):
    """The format of an answer."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


def write(
    renderables: Iterable[Renderable], terminal: Terminal, output_format: Format = Format.TEXT
) -> None:
    """Write an answer. Remarks go to standard error if the format has no place for them. In JSON,
    the rows of all tables make one array.
    """
    if output_format is Format.TEXT:
        _write_text(renderables, terminal)
    else:
        _write_data(renderables, terminal, output_format)
    terminal.stdout.flush()


def _write_text(renderables: Iterable[Renderable], terminal: Terminal) -> None:
    stream, width = terminal.stdout, terminal.width
    for renderable in renderables:
        lines: Iterable[Line] = ()
        if isinstance(renderable, Table):
            lines = table_lines(renderable, width)
        elif isinstance(renderable, Lines):
            # Remarks follow, because some are known only after the lines.
            lines = renderable.lines
            if renderable.is_prose:
                lines = chain.from_iterable(wrap_line(line, width) for line in lines)
            lines = chain(lines, remark_lines(renderable.remarks, width))
        else:
            stream.writelines(renderable.parts)
        paint = terminal.painter.paint
        stream.writelines(f"{paint(line)}\n" for line in lines)


def _write_data(
    renderables: Iterable[Renderable], terminal: Terminal, output_format: Format
) -> None:
    stream = terminal.stdout
    # JSON's text before the next row.
    separator = "["
    for renderable in renderables:
        table = find_data(renderable)
        if table is None:
            continue
        if output_format is Format.CSV:
            write_csv(table, stream)
        elif output_format is Format.JSONL:
            for line in json_lines(table):
                stream.write(line)
                # The reader gets each row at once.
                stream.flush()
        else:
            for line in json_lines(table):
                stream.write(f"{separator}\n{line[:-1]}")
                separator = ","
        write_remarks(terminal, table.remarks)
        if isinstance(renderable, Lines):
            write_remarks(terminal, renderable.remarks)
    if output_format is Format.JSON:
        stream.write("[]\n" if separator == "[" else "\n]\n")
