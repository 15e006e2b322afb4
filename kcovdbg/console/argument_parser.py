# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parses the arguments of a command."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from kcovdbg.console.argument import SEPARATOR, Argument, Count, Value, WordError, convert
from kcovdbg.console.command import HELP_OPTION, OUTPUT_OPTIONS, Command
from kcovdbg.console.renderable import suggest

NARGS = {Count.OPTIONAL: "?", Count.ANY: "*", Count.SOME: "+", Count.REST: argparse.REMAINDER}

_FORMATS: Final = ("json", "jsonl", "csv")

# Not a word that a user can type.
_KEPT_SEPARATOR = "\0--"


class _Parser(ArgumentParser):
    """A parser that raises instead of exiting, and prints nothing."""

    command: Command

    def error(self, message: str) -> NoReturn:
        missing = message.startswith("the following arguments are required")
        raise WordError(f"{self.command.name}: {message}", None, hint=f"usage: {self.command.usage}" if missing else None)


def make_parser(command: Command) -> ArgumentParser:
    """Make the parser of a command."""
    parser = _Parser(prog=command.name, add_help=False, allow_abbrev=False)
    parser.command = command
    for argument in command.options:
        add_argument(parser, argument, partial(_convert, command, argument))
    return parser


def add_argument(parser: ArgumentParser, argument: Argument, read: Callable[[str], Any]) -> None:
    """Add an argument to a parser.

    :param read: converts a word to its value.
    """
    options: dict[str, Any] = {}
    if argument.is_option:
        options["dest"] = argument.attribute
    if argument.value is Value.FLAG:
        options |= {"action": "store_true"}
    else:
        options |= {
            "type": read,
            "metavar": argument.placeholder,
            "default": argument.default,
        }
        if argument.is_option and argument.count in (Count.ANY, Count.SOME):
            options["action"] = "append"
        elif argument.count in NARGS:
            options["nargs"] = NARGS[argument.count]
    parser.add_argument(*(argument.names if argument.is_option else (argument.attribute,)), **options)


def parse_arguments(command: Command, words: Sequence[str]) -> Namespace:
    """Parse the words that follow a command's name.

    :raises WordError: when they are wrong.
    """
    parser = make_parser(command)
    # Help is shown even where other words are wrong or missing.
    own = words[: words.index("--")] if "--" in words else words
    if not command.takes_rest and ("--help" in own or "-h" in own):
        return _only_help(own)
    if command.takes_rest:
        if words and words[0] in ("-h", "--help"):
            return _only_help(())
        if all(argument.count is Count.REST for argument in command.arguments):
            # Every word is for another program, options included.
            rest = list(words[1:] if words and words[0] == "--" else words)
            return Namespace(**common_defaults() | {command.arguments[0].attribute: rest})
        args, extra = parser.parse_known_args(words)
        for argument in command.arguments:
            if argument.count is Count.REST:
                rest = getattr(args, argument.attribute)
                setattr(args, argument.attribute, rest[1:] if rest[:1] == ["--"] else rest)
    else:
        if command.keeps_separator:
            # argparse would take it as the end of the options and drop it.
            words = [_KEPT_SEPARATOR if word == SEPARATOR else word for word in words]
        # Options may come between positional arguments.
        args, extra = parser.parse_known_intermixed_args(words)
        if command.keeps_separator:
            _restore_separators(args)
    if extra:
        raise _refuse(command, extra[0])
    args = Namespace(**common_defaults() | vars(args))
    formats = [name for name in _FORMATS if getattr(args, name)]
    if len(formats) > 1:
        first, second = (f"--{name}" for name in formats[:2])
        raise WordError(f"{command.name}: {first} and {second} cannot be combined", second)
    return args


def _convert(command: Command, argument: Argument, word: str) -> Any:
    try:
        return convert(argument, word)
    except WordError as error:
        # Words in the wrong order are the likeliest cause.
        if error.hint is None and not argument.is_option:
            error.hint = f"usage: {command.usage}"
        raise


def common_defaults() -> dict[str, Any]:
    return {argument.attribute: argument.default for argument in (*OUTPUT_OPTIONS, HELP_OPTION)}


def _only_help(words: Sequence[str]) -> Namespace:
    return Namespace(**common_defaults() | {"help": True} | {name: f"--{name}" in words for name in _FORMATS})


def _restore_separators(args: Namespace) -> None:
    for name, value in vars(args).items():
        if isinstance(value, list):
            setattr(args, name, [SEPARATOR if word == _KEPT_SEPARATOR else word for word in value])


def _refuse(command: Command, word: str) -> WordError:
    if word.startswith("-") and word != "-":
        options = [name for argument in command.options for name in argument.names if name[0] == "-"]
        name = word.split("=", 1)[0]
        hint = suggest(name, options) or f"usage: {command.usage}"
        return WordError(f"{command.name}: unknown option '{name}'", word, hint=hint)
    return WordError(f"{command.name}: unexpected argument '{word}'", word, hint=f"usage: {command.usage}")
