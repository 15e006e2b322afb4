# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers as data for programs, in bounded pages.

Text is escaped as for a terminal, so that a name from the kernel's memory cannot pretend to be more than one line of a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kcovdbg.console.renderable import Fields, Lines, Renderable, Table, find_data
from kcovdbg.console.text import escape
from kcovdbg.console.writer import row_encoder

MAX_TEXT: Final = 1000
"""Limit for the characters of one text; source lines of generated files have no other."""


class AnswerPage:
    """Some rows of a command's answer, as JSON objects. Rows before them are not encoded, and those behind them not made.

    :param answer: what the command returned.
    :param first: index of the first row.
    :param limit: number of rows at most.
    :param max_bytes: size of the rows as JSON at most; a longer row is cut, and a remark says so.
    """

    def __init__(self, answer: Iterable[Renderable], *, first: int, limit: int, max_bytes: int) -> None:
        self._first = first
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self._index = 0
        self._cut_rows: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.next: int | None = None
        """Index of the first row that is left out at the end; None where none is."""
        self.total: int | None = 0
        """Number of rows of the whole answer; None where it is unknown without reading all of them."""
        remarks: list[str] = []
        for part in answer:
            data = find_data(part)
            if data is not None:
                count = self._add(data)
                # They are read after the rows.
                remarks += data.remarks
                if isinstance(data, Table) and data.empty is not None and count == 0:
                    remarks.append(data.empty)
            if isinstance(part, Lines):
                remarks += part.remarks
        self.remarks: list[str] = [*map(clean_text, remarks), *self._cut_rows]
        """Lines on missing and cut parts of the answer."""

    def _add(self, data: Table | Fields) -> int | None:
        """Add the rows of a part of the answer that belong to the page.

        :return: the number of rows of the part, None where it is unknown.
        """
        rows = (data.row,) if isinstance(data, Fields) else data.rows
        count = len(rows) if isinstance(rows, Sequence) else None
        if self.next is None:
            encode = row_encoder(data)
            start = self._index
            for row in rows:
                if self._index >= self._first and not self._take(encode, row):
                    self.next = self._index
                    break
                self._index += 1
            else:
                count = self._index - start
        self.total = None if count is None or self.total is None else self.total + count
        return count

    def _take(self, encode: Callable[[Any], dict[str, object]], row: Any) -> bool:
        """Add a row if it fits; the first row of a page is cut until it does."""
        if len(self.rows) >= self._limit:
            return False
        cleaned, is_cut = _clean(encode(row))
        size = _size_of(cleaned)
        if self._bytes + size > self._max_bytes:
            if self.rows:
                return False
            cleaned, size = _shrink(cleaned, self._max_bytes)
            is_cut = True
        if is_cut:
            self._cut_rows.append(f"row {self._index} is cut: its text or its lists are longer than the limit")
        self.rows.append(cleaned)
        self._bytes += size
        return True


def clean_text(text: str) -> str:
    """Return text on one line, escaped and cut."""
    return _cut_text(text)[0]


def _size_of(value: object) -> int:
    return len(json.dumps(value))


def _cut_text(text: str) -> tuple[str, bool]:
    # Tabs begin lines of source text.
    cleaned = "\t".join(map(escape, text.split("\t")))
    return (cleaned, False) if len(cleaned) <= MAX_TEXT else (f"{cleaned[: MAX_TEXT - 1]}…", True)


def _clean(value: Any) -> tuple[Any, bool]:
    """Return a value with its text escaped and cut, and whether any was cut."""
    if isinstance(value, str):
        return _cut_text(value)
    if isinstance(value, dict):
        cleaned = {key: _clean(item) for key, item in value.items()}
        return {key: item for key, (item, _) in cleaned.items()}, any(is_cut for _, is_cut in cleaned.values())
    if isinstance(value, list):
        items = [_clean(item) for item in value]
        return [item for item, _ in items], any(is_cut for _, is_cut in items)
    return value, False


def _shrink(row: dict[str, Any], max_bytes: int) -> tuple[dict[str, Any], int]:
    """Return a row that fits, with its longest lists cut; keys and single values stay."""
    row = dict(row)
    while (size := _size_of(row)) > max_bytes:
        lists = {key: _size_of(value) for key, value in row.items() if isinstance(value, list) and len(value) > 1}
        if not lists:
            break
        longest = max(lists, key=lambda key: (lists[key], key))
        row[longest] = row[longest][: len(row[longest]) // 2]
    return row, size
