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

    :param read: returns a line.
    """

    def __init__(self, read: Callable[[], str] = input) -> None:
        self._read = read

    def read(self) -> str:
        """Return the next line.

        :raises EOFError: at the end.
        :raises KeyboardInterrupt: for C-c.
        """
        # Not by input(), which would put it among answers that go to a file.
        stream = sys.stdout if is_terminal(sys.stdout) else sys.stderr
        is_asking = is_terminal(sys.stdin)
        if is_asking:
            stream.write(PROMPT)
            stream.flush()
        try:
            return self._read()
        except (EOFError, KeyboardInterrupt):
            if is_asking:
                # What comes next begins on a line of its own.
                stream.write("\n")
                stream.flush()
            raise
