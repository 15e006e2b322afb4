# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows -> one JSON array, a row per line, written as it goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from kcovdbg.render.kind import to_json
from kcovdbg.render.renderable import Record, Table


def row_encoder(table: Table | Record) -> Callable[[Any], dict[str, object]]:
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


def encode_rows(table: Table | Record) -> Iterator[dict[str, object]]:
    """Yield the rows as JSON objects."""
    encode = row_encoder(table)
    if isinstance(table, Record):
        yield encode(table.row)
    else:
        yield from map(encode, table.rows)


class JsonArray:
    """One array that rows are added to.

    :param stream: where it is written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._write = stream.write
        self._encode = json.JSONEncoder(ensure_ascii=True).encode
        self._separator = "[\n"

    def add(self, table: Table | Record) -> None:
        """Add a table's rows."""
        write, encode = self._write, self._encode
        for row in encode_rows(table):
            # The one control character that JSON lets through as it is.
            write(self._separator + encode(row).replace("\x7f", "\\u007f"))
            self._separator = ",\n"

    def close(self) -> None:
        """End the array."""
        self._write("[]\n" if self._separator == "[\n" else "\n]\n")
