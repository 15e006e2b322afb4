# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text on a terminal: escapes, widths, and the colors and parts of source code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

# str.isprintable() refuses categories Cc, Cf (bidirectional controls, zero-width joiners, soft
# hyphens), Cs, Co, Cn, Zl, Zp and Zs except the space. Unicode classifies these as letters and
# marks, but they are invisible:
_INVISIBLE: Final = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164"
    "\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
)
_HAS_INVISIBLE: Final = re.compile(f"[{_INVISIBLE}]")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def _escape_character(character: str) -> str:
    code = ord(character)
    # A byte from the "surrogateescape" error handler.
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def _is_safe(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _HAS_INVISIBLE.search(text))


def escape_all(texts: Sequence[str]) -> Sequence[str]:
    """Return texts that are safe for a terminal, each on one line."""
    if _is_safe("".join(texts)):
        return texts
    return list(map(escape, texts))


def escape(text: str) -> str:
    """Return text that is safe for a terminal, on one line."""
    if _is_safe(text):
        return text
    return "".join(
        character if _is_safe(character) else _escape_character(character) for character in text
    )


def escape_surrogates(text: str) -> str:
    """Return text without surrogates, for a format that escapes other characters itself, such as
    JSON.
    """
    if text.isascii() or not _SURROGATES.search(text):
        return text
    return _SURROGATES.sub(lambda match: _escape_character(match[0]), text)


ELLIPSIS = "…"


def text_width(text: str) -> int:
    """Return the width of printable text, see :func:`kcovdbg.console.text.escape`."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    # Most text is ASCII, and this table is large.
    from wcwidth import wcwidth

    return max(wcwidth(character), 0)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Pad text with blanks to a width, on the left if ``right``."""
    if text.isascii():
        if right:
            return text.rjust(width)
        return text.ljust(width)
    blanks = " " * (width - text_width(text))
    if right:
        return blanks + text
    return text + blanks


def elide(text: str, width: int) -> str:
    """Shorten text to a width, with an ellipsis at its end."""
    if text_width(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    return _take(text, width - 1) + ELLIPSIS


def elide_start(text: str, width: int) -> str:
    """Shorten text at its start, as suits a path."""
    return elide(text[::-1], width)[::-1]


def _take(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken = 0
    for index, character in enumerate(text):
        taken += _character_width(character)
        if taken > width:
            return text[:index]
    return text


TAB: Final = 8
"""Columns between tab stops."""
# Token type -> style class; the first match counts. Few colors, so that the marks of coverage stand
# out.
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


def highlight(lines: Sequence[str], file: str) -> list[list[tuple[str, str]]]:
    """Return the styled lines of a part of a file, lexed by itself: a comment that began earlier is
    not recognized.

    :param file: the file's name; its suffix determines the language.
    """
    expanded = [line.expandtabs(TAB) for line in lines]
    lexer = _find_lexer(file.rpartition(".")[2])
    if lexer is None:
        return [[("", escape(line))] for line in expanded]
    found: list[list[tuple[str, str]]] = [[]]
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


# Number of lines that are shown around a line with points.
_CONTEXT: Final = 3


def find_hunks(lines: Iterable[int], length: int) -> Iterator[tuple[int, int]]:
    """Iterate over the first and last line of each part to show.

    :param lines: the lines with points, ascending.
    :param length: number of lines of the file; 0 if its text is missing: then no other lines are
        shown.
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


# Each spelling is as wide as the character, so that rows stay aligned.
_ASCII: Final = {
    ord("…"): "~",
    ord("–"): "-",
    ord("—"): "-",
    ord("←"): "<",
    ord("→"): ">",
    ord("↑"): "^",
    ord("↓"): "v",
    ord("│"): "|",
    ord("─"): "-",
    ord("×"): "x",
    ord("•"): "*",
    ord("’"): "'",
}


def spell_ascii(text: str) -> str:
    """Return a text in ASCII: signs of kcovdbg's own have a similar one, other characters are
    escaped.
    """
    if text.isascii():
        return text
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()
