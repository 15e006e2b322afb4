# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON, written row by row: one array with a row per line, or only the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from kcovdbg.console.renderable import Fields, Table
from kcovdbg.console.value_kinds import to_json


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


class JsonArray:
    """An array that rows are added to.

    :param stream: written to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._write = stream.write
        self._separator = "[\n"

    def add(self, table: Table | Fields) -> None:
        """Add a table's rows."""
        for line in json_lines(table):
            self._write(self._separator + line[:-1])
            self._separator = ",\n"

    def close(self) -> None:
        """End the array."""
        self._write("[]\n" if self._separator == "[\n" else "\n]\n")
