# SPDX-License-Identifier: LGPL-2.1-or-later
"""``history``: the lines typed in the shell."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from prompt_toolkit.history import History

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.column import Column
from kcovdbg.console.json_schema import RowType
from kcovdbg.console.key_meanings import Meaning
from kcovdbg.console.renderable import Table
from kcovdbg.console.value_kinds import NUMBER

_COLUMNS: Final = (Column("number", NUMBER), Column("line"))


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
        row_types=(
            RowType(
                _COLUMNS, {"number": Meaning("number of the line, the oldest first"), "line": Meaning("the line as typed")}
            ),
        ),
        description="Up and C-r bring a line back to the prompt.",
        arguments=(Argument(("count",), Value.NUMBER, "only the last N lines", count=Count.OPTIONAL, metavar="N"),),
        examples=(Example("history 10", "the last ten lines"), Example("history | grep diff", "search the history")),
        needs=frozenset(),
    )
