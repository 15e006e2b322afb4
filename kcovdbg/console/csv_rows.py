# SPDX-License-Identifier: LGPL-2.1-or-later
"""CSV with the keys of JSON; absent values are empty, lists are JSON within their cell."""

from __future__ import annotations

import csv
import json
from typing import TextIO

from kcovdbg.console.escape import escape
from kcovdbg.console.json_array import encode_rows
from kcovdbg.console.renderable import Fields, Table


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
