# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers as data for programs, in bounded pages.

Text is escaped as for a terminal, so that a name from the kernel's memory cannot pretend to be more than one line of a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from kcovdbg.console.renderable import Fields, Lines, Renderable, Table, find_data
from kcovdbg.console.text import escape
from kcovdbg.console.writer import row_encoder

MAX_TEXT: Final = 1000
"""Limit for the characters of one text; source lines of generated files have no other."""
_MAX_REMARKS: Final = 50


class AnswerPage(NamedTuple):
    """Some rows of an answer."""

    rows: list[dict[str, Any]]
    next: int | None
    """Index of the first row that is left out at the end; None where none is."""
    total: int | None
    """Number of rows of the whole answer; None where it is unknown without reading all of them."""
    remarks: tuple[str, ...]
    """Lines on missing and cut parts of the answer."""


class PagedAnswer:
    """A command's answer, of which pages can be read in any order. Rows are made when a page needs them, and kept.

    :param answer: what the command returned.
    """

    def __init__(self, answer: Iterable[Renderable]) -> None:
        self._answer = iter(answer)
        self._parts: list[_Part] = []
        self._remarks: dict[str, None] = {}

    @property
    def kept_rows(self) -> int:
        """The number of rows in memory."""
        return sum(part.kept for part in self._parts)

    def read(self, *, first: int, limit: int, max_bytes: int) -> AnswerPage:
        """Return a page.

        :param first: index of the first row.
        :param limit: number of rows at most.
        :param max_bytes: size of the rows as JSON at most; a longer row is cut, and a remark says so.
        """
        page = _Page(first, limit, max_bytes)
        for part in self._each_part():
            page.add(part)
            # They are read after the rows.
            self._remark(part.take_remarks())
        remarks = [*self._remarks, *page.remarks]
        if len(remarks) > _MAX_REMARKS:
            remarks[_MAX_REMARKS:] = [f"{len(remarks) - _MAX_REMARKS} more remarks"]
        return AnswerPage(page.rows, page.next, page.end, tuple(remarks))

    def _each_part(self) -> Iterator[_Part]:
        yield from tuple(self._parts)
        for renderable in self._answer:
            part = _Part(find_data(renderable), renderable.remarks if isinstance(renderable, Lines) else ())
            self._parts.append(part)
            yield part

    def _remark(self, remarks: Iterable[str]) -> None:
        self._remarks.update(dict.fromkeys(map(clean_text, remarks)))


class _Part:
    """The rows and remarks of one part of an answer."""

    def __init__(self, data: Table | Fields | None, remarks: Iterable[str]) -> None:
        self._data = data
        self._unread_remarks = remarks
        self._kept: Sequence[Any] = ()
        self._rest: Iterator[Any] = iter(())
        if isinstance(data, Fields):
            self._kept = (data.row,)
        elif data is not None and isinstance(data.rows, Sequence):
            self._kept = data.rows
        elif data is not None:
            self._kept, self._rest = [], iter(data.rows)
        self.count = None if isinstance(self._kept, list) and data is not None else len(self._kept)
        """The number of rows, once it is known."""
        self.encode: Callable[[Any], dict[str, object]] = (lambda _row: {}) if data is None else row_encoder(data)

    @property
    def kept(self) -> int:
        """The number of rows in memory."""
        return len(self._kept)

    def start_at(self, index: int) -> Iterator[Any]:
        """Iterate over the rows from one on."""
        yield from islice(self._kept, index, None)
        for row in self._rest:
            assert isinstance(self._kept, list)
            self._kept.append(row)
            if len(self._kept) > index:
                yield row
        self.count = len(self._kept)

    def take_remarks(self) -> Iterator[str]:
        """Yield the remarks that were not taken before."""
        remarks, self._unread_remarks = self._unread_remarks, ()
        if self._data is not None:
            yield from self._data.remarks
            if isinstance(self._data, Table) and self._data.empty is not None and self.count == 0:
                yield self._data.empty
        self._data = None
        yield from remarks


class _Page:
    """A page while it is read."""

    def __init__(self, first: int, limit: int, max_bytes: int) -> None:
        self._first = first
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self.rows: list[dict[str, Any]] = []
        self.next: int | None = None
        self.end: int | None = 0
        """Index after the last row of the parts so far; None where it is unknown."""
        self.remarks: list[str] = []

    def add(self, part: _Part) -> None:
        """Add the rows of a part that belong to the page."""
        if self.end is None:
            # The page ended in a part before.
            return
        skipped = max(0, self._first - self.end)
        if self.next is None and (part.count is None or skipped < part.count):
            for index, row in enumerate(part.start_at(skipped), self.end + skipped):
                if not self._take(part.encode, row, index):
                    self.next = index
                    break
        self.end = None if part.count is None else self.end + part.count

    def _take(self, encode: Callable[[Any], dict[str, object]], row: Any, index: int) -> bool:
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
            self.remarks.append(f"row {index} is cut: its text or its lists are longer than the limit")
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
