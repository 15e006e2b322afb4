# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads lines where there is no terminal to speak of: TERM=dumb, an editor's shell window, a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from kcovdbg.render.theme import is_terminal

PROMPT: Final = "kcovdbg> "


class PlainReader:
    """Reads by ``input()``.

    :param read: takes the prompt, returns a line.
    """

    def __init__(self, read: Callable[[str], str] = input) -> None:
        self._read = read

    def read(self) -> str:
        """Return the next line.

        :raises EOFError: at the end.
        :raises KeyboardInterrupt: for C-c.
        """
        prompt = PROMPT if is_terminal(sys.stdin) else ""
        try:
            return self._read(prompt)
        except (EOFError, KeyboardInterrupt):
            if prompt:
                # What comes next begins on a line of its own.
                sys.stdout.write("\n")
                sys.stdout.flush()
            raise
