# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers of commands: data that the writer can show.

Remarks say what is missing from an answer. They are read after the rows, so that an iterator can
yield what the rows showed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kcovdbg.console.column import Column
from kcovdbg.console.text import escape, text_width
from kcovdbg.errors import KcovdbgError, LineError

if TYPE_CHECKING:
    from kcovdbg.model.state import Part

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
    """Dictionaries, or other objects that the columns accept. An iterator is written while it is
    read.
    """
    remarks: Iterable[str] = ()
    empty: str | None = None
    """The text in place of a table without rows."""
    errors: Callable[[Any], Sequence[str]] | None = None
    """Returns what could not be read of a row: the key ``errors`` in JSON, notes below the table in
    text.
    """
    label: Callable[[Any], str] | None = None
    """Returns the name of a row in such a note."""
    rests_on: Part | None = None
    """The parts of the kernel's state that the rows are made of; None for all parts that the
    command has read.
    """
    unread: Sequence[str] = ()
    """If there are no rows because they could not be read, the reasons. JSON then has one row: its
    values are null, and these lines are its ``errors``.
    """
    details: Callable[[Any], Iterable[Line]] | None = None
    """Returns the lines below a row in text."""
    show: Sequence[str] | None = None
    """The keys of the columns in text, in order; by default all that are not ``json_only``."""
    piped_width: int | None = None
    """Limit for the width of text that does not go to a terminal; None for no limit."""
    is_wide: bool = False
    """Whether text has all columns in full."""
    is_vertical: bool = False
    """Whether text has a line per value."""
    is_record: bool = False
    """Whether it has one row, which text shows with a line for each value."""

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


@dataclass(slots=True)
class Drawing:
    """Lines that are drawn from rows: from all, or from as many as the user wants."""

    count: int
    """The number of all rows."""
    draw: Callable[[int], Iterable[Line]]
    """Returns the lines of the first so many rows."""
    most: int | None = None
    """How many rows are drawn; None for all."""
    _is_drawn: bool = False

    def __iter__(self) -> Iterator[Line]:
        self._is_drawn = True
        return iter(self.draw(self.count if self.most is None else self.most))

    def remarks(self) -> Iterator[str]:
        """Yield how many rows there are, if some were drawn but not all."""
        if self._is_drawn and self.most is not None and self.count > self.most:
            yield f"{self.count - self.most} more rows"


@dataclass(frozen=True, slots=True)
class Lines:
    """Styled lines."""

    lines: Iterable[Line]
    """A :class:`Drawing` if a row may have several lines or none."""
    data: Table | None = None
    """Their data in JSON and CSV, None for nothing."""
    remarks: Iterable[str] = ()
    is_prose: bool = False
    """Whether lines are wrapped at the terminal's width."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text in another program's format. It is safe for a terminal, and written unchanged."""

    parts: Iterable[str]
    """Whole lines."""


Renderable: TypeAlias = Table | Lines | Text


def find_data(renderable: Renderable) -> Table | None:
    """Return the data of a part of an answer."""
    if isinstance(renderable, Lines):
        return renderable.data
    if isinstance(renderable, Table):
        return renderable
    return None


def text_lines(text: str, style: str = "") -> Lines:
    """Return plain text as lines."""
    return Lines(tuple(((style, line),) for line in text.splitlines()))


# Narrower columns of prose cannot be read; the terminal breaks the words instead.
_LEAST: Final = 16
_PIECE: Final = re.compile(r" +|[^ ]+")


def wrap_line(line: Line, width: int | None, hanging: int | None = None) -> Iterator[Line]:
    """Yield the lines that a line of prose takes; words are never broken.

    :param width: the terminal's width; None for other output, where lines are not wrapped.
    :param hanging: the indent of further lines; by default two more than the line's own.
    """
    if width is None or _width_of(line) <= width:
        yield line
        return
    if hanging is None:
        text = "".join(text for _, text in line)
        hanging = len(text) - len(text.lstrip(" ")) + 2
    if width - hanging < _LEAST:
        yield line
        return
    current: list[Fragment] = []
    used = 0
    # Blanks are written only with the word that follows them.
    blanks: list[Fragment] = []
    for word in _words(line):
        if word[0][1].startswith(" "):
            blanks = word
            continue
        added = [*blanks, *word]
        has_text = any(text.strip(" ") for _, text in current)
        if has_text and used + _width_of(added) > width:
            yield _join(current)
            current, added = [("", " " * hanging)], word
            used = hanging
        current += added
        used += _width_of(added)
        blanks = []
    yield _join(current)


def _join(line: Line) -> Line:
    """Return a line whose neighboring fragments of one style are one fragment."""
    return [
        (style, "".join(text for _, text in group))
        for style, group in groupby(line, key=itemgetter(0))
    ]


def _width_of(line: Line) -> int:
    return sum(text_width(escape(text)) for _, text in line)


def _words(line: Line) -> Iterator[list[Fragment]]:
    """Yield words and the blanks between them; a word can have several styles."""
    word: list[Fragment] = []
    for style, text in line:
        for piece in _PIECE.findall(text):
            if word and piece.startswith(" ") != word[0][1].startswith(" "):
                yield word
                word = []
            word.append((style, piece))
    if word:
        yield word


def spell_remarks(renderable: Renderable, spell: Callable[[str], str]) -> Renderable:
    """Return an answer with its remarks in other words.

    :param spell: returns the other words of a remark.
    """
    if isinstance(renderable, Text):
        return renderable
    return replace(renderable, remarks=map(spell, renderable.remarks))


def error_lines(
    error: KcovdbgError, where: str | None = None, width: int | None = None
) -> Iterator[Line]:
    """Yield the lines of an error.

    :param where: the file and line of the error.
    :param width: the terminal's width; None for other output.
    """
    text = str(error) if where is None else f"{where}: {error}"
    yield from wrap_line((("error", "kcovdbg: "), ("", text)), width)
    if isinstance(error, LineError):
        yield (("", f"  {error.line}"),)
        yield (("", " " * (2 + text_width(escape(error.line[: error.column])))), ("caret", "^"))
    if error.hint is not None:
        yield from wrap_line((("hint", f"  {error.hint}"),), width, 2)
