# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``help COMMAND`` says, made from the command's data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from kcovdbg.commands.argument import EXPLANATIONS, Argument
from kcovdbg.commands.command import COMMON_OPTIONS, Command
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ANY, LIST
from kcovdbg.render.renderable import Line, Lines, Record

_WIDTH = 80
_USAGE = "Usage: "
_INDENT = 4
_ARGUMENT_WIDTH = 20

_ARGUMENT_COLUMNS = (
    Column("names", LIST),
    Column("value", value=lambda argument: argument.value.value),
    Column("count", value=lambda argument: argument.count.value if argument.count is not None else None),
    Column("choices", LIST),
    Column("help"),
)
COMMAND_COLUMNS = (
    Column("command", value=lambda command: command.name, text=lambda command: ", ".join(command.names), style="command"),
    Column("summary", title="SHOWS", elastic=20),
    Column("aliases", LIST, json_only=True),
    Column("usage", json_only=True),
    Column("description", json_only=True),
    Column("needs", LIST, value=lambda command: sorted(need.name.lower() for need in command.needs), json_only=True),
    Column("arguments", ANY, items=_ARGUMENT_COLUMNS, json_only=True),
    Column("examples", ANY, items=(Column("line"), Column("purpose")), json_only=True),
)
"""What JSON says about a command, and the list of commands in text."""


def command_help(command: Command, width: int | None) -> Lines:
    """Return the help of one command."""
    return Lines(tuple(_help_lines(command, min(width or _WIDTH, 100))), data=Record(COMMAND_COLUMNS, command))


def _help_lines(command: Command, width: int) -> Iterator[Line]:
    yield (("command", command.name), ("", f" - {command.summary}"))
    yield ()
    usage = _wrap_usage(command, width - len(_USAGE))
    yield (("header", _USAGE), ("", usage[0]))
    for line in usage[1:]:
        yield (("", " " * len(_USAGE) + line),)
    if command.aliases:
        yield (("header", "Also: "), ("", ", ".join(command.aliases)))
    for paragraph in filter(None, command.description.split("\n\n")):
        yield ()
        yield from _wrap(paragraph, width, 0)
    yield ()
    yield from _argument_lines((*command.arguments, *COMMON_OPTIONS), width)
    if command.further_needs:
        yield ()
        yield (("header", "Needs: "), ("", " and ".join(command.further_needs)))
    if command.examples:
        yield ()
        yield (("header", "Examples:"),)
        for example in command.examples:
            yield (("", " " * _INDENT), ("command", example.line))
            yield from _wrap(example.purpose, width, 2 * _INDENT, "hint")


def _wrap_usage(command: Command, width: int) -> list[str]:
    """Return the usage in lines that don't break within an argument."""
    lines = [command.name]
    for word in (argument.usage for argument in command.arguments):
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * _INDENT + word)
        else:
            lines[-1] += f" {word}"
    return lines


def _argument_lines(arguments: Iterable[Argument], width: int) -> Iterator[Line]:
    for argument in arguments:
        text = argument.help
        if argument.value in EXPLANATIONS:
            text += f" ({EXPLANATIONS[argument.value]})"
        lines = textwrap.wrap(text, max(width - _ARGUMENT_WIDTH - _INDENT, 20)) or [""]
        column = " " * (_ARGUMENT_WIDTH + _INDENT)
        head = f"{' ' * _INDENT}{argument.heading}".ljust(len(column))
        if len(head) > len(column) or not head.endswith(" "):
            yield (("key", head),)
            head = column
        yield (("key", head), ("", lines[0]))
        for line in lines[1:]:
            yield (("", column), ("", line))


def _wrap(text: str, width: int, indent: int, style: str = "") -> Iterator[Line]:
    blanks = " " * indent
    for line in textwrap.wrap(" ".join(text.split()), width, initial_indent=blanks, subsequent_indent=blanks):
        yield ((style, line),)
