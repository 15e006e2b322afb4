# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's settings, from ``~/.config/kcovdbg/config.toml``."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.console.command import CommandTable
from kcovdbg.console.terminal import Color
from kcovdbg.errors import KcovdbgError, suggest
from kcovdbg.limits import parse_limit
from kcovdbg.user_folder import find_user_folder

FILE: Final = "config.toml"
DEFAULT: Final = "default"
"""The origin of a setting that has its default value."""
_TABLES: Final = frozenset(("substitute-paths", "columns", "limits"))
KEYS: Final = ("auto", "emacs", "vi")
"""The key bindings of the shell; ``auto`` takes vi's if the user's editor is vi."""


# At most so many lines before an error are searched for its cause.
_MAX_DISTANCE: Final = 100
_TOML_ERROR: Final = re.compile(r"(.*) \(at line (\d+), column \d+\)")


class Problem(NamedTuple):
    """A problem of the file: the setting or the line is not used."""

    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in the file. A setting that is missing or wrong has its default."""

    path: Path | None = None
    """The file; None if there is none."""
    color: Color = Color.AUTO
    pager: str | None = None
    """The shell command of the pager; None for the environment's."""
    keys: str = "auto"
    source_dirs: tuple[str, ...] = ()
    symbol_tables: tuple[str, ...] = ()
    """Location tables that were built elsewhere; each kernel uses the table of its build."""
    substitute_paths: tuple[tuple[str, str], ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns that a command shows, by its name."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits for inputs, by their names in :mod:`kcovdbg.limits`, in bytes or seconds."""
    given: frozenset[str] = frozenset()
    """Names of the settings that the file has."""
    problems: tuple[Problem, ...] = ()

    def origin(self, name: str) -> str:
        """Return where a setting comes from: the file or :data:`DEFAULT`."""
        if name in self.given:
            return str(self.path)
        return DEFAULT


def read_settings(commands: CommandTable, environment: Mapping[str, str]) -> Settings:
    """Read the file.

    :param commands: the commands that it can name.
    """
    folder = find_user_folder("config", environment).path
    if folder is None:
        return Settings()
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}"
        return Settings(path, problems=(Problem(problem),))
    parsed, problems = _parse_good_lines(text.splitlines())
    return _read(path, parsed, problems, commands)


def _parse_good_lines(lines: list[str]) -> tuple[Mapping[str, Any], list[Problem]]:
    """Return the content of a file without wrong lines, and the problems of those lines."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    good = list(lines)
    problems: list[Problem] = []

    def is_wrong_without(number: int) -> bool:
        try:
            tomllib.loads("\n".join((*good[: number - 1], "", *good[number:])))
        except tomllib.TOMLDecodeError:
            return True
        return False

    while True:
        try:
            return tomllib.loads("\n".join(good)), problems
        except tomllib.TOMLDecodeError as error:
            text = str(error)
            last = max(number for number, line in enumerate(good, 1) if line.strip())
            # An error without a place is at the end of the document.
            found = last
            located = _TOML_ERROR.fullmatch(text)
            if located is not None:
                text = located[1]
                found = min(int(located[2]), last)
            # The parser notices an open bracket or quote in a later line: look for the nearest
            # line without which the file is right.
            before = range(found, max(found - _MAX_DISTANCE, 0), -1)
            number = next(itertools.filterfalse(is_wrong_without, before), found)
            good[number - 1] = ""
            problems.append(Problem(f"line {number}: {text}"))


def _read(
    path: Path, parsed: Mapping[str, Any], problems: Sequence[Problem], commands: CommandTable
) -> Settings:
    readers: Mapping[str, Callable[[str, str, Any], Any]] = {
        "color": lambda name, _, value: Color(_choice(name, value, [one.value for one in Color])),
        "pager": _text,
        "keys": lambda name, _, value: _choice(name, value, KEYS),
        "source-dirs": _texts,
        "symbol-tables": _texts,
        "substitute-paths": _text,
        "columns": partial(_columns, commands),
        "limits": lambda _, limit, value: parse_limit(limit, str(value)),
    }

    def read(name: str, key: str, value: Any) -> Any:
        if name not in readers:
            raise KcovdbgError(f"unknown setting '{name}'", hint=suggest(name, readers))
        if name in _TABLES and not key:
            raise KcovdbgError(
                f"{name}: expected a table", hint=f"write [{name}] on a line of its own"
            )
        return readers[name](f"{name}.{key}".removesuffix("."), key, value)

    values: dict[str, Any] = {}
    given: set[str] = set()
    wrong = list(problems)
    for name, value in parsed.items():
        attribute = name.replace("-", "_")
        is_table = name in _TABLES and isinstance(value, dict)
        entries = value if is_table else {"": value}
        for key, entry in entries.items():
            try:
                found = read(name, key, entry)
            except KcovdbgError as error:
                wrong.append(Problem(str(error), error.hint))
                continue
            given.add(name)
            if is_table:
                values.setdefault(attribute, {})[key] = found
            else:
                values[attribute] = found
    pairs = tuple(values.pop("substitute_paths", {}).items())
    return Settings(
        path, substitute_paths=pairs, given=frozenset(given), problems=tuple(wrong), **values
    )


def _columns(commands: CommandTable, name: str, word: str, value: Any) -> tuple[str, ...]:
    if word not in commands:
        raise KcovdbgError(f"unknown command '{word}'", hint=suggest(word, commands.names))
    return _texts(name, word, value)


def _text(name: str, _: str, value: Any) -> str:
    if not isinstance(value, str):
        raise KcovdbgError(f'{name}: expected a string, such as "less"')
    return value


def _choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise KcovdbgError(f"{name}: '{value}' is not one of {', '.join(choices)}")
    return str(value)


def _texts(name: str, _: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise KcovdbgError(f'{name}: expected a list of strings, such as ["a", "b"]')
    return tuple(value)
