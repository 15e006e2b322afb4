# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of source text as they are shown: syntax colors, and which lines around those with points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from kcovdbg.console.renderable import Fragment
from kcovdbg.console.text import escape

TAB: Final = 8
"""Columns between tab stops."""
# Token type -> style class; the first match counts. Few colors, so that the marks of coverage stand out.
_STYLES: Final = (
    ("Token.Comment.Preproc", "source.macro"),
    ("Token.Comment", "source.comment"),
    ("Token.Keyword", "source.keyword"),
    ("Token.Literal.String", "source.string"),
    ("Token.Literal.Number", "source.number"),
)


@cache
def _find_lexer(suffix: str) -> Any:
    try:
        from pygments.lexers import CLexer, GasLexer, RustLexer
    except ImportError:
        return None
    lexer = {"S": GasLexer, "s": GasLexer, "rs": RustLexer}.get(suffix, CLexer)
    return lexer(stripnl=False, ensurenl=False)


@cache
def _style_of(token: str) -> str:
    return next((style for prefix, style in _STYLES if token.startswith(prefix)), "")


def highlight(lines: Sequence[str], file: str) -> list[list[Fragment]]:
    """Return the styled lines of a part of a file, lexed by itself: a comment that began earlier is not recognized.

    :param file: its name, whose suffix determines the language.
    """
    expanded = [line.expandtabs(TAB) for line in lines]
    lexer = _find_lexer(file.rpartition(".")[2])
    if lexer is None:
        return [[("", escape(line))] for line in expanded]
    found: list[list[Fragment]] = [[]]
    tokens: Iterable[tuple[Any, str]] = lexer.get_tokens("\n".join(expanded))
    for token, text in tokens:
        style = _style_of(str(token))
        for index, part in enumerate(text.split("\n")):
            if index:
                found.append([])
            if part:
                found[-1].append((style, escape(part)))
    # A backslash at the end of the part can make one line more or less.
    del found[len(lines) :]
    return found + [[] for _ in range(len(lines) - len(found))]


_CONTEXT: Final = 3


def find_hunks(lines: Iterable[int], length: int) -> Iterator[tuple[int, int]]:
    """Iterate over the first and last line of each part to show.

    :param lines: those with points, ascending.
    :param length: of the file, in lines; 0 where its text is missing, and then nothing surrounds the lines.
    """
    around = _CONTEXT if length else 0
    start = end = 0
    for line in lines:
        first, last = max(1, line - around), max(line, min(length, line + around))
        if start and first > end + 1:
            yield start, end
            start = 0
        start = start or first
        end = max(end, last)
    if start:
        yield start, end
