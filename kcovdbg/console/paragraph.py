# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prose that is wrapped at the terminal's width, where styles stay with their words: errors, and hints at similar words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

from kcovdbg.console.renderable import Fragment, Line
from kcovdbg.console.text import escape, text_width
from kcovdbg.errors import KcovdbgError, LineError

# Narrower columns of prose cannot be read; the terminal breaks the words instead.
_LEAST: Final = 16
_PIECE: Final = re.compile(r" +|[^ ]+")


def wrap_line(line: Line, width: int | None, hanging: int | None = None) -> Iterator[Line]:
    """Yield the lines that a line of prose takes; words are never broken.

    :param width: of the terminal; None for other output, where lines are not wrapped.
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
        if used and used + _width_of(blanks) + _width_of(word) > width and any(text.strip(" ") for _, text in current):
            yield _join(current)
            current, blanks = [("", " " * hanging)], []
            used = hanging
        current += [*blanks, *word]
        used += _width_of(blanks) + _width_of(word)
        blanks = []
    yield _join(current)


def _join(line: Line) -> Line:
    """Return a line whose neighboring fragments of one style are one fragment."""
    return [(style, "".join(text for _, text in group)) for style, group in groupby(line, key=itemgetter(0))]


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


def suggest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known words that are similar to this one, None where there are none."""
    import difflib

    known = tuple(known)
    near = [name for name in known if len(word) >= 2 and name.startswith(word)]
    near += [name for name in difflib.get_close_matches(word, known, n=3, cutoff=0.65) if name not in near]
    return f"did you mean {' or '.join(near[:3])}?" if near else None


def error_lines(error: KcovdbgError, where: str | None = None, width: int | None = None) -> Iterator[Line]:
    """Yield the lines of an error.

    :param where: its file and line, if any.
    :param width: of the terminal; None for other output.
    """
    yield from wrap_line((("error", "kcovdbg: "), ("", f"{where}: {error}" if where is not None else str(error))), width)
    if isinstance(error, LineError):
        yield (("", f"  {error.line}"),)
        yield (("", " " * (2 + text_width(escape(error.line[: error.column])))), ("caret", "^"))
    if error.hint is not None:
        yield from wrap_line((("hint", f"  {error.hint}"),), width, 2)
