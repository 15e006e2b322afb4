# SPDX-License-Identifier: LGPL-2.1-or-later
"""A plain prompt for TERM=dumb, an editor's shell window, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from kcovdbg.console.terminal import is_terminal

PROMPT: Final = "kcovdbg> "


class PlainReader:
    """Reads lines with ``input()``.

    :param read: returns a line.
    """

    def __init__(self, read: Callable[[], str] = input) -> None:
        self._read = read

    def read(self) -> str:
        """Return the next line.

        :raises EOFError: at the end.
        :raises KeyboardInterrupt: for C-c.
        """
        # input() would write the prompt to a file with the answers.
        stream = sys.stdout if is_terminal(sys.stdout) else sys.stderr
        is_asking = is_terminal(sys.stdin)
        if is_asking:
            stream.write(PROMPT)
            stream.flush()
        try:
            return self._read()
        except (EOFError, KeyboardInterrupt):
            if is_asking:
                # End the line of the prompt.
                stream.write("\n")
                stream.flush()
            raise
