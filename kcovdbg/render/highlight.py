# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source text in colours, by pygments; plain where it isn't installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from kcovdbg.render.escape import escape
from kcovdbg.render.renderable import Fragment

_TAB: Final = 8
# A token's type -> style class, the first that fits. Few colours: marks of coverage must stand out among them.
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
    """Colour lines of a file; a part of it is read as if it were all, so that a comment begun before isn't seen as one.

    :param file: its name: the suffix tells the language.
    """
    expanded = [line.expandtabs(_TAB) for line in lines]
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
    # A line continued by a backslash at the end of the part may give one line more or less.
    del found[len(lines) :]
    return found + [[] for _ in range(len(lines) - len(found))]
