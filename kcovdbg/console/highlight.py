# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source text with syntax colors by pygments; plain without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from kcovdbg.console.escape import escape
from kcovdbg.console.renderable import Fragment

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
