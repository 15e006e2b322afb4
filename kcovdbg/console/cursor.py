# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pieces of an unfinished command line: the word at the cursor, and the words before it.

:mod:`kcovdbg.console.command_line` parses finished lines and refuses others; this takes any line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

_PIECE: Final = re.compile(
    r"""(?P<blank>\s+)
    | (?P<comment>\#.*)
    | (?P<pipe>\|.*)
    | (?P<redirect>>>?)
    | (?P<word>(?: [^\s"'\\|<>;&] | \\.? | "(?:[^"\\]|\\.)*(?:"|\\?$) | '[^']*'? )+)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTING: Final = re.compile(
    r"""\\(?P<escaped>.?) | "(?P<double>(?:[^"\\]|\\.)*)(?:"|\\?$) | '(?P<single>[^']*)'? | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
_NEEDS_QUOTES: Final = re.compile(r"""[\s"'\\|<>;&#]""")


class Piece(NamedTuple):
    """A piece of a line; all of them together are the line."""

    kind: str
    """``blank``, ``word``, ``redirect``, ``pipe`` (to the line's end), ``comment``, ``shell`` (behind ``!``) or ``other``."""
    text: str
    column: int


class CursorPlace(Enum):
    """What kind of word the cursor is in."""

    WORD = "word"
    FILE = "file"
    """After ``>``."""
    SHELL = "shell"
    """In a shell command."""
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The word to complete."""

    place: CursorPlace
    words: tuple[str, ...]
    """The words before it, unquoted."""
    prefix: str
    """The part of the word that was typed, unquoted."""
    column: int
    """Where the word begins."""


def split_pieces(text: str) -> Iterator[Piece]:
    """Split any line into its pieces."""
    stripped = text.lstrip()
    if stripped.startswith("!"):
        blanks = len(text) - len(stripped)
        if blanks:
            yield Piece("blank", text[:blanks], 0)
        yield Piece("shell", stripped, blanks)
        return
    for match in _PIECE.finditer(text):
        assert match.lastgroup is not None
        yield Piece(match.lastgroup, match[0], match.start())


def find_cursor(text: str) -> Cursor:
    """Return the word at the end of a text, which is the line up to the cursor."""
    words: list[str] = []
    place = CursorPlace.WORD
    last: Piece | None = None
    for piece in split_pieces(text):
        if last is not None and last.kind == "word":
            if place is CursorPlace.WORD:
                words.append(unquote(last.text))
            place = CursorPlace.WORD
        if piece.kind == "redirect":
            place = CursorPlace.FILE
        elif piece.kind in ("pipe", "shell"):
            return Cursor(CursorPlace.SHELL, tuple(words), *_last_word(piece))
        elif piece.kind == "comment":
            return Cursor(CursorPlace.COMMENT, tuple(words), "", len(text))
        last = piece
    if last is not None and last.kind == "word":
        return Cursor(place, tuple(words), unquote(last.text), last.column)
    return Cursor(place, tuple(words), "", len(text))


def _last_word(piece: Piece) -> tuple[str, int]:
    """Return the last word of a shell command, and where it begins."""
    typed = re.search(r"[^\s|!]*$", piece.text)
    assert typed is not None
    return typed[0], piece.column + typed.start()


def unquote(text: str) -> str:
    """Return a word without quotes, closed or not."""
    parts: list[str] = []
    for match in _QUOTING.finditer(text):
        if match["double"] is not None:
            # As in sh: within double quotes a backslash quotes only these.
            parts.append(re.sub(r'\\(["\\$`])', r"\1", match["double"]))
        else:
            parts.append(next(part for part in match.group("escaped", "single", "plain") if part is not None))
    return "".join(parts)


def quote(text: str) -> str:
    """Quote a word for the command language."""
    if text and not _NEEDS_QUOTES.search(text):
        return text
    if "'" not in text:
        return f"'{text}'"
    return '"' + re.sub(r'(["\\$`])', r"\\\1", text) + '"'
