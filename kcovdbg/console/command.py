# SPDX-License-Identifier: LGPL-2.1-or-later
"""A command as data, and the table of commands."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.column import RowType
from kcovdbg.console.renderable import Renderable, suggest
from kcovdbg.errors import UsageError

CommandResult: TypeAlias = Renderable | Iterable[Renderable] | None
"""The result of a handler, to be shown."""


class Need(str, Enum):
    """A necessity of a command."""

    NAMES = "a kernel's names"
    POINTS = "a kernel's coverage points"
    CODE = "a kernel's code"
    MEMORY = "a kernel's memory"
    LIVE = "a running kernel"
    TERMINAL = "a terminal"


class Topic(str, Enum):
    """The groups of commands, in the order of help."""

    STATE = "KCOV's state"
    BUFFERS = "Buffers"
    COLLECTION = "Traces"
    OUTPUT = "Files"
    OTHER = "Shell and other programs"


@dataclass(frozen=True, slots=True)
class Example:
    """A line to type, and its purpose."""

    line: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command: everything that parsers, help, completion, the man page and the frontends know about it."""

    name: str
    summary: str
    """One line."""
    run: Callable[[Any, Namespace], CommandResult]
    """The handler. Its first argument is a :class:`~kcovdbg.console.context.Context`, which has a command itself and therefore
    cannot be named here. It may set the context's ``status``."""
    topic: Topic = Topic.OTHER
    description: str = ""
    """Help beyond the summary: paragraphs, separated by empty lines."""
    arguments: tuple[Argument, ...] = ()
    examples: tuple[Example, ...] = ()
    row_types: tuple[RowType, ...] = ()
    """The rows that it writes as JSON; none where it writes none, or another command's."""
    needs: frozenset[Need] = frozenset({Need.MEMORY})
    """Needs that are checked before it runs; those of some arguments, such as memory for a buffer, when they are used."""
    aliases: tuple[str, ...] = ()
    keeps_separator: bool = False
    """Whether ``--`` among its words separates two lists of them."""
    failed: int = 2
    """The exit status of a failure of the command itself; differs from 2 where the command passes on another program's."""
    start: Callable[[Any, Namespace, Sequence[str]], CommandResult] | None = None
    """Starts it in the background, for a line that ends with ``&``: takes a context, the arguments, and the words without the
    command's name. None where it cannot run there."""
    endless: bool = False
    """Whether it runs until it is stopped, so that its output cannot go through a pager."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def usage(self) -> str:
        """The command with its arguments, as in ``tasks [-a] [--mode M] [PATTERN|TID…]``."""
        return " ".join([self.name, *(argument.usage for argument in self.arguments)])

    @property
    def options(self) -> tuple[Argument, ...]:
        """Its arguments, and the options that it shares with other commands."""
        has_rows = bool(self.row_types) or any(argument.value is Value.COMMAND for argument in self.arguments)
        own = {name for argument in self.arguments for name in argument.names}
        shared = (option for option in OUTPUT_OPTIONS if has_rows and own.isdisjoint(option.names))
        return (*self.arguments, *shared, HELP_OPTION)

    @property
    def further_needs(self) -> tuple[str, ...]:
        """Its needs besides a kernel's memory, in words."""
        return tuple(need.value for need in Need if need in self.needs and need is not Need.MEMORY)

    @property
    def takes_rest(self) -> bool:
        """Whether another command's words follow."""
        return any(argument.count is Count.REST for argument in self.arguments)


OUTPUT_OPTIONS = (
    Argument(("--json",), Value.FLAG, "write one JSON array", default=False),
    Argument(("--jsonl",), Value.FLAG, "write one JSON object per line, each as soon as it is known", default=False),
    Argument(("--csv",), Value.FLAG, "write CSV with the same keys", default=False),
    Argument(
        ("--fields",), Value.KEYS, "write only these keys, in this order, with --json, --jsonl and --csv", metavar="A,B,…"
    ),
    Argument(("--columns",), Value.COLUMNS, "show these columns, named by heading or key, in this order", metavar="A,B,…"),
    Argument(("--wide",), Value.FLAG, "show all columns, and all text in them", default=False),
    Argument(("--vertical",), Value.FLAG, "show a line for each value", default=False),
    Argument(("-n",), Value.NUMBER, "show at most N rows", metavar="N", key="most_rows"),
)
"""Options of every command that has rows, unless it has one of that name itself."""
HELP_OPTION = Argument(("-h", "--help"), Value.FLAG, "show help for this command", default=False)


class CommandTable:
    """The commands, by their names and aliases.

    :param commands: in any order; the table has them by topic and name. They are taken when one is looked for that cannot be
        loaded alone: the modules of all take ten megabytes.
    :param load: returns the command with a name, None where it does not know one.
    """

    def __init__(self, commands: Iterable[Command], load: Callable[[str], Command | None] = lambda _name: None) -> None:
        self._given = commands
        self._load = load

    @cached_property
    def _commands(self) -> tuple[Command, ...]:
        topics = list(Topic)
        return tuple(sorted(self._given, key=lambda command: (topics.index(command.topic), command.name)))

    @cached_property
    def _by_name(self) -> Mapping[str, Command]:
        return {name: command for command in self._commands for name in command.names}

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands)

    def __contains__(self, name: object) -> bool:
        # Paths are no names.
        return isinstance(name, str) and "/" not in name and (self._load(name) is not None or name in self._by_name)

    def find(self, name: str) -> Command:
        """Return the command with this name or alias, or the only one whose name begins so.

        :raises UsageError: when there is none, or more than one.
        """
        loaded = self._load(name) or self._by_name.get(name)
        if loaded is not None:
            return loaded
        # The prefix of a name goes before that of an alias, which help shows second.
        for known in ({command.name: command for command in self._commands}, self._by_name):
            found = {command.name: command for text, command in known.items() if name and text.startswith(name)}
            if len(found) == 1:
                return next(iter(found.values()))
            if found:
                raise UsageError(f"ambiguous command '{name}'", hint=f"one of {', '.join(sorted(found))}")
        raise UsageError(f"unknown command '{name}'", hint=suggest(name, self._by_name) or "help lists the commands")

    @property
    def names(self) -> tuple[str, ...]:
        """All names and aliases."""
        return tuple(self._by_name)

    def with_commands(self, *commands: Command) -> CommandTable:
        """Return a table with further commands."""
        return CommandTable((*self._commands, *commands))
