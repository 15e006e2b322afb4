# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history of typed lines, kept across runs of the shell."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Final

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.column import NUMBER, Column
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.json_schema import RowType
from kcovdbg.console.renderable import Table
from kcovdbg.user_folder import find_user_folder


def open_history(environment: Mapping[str, str]) -> History:
    """Open the history, in memory if the file cannot be written."""
    folder = find_user_folder("state", environment).path
    if folder is None:
        return InMemoryHistory()
    path = folder / "history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only its owner reads it: lines hold paths and names.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return LineHistory(str(path))


class LineHistory(FileHistory):
    """A history file without repeated lines and lines that begin with a blank."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self._last: str | None = None

    def load_history_strings(self) -> Iterable[str]:
        """Return the lines, the latest first."""
        try:
            return super().load_history_strings()
        except OSError:
            return ()

    def append_string(self, string: str) -> None:
        """Add a line, as bash does with ``HISTCONTROL=ignoreboth``."""
        if string.startswith((" ", "\t")) or string == self._last:
            return
        self._last = string
        super().append_string(string)

    def store_string(self, string: str) -> None:
        """Write a line to the file; a full disk does not end the shell."""
        with contextlib.suppress(OSError):
            super().store_string(string)


_COLUMNS: Final = (
    Column("number", NUMBER, meaning="number of the line, the oldest first"),
    Column("line", meaning="the line as typed"),
)


def make_history_command(history: History) -> Command:
    """Return the command that lists a history."""

    def run(context: Context, args: Namespace) -> Table:  # noqa: ARG001 - a handler's arguments
        # The latest line comes first.
        lines = list(history.load_history_strings())[::-1]
        first = max(len(lines) - args.count, 0) if args.count is not None else 0
        rows = [{"number": number, "line": line} for number, line in enumerate(lines[first:], first + 1)]
        return Table(_COLUMNS, rows, empty="no line was typed")

    return Command(
        name="history",
        summary="list the lines typed in the shell",
        topic=Topic.OTHER,
        run=run,
        row_types=(RowType(_COLUMNS),),
        description="Up and C-r bring a line back to the prompt.",
        arguments=(Argument(("count",), Value.NUMBER, "only the last N lines", count=Count.OPTIONAL, metavar="N"),),
        examples=(Example("history 10", "the last ten lines"), Example("history | grep diff", "search the history")),
        needs=frozenset(),
    )
