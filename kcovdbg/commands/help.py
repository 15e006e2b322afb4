# SPDX-License-Identifier: LGPL-2.1-or-later
"""``help``: the commands, or one of them."""

from __future__ import annotations

from argparse import Namespace

from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.command import Answer, Command, Example
from kcovdbg.commands.helptext import COMMAND_COLUMNS, command_help
from kcovdbg.commands.session import Context
from kcovdbg.errors import UsageError
from kcovdbg.render.renderable import Table, text_lines

_ADVICE = """
help COMMAND tells about one, as does COMMAND?
Every answer can be piped and redirected: tasks | grep syz, objects > file.
! runs a command of the shell's.
"""


def _run(context: Context, args: Namespace) -> Answer:
    if args.command is None:
        return Table(COMMAND_COLUMNS, tuple(context.session.commands)), text_lines(_ADVICE, "hint")
    try:
        command = context.session.commands.find(args.command)
    except UsageError as error:
        raise WordError(str(error), args.command, hint=error.hint) from error
    return command_help(command, context.width)


HELP = Command(
    name="help",
    summary="the commands, or one of them",
    run=_run,
    arguments=(Argument(("command",), Value.COMMAND, "the one to tell about", count=Count.OPTIONAL),),
    examples=(Example("help", "what is there?"), Example("help tasks", "the same as tasks?")),
    needs=frozenset(),
    aliases=("?",),
)
