# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's settings, from ``~/.config/kcovdbg/config.toml``."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from kcovdbg.console.command import CommandTable
from kcovdbg.console.command_line import parse_line
from kcovdbg.console.renderable import suggest
from kcovdbg.console.terminal import Color
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.limits import parse_limit
from kcovdbg.user_folder import find_user_folder

FILE: Final = "config.toml"
DEFAULT: Final = "default"
"""The origin of a setting that has its default value."""
KEYS: Final = ("auto", "emacs", "vi")
"""The key bindings of the shell; ``auto`` takes vi's if the user's editor is vi."""
# Lines before that of an error, where its cause is looked for.
_MAX_DISTANCE: Final = 100
_T = TypeVar("_T")
_TABLE: Final = re.compile(r"\s*\[([^]]+)\]")
_KEY: Final = re.compile(r"""\s*("[^"]*"|'[^']*'|[\w-]+)\s*=""")
_TOML_LINE: Final = re.compile(r"(.*) \(at line (\d+), column \d+\)")


class Problem(NamedTuple):
    """Something in the file that is not used."""

    place: str
    """``FILE:LINE``, or the file."""
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in the file; a setting that it lacks, or has wrong, has its default."""

    path: Path | None = None
    """The file; None where there is none."""
    color: Color = Color.AUTO
    pager: str | None = None
    """The shell command of the pager; None for the environment's."""
    keys: str = "auto"
    source_dirs: tuple[str, ...] = ()
    substitute_paths: tuple[tuple[str, str], ...] = ()
    symbol_tables: tuple[str, ...] = ()
    """Location tables that were built elsewhere; a kernel takes the one of its build."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns in text of a command, by its name."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The words that an alias stands for, by its name."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits for inputs, by their names in :mod:`kcovdbg.limits`, in bytes or seconds."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each setting, such as ``pager`` or ``columns.tasks``."""
    problems: tuple[Problem, ...] = ()

    def origin(self, name: str) -> str:
        """Return where a setting comes from: ``FILE:LINE`` or :data:`DEFAULT`."""
        return f"{self.path}:{self.lines[name]}" if name in self.lines else DEFAULT

    def expand(self, words: Sequence[str]) -> list[str]:
        """Return the words of a command with its alias replaced; an alias within an alias is not."""
        return [*self.aliases.get(words[0], (words[0],)), *words[1:]]


def read_settings(commands: CommandTable, environment: Mapping[str, str]) -> Settings:
    """Read the file.

    :param commands: the commands that it can name.
    """
    folder = find_user_folder("config", environment).path
    path = None if folder is None else folder / FILE
    try:
        text = None if path is None else path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        return Settings(path, problems=(Problem(str(path), f"cannot be read: {reason}"),))
    return Settings() if path is None or text is None else _File(path, text, commands).settings()


class _LineError(NamedTuple):
    number: int
    message: str


def _parse(lines: Sequence[str]) -> dict[str, Any] | _LineError:
    """Return what the lines of a file say, or where they are wrong.

    :raises ModuleNotFoundError: when this Python cannot read TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        parsed: dict[str, Any] = tomllib.loads("\n".join(lines) + "\n")
    except tomllib.TOMLDecodeError as error:
        place = _TOML_LINE.fullmatch(str(error))
        message = str(error) if place is None else place[1]
        # Otherwise it is at the end of the document.
        last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)
        return _LineError(last if place is None else min(int(place[2]), last), f"{message[0].lower()}{message[1:]}")
    return parsed


def _parse_good_lines(lines: Sequence[str]) -> tuple[dict[str, Any], list[_LineError]]:
    """Return what the lines of a file say without those that are wrong, and these."""
    good = list(lines)
    wrong: list[_LineError] = []
    while isinstance(parsed := _parse(good), _LineError):
        number = parsed.number
        # A bracket or a quote that is not closed is found in a later line.
        for candidate in range(number, max(number - _MAX_DISTANCE, 0), -1):
            if not isinstance(_parse([*good[: candidate - 1], "", *good[candidate:]]), _LineError):
                number = candidate
                break
        good[number - 1] = ""
        wrong.append(parsed._replace(number=number))
    return parsed, wrong


class _File:
    """One configuration file."""

    def __init__(self, path: Path, text: str, commands: CommandTable) -> None:
        self._path = path
        self._text = text
        self._commands = commands
        self._parsed: dict[str, Any] = {}
        self._problems: list[Problem] = []

    def settings(self) -> Settings:
        readers: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
            "color": ("color", lambda name, value: Color(self._choice(name, value, [color.value for color in Color]))),
            "pager": ("pager", self._text_of),
            "keys": ("keys", lambda name, value: self._choice(name, value, KEYS)),
            "source-dirs": ("source_dirs", self._texts),
            "substitute-paths": ("substitute_paths", self._substitutions),
            "symbol-tables": ("symbol_tables", self._texts),
            "columns": ("columns", self._columns),
            "aliases": ("aliases", self._aliases),
            "limits": ("limits", self._limits),
        }
        try:
            self._parsed, wrong = _parse_good_lines(self._text.splitlines())
        except ModuleNotFoundError:
            problem = Problem(str(self._path), "this Python cannot read TOML", "install tomli for it, or move the file")
            return Settings(self._path, problems=(problem,))
        self._problems = [Problem(f"{self._path}:{number}", message) for number, message in wrong]
        values: dict[str, Any] = {}
        for name, value in self._parsed.items():
            with self._noting(name):
                if name not in readers:
                    raise KcovdbgError(f"unknown setting '{name}'", hint=suggest(name, readers))
                key, read = readers[name]
                values[key] = read(name, value)
        lines = {name: self._line(name) for name in self._names()}
        return Settings(path=self._path, lines=lines, problems=tuple(self._problems), **values)

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Note an error in a block about a setting, which is then not used."""
        try:
            yield
        except KcovdbgError as error:
            self._problems.append(Problem(f"{self._path}:{self._line(name)}", str(error), error.hint))

    def _names(self) -> list[str]:
        tables = ("columns", "aliases", "substitute-paths", "limits")
        within = [
            f"{table}.{key}" for table in tables if isinstance(self._parsed.get(table), dict) for key in self._parsed[table]
        ]
        return [*self._parsed, *within]

    def _line(self, name: str) -> int:
        """Return the line of a setting; TOML's parsers do not return it."""
        table, _, key = name.partition(".")
        current = ""
        for number, line in enumerate(self._text.splitlines(), 1):
            header = _TABLE.match(line)
            if header:
                current = header[1].strip()
                if current == name:
                    return number
                continue
            found = _KEY.match(line)
            left = found[1].strip("\"'") if found else ""
            # The last is a table within a line.
            if (current, left) in ((table, key), ("", name), ("", table)):
                return number
        return 1

    def _text_of(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise KcovdbgError(f'{name}: expected a string, such as "less"')
        return value

    def _choice(self, name: str, value: Any, choices: Sequence[str]) -> str:
        if value not in choices:
            raise KcovdbgError(f"{name}: '{value}' is not one of {', '.join(choices)}")
        return str(value)

    def _texts(self, name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise KcovdbgError(f'{name}: expected a list of strings, such as ["a", "b"]')
        return tuple(value)

    def _table(self, name: str, value: Any, read: Callable[[str, str, Any], tuple[str, _T]]) -> dict[str, _T]:
        """Return the entries of a table that are right.

        :param read: takes the entry's full name, its key and its value; returns the key and the value to use.
        """
        if not isinstance(value, dict):
            raise KcovdbgError(
                f"{name}: expected a table", hint=f"write [{name}] on a line of its own, and its entries below it"
            )
        found: dict[str, _T] = {}
        for key, entry in value.items():
            with self._noting(f"{name}.{key}"):
                new, use = read(f"{name}.{key}", key, entry)
                found[new] = use
        return found

    def _substitutions(self, name: str, value: Any) -> tuple[tuple[str, str], ...]:
        return tuple(self._table(name, value, lambda full, old, new: (old, self._text_of(full, new))).items())

    def _limits(self, name: str, value: Any) -> dict[str, int]:
        return self._table(name, value, lambda _, word, text: (word, parse_limit(word, str(text))))

    def _columns(self, name: str, value: Any) -> dict[str, tuple[str, ...]]:
        def read(full: str, word: str, columns: Any) -> tuple[str, tuple[str, ...]]:
            if word not in self._commands:
                raise KcovdbgError(f"unknown command '{word}'", hint=suggest(word, self._commands.names))
            return self._commands.find(word).name, self._texts(full, columns)

        return self._table(name, value, read)

    def _aliases(self, name: str, value: Any) -> dict[str, tuple[str, ...]]:
        def read(full: str, alias: str, text: Any) -> tuple[str, tuple[str, ...]]:
            if alias in self._commands:
                raise KcovdbgError(f"alias '{alias}' is the name of a command")
            try:
                line = parse_line(self._text_of(full, text))
                words = tuple(word.text for word in line.words)
                if words:
                    self._commands.find(words[0])
            except UsageError as error:
                raise KcovdbgError(f"alias '{alias}': {error}", hint=error.hint) from None
            if not words or line.pipeline or line.redirection or line.is_background:
                raise KcovdbgError(f"alias '{alias}': expected a command with arguments, without pipe or redirection")
            return alias, words

        return self._table(name, value, read)
