# SPDX-License-Identifier: LGPL-2.1-or-later
"""``watch``: a command, again and again."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.run import INTERRUPTED, answer, find_command, find_format
from kcovdbg.commands.session import Context
from kcovdbg.errors import UsageError
from kcovdbg.render.renderable import Clear, Flush, Lines, Renderable
from kcovdbg.render.writer import Format


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    if not args.line:
        raise UsageError("watch needs a command", hint="watch 2 tasks")
    command, its_args = find_command(context.session, args.line)
    if command.name == context.command.name:
        raise UsageError("watch can't watch itself")
    its_format = find_format(context.session, its_args)
    if its_format is not context.format and its_format is not Format.TEXT:
        raise UsageError(f"--{its_format.value} belongs to watch itself", hint=f"watch --{its_format.value} …")
    title = f"every {args.seconds:g} s: {' '.join(args.line)}"
    try:
        while True:
            # A new look each time: a context keeps what it has read.
            its_context = Context(context.session, command, replace(context.terminal), context.format)
            # The answer before stays to be read until the next one is there.
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
            # It has echoed ^C: what comes next begins on a line of its own.
            yield Lines(((),))


WATCH = Command(
    name="watch",
    summary="repeat a command every N seconds until C-c",
    run=_run,
    description="On a terminal each answer replaces the one before; elsewhere they follow each other.",
    arguments=(
        Argument(("seconds",), Value.SECONDS, "how long to wait in between", metavar="N"),
        Argument(("line",), Value.COMMAND, "the command with its arguments", count=Count.REST, metavar="COMMAND"),
    ),
    examples=(Example("watch 2 tasks", "see buffers fill on a running kernel"),),
    needs=frozenset(),
    endless=True,
)
