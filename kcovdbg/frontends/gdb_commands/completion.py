# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a command's next word can be; nothing here knows GDB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import COMMON_OPTIONS, Command, CommandTable


class Known(Protocol):
    """What the target offers."""

    def tids(self) -> Sequence[int]:
        """Return the tasks with KCOV state."""

    def modes(self) -> Iterable[str]:
        """Return the kernel's modes, in the kernel's spelling without prefix."""

    def kept(self) -> Iterable[str]:
        """Return the names of kept buffers."""

    def cpus(self) -> Sequence[int]:
        """Return the CPUs."""


def complete(table: CommandTable, command: Command, text: str, known: Known) -> list[str]:
    """Return what the last word of a command's arguments can be, whole words.

    :param text: the arguments up to the cursor.
    """
    words = text.split()
    word = words.pop() if text and not text[-1].isspace() else ""
    if word.startswith("-"):
        name, separator, start = word.partition("=")
        if separator:
            option = _option(command, name)
            values = [] if option is None else _values(table, option, known)
            return [f"{name}={value}" for value in values if value.startswith(start)]
        names = [name for argument in (*command.arguments, *COMMON_OPTIONS) for name in argument.names if name[0] == "-"]
        return [name for name in names if name.startswith(word)]
    before = _option(command, words[-1]) if words else None
    if before is not None and before.value is not Value.FLAG:
        return _starting(_values(table, before, known), word)
    if command.takes_rest and any(name in table for name in words):
        # The line of another command follows.
        name = next(name for name in words if name in table)
        return complete(table, table.find(name), text.split(name, 1)[1].lstrip(), known)
    given = _count_positional(command, words)
    return _starting(_values_at(table, command, given, known), word)


def _starting(values: Iterable[str], word: str) -> list[str]:
    return [value for value in values if value.startswith(word)]


def _option(command: Command, name: str) -> Argument | None:
    return next((argument for argument in command.arguments if argument.is_option and name in argument.names), None)


def _count_positional(command: Command, words: Sequence[str]) -> int:
    count = 0
    takes_value = False
    for word in words:
        if takes_value:
            takes_value = False
        elif word.startswith("-"):
            option = _option(command, word)
            takes_value = option is not None and option.value is not Value.FLAG
        else:
            count += 1
    return count


def _values_at(table: CommandTable, command: Command, index: int, known: Known) -> list[str]:
    positional = [argument for argument in command.arguments if not argument.is_option]
    for argument in positional:
        if index == 0 or argument.count in (Count.ANY, Count.SOME, Count.REST):
            return _values(table, argument, known)
        index -= 1
    return []


def _values(table: CommandTable, argument: Argument, known: Known) -> list[str]:
    if argument.choices:
        return list(argument.choices)
    if argument.value in (Value.TID, Value.TASK, Value.SUBJECT):
        return [str(tid) for tid in known.tids()]
    if argument.value is Value.BUFFER:
        return [
            *(str(tid) for tid in known.tids()),
            *(f"saved:{cpu}" for cpu in known.cpus()),
            *known.kept(),
        ]
    if argument.value is Value.BUFFER_NAME:
        return list(known.kept())
    if argument.value is Value.MODE:
        return [mode.lower().replace("_", "-") for mode in known.modes()]
    if argument.value is Value.COMMAND:
        return [command.name for command in table]
    return []


def tails(candidates: Iterable[str], text: str, word: str) -> list[str]:
    """Return of each candidate what GDB wants: it replaces only the part of a word behind its last - = : or /.

    :param text: the arguments up to the cursor.
    :param word: the part that GDB replaces.
    """
    whole = "" if not text or text[-1].isspace() else text.split()[-1]
    if not whole.endswith(word):
        return []
    head = len(whole) - len(word)
    return [candidate[head:] for candidate in candidates]
