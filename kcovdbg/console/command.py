# SPDX-License-Identifier: LGPL-2.1-or-later
"""A command as data, the parser of its arguments, and the table of commands."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final, NoReturn, TypeAlias

from kcovdbg.console.argument import SEPARATOR, Argument, Count, Value, convert
from kcovdbg.console.column import RowType
from kcovdbg.console.renderable import Renderable
from kcovdbg.errors import WordError, find_similar, suggest

CommandResult: TypeAlias = Renderable | Iterable[Renderable] | None
"""The result of a handler, to be shown."""


class Need(str, Enum):
    """A necessity of a command."""

    KERNEL = "a kernel"
    NAMES = "a kernel's names"
    POINTS = "a kernel's coverage points"
    CODE = "a kernel's code"
    MEMORY = "a kernel's memory"


class Topic(str, Enum):
    """The groups of commands, in the order of help."""

    STATE = "KCOV's state"
    BUFFERS = "Buffers"
    COLLECTION = "Traces"
    OUTPUT = "Files"
    OTHER = "Shell and other programs"
    MAINTENANCE = "Maintenance"


@dataclass(frozen=True, slots=True)
class Example:
    """A line to type, and its purpose."""

    line: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command: everything that parsers, help, completion, the man page and the frontends know
    about it.
    """

    name: str
    summary: str
    """One line."""
    run: Callable[[Any, Namespace], CommandResult]
    """The handler. Its first argument is a :class:`~kcovdbg.console.context.Context`, which has a
    command itself and therefore cannot be named here. It may set the context's ``status``."""
    topic: Topic = Topic.OTHER
    description: str = ""
    """Help beyond the summary: paragraphs, separated by empty lines."""
    arguments: tuple[Argument, ...] = ()
    examples: tuple[Example, ...] = ()
    row_types: tuple[RowType, ...] = ()
    """The rows that it writes as JSON; empty if it writes none, or the rows of another command."""
    needs: frozenset[Need] = frozenset({Need.MEMORY})
    """Needs that are checked before it runs. What only some arguments need, such as memory for a
    buffer, is checked when it is used.
    """
    aliases: tuple[str, ...] = ()
    former_names: tuple[str, ...] = ()
    """Names that still work, and that nothing lists."""
    keeps_separator: bool = False
    """Whether ``--`` among its words separates two lists of them."""
    failed: int = 2
    """The exit status if the command itself fails; not 2 if the command otherwise has the status of
    another program.
    """
    start: Callable[[Any, Namespace, Sequence[str]], CommandResult] | None = None
    """Starts the command in the background, for a line that ends with ``&``: called with a context,
    the arguments, and the words after the command's name. None if the command cannot run there.
    """
    endless: bool = False
    """Whether it runs until it is stopped, so that its output cannot go through a pager."""
    acts: bool = False
    """Whether it runs programs, writes files of its own or changes a machine, besides writing the
    files of its arguments.
    """

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
        has_rows = bool(self.row_types) or any(
            argument.value is Value.COMMAND for argument in self.arguments
        )
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
        return any(argument.takes_rest for argument in self.arguments)


OUTPUT_OPTIONS = (
    Argument("--json", Value.FLAG, "write one JSON array", default=False),
    Argument(
        "--jsonl",
        Value.FLAG,
        "write one JSON object per line, each as soon as it is known",
        default=False,
    ),
    Argument("--csv", Value.FLAG, "write CSV with the same keys", default=False),
    Argument(
        "--fields A,B,…",
        Value.KEYS,
        "write only these keys, in this order, with --json, --jsonl and --csv",
    ),
    Argument(
        "--columns A,B,…",
        Value.COLUMNS,
        "show these columns, named by heading or key, in this order",
    ),
    Argument("--wide", Value.FLAG, "show all columns, and all text in them", default=False),
    Argument("--vertical", Value.FLAG, "show a line for each value", default=False),
    Argument(
        "--sort COLUMN",
        Value.COLUMNS,
        "sort the rows by a column, named by heading or key; --sort=-COLUMN inverts",
    ),
    Argument("-n N", Value.NUMBER, "show at most N rows", key="most_rows"),
)
"""Options of every command that has rows, unless it has one of that name itself."""
BUFFERS_TOPIC: Final = "buffers"
"""A topic of ``help`` beside commands: buffer names, and the options for trace files."""
HELP_OPTION = Argument("-h, --help", Value.FLAG, "show help for this command", default=False)


_ANSWERS: Final = (
    ("gdb-path", "gdb --path prints the path"),
    ("tree", "trace shows the calls of a buffer with entry and exit records"),
    ("watch", "monitor --print prints what changes; monitor watches on a screen"),
    ("bt backtrace where", "last shows stacks: last TID"),
    ("foreach", "last --all shows the stacks of all tasks with KCOV state"),
    ("dmesg", "log shows the kernel's log"),
    ("ps threads thread", "tasks -a lists all tasks"),
    ("task", "tasks TID shows a task"),
    ("set", "tasks TID shows a task; kcovdbg has no current one"),
    ("sys mach", "info shows the kernel"),
    ("registers", "last TID shows a stack; for registers: gdb"),
    ("mod", "info --json lists what is known of the kernel; -s FILE.ko loads a module's names"),
    ("runq", "tasks -a --columns pid,comm,cpu lists tasks with their CPUs"),
    ("files", "objects TID lists the descriptors of KCOV's files"),
    ("vm", "objects TID lists the mappings of KCOV's buffers"),
    ("kmem", "areas lists the memory of remote sections"),
    ("symbol", "sym ADDRESS names an address, sym FUNCTION+0x10 locates one"),
    ("disassemble dis", "points FUNCTION lists its coverage points; for instructions: gdb"),
    ("list l", "source WHAT shows source text"),
    ("struct union rd x p print", "for types and memory: gdb, or drgn with %kcov"),
    ("break", "catch stops a kernel at a wrong write; for breakpoints: gdb"),
    ("continue c", "resume lets a kernel go on that kcovdbg has stopped"),
)
"""Commands of crash(8), of GDB and of former versions, and hints at kcovdbg's own."""
FOREIGN_WORDS: Final[Mapping[str, str]] = {
    word: answer for words, answer in _ANSWERS for word in words.split()
}


class CommandTable:
    """The commands, by their names and aliases.

    :param commands: all commands, in any order; the table sorts them by topic and name. They are
        read only if load() does not know a name: the modules of all take ten megabytes.
    :param load: returns the command with a name, or None.
    """

    def __init__(
        self,
        commands: Iterable[Command],
        load: Callable[[str], Command | None] = lambda _name: None,
    ) -> None:
        self._given = commands
        self._load = load

    @cached_property
    def _commands(self) -> tuple[Command, ...]:
        topics = list(Topic)
        return tuple(
            sorted(self._given, key=lambda command: (topics.index(command.topic), command.name))
        )

    @cached_property
    def _by_name(self) -> Mapping[str, Command]:
        by_name = {}
        for command in self._commands:
            by_name.update(dict.fromkeys((*command.names, *command.former_names), command))
        return by_name

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands)

    def __contains__(self, name: object) -> bool:
        # A path is no name of a command.
        if not isinstance(name, str) or "/" in name:
            return False
        return self._load(name) is not None or name in self._by_name

    def find(self, name: str) -> Command:
        """Return the command with a name or alias, or the only command whose name begins so.

        :raises WordError: when there is no such command, or more than one.
        """
        loaded = self._load(name) or self._by_name.get(name)
        if loaded is not None:
            return loaded
        # A beginning of a name has precedence over one of an alias.
        names = (command.name for command in self._commands)
        for known in (names, self._by_name):
            matching = [text for text in known if name and text.startswith(name)]
            found = {self._by_name[text].name for text in matching}
            if len(found) == 1:
                return self._by_name[found.pop()]
            if found:
                hint = f"one of {', '.join(sorted(found))}"
                raise WordError(f"ambiguous command '{name}'", name, hint=hint)
        hint = FOREIGN_WORDS.get(name) or suggest(name, self._by_name) or "help lists the commands"
        raise WordError(f"unknown command '{name}'", name, hint=hint)

    @property
    def names(self) -> tuple[str, ...]:
        """All names and aliases."""
        return tuple(self._by_name)

    def with_commands(self, *commands: Command) -> CommandTable:
        """Return a table with further commands."""
        return CommandTable((*self._commands, *commands))


NARGS = {Count.OPTIONAL: "?", Count.ANY: "*", Count.SOME: "+", Count.REST: argparse.REMAINDER}

FORMATS: Final = ("json", "jsonl", "csv")
"""The options of :data:`OUTPUT_OPTIONS` that choose the format of an answer."""

# Not a word that a user can type.
_KEPT_SEPARATOR = "\0--"


class _Parser(ArgumentParser):
    """A parser that raises instead of exiting, and prints nothing."""

    command: Command

    def error(self, message: str) -> NoReturn:
        missing = message.startswith("the following arguments are required")
        raise WordError(
            f"{self.command.name}: {message}",
            None,
            hint=f"usage: {self.command.usage}" if missing else None,
        )


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
        options |= {"dest": argument.attribute, "required": argument.is_required}
    if argument.value is Value.FLAG:
        options["action"] = "store_true"
    else:
        options |= {"type": read, "metavar": argument.placeholder, "default": argument.default}
        if argument.is_option and argument.count in (Count.ANY, Count.SOME):
            options["action"] = "append"
        elif argument.count in NARGS:
            options["nargs"] = NARGS[argument.count]
    names = argument.names if argument.is_option else (argument.attribute,)
    parser.add_argument(*names, **options)


def parse_arguments(command: Command, words: Sequence[str]) -> Namespace:
    """Parse the words that follow a command's name.

    :raises WordError: when they are wrong.
    """
    parser = make_parser(command)
    # Show help even if other words are wrong or missing.
    own = words[: words.index("--")] if "--" in words else words
    if not command.takes_rest and ("--help" in own or "-h" in own):
        return _only_help(own)
    if command.takes_rest:
        if words and words[0] in ("-h", "--help"):
            return _only_help(())
        if all(argument.takes_rest for argument in command.arguments):
            # All words are for another program, including options.
            rest = _without_separator(words)
            return Namespace(**common_defaults() | {command.arguments[0].attribute: rest})
        args, extra = parser.parse_known_args(words)
        for argument in command.arguments:
            if argument.takes_rest:
                rest = _without_separator(getattr(args, argument.attribute))
                setattr(args, argument.attribute, rest)
    else:
        if command.keeps_separator:
            # argparse would drop the separator as the end of options.
            words = [_KEPT_SEPARATOR if word == SEPARATOR else word for word in words]
        # Options may come between positional arguments.
        args, extra = parser.parse_known_intermixed_args(words)
        for value in vars(args).values():
            if isinstance(value, list) and _KEPT_SEPARATOR in value:
                value[:] = [SEPARATOR if word == _KEPT_SEPARATOR else word for word in value]
    if extra:
        raise _refuse(command, extra[0])
    args = Namespace(**common_defaults() | vars(args))
    formats = [name for name in FORMATS if getattr(args, name)]
    if len(formats) > 1:
        first, second = (f"--{name}" for name in formats[:2])
        raise WordError(f"{command.name}: {first} and {second} cannot be combined", second)
    return args


def _without_separator(words: Sequence[str]) -> list[str]:
    """Return another program's words without the ``--`` before them."""
    if words and words[0] == SEPARATOR:
        words = words[1:]
    return list(words)


def _convert(command: Command, argument: Argument, word: str) -> Any:
    try:
        return convert(argument, word)
    except WordError as error:
        # The likeliest cause is a wrong order of words: show the usage.
        if error.hint is None and not argument.is_option:
            error.hint = f"usage: {command.usage}"
        raise


def common_defaults() -> dict[str, Any]:
    return {argument.attribute: argument.default for argument in (*OUTPUT_OPTIONS, HELP_OPTION)}


def _only_help(words: Sequence[str]) -> Namespace:
    return Namespace(
        **common_defaults() | {"help": True} | {name: f"--{name}" in words for name in FORMATS}
    )


# Options of other programs, and those that do the same here.
_FOREIGN_OPTIONS: Final = {
    **dict.fromkeys(("last", "end", "bottom"), ("--tail", "-n")),
    **dict.fromkeys(("first", "head", "top", "limit", "lines", "count", "number"), ("-n",)),
}


def suggest_option(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known options that an unknown one may mean, None where there are
    none.
    """
    # The name without dashes -> the option.
    names = {option.lstrip("-"): option for option in known}
    plain = name.lstrip("-")
    near = [names[similar] for similar in find_similar(plain, names)]
    foreign = [option for option in _FOREIGN_OPTIONS.get(plain, ()) if option in names.values()]
    meant = foreign or near
    return f"did you mean {' or '.join(meant)}?" if meant else None


def _refuse(command: Command, word: str) -> WordError:
    if word.startswith("-") and word != "-":
        options = (option.names for option in command.options if option.is_option)
        name = word.split("=", 1)[0]
        problem = f"unknown option '{name}'"
        hint = suggest_option(name, chain.from_iterable(options))
    else:
        problem = f"unexpected argument '{word}'"
        hint = FOREIGN_WORDS.get(word)
    usage = f"usage: {command.usage}"
    return WordError(f"{command.name}: {problem}", word, hint=hint or usage)
