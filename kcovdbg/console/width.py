# SPDX-License-Identifier: LGPL-2.1-or-later
"""The width of text in columns of a terminal."""

from __future__ import annotations

ELLIPSIS = "…"


def text_width(text: str) -> int:
    """Return the width of printable text, see :func:`kcovdbg.console.escape.escape`."""
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
        return text.rjust(width) if right else text.ljust(width)
    blanks = " " * (width - text_width(text))
    return blanks + text if right else text + blanks


def elide(text: str, width: int) -> str:
    """Shorten text to a width, with an ellipsis at its end."""
    if text_width(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    return _take(text, width - 1) + ELLIPSIS


def elide_start(text: str, width: int) -> str:
    """Shorten text at its start, as suits a path."""
    if text_width(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    return ELLIPSIS + _take(text[::-1], width - 1)[::-1]


def _take(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken = 0
    for index, character in enumerate(text):
        taken += _character_width(character)
        if taken > width:
            return text[:index]
    return text
