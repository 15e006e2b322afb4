# SPDX-License-Identifier: LGPL-2.1-or-later
"""``watch``: a command, repeated."""

from __future__ import annotations

import dataclasses
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Clear, Flush, Lines, Renderable, Table
from kcovdbg.console.runner import answer, find_command, find_format
from kcovdbg.console.terminal import write_remarks
from kcovdbg.console.writer import Format
from kcovdbg.errors import INTERRUPTED, UsageError

# The key of the columns by which tasks and objects say that their buffer is full.
_FULL: Final = "full"
# Limit for names in the line below an answer.
_NAMED: Final = 8


def _keep_rows(renderable: Renderable) -> Renderable:
    """Return a part of an answer whose rows can be read twice."""
    if isinstance(renderable, Table) and any(column.key == _FULL for column in renderable.columns):
        return dataclasses.replace(renderable, rows=tuple(renderable.rows))
    return renderable


class OverflowCounts:
    """How often buffers became full, over several looks at a kernel that runs: lower bounds."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self._full: dict[str, bool] = {}
        self._looks = 0

    def add(self, shown: Iterable[Renderable]) -> bool:
        """Add the buffers that an answer shows; return whether it shows any.

        A buffer that is not in it, or whose state is unknown, stays as it was seen last.
        """
        self._looks += 1
        has_any = False
        for part in shown:
            if not isinstance(part, Table) or part.label is None:
                continue
            for read in (column.reader() for column in part.columns if column.key == _FULL):
                for row in part.rows:
                    has_any, name, full = True, part.label(row), read(row)
                    if full is not None:
                        self.times[name] += full and not self._full.get(name)
                        self._full[name] = full
        return has_any

    def lines(self) -> Lines:
        """Return the counts in words."""
        times = (+self.times).most_common()
        named = ", ".join(f"{name} ({count}×)" for name, count in times[:_NAMED])
        more = f", {len(times) - _NAMED} more" if len(times) > _NAMED else ""
        seen = "1 look" if self._looks == 1 else f"{self._looks} looks"
        text = f"in {seen}, buffers that became full: {named}{more}" if named else f"in {seen}, no buffer became full"
        return Lines(((("remark", text),),), is_prose=True)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    if not args.line:
        raise UsageError("watch: missing command", hint="watch 2 tasks")
    command, its_args = find_command(context.workspace, args.line)
    if command.name == context.command.name:
        raise UsageError("watch: cannot watch itself")
    its_format = find_format(context.workspace, its_args)
    if its_format is not context.format and its_format is not Format.TEXT:
        raise UsageError(f"watch: --{its_format.value} must come first", hint=f"watch --{its_format.value} …")
    title = f"every {args.seconds:g} s: {' '.join(args.line)}"
    overflows, looks = OverflowCounts(), 0
    try:
        while True:
            # A new context each time: one reads the kernel's state once.
            its_context = Context(context.workspace, command, context.terminal, context.format)
            # The last answer stays on the screen until the next one is complete.
            shown = [_keep_rows(part) for part in answer(its_context, its_args)]
            has_buffers, looks = overflows.add(shown), looks + 1
            yield Clear()
            if context.terminal.is_terminal:
                yield Lines(((("remark", title),), ()))
            yield from shown
            if has_buffers:
                yield overflows.lines()
            context.status = max(context.status, its_context.status)
            if looks != args.count and (still := _find_still(context, its_context)) is not None:
                write_remarks(context.terminal, [still])
                return
            yield Flush()
            if looks == args.count:
                return
            time.sleep(args.seconds)
    except KeyboardInterrupt:
        context.status = INTERRUPTED
        if context.terminal.is_terminal:
            # The terminal echoed ^C: end that line.
            yield Lines(((),))


def _find_still(context: Context, its_context: Context) -> str | None:
    """Return why all further answers would be the same, None where they may differ."""
    if not (its_context.uses_target or its_context.shows_target) or context.target.live:
        return None
    return f"watch: {context.target.name} does not change while kcovdbg reads it; further answers would be the same"


COMMAND: Final = Command(
    name="watch",
    summary="repeat a command every N seconds",
    topic=Topic.OTHER,
    run=_run,
    description=(
        "On a terminal each answer replaces the one before; elsewhere they follow each other. Below the rows of tasks and "
        "objects, text counts how often each buffer became full since the start. A buffer that is emptied and filled again "
        "between two looks counts once. Of a dump or a stopped machine, one answer is all."
    ),
    arguments=(
        Argument(("-n", "--count"), Value.NUMBER, "end after N looks", metavar="N"),
        Argument(("seconds",), Value.SECONDS, "pause between two looks", metavar="SECONDS"),
        Argument(("line",), Value.COMMAND, "a command with its arguments", count=Count.REST, metavar="COMMAND"),
    ),
    examples=(Example("watch 2 tasks", "see buffers fill on a running kernel"),),
    needs=frozenset(),
    endless=True,
)
