# SPDX-License-Identifier: LGPL-2.1-or-later
"""A column of a table, declared once for text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from kcovdbg.console.escape import escape
from kcovdbg.console.value_kinds import ABSENT, TEXT, ValueKind

KEEP = 0
"""The priority of a column that is never dropped."""
DETAIL = 3
"""From this priority on a column is dropped before any other column is shortened for it, and in a table with a ``piped_width``
is shown on terminals only."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the source of its values and how they are shown."""

    key: str
    """In JSON and CSV; the kernel's own member name where one exists."""
    kind: ValueKind = TEXT
    title: str | None = None
    """The heading in text; by default the key in capitals."""
    value: Callable[[Any], Any] | None = None
    """Takes a row and returns the value, None where there is none; by default the row's item or attribute named by the key."""
    text: Callable[[Any], str | None] | None = None
    """Takes a row and returns its text, None for nothing; by default the kind formats the value."""
    wide_text: Callable[[Any], str | None] | None = None
    """In place of ``text`` in a table with all columns in full."""
    style: str | Callable[[Any], str] | None = None
    """Style class, or a function from a row to one; by default the kind's."""
    align_right: bool | None = None
    """By default as the kind says."""
    priority: int = KEEP
    """In a narrow terminal columns with the highest priority are dropped first, from ``DETAIL`` on before any column is
    shortened; ``KEEP`` is never dropped."""
    elastic: int | None = None
    """The width down to which the text may be shortened in a narrow terminal; None: never."""
    wraps: bool = False
    """As the last column, wrap the text in a narrow terminal instead of shortening it."""
    elide_start: bool = False
    """Shorten at the start."""
    json_only: bool = False
    text_only: bool = False
    hide_empty: bool = False
    """Leave the column out of the text view when no row has a value there, or only zeros; one without any value is always left
    out."""
    is_chosen: bool = False
    """Whether the user chose it, so that it is shown even without values."""
    items: tuple[Column, ...] | None = None
    """The members of the structures in a list."""
    members: tuple[Column, ...] | None = None
    """The members that a structure may have; JSON has those that are there."""

    @property
    def heading(self) -> str:
        """The heading of the column."""
        return self.key.upper() if self.title is None else self.title

    @property
    def is_right(self) -> bool:
        """Whether the column is aligned on its right."""
        return self.kind.align_right if self.align_right is None else self.align_right

    def reader(self) -> Callable[[Any], Any]:
        """Return the function from a row to this column's value."""
        if self.value is not None:
            return self.value
        key = self.key
        attribute = attrgetter(key)
        # Checked for each row, so only for the type that is cheap to check.
        return lambda row: row[key] if isinstance(row, dict) else attribute(row)

    def formatter(self) -> Callable[[Any], str]:
        """Return the function from a row to its text: printable, on one line."""
        if self.text is not None:
            text = self.text
            return lambda row: escape(ABSENT if (shown := text(row)) is None else shown)
        read, show = self.reader(), self.kind.text
        if self.kind.is_safe:
            return lambda row: ABSENT if (value := read(row)) is None else show(value)
        return lambda row: ABSENT if (value := read(row)) is None else escape(show(value))

    @property
    def cell_style(self) -> str | Callable[[Any], str]:
        """The style class of cells, or the function from a row to it."""
        return self.kind.style if self.style is None else self.style

    def encoder(self) -> Callable[[Any], object]:
        """Return the function from a row to its value in JSON."""
        read, encode = self.reader(), self.kind.json
        if self.items is not None:
            members = [(item.key, item.encoder()) for item in self.items if not item.text_only]

            def encode_items(row: Any) -> object:
                values = read(row)
                return None if values is None else [{key: of(value) for key, of in members} for value in values]

            return encode_items
        if self.members is not None:
            of_key = {item.key: item.encoder() for item in self.members}

            def encode_members(row: Any) -> object:
                values = read(row)
                return {key: of_key[key](values) for key in values}

            return encode_members
        return lambda row: None if (value := read(row)) is None else encode(value)
