# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's settings, from ``~/.config/kcovdbg/config.toml``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kcovdbg.engine.command import CommandTable
from kcovdbg.engine.command_line import parse_line
from kcovdbg.engine.suggestions import suggest
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.limits import parse_limit
from kcovdbg.render.theme import Color
from kcovdbg.user_folder import find_user_folder

FILE: Final = "config.toml"
DEFAULT: Final = "default"
"""The origin of a setting that has its default value."""
KEYS: Final = ("auto", "emacs", "vi")
"""The key bindings of the shell; ``auto`` takes vi's if the user's editor is vi."""
_TABLE: Final = re.compile(r"\s*\[([^]]+)\]")
_KEY: Final = re.compile(r"""\s*("[^"]*"|'[^']*'|[\w-]+)\s*=""")
_TOML_LINE: Final = re.compile(r"(.*) \(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the file says; a setting that it lacks has its default."""

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

    def origin(self, name: str) -> str:
        """Return where a setting comes from: ``FILE:LINE`` or :data:`DEFAULT`."""
        return f"{self.path}:{self.lines[name]}" if name in self.lines else DEFAULT

    def expand(self, words: Sequence[str]) -> list[str]:
        """Return the words of a command with its alias replaced; an alias within an alias is not."""
        return [*self.aliases.get(words[0], (words[0],)), *words[1:]]


def read_settings(commands: CommandTable, environment: Mapping[str, str]) -> Settings:
    """Read the file.

    :param commands: the commands that it can name.
    :raises KcovdbgError: when something in it is wrong.
    """
    folder = find_user_folder("config", environment).path
    path = None if folder is None else folder / FILE
    try:
        text = None if path is None else path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise KcovdbgError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    return Settings() if path is None or text is None else _File(path, text, commands).settings()


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ModuleNotFoundError:
        raise KcovdbgError(f"{path}: this Python cannot read TOML", hint="install tomli for it, or move the file") from None
    try:
        parsed: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _TOML_LINE.fullmatch(str(error))
        # Otherwise it is at the end of the document.
        line = max(len(text.splitlines()), 1) if place is None else int(place[2])
        message = str(error) if place is None else place[1]
        raise KcovdbgError(f"{path}:{line}: {message[0].lower()}{message[1:]}") from None
    return parsed


class _File:
    """One configuration file."""

    def __init__(self, path: Path, text: str, commands: CommandTable) -> None:
        self._path = path
        self._text = text
        self._commands = commands
        self._parsed = _parse(path, text)
        self._lines = {name: self._line(name) for name in self._names()}

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
        values: dict[str, Any] = {}
        for name, value in self._parsed.items():
            if name not in readers:
                raise self._error(name, f"unknown setting '{name}'", suggest(name, readers))
            key, read = readers[name]
            values[key] = read(name, value)
        return Settings(path=self._path, lines=self._lines, **values)

    def _names(self) -> list[str]:
        tables = ("columns", "aliases", "substitute-paths", "limits")
        within = [
            f"{table}.{key}" for table in tables if isinstance(self._parsed.get(table), dict) for key in self._parsed[table]
        ]
        return [*self._parsed, *within]

    def _line(self, name: str) -> int:
        """Return the line of a setting; TOML's parsers do not tell."""
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

    def _error(self, name: str, problem: str, hint: str | None = None) -> KcovdbgError:
        return KcovdbgError(f"{self._path}:{self._line(name)}: {problem}", hint=hint)

    def _text_of(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self._error(name, f'{name}: expected a string, such as "less"')
        return value

    def _choice(self, name: str, value: Any, choices: Sequence[str]) -> str:
        if value not in choices:
            raise self._error(name, f"{name}: '{value}' is not one of {', '.join(choices)}")
        return str(value)

    def _texts(self, name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._error(name, f'{name}: expected a list of strings, such as ["a", "b"]')
        return tuple(value)

    def _table(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(
                name, f"{name}: expected a table", f"write [{name}] on a line of its own, and its entries below it"
            )
        return value

    def _substitutions(self, name: str, value: Any) -> tuple[tuple[str, str], ...]:
        return tuple((old, self._text_of(f"{name}.{old}", new)) for old, new in self._table(name, value).items())

    def _limits(self, name: str, value: Any) -> dict[str, int]:
        found: dict[str, int] = {}
        for word, text in self._table(name, value).items():
            try:
                found[word] = parse_limit(word, str(text))
            except KcovdbgError as error:
                raise self._error(f"{name}.{word}", str(error), error.hint) from None
        return found

    def _columns(self, name: str, value: Any) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for word, columns in self._table(name, value).items():
            its_name = f"{name}.{word}"
            if word not in self._commands:
                raise self._error(its_name, f"unknown command '{word}'", suggest(word, self._commands.names))
            found[self._commands.find(word).name] = self._texts(its_name, columns)
        return found

    def _aliases(self, name: str, value: Any) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for alias, text in self._table(name, value).items():
            its_name = f"{name}.{alias}"
            if alias in self._commands:
                raise self._error(its_name, f"alias '{alias}' is the name of a command")
            try:
                line = parse_line(self._text_of(its_name, text))
                words = tuple(word.text for word in line.words)
                if words:
                    self._commands.find(words[0])
            except UsageError as error:
                raise self._error(its_name, f"alias '{alias}': {error}", error.hint) from None
            if not words or line.pipeline or line.redirection or line.is_background:
                raise self._error(its_name, f"alias '{alias}': expected a command with arguments, without pipe or redirection")
            found[alias] = words
        return found
