# SPDX-License-Identifier: LGPL-2.1-or-later
"""Styled fragments as text, with or without colors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcovdbg.console.escape import escape
from kcovdbg.console.renderable import Line
from kcovdbg.console.theme import THEME

_RESET: Final = "\x1b[0m"


class Painter:
    """Turns styled fragments into text.

    All data goes to a terminal through a painter, which escapes it: no escape sequence gets through except the painter's.

    :param theme: style class -> SGR parameters; None for plain text.
    """

    def __init__(self, theme: Mapping[str, str] | None = None) -> None:
        self._starts = {name: f"\x1b[{code}m" for name, code in (theme or {}).items() if code}

    @classmethod
    def colored(cls) -> Painter:
        """Return a painter with the standard theme."""
        return cls(THEME)

    def paint(self, line: Line) -> str:
        """Return a line of text without line end and trailing blanks."""
        starts = self._starts
        if not starts:
            return escape("".join([text for _, text in line])).rstrip(" ")
        end = len(line)
        while end and not line[end - 1][1].strip(" "):
            end -= 1
        parts: list[str] = []
        for index in range(end):
            style, text = line[index]
            text = escape(text if index < end - 1 else text.rstrip(" "))
            start = starts.get(style)
            parts.append(text if start is None else f"{start}{text}{_RESET}")
        return "".join(parts)
