# SPDX-License-Identifier: LGPL-2.1-or-later
"""``help``: the list of commands, or help for one of them."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import BUFFERS_TOPIC, Command, CommandResult, Example
from kcovdbg.console.context import Context
from kcovdbg.console.help_text import (
    COMMAND_ROW,
    OPTION_ROW,
    OUTPUT_TOPIC,
    buffers_help,
    command_help,
    command_list,
    command_schema,
    output_help,
)
from kcovdbg.console.renderable import text_lines
from kcovdbg.errors import UsageError

_ADVICE: Final = """
help COMMAND, or COMMAND?, shows help for a command.
help buffers explains WHAT and trace files; help output, JSON, columns and rows.
Unique prefixes of names work: obj for objects.
Every answer can be piped and redirected: tasks | grep syz, objects > file.
; separates commands, < FILE runs those in a file, ! runs a shell command.
"""


def _run(context: Context, args: Namespace) -> CommandResult:
    if args.command is None and args.schema:
        raise UsageError("help: --schema needs a command", hint="help tasks --schema")
    if args.command is None:
        return command_list(context.workspace.commands), text_lines(_ADVICE, "hint")
    if args.command == OUTPUT_TOPIC and not args.schema:
        return output_help(context.width)
    if args.command == BUFFERS_TOPIC and not args.schema:
        options = (option for command in context.workspace.commands for option in command.options)
        return buffers_help(options, context.width)
    command = context.workspace.commands.find(args.command)
    if args.schema:
        return command_schema(command)
    return command_help(command, context.width)


COMMAND: Final = Command(
    name="help",
    summary="list the commands, or show help for one",
    run=_run,
    row_types=(COMMAND_ROW, OPTION_ROW),
    arguments=(
        Argument(
            "command [COMMAND]",
            Value.COMMAND,
            "a command, or buffers or output: what many commands take",
        ),
        Argument(
            "--schema", Value.FLAG, "print the JSON Schema of what the command writes with --json"
        ),
    ),
    examples=(
        Example("help", "which commands are there?"),
        Example("help tasks", "the same as tasks?"),
        Example("help buffers", "what can WHAT be?"),
        Example("help output", "how do I get JSON, CSV, or fewer rows and columns?"),
        Example("help tasks --schema > tasks.schema.json", "validate the output of tasks --json"),
    ),
    needs=frozenset(),
    aliases=("?",),
)
