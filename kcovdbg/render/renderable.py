# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands return: data that the writer knows how to show.

Remarks say what is missing from an answer. They are read after the rows, so that a walk's own list, which grows while it goes,
can be handed over as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kcovdbg.render.column import Column

Fragment: TypeAlias = tuple[str, str]
"""A style class and a text."""
Line: TypeAlias = Sequence[Fragment]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; an array of objects in JSON."""

    columns: Sequence[Column]
    rows: Iterable[Any]
    """Dictionaries, or anything that the columns' accessors take. An iterator is written as it goes."""
    remarks: Iterable[str] = ()
    empty: str | None = None
    """What to say instead of a table without rows."""
    errors: Callable[[Any], Sequence[str]] | None = None
    """From a row to what couldn't be read of it: the key ``errors`` in JSON, notes below the table in text."""
    label: Callable[[Any], str] | None = None
    """From a row to what it is called in such a note."""
    details: Callable[[Any], Iterable[Line]] | None = None
    """From a row to lines below it in text."""
    show: Sequence[str] | None = None
    """The keys of the columns that the text view has, in its order; by default all that aren't ``json_only``."""

    @property
    def text_columns(self) -> list[Column]:
        """The columns of the text view."""
        if self.show is None:
            return [column for column in self.columns if not column.json_only]
        by_key = {column.key: column for column in self.columns}
        return [by_key[key] for key in self.show]


@dataclass(frozen=True, slots=True)
class Record:
    """One row, its values below each other; an array of one object in JSON."""

    columns: Sequence[Column]
    row: Any
    remarks: Iterable[str] = ()
    errors: Callable[[Any], Sequence[str]] | None = None
    """As in :class:`Table`."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Styled lines."""

    lines: Iterable[Line]
    data: Table | Record | None = None
    """What stands for them in JSON and CSV; None: nothing."""
    remarks: Iterable[str] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """The end of one of several answers: what was written so far is complete and gets out."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Start on an empty screen, on a terminal."""


Renderable: TypeAlias = Table | Record | Lines | Flush | Clear


def text_lines(text: str, style: str = "") -> Lines:
    """Return plain text as lines."""
    return Lines(tuple(((style, line),) for line in text.splitlines()))
