# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completions for bash, zsh and fish, which shtab makes from an argparse parser."""

from __future__ import annotations

import argparse
from typing import Any

import shtab

from kcovdbg.commands import COMMANDS
from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import COMMON_OPTIONS, Command
from kcovdbg.commands.parse import NARGS
from kcovdbg.frontends.options import OPTIONS, Option

_PATHS = ("PATH", "VMLINUX")


def complete_in(shell: str) -> str:
    """Return the completions for a shell."""
    text = shtab.complete(make_parser(), shell)
    # Its own first line says which program wrote it; the licence comes behind what zsh must find first.
    first, _, rest = text.partition("\n")
    licence = "# SPDX-License-Identifier: LGPL-2.1-or-later"
    lines = f"{first}\n{licence}\n{rest}" if first.startswith("#compdef") else f"{licence}\n{text}"
    return "\n".join(line.rstrip() for line in lines.splitlines()) + "\n"


def make_parser() -> argparse.ArgumentParser:
    """Return one parser of everything that may follow ``kcovdbg``."""
    parser = argparse.ArgumentParser(prog="kcovdbg", add_help=False)
    for option in OPTIONS:
        _add_option(parser, option)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        _add_command(subparsers, command)
    return parser


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    if option.metavar is None and not option.choices:
        parser.add_argument(*option.names, action="store_true", help=_plain(option.help))
        return
    settings: dict[str, Any] = {"help": _plain(option.help), "metavar": option.metavar}
    if option.choices:
        settings["choices"] = option.choices
    action = parser.add_argument(*option.names, **settings)
    if option.metavar in _PATHS:
        action.complete = shtab.FILE  # type: ignore[attr-defined]


def _add_command(subparsers: Any, command: Command) -> None:
    parser = subparsers.add_parser(
        command.name,
        add_help=False,
        help=_plain(command.summary),
        aliases=[alias for alias in command.aliases if alias.isalnum()],
    )
    for argument in (*command.arguments, *COMMON_OPTIONS):
        _add_argument(parser, argument)


def _add_argument(parser: argparse.ArgumentParser, argument: Argument) -> None:
    settings: dict[str, Any] = {"help": _plain(argument.help)}
    names = argument.names if argument.is_option else (argument.attribute,)
    if argument.value is Value.FLAG:
        parser.add_argument(*names, action="store_true", **settings)
        return
    if argument.count in NARGS and not (argument.is_option and argument.count is Count.ANY):
        settings["nargs"] = NARGS[argument.count]
    choices = _choices(argument)
    if choices:
        settings["choices"] = choices
    action = parser.add_argument(*names, metavar=argument.placeholder or None, **settings)
    if argument.value is Value.FILE:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif not argument.is_option and not choices:
        # Where zsh has nothing but a message to offer for a word, it doesn't complete options in its place either.
        action.complete = {"zsh": "{:}"}  # type: ignore[attr-defined]


def _choices(argument: Argument) -> tuple[str, ...]:
    # The modes of a kernel are that kernel's; they are completed in kcovdbg's own shell, which has looked at one.
    return tuple(command.name for command in COMMANDS) if argument.value is Value.COMMAND else argument.choices


def _plain(text: str) -> str:
    # argparse would take a per cent sign for a place to fill in.
    return text.replace("%", "%%")
