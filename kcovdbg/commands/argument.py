# SPDX-License-Identifier: LGPL-2.1-or-later
"""A command's arguments as data: parsers, help, completion, the man page and shell completions are made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kcovdbg.abi.handle import parse_handle
from kcovdbg.errors import UsageError


class Value(str, Enum):
    """What an argument's value is: how it is read, and what completes it."""

    FLAG = "flag"
    TID = "tid"
    TASK = "task"
    """A tid, or a pattern of names."""
    ADDRESS = "address"
    PC = "pc"
    HANDLE = "handle"
    BUFFER = "buffer"
    """WHAT: a buffer by one of its names."""
    BUFFER_NAME = "buffer-name"
    """``@name`` that a buffer is kept as."""
    SUBJECT = "subject"
    """A tid, a handle or the address of an object."""
    FUNCTION = "function"
    """A function or a source file."""
    FILE = "file"
    MODE = "mode"
    CHOICE = "choice"
    COMMAND = "command"
    NUMBER = "number"
    SECONDS = "seconds"
    TEXT = "text"


EXPLANATIONS: Final[Mapping[Value, str]] = {
    Value.BUFFER: "a buffer: 41 (task), kcov:0xffff…, area:0xffff…, fd:41/3, saved:0 (CPU), saved:t41 (task), "
    "file:PATH (trace file), @name (kept earlier)",
    Value.HANDLE: "a remote handle: usb:1, common:0x42 or the whole word",
}
"""What help says about a kind of value wherever it is asked for."""


SEPARATOR: Final = "--"
"""Among the words of a command that tells two lists apart by it."""


class Count(str, Enum):
    """How often an argument comes."""

    ONE = "one"
    OPTIONAL = "optional"
    ANY = "any"
    """A positional argument: zero or more. An option: may be repeated."""
    SOME = "some"
    """One or more."""
    REST = "rest"
    """Everything that follows, options too."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, whose names begin with a dash, or a positional argument."""

    names: tuple[str, ...]
    value: Value
    help: str
    count: Count | None = None
    """By default: one; of an option: at most one."""
    metavar: str | None = None
    """What stands for the value in help; by default a positional argument's name, an option's last name in capitals."""
    choices: tuple[str, ...] = ()
    default: Any = None
    key: str | None = None
    """The attribute of the parsed arguments; by default made of the longest name."""

    @property
    def is_option(self) -> bool:
        """Whether it begins with a dash."""
        return self.names[0].startswith("-")

    @property
    def attribute(self) -> str:
        """The attribute of the parsed arguments that holds the value."""
        if self.key is not None:
            return self.key
        return max(self.names, key=len).lstrip("-").replace("-", "_").lower()

    @property
    def placeholder(self) -> str:
        """What stands for the value in help; nothing for a flag."""
        if self.value is Value.FLAG:
            return ""
        if self.metavar is not None:
            return self.metavar
        if self.choices:
            return "|".join(self.choices)
        return max(self.names, key=len).lstrip("-").upper()

    @property
    def heading(self) -> str:
        """How it stands where it is explained: ``-n, --count N``, ``PATTERN|TID``."""
        if not self.is_option:
            return self.placeholder
        return " ".join(filter(None, (", ".join(self.names), self.placeholder)))

    @property
    def usage(self) -> str:
        """How it stands in the usage line: ``[--mode M]``, ``[PATTERN|TID…]``."""
        shown = self.placeholder
        if self.is_option:
            return f"[{self.names[0]}{' ' if shown else ''}{shown}]" + ("…" if self.count is Count.ANY else "")
        if self.count in (Count.ANY, Count.SOME, Count.REST):
            shown += "…"
        return f"[{shown}]" if self.count in (Count.ANY, Count.OPTIONAL) else shown


class WordError(UsageError):
    """One word of a command can't be understood.

    :param word: as it was given, or None where a word is missing.
    """

    def __init__(self, message: str, word: str | None, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.word = word


def convert(argument: Argument, word: str) -> Any:
    """Read an argument's value.

    :raises WordError: when it can't be.
    """
    if argument.choices and word not in argument.choices:
        raise WordError(f"{word} isn't one of {', '.join(argument.choices)}", word, hint=_suggestion(word, argument.choices))
    read = _READERS.get(argument.value)
    if read is None:
        return word
    try:
        return read(word)
    except ValueError:
        raise WordError(f"{word} is no {_NOUNS[argument.value]}", word, hint=EXPLANATIONS.get(argument.value)) from None


def parse_address(word: str) -> int:
    """Read a hexadecimal address, with or without 0x.

    :raises ValueError: when it is none.
    """
    value = int(word, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(word)
    return value


def _parse_count(word: str) -> int:
    value = int(word, 0)
    if value < 0:
        raise ValueError(word)
    return value


def _parse_seconds(word: str) -> float:
    value = float(word)
    # "nan" and "inf" are numbers to Python.
    if not 0 <= value < 1e9:
        raise ValueError(word)
    return value


def _parse_mode(word: str) -> str:
    return word.upper().replace("-", "_").removeprefix("KCOV_MODE_")


def _parse_buffer_name(word: str) -> str:
    if len(word) < 2 or word[0] != "@":
        raise ValueError(word)
    return word


_READERS: Final[Mapping[Value, Callable[[str], Any]]] = {
    Value.TID: _parse_count,
    Value.ADDRESS: parse_address,
    Value.PC: parse_address,
    Value.HANDLE: parse_handle,
    Value.MODE: _parse_mode,
    Value.NUMBER: _parse_count,
    Value.SECONDS: _parse_seconds,
    Value.BUFFER_NAME: _parse_buffer_name,
}
_NOUNS: Final[Mapping[Value, str]] = {
    Value.TID: "task id",
    Value.ADDRESS: "address",
    Value.PC: "address",
    Value.HANDLE: "remote handle",
    Value.MODE: "mode",
    Value.NUMBER: "number",
    Value.SECONDS: "number of seconds",
    Value.BUFFER_NAME: "name of a buffer: those begin with @",
}


def _suggestion(word: str, known: tuple[str, ...]) -> str | None:
    from kcovdbg.commands.suggest import suggest

    return suggest(word, known)
