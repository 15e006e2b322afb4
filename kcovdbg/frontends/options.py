# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program's own options."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from kcovdbg.console.argument import Argument, Count, Value, convert
from kcovdbg.console.command import FOREIGN_WORDS, CommandTable, add_argument, suggest_option
from kcovdbg.console.terminal import Color
from kcovdbg.errors import KcovdbgError, UsageError, WordError, suggest
from kcovdbg.limits import parse_limit
from kcovdbg.target.dump_file import FileKind, identify, open_file, path_hint
from kcovdbg.target.target_options import TargetOptions

if TYPE_CHECKING:
    from kcovdbg.records.input_kind import FoundKind

_HINT: Final = "kcovdbg --help lists the options"
USAGE: Final = "kcovdbg [TARGET] [-s VMLINUX]… [-e COMMAND]… [-q] [FILE… | COMMAND [ARGUMENT…]]"


class NamedInput(NamedTuple):
    """A file or a directory that the command line names without an option, beside the target."""

    path: str
    found: FoundKind


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed command line."""

    target: TargetOptions
    commands: tuple[str, ...] = ()
    """Lines to run, in order."""
    words: tuple[str, ...] = ()
    """A command with its arguments, in place of lines."""
    script: str | None = None
    """A file of lines to run; ``-`` for standard input."""
    is_script_named: bool = True
    """Whether an option names the script. Otherwise it begins with #!, and its lines may only read
    and print.
    """
    inputs: tuple[NamedInput, ...] = ()
    """Files and directories that are answered by their kind."""
    source_folders: tuple[str, ...] = ()
    symbol_table: str | None = None
    """A location table that was built elsewhere."""
    substitutions: tuple[tuple[str, str], ...] = ()
    """Prefixes of source paths: in debug info, and on this machine."""
    other_vmlinux: tuple[str, ...] = ()
    """Images and location tables of other builds."""
    other_sources: tuple[str, ...] = ()
    """The source trees of the other builds, in the same order."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits for inputs, by their names in :mod:`kcovdbg.limits`."""
    quiet: bool = False
    color: Color | None = None
    """None if the user did not name one."""
    debug: bool = False
    help: bool = False
    version: bool = False


TARGET_OPTIONS: Final = (
    Argument("-c, --core PATH", Value.FILE, "a crash dump, compressed or not, or a slice"),
    Argument("-k, --kernel", Value.FLAG, "the running kernel (default when no target is given)"),
    Argument(
        "--qemu ADDR",
        Value.TEXT,
        "a running QEMU guest, through QMP: path of a Unix socket, or host:port",
    ),
    Argument("--gdb-remote ADDR", Value.TEXT, "a GDB stub: host:port"),
    Argument("--demo", Value.FLAG, "the bundled demo dump"),
    Argument(
        "-s, --symbols PATH…",
        Value.FILE,
        "a vmlinux, a module or a folder of them; by itself a target",
    ),
    Argument("--image", Value.FLAG, "the vmlinux alone, even if it is the running kernel's"),
)
GENERAL_OPTIONS: Final = (
    Argument("-e, --execute COMMAND…", Value.COMMAND, "run a command and exit", key="commands"),
    Argument(
        "--script FILE",
        Value.FILE,
        "run the commands in FILE; - for standard input, with all that they do",
    ),
    Argument(
        "--symbol-table FILE",
        Value.FILE,
        "the kernel's location table, as written by: symbols build -o FILE",
    ),
    Argument("--source-dir PATH…", Value.FILE, "the kernel's source tree", key="source_folders"),
    Argument(
        "--substitute-path FROM=TO…",
        Value.TEXT,
        "look in TO for source that debug info has in FROM",
        key="substitutions",
    ),
    Argument(
        "--other-vmlinux FILE…",
        Value.FILE,
        "a vmlinux, table or module of another build, for its traces",
    ),
    Argument(
        "--other-source PATH…",
        Value.FILE,
        "the source tree of that build; given in the same order",
        key="other_sources",
    ),
    Argument(
        "--limit NAME=VALUE…",
        Value.TEXT,
        "how much an input may take: trace-size=1G; see help config",
        key="limits",
    ),
    Argument("-q, --quiet", Value.FLAG, "show no banner"),
    Argument(
        "--color WHEN", Value.CHOICE, "use color", choices=tuple(color.value for color in Color)
    ),
    Argument("--debug", Value.FLAG, "show where errors come from"),
    Argument("--version", Value.FLAG, "show the version"),
    Argument("-h, --help", Value.FLAG, "show this help"),
)
OPTIONS: Final = (*TARGET_OPTIONS, *GENERAL_OPTIONS)


def option_help(option: Argument) -> str:
    """Return the help of an option of the program, with the choices for its value."""
    text = option.help
    if option.count is Count.ANY:
        text += "; repeatable"
    if option.choices:
        text += f": {', '.join(option.choices)}"
    return text


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=_HINT)


def _read_word(option: Argument, word: str) -> Any:
    """Return an option's value. Refuse an empty word, because an unset variable in a script would
    open another target.
    """
    if not word and option.value is not Value.COMMAND:
        raise ArgumentTypeError("the value is empty")
    try:
        return _READERS.get(option.attribute, str)(convert(option, word))
    except WordError as error:
        raise UsageError(f"{option.names[0]}: {error}", hint=error.hint or _HINT) from None


def _parse_substitution(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not old or not equals:
        raise UsageError(
            f"--substitute-path: expected FROM=TO, not '{text}'",
            hint="for instance /build/linux=/usr/src/linux",
        )
    return old, new


def _parse_limit(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    try:
        return name, parse_limit(name, value)
    except KcovdbgError as error:
        raise UsageError(f"--limit: {error}", hint=error.hint) from None


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "substitutions": _parse_substitution,
    "limits": _parse_limit,
    "color": Color,
}


def parse_options(arguments: Sequence[str], commands: CommandTable) -> Options:
    """Parse the program's arguments.

    :raises UsageError: when they are wrong.
    """
    start = _find_command(arguments, commands)
    parser = _Parser(prog="kcovdbg", add_help=False, allow_abbrev=False)
    for option in OPTIONS:
        add_argument(parser, option, partial(_read_word, option))
    parser.add_argument("paths", nargs="*")
    args, unknown = parser.parse_known_intermixed_args(arguments[:start])
    if unknown:
        raise _refuse_option(unknown[0])
    words = tuple(arguments[start:])
    # Options that were not given have the defaults of Options.
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(args).items()
        if value is not None
    }
    files, scripts, tables, inputs = _sort_paths(given.pop("paths"), commands)
    if args.script is None and scripts:
        given |= {"script": scripts[0], "is_script_named": False}
    elif args.script is not None:
        scripts.insert(0, args.script)
    if args.symbol_table is None and tables:
        given["symbol_table"] = tables.pop(0)
    if tables:
        raise UsageError(
            f"more than one location table given: {tables[0]}",
            hint="--other-vmlinux names the vmlinux of another build",
        )
    if words and args.commands:
        raise UsageError(
            f"-e cannot be combined with the command '{words[0]}'",
            hint="give each command with its own -e",
        )
    if scripts and (words or args.commands):
        raise UsageError(
            f"script '{scripts[0]}' cannot be combined with a command", hint="give one of them"
        )
    if len(scripts) > 1:
        raise UsageError(f"more than one script given: {', '.join(scripts)}")
    if len(args.other_sources or ()) > len(args.other_vmlinux or ()):
        raise UsageError(
            "--other-source: more source trees than --other-vmlinux", hint="name a vmlinux for each"
        )
    of_target = {
        field.name: given.pop(field.name) for field in fields(TargetOptions) if field.name in given
    }
    target = TargetOptions(files=tuple(files), **of_target)
    given["limits"] = dict(given.get("limits", ()))
    return Options(target, words=words, inputs=tuple(inputs), **given)


def _find_command(arguments: Sequence[str], commands: CommandTable) -> int:
    """Return the index of the command's name: all words after it are the command's."""
    takes_value = {
        name for option in OPTIONS if option.value is not Value.FLAG for name in option.names
    }
    flags = {name for option in OPTIONS if option.value is Value.FLAG for name in option.names}
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return len(arguments)
        if word.startswith("-") and word != "-":
            # In a word of several short options, as -qe, only the last may take a value.
            is_cluster = len(word) > 2 and word[1] != "-"
            if is_cluster and all(f"-{letter}" in flags for letter in word[1:-1]):
                word = f"-{word[-1]}"
            index += 2 if word in takes_value else 1
        elif word in commands:
            return index
        else:
            index += 1
    return len(arguments)


def _refuse_option(word: str) -> UsageError:
    name = word.split("=", 1)[0]
    known = chain.from_iterable(option.names for option in OPTIONS)
    return UsageError(f"unknown option '{name}'", hint=suggest_option(name, known) or _HINT)


class _SortedPaths(NamedTuple):
    """The paths on the command line, sorted by the kind of file."""

    files: list[str]
    """Files that the target is opened from."""
    scripts: list[str]
    tables: list[str]
    inputs: list[NamedInput]


def _sort_paths(paths: Sequence[str], commands: CommandTable) -> _SortedPaths:
    """Return paths sorted by the kind of file.

    :raises UsageError: when a path does not exist.
    :raises KcovdbgError: when a file cannot be read.
    """
    sorted_paths = _SortedPaths([], [], [], [])
    for path in paths:
        # Path("") is the current directory.
        if not path or not Path(path).exists():
            hint = FOREIGN_WORDS.get(path) or suggest(path, commands.names)
            hint = hint or "kcovdbg help lists the commands"
            if "/" in path:
                raise UsageError(f"no such file: '{path}'", hint=path_hint(path))
            raise UsageError(f"'{path}' is neither a command nor a file", hint=hint)
        if Path(path).is_file() and identify(path) is not FileKind.OTHER:
            sorted_paths.files.append(path)
            continue
        # Imported here: most commands read no other files.
        from kcovdbg.records.input_kind import InputKind, find_path_kind

        found = find_path_kind(path)
        if found.kind in (InputKind.EMPTY, InputKind.BINARY):
            # An attempt to open it reports the problem, for instance of a vmlinuz.
            sorted_paths.files.append(path)
        elif found.kind is InputKind.SCRIPT:
            # A first line with #! is no proof: the author of a log also writes its first line.
            lines = _find_kind_of_script(path, commands.names)
            if lines is None:
                sorted_paths.scripts.append(path)
            else:
                sorted_paths.inputs.append(NamedInput(path, lines))
        elif found.kind is InputKind.TABLE:
            sorted_paths.tables.append(path)
        else:
            sorted_paths.inputs.append(NamedInput(path, found))
    return sorted_paths


def _find_kind_of_script(path: str, names: Collection[str]) -> FoundKind | None:
    """Return the kind of a file that begins like a script if its lines show that it is a log or
    another file; None for a script.
    """
    from kcovdbg.frontends.script_lines import find_kind_of_lines
    from kcovdbg.records.input_kind import LOOKED_AT

    with open_file(path) as file:
        return find_kind_of_lines(file.read(LOOKED_AT), names)
