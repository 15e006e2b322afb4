# SPDX-License-Identifier: LGPL-2.1-or-later
"""``watch``: a command, repeated."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import Command, Example
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Clear, Flush, Lines, Renderable
from kcovdbg.console.runner import answer, find_command, find_format, make_context
from kcovdbg.console.terminal import write_remarks
from kcovdbg.console.writer import Format
from kcovdbg.errors import INTERRUPTED, UsageError


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
    looks = 0
    try:
        while True:
            # A new context each time: one reads the kernel's state once.
            its_context = make_context(context.workspace, command, its_args, context.terminal, context.format)
            # The last answer stays on the screen until the next one is complete.
            shown = list(answer(its_context, its_args))
            looks += 1
            yield Clear()
            if context.terminal.is_terminal:
                yield Lines(((("remark", title),), ()))
            yield from shown
            context.status = max(context.status, its_context.status)
            if looks == args.count:
                yield Flush()
                return
            target = context.target if its_context.uses_target or its_context.shows_target else None
            if target is not None and not target.live:
                remark = f"watch: {target.name} does not change while kcovdbg reads it; further answers would be the same"
                write_remarks(context.terminal, [remark])
                return
            yield Flush()
            time.sleep(args.seconds)
    except KeyboardInterrupt:
        context.status = INTERRUPTED
        if context.terminal.is_terminal:
            # The terminal echoed ^C: end that line.
            yield Lines(((),))


COMMAND: Final = Command(
    name="watch",
    summary="repeat a command every N seconds",
    run=_run,
    description=(
        "On a terminal each answer replaces the one before; elsewhere they follow each other. Of a dump or a stopped machine, "
        "one answer is all. monitor counts how often buffers become full."
    ),
    arguments=(
        Argument("-n, --count N", Value.NUMBER, "end after N looks"),
        Argument("seconds SECONDS", Value.SECONDS, "pause between two looks"),
        Argument("line COMMAND…", Value.COMMAND, "a command with its arguments", takes_rest=True),
    ),
    examples=(Example("watch 2 tasks", "see buffers fill on a running kernel"),),
    needs=frozenset(),
    endless=True,
)
