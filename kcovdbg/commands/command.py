# SPDX-License-Identifier: LGPL-2.1-or-later
"""A command as data, and the table of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.suggest import suggest
from kcovdbg.errors import UsageError
from kcovdbg.render.renderable import Renderable

if TYPE_CHECKING:
    from kcovdbg.commands.session import Context

Answer: TypeAlias = Renderable | Iterable[Renderable] | None


class Need(str, Enum):
    """What a command can't do without."""

    TARGET = "a kernel to look at"
    LIVE = "a running kernel"
    NATIVE = "the native collector"
    TERMINAL = "a terminal"
    SOURCE_LINES = "debug info with source lines"


@dataclass(frozen=True, slots=True)
class Example:
    """A line to type, and what for."""

    line: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command: everything that parsers, help, completion, the man page and the frontends know about it."""

    name: str
    summary: str
    """One line."""
    run: Callable[[Context, Namespace], Answer]
    """Returns what to show. May set ``context.status``."""
    description: str = ""
    """What the summary doesn't say: paragraphs, separated by empty lines."""
    arguments: tuple[Argument, ...] = ()
    examples: tuple[Example, ...] = ()
    needs: frozenset[Need] = frozenset({Need.TARGET})
    aliases: tuple[str, ...] = ()
    keeps_separator: bool = False
    """Whether ``--`` among its words separates two lists of them."""
    failed: int = 2
    """The exit status when it fails itself; of one that passes on another program's, something that tells the two apart."""
    start: Callable[[Context, Namespace, Sequence[str]], Answer] | None = None
    """Starts it in the background, for a line that ends with ``&``, from its words without its name; None where it can't."""
    endless: bool = False
    """Whether it answers until it is stopped: then no pager may stand between it and the terminal."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def usage(self) -> str:
        """The command with its arguments, as in ``tasks [-a] [--mode M] [PATTERN|TID…]``."""
        return " ".join([self.name, *(argument.usage for argument in self.arguments)])

    @property
    def further_needs(self) -> tuple[str, ...]:
        """What it can't do without beside a kernel to look at, in words."""
        return tuple(need.value for need in Need if need in self.needs and need is not Need.TARGET)

    @property
    def takes_rest(self) -> bool:
        """Whether another command's words follow."""
        return any(argument.count is Count.REST for argument in self.arguments)


COMMON_OPTIONS = (
    Argument(("--json",), Value.FLAG, "write one JSON array", default=False),
    Argument(("--csv",), Value.FLAG, "write CSV with the same keys", default=False),
    Argument(("-h", "--help"), Value.FLAG, "tell about the command", default=False),
)
"""Every command has these."""


class CommandTable:
    """The commands, by their names and aliases.

    :param commands: in the order of help.
    """

    def __init__(self, commands: Iterable[Command]) -> None:
        self._commands = tuple(commands)
        self._by_name = {name: command for command in self._commands for name in command.names}

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def find(self, name: str) -> Command:
        """Return the command with this name or alias.

        :raises UsageError: when there is none.
        """
        try:
            return self._by_name[name]
        except KeyError:
            hint = suggest(name, self._by_name) or "help lists the commands"
            raise UsageError(f"no command is called {name}", hint=hint) from None

    @property
    def names(self) -> tuple[str, ...]:
        """All names and aliases."""
        return tuple(self._by_name)

    def with_commands(self, *commands: Command) -> CommandTable:
        """Return a table with further commands."""
        return CommandTable((*self._commands, *commands))
