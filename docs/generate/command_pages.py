# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command reference, from the command table."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generate.manpage import sentence
from kcovdbg.commands import COMMANDS
from kcovdbg.commands.argument import EXPLANATIONS, Argument, Value
from kcovdbg.commands.command import COMMON_OPTIONS, Command


def write_commands() -> str:
    """Return the page in Markdown."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield "<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->"
    yield "<!-- Made by python -m docs.generate from the command table. -->"
    yield "# Commands"
    yield ""
    yield "The same in the shell, after `kcovdbg TARGET`, as `%kcov` in drgn and as `kcov-show` in GDB."
    yield ""
    yield f"`WHAT` is {EXPLANATIONS[Value.BUFFER]}. `HANDLE` is {EXPLANATIONS[Value.HANDLE]}."
    yield ""
    yield "Every command takes"
    yield ""
    yield from _arguments(COMMON_OPTIONS)
    for command in COMMANDS:
        yield from _command(command)


def _command(command: Command) -> Iterator[str]:
    yield f"## {command.name}"
    yield ""
    yield sentence(command.summary)
    yield ""
    yield "```text"
    yield command.usage
    yield "```"
    yield ""
    if command.aliases:
        yield f"Also: {', '.join(f'`{alias}`' for alias in command.aliases)}."
        yield ""
    for paragraph in filter(None, command.description.split("\n\n")):
        yield escape(" ".join(paragraph.split()))
        yield ""
    yield from _arguments(command.arguments)
    if command.further_needs:
        yield f"Needs {' and '.join(command.further_needs)}."
        yield ""
    if command.examples:
        yield "| example | what for |"
        yield "|---|---|"
        for example in command.examples:
            line = example.line.replace("|", "\\|")
            yield f"| `{line}` | {escape(example.purpose)} |"
        yield ""


def _arguments(arguments: tuple[Argument, ...]) -> Iterator[str]:
    if not arguments:
        return
    yield "| argument | |"
    yield "|---|---|"
    for argument in arguments:
        cell = argument.heading.replace("|", "\\|")
        yield f"| `{cell}` | {escape(argument.help)} |"
    yield ""


def escape(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return "".join(f"\\{character}" if character in "\\`*_[]<>|" else character for character in text)
