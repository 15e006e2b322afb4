# SPDX-License-Identifier: LGPL-2.1-or-later
"""Syntax colors of the line being typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer

from kcovdbg.console.command import CommandTable
from kcovdbg.console.cursor import Piece, split_pieces, unquote

_ADDRESS: Final = re.compile(r"(?:\w+:)?0x[0-9a-fA-F]+$")
_STYLES: Final = {
    "comment": "class:line.comment",
    "pipe": "class:line.shell",
    "shell": "class:line.shell",
    "redirect": "class:line.shell",
}


class LineLexer(Lexer):
    """Styles commands, options, addresses, names and shell commands.

    :param commands: the words that may begin a line.
    """

    def __init__(self, commands: CommandTable) -> None:
        self._commands = commands

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Return the function from a line's number to its styled text."""
        lines = document.lines

        def style_line(number: int) -> StyleAndTextTuples:
            try:
                return list(self._styled(lines[number]))
            except IndexError:
                return []

        return style_line

    def _styled(self, line: str) -> Iterator[tuple[str, str]]:
        is_first = True
        for piece in split_pieces(line):
            yield self._style(piece, is_first), piece.text
            is_first = is_first and piece.kind == "blank"

    def _style(self, piece: Piece, is_first: bool) -> str:
        if piece.kind != "word":
            return _STYLES.get(piece.kind, "")
        text = piece.text
        if is_first:
            return "class:line.command" if unquote(text).rstrip("?") in self._commands else ""
        if text.startswith("-"):
            return "class:line.option"
        if text.startswith("@"):
            return "class:line.name"
        if text[0] in "\"'":
            return "class:line.string"
        return "class:line.address" if _ADDRESS.match(text) else ""
