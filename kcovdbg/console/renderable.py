# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands return: data that the writer can show.

Remarks say what is missing from an answer. They are read after the rows, so that an iterator can yield what the rows showed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from kcovdbg.console.column import Column

Fragment: TypeAlias = tuple[str, str]
"""A style class and a text."""
Line: TypeAlias = Sequence[Fragment]


PIPED_WIDTH: Final = 100
"""The ``piped_width`` of tables that people read in logs and mail."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; an array of objects in JSON."""

    columns: Sequence[Column]
    rows: Iterable[Any]
    """Dictionaries, or anything that the columns accept. An iterator is written as it is read."""
    remarks: Iterable[str] = ()
    empty: str | None = None
    """The text in place of a table without rows."""
    errors: Callable[[Any], Sequence[str]] | None = None
    """From a row to what could not be read of it: the key ``errors`` in JSON, notes below the table in text."""
    label: Callable[[Any], str] | None = None
    """From a row to its name in such a note."""
    details: Callable[[Any], Iterable[Line]] | None = None
    """From a row to the lines below it in text."""
    show: Sequence[str] | None = None
    """The keys of the columns in text, in order; by default all that are not ``json_only``."""
    piped_width: int | None = None
    """The width that text keeps to where it does not go to a terminal; None: any."""
    is_wide: bool = False
    """Whether text has all columns in full."""
    is_vertical: bool = False
    """Whether text has a line per value."""

    @property
    def text_columns(self) -> list[Column]:
        """The columns of the text view."""
        every = [column for column in self.columns if not column.json_only]
        if self.show is None:
            return every
        by_key = {column.key: column for column in self.columns}
        shown = [by_key[key] for key in self.show]
        if self.is_wide or self.is_vertical:
            shown += [column for column in every if column.key not in self.show]
            shown = [replace(column, text=column.wide_text or column.text) for column in shown]
        return shown


@dataclass(frozen=True, slots=True)
class Fields:
    """One row with a line per value; an array of one object in JSON."""

    columns: Sequence[Column]
    row: Any
    remarks: Iterable[str] = ()
    errors: Callable[[Any], Sequence[str]] | None = None
    """As in :class:`Table`."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How lines are drawn of some of the rows, for those who want few."""

    count: int
    """Of all rows."""
    draw: Callable[[int], Iterable[Line]]
    """Returns the lines of the first so many rows."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Styled lines."""

    lines: Iterable[Line]
    data: Table | Fields | None = None
    """Their data in JSON and CSV, None for nothing."""
    remarks: Iterable[str] = ()
    is_prose: bool = False
    """Whether lines are wrapped at the terminal's width."""
    drawing: Drawing | None = None
    """None where each line is a row of its own."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text in another program's format, which is safe for a terminal and written as it is."""

    parts: Iterable[str]
    """Whole lines."""


@dataclass(frozen=True, slots=True)
class Flush:
    """The end of one of several answers: flush the output."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Clear the screen, on a terminal."""


Renderable: TypeAlias = Table | Fields | Lines | Text | Flush | Clear


def find_data(renderable: Renderable) -> Table | Fields | None:
    """Return the data of a part of an answer, None where it has none."""
    if isinstance(renderable, Lines):
        return renderable.data
    return None if isinstance(renderable, (Text, Flush, Clear)) else renderable


def text_lines(text: str, style: str = "") -> Lines:
    """Return plain text as lines."""
    return Lines(tuple(((style, line),) for line in text.splitlines()))
