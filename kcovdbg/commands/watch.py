# SPDX-License-Identifier: LGPL-2.1-or-later
"""``watch``: a command, repeated."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.command import Command, Example, Topic
from kcovdbg.engine.context import Context
from kcovdbg.engine.runner import INTERRUPTED, answer, find_command, find_format
from kcovdbg.errors import UsageError
from kcovdbg.render.renderable import Clear, Flush, Lines, Renderable
from kcovdbg.render.writer import Format


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
    try:
        while True:
            # A new context each time: one reads the kernel's state once.
            its_context = Context(context.workspace, command, context.terminal, context.format)
            # The last answer stays on the screen until the next one is complete.
            shown = list(answer(its_context, its_args))
            yield Clear()
            if context.terminal.is_terminal:
                yield Lines(((("remark", title),), ()))
            yield from shown
            context.status = max(context.status, its_context.status)
            yield Flush()
            time.sleep(args.seconds)
    except KeyboardInterrupt:
        context.status = INTERRUPTED
        if context.terminal.is_terminal:
            # The terminal echoed ^C: end that line.
            yield Lines(((),))


COMMAND: Final = Command(
    name="watch",
    summary="repeat a command every N seconds until C-c",
    topic=Topic.OTHER,
    run=_run,
    description="On a terminal each answer replaces the one before; elsewhere they follow each other.",
    arguments=(
        Argument(("seconds",), Value.SECONDS, "pause between two runs", metavar="N"),
        Argument(("line",), Value.COMMAND, "a command with its arguments", count=Count.REST, metavar="COMMAND"),
    ),
    examples=(Example("watch 2 tasks", "see buffers fill on a running kernel"),),
    needs=frozenset(),
    endless=True,
)
