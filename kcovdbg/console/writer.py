# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writing of what a command returned, in the requested format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Any, TextIO

from kcovdbg.console.column import to_json
from kcovdbg.console.grid import fields_lines, remark_line, table_lines
from kcovdbg.console.renderable import Fields, Flush, Line, Lines, Renderable, Table, Text, find_data, wrap_line
from kcovdbg.console.terminal import Terminal, write_remarks
from kcovdbg.console.text import escape


def row_encoder(table: Table | Fields) -> Callable[[Any], dict[str, object]]:
    """Return the function from a row to its JSON object, with every key in the order of the columns."""
    encoders = [(column.key, column.encoder()) for column in table.columns if not column.text_only]
    errors = table.errors
    if errors is None:
        return lambda row: {key: encode(row) for key, encode in encoders}

    def encode_row(row: Any) -> dict[str, object]:
        encoded = {key: encode(row) for key, encode in encoders}
        encoded["errors"] = [to_json(error) for error in errors(row)]
        return encoded

    return encode_row


def encode_rows(table: Table | Fields) -> Iterator[dict[str, object]]:
    """Yield the rows as JSON objects."""
    encode = row_encoder(table)
    if isinstance(table, Fields):
        yield encode(table.row)
    else:
        yield from map(encode, table.rows)


def json_lines(table: Table | Fields) -> Iterator[str]:
    """Yield the rows as JSON objects, each on a line."""
    encode = json.JSONEncoder(ensure_ascii=True).encode
    for row in encode_rows(table):
        # The only control character that JSON does not escape.
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


def write_csv(table: Table | Fields, stream: TextIO) -> None:
    """Write a head line with the keys, and a line per row."""
    keys = [column.key for column in table.columns if not column.text_only]
    if table.errors is not None:
        keys.append("errors")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_cell(value) for value in row.values()] for row in encode_rows(table))


_CLEAR_SCREEN = "\x1b[H\x1b[2J"


class Format(str, Enum):
    """The format of an answer."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


def write(renderables: Iterable[Renderable], terminal: Terminal, its_format: Format = Format.TEXT) -> None:
    """Write an answer; remarks in JSON and CSV, which have no place for them, go to standard error.

    In JSON the rows of all tables make one array (up to a :class:`Flush`, after which another begins).
    """
    if its_format is Format.TEXT:
        _write_text(renderables, terminal)
    else:
        _write_data(renderables, terminal, its_format)
    terminal.stdout.flush()


def _write_text(renderables: Iterable[Renderable], terminal: Terminal) -> None:
    stream, width = terminal.stdout, terminal.width
    for renderable in renderables:
        lines: Iterable[Line] = ()
        if isinstance(renderable, Table):
            lines = table_lines(renderable, width)
        elif isinstance(renderable, Fields):
            lines = fields_lines(renderable, width)
        elif isinstance(renderable, Lines):
            # Remarks are known after the lines.
            remarks = (wrap_line(remark_line(remark), width) for remark in renderable.remarks)
            shown = (wrap_line(line, width) if renderable.is_prose else (line,) for line in renderable.lines)
            lines = chain.from_iterable(chain(shown, remarks))
        elif isinstance(renderable, Text):
            stream.writelines(renderable.parts)
        elif isinstance(renderable, Flush):
            stream.flush()
        elif width is not None:
            stream.write(_CLEAR_SCREEN)
        paint = terminal.painter.paint
        stream.writelines(f"{paint(line)}\n" for line in lines)


def _write_data(renderables: Iterable[Renderable], terminal: Terminal, its_format: Format) -> None:
    stream = terminal.stdout
    # Of the array in JSON that is being written: "[" before its first row, None between two arrays.
    separator: str | None = "["
    for renderable in renderables:
        if isinstance(renderable, Flush):
            _end_array(separator, stream, its_format)
            separator = None
            stream.flush()
        table = find_data(renderable)
        if table is None:
            continue
        if its_format is Format.CSV:
            write_csv(table, stream)
        elif its_format is Format.JSONL:
            for line in json_lines(table):
                stream.write(line)
                # A reader of the stream gets each row when it is known.
                stream.flush()
        else:
            separator = separator or "["
            for line in json_lines(table):
                stream.write(f"{separator}\n{line[:-1]}")
                separator = ","
        write_remarks(terminal, table.remarks)
        if isinstance(renderable, Lines):
            write_remarks(terminal, renderable.remarks)
    _end_array(separator, stream, its_format)


def _end_array(separator: str | None, stream: TextIO, its_format: Format) -> None:
    if its_format is Format.JSON and separator is not None:
        stream.write("[]\n" if separator == "[" else "\n]\n")
