# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments of commands as data, from which parsers, help, completion, the man page and shell
completions are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, TypeVar

from kcovdbg.errors import WordError, suggest

# No buffer has so many records, and C can calculate with it.
LARGEST_NUMBER: Final = (1 << 31) - 1
# Units of times. A number without a unit is in seconds.
_UNITS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600}
# Seconds. Functions that wait take milliseconds in a C int.
_LONGEST_TIME: Final = 1e6

_Row = TypeVar("_Row")


class Value(str, Enum):
    """The type of an argument's value, which decides how the value is read and completed."""

    FLAG = "flag"
    TASK = "task"
    """A thread id, or a pattern of names."""
    ADDRESS = "address"
    OBJECT = "object"
    """The address of an object, or a thread id or name of a task."""
    REGISTERED = "registered"
    """A registered handle, or a thread id or pattern of the task that registered it."""
    BUFFER = "buffer"
    """WHAT: a buffer name."""
    BUFFER_NAME = "buffer-name"
    """``@name`` of a kept buffer."""
    SUBJECT = "subject"
    """A thread id, a handle or the address of an object."""
    FUNCTION = "function"
    """A function or a source file."""
    FILE = "file"
    MODE = "mode"
    CHOICE = "choice"
    COMMAND = "command"
    KEYS = "keys"
    """Keys of the command's rows, separated by commas."""
    COLUMNS = "columns"
    """The same, for columns in text."""
    NUMBER = "number"
    SECONDS = "seconds"
    TEXT = "text"


BUFFER_FORMS: Final = "41 (a task), file:PATH (a trace file) and others: help buffers"
HANDLE_FORMS: Final = "a remote handle: usb:1, common:0x42 or the whole word"
SEPARATOR: Final = "--"
"""Separates two lists of words, where a command takes two."""


class Count(str, Enum):
    """How often an argument may be given."""

    ONE = "one"
    """Once: the option is required."""
    OPTIONAL = "optional"
    ANY = "any"
    """Zero or more times; an option may be repeated."""
    SOME = "some"
    """One or more."""
    REST = "rest"
    """Everything that follows, options included."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, whose names begin with a dash, or a positional argument."""

    form: str
    """The names and the value of an option, as help shows them: ``-n, --count N``, or with ``…`` if
    it may be repeated: ``--file PATH…``. The attribute and the usage of a positional argument:
    ``what WHAT``, ``tasks [PATTERN|TID…]``. A value without a name is shown as its choices, or as
    the longest name in capitals.
    """
    value: Value
    help: str
    choices: tuple[str, ...] = ()
    find_candidates: Callable[[], Iterable[tuple[str, str]]] | None = None
    """Returns the values to complete, in upper or lower case, with their meanings; for values that
    only the command knows.
    """
    default: Any = None
    key: str | None = None
    """The attribute of the parsed arguments; by default the longest name."""
    is_output: bool = False
    """Whether its value is a file that the command writes."""
    is_required: bool = False
    """Whether it is an option that must be given."""
    takes_rest: bool = False
    """Whether its value is the rest of the line, including options."""
    topic: str | None = None
    """The topic of ``help`` that explains it, instead of the help of each command."""

    @property
    def is_option(self) -> bool:
        """Whether it is an option."""
        return self.form.startswith("-")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of an option, or the attribute of a positional argument."""
        return tuple(_split_form(self.form)["names"].split(", "))

    @property
    def count(self) -> Count | None:
        """How often it may be given; None for once, or at most once if it is an option."""
        parts = _split_form(self.form)
        if self.takes_rest:
            return Count.REST
        is_optional = bool(parts["bracket"])
        if self.is_option:
            is_optional = not self.is_required
        if parts["dots"]:
            return Count.ANY if is_optional else Count.SOME
        if self.is_option:
            return None if is_optional else Count.ONE
        return Count.OPTIONAL if is_optional else None

    @property
    def attribute(self) -> str:
        """The attribute of the parsed arguments that holds the value."""
        if self.key is not None:
            return self.key
        return max(self.names, key=len).lstrip("-").replace("-", "_").lower()

    @property
    def placeholder(self) -> str:
        """The value's name in help; empty for a flag."""
        if self.value is Value.FLAG:
            return ""
        default = "|".join(self.choices) or max(self.names, key=len).lstrip("-").upper()
        return _split_form(self.form)["value"] or default

    @property
    def heading(self) -> str:
        """The argument in the list of arguments: ``-n, --count N``, ``PATTERN|TID``."""
        if not self.is_option:
            return self.placeholder
        return f"{', '.join(self.names)} {self.placeholder}".rstrip()

    @property
    def full_help(self) -> str:
        """The help, which marks a required option."""
        if not self.is_required:
            return self.help
        return f"{self.help}; required"

    @property
    def usage(self) -> str:
        """The argument in the usage line: ``[--mode M]``, ``[PATTERN|TID…]``."""
        dots = _split_form(self.form)["dots"] or ""
        if self.is_option:
            text = f"{self.names[0]} {self.placeholder}".rstrip()
            if not self.is_required:
                text = f"[{text}]"
            return text + dots
        text = self.placeholder + dots
        if self.count in (Count.OPTIONAL, Count.ANY):
            return f"[{text}]"
        return text


_FORM: Final = re.compile(
    r"(?P<names>[^ ,]+(?:, [^ ,]+)*) ?(?P<bracket>\[?)(?P<value>.*?)(?P<dots>(?<!,)…)?\]?"
)


@cache
def _split_form(form: str) -> re.Match[str]:
    parts = _FORM.fullmatch(form)
    assert parts is not None
    return parts


def convert(argument: Argument, word: str) -> Any:
    """Convert a word to an argument's value.

    :raises WordError: when it is not valid.
    """
    if not word and not argument.takes_rest:
        # An unset variable of a shell is an empty word.
        raise WordError(f"{argument.placeholder} is empty", word)
    if argument.choices and word not in argument.choices:
        raise WordError(
            f"'{word}' is not one of {', '.join(argument.choices)}",
            word,
            hint=suggest(word, argument.choices),
        )
    read, noun = _READERS.get(argument.value, (str, ""))
    try:
        return read(word)
    except ValueError:
        raise WordError(f"'{word}' is not {noun}", word) from None


def matches_name(word: str, names: Iterable[str]) -> bool:
    """Return whether a word is a pattern of one of these names, or a part of one."""
    return any(word in name or fnmatchcase(name, word) for name in names)


def select_rows(
    rows: Iterable[_Row], words: Sequence[str], matches: Callable[[_Row, str], bool]
) -> tuple[list[_Row], list[str]]:
    """Return the rows that any word selects, or without words all rows; and the words that select
    no row.
    """
    if not words:
        return list(rows), []
    found: list[_Row] = []
    met: set[str] = set()
    for row in rows:
        matching = [word for word in words if matches(row, word)]
        met.update(matching)
        if matching:
            found.append(row)
    return found, [word for word in dict.fromkeys(words) if word not in met]


def parse_address(word: str) -> int:
    """Parse a hexadecimal address, with or without 0x.

    :raises ValueError: when it is not one.
    """
    value = int(word, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(word)
    return value


def _parse_number(word: str) -> int:
    value = int(word, 0)
    if value < 0:
        raise WordError(f"'{word}' is negative; the least number is 0", word)
    if value > LARGEST_NUMBER:
        raise WordError(f"'{word}' is too large, at most {LARGEST_NUMBER} is possible", word)
    return value


def _parse_seconds(word: str) -> float:
    unit = _UNITS.get(word[-1:])
    value = float(word) if unit is None else float(word[:-1]) * unit
    # Python reads "nan" and "inf" as numbers.
    if not 0 <= value <= _LONGEST_TIME:
        raise ValueError(word)
    return value


def _parse_buffer_name(word: str) -> str:
    if len(word) < 2 or word[0] != "@":
        raise ValueError(word)
    return word


# Kind of a value -> its parser, and a noun for messages.
_READERS: Final[Mapping[Value, tuple[Callable[[str], Any], str]]] = {
    Value.ADDRESS: (parse_address, "an address"),
    Value.MODE: (lambda word: word.upper().replace("-", "_").removeprefix("KCOV_MODE_"), "a mode"),
    Value.NUMBER: (_parse_number, "a number"),
    Value.SECONDS: (_parse_seconds, f"a number of seconds up to {_LONGEST_TIME:.0f}"),
    Value.BUFFER_NAME: (_parse_buffer_name, "a name for a kept buffer, such as @before"),
}
