# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program's own options, and what its words mean: which target, which commands."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from kcovdbg.commands.command import CommandTable
from kcovdbg.commands.suggest import suggest
from kcovdbg.errors import UsageError
from kcovdbg.render.theme import Color

if TYPE_CHECKING:
    from kcovdbg.target.opening import TargetOptions

USAGE: Final = "kcovdbg [TARGET] [-s VMLINUX]… [-e COMMAND]… [-q] [SCRIPT | COMMAND [ARGUMENT…]]"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, understood."""

    target: TargetOptions
    commands: tuple[str, ...] = ()
    """Lines to run, in order."""
    words: tuple[str, ...] = ()
    """A command with its arguments, instead of lines."""
    script: str | None = None
    source_folders: tuple[str, ...] = ()
    substitutions: tuple[tuple[str, str], ...] = ()
    """Prefixes of source paths, as debug info names them and as they are here."""
    quiet: bool = False
    color: Color = Color.AUTO
    debug: bool = False
    help: bool = False
    version: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option as data."""

    names: tuple[str, ...]
    help: str
    metavar: str | None = None
    repeatable: bool = False
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The attribute that holds the value."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")


TARGET_OPTIONS: Final = (
    Option(("-c", "--core"), "crash dump, compressed or not, or a slice", "PATH"),
    Option(("-k", "--kernel"), "the running kernel (default when no target is given)"),
    Option(("--qemu",), "running QEMU guest through QMP: path of a unix socket, or host:port", "ADDR"),
    Option(("--gdb-remote",), "anything with a GDB stub: host:port", "ADDR"),
    Option(("--demo",), "the bundled demo dump"),
    Option(("-s", "--symbols"), "vmlinux, or debug info of a module", "PATH", repeatable=True),
)
GENERAL_OPTIONS: Final = (
    Option(("-e", "--execute"), "run a command and exit", "COMMAND", repeatable=True),
    Option(("--source-dir",), "root of the kernel's source tree", "PATH", repeatable=True),
    Option(("--substitute-path",), "where debug info says FROM, the source is in TO", "FROM=TO", repeatable=True),
    Option(("-q", "--quiet"), "no banner"),
    Option(("--color",), "colours", "WHEN", choices=tuple(color.value for color in Color)),
    Option(("--debug",), "show where errors come from"),
    Option(("--version",), "tell the version"),
    Option(("-h", "--help"), "tell this"),
)
OPTIONS: Final = (*TARGET_OPTIONS, *GENERAL_OPTIONS)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="kcovdbg --help tells the options")


def _make_parser() -> ArgumentParser:
    parser = _Parser(prog="kcovdbg", add_help=False, allow_abbrev=False)
    for option in OPTIONS:
        if option.metavar is None:
            parser.add_argument(*option.names, action="store_true")
        elif option.repeatable:
            parser.add_argument(*option.names, action="append", default=[], metavar=option.metavar)
        elif option.choices:
            parser.add_argument(*option.names, choices=option.choices, default=option.choices[0])
        else:
            parser.add_argument(*option.names, metavar=option.metavar)
    parser.add_argument("paths", nargs="*")
    return parser


def _parse_substitution(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not old or not equals:
        raise UsageError(f"--substitute-path takes FROM=TO, not {text}", hint="for instance /build/linux=/usr/src/linux")
    return old, new


def parse_options(arguments: Sequence[str], commands: CommandTable) -> Options:
    """Understand the program's arguments.

    :raises UsageError: when they can't be.
    """
    from kcovdbg.target.opening import TargetOptions

    start = _find_command(arguments, commands)
    args, unknown = _make_parser().parse_known_intermixed_args(arguments[:start])
    if unknown:
        raise _refuse_option(unknown[0])
    words = tuple(arguments[start:])
    files, scripts = _find_scripts(args.paths, commands)
    if words and args.execute:
        raise UsageError(f"-e and the command {words[0]} exclude each other", hint="give each command by an -e of its own")
    if scripts and (words or args.execute):
        raise UsageError(f"{scripts[0]} is a script, and there is a command already", hint="one or the other")
    if len(scripts) > 1:
        raise UsageError(f"one script at a time, not {' and '.join(scripts)}")
    return Options(
        target=TargetOptions(
            core=args.core,
            kernel=args.kernel,
            qemu=args.qemu,
            gdb_remote=args.gdb_remote,
            demo=args.demo,
            symbols=tuple(args.symbols),
            files=tuple(files),
        ),
        commands=tuple(args.execute),
        words=words,
        script=scripts[0] if scripts else None,
        source_folders=tuple(args.source_dir),
        substitutions=tuple(_parse_substitution(text) for text in args.substitute_path),
        quiet=args.quiet,
        color=Color(args.color),
        debug=args.debug,
        help=args.help,
        version=args.version,
    )


def _find_command(arguments: Sequence[str], commands: CommandTable) -> int:
    """Return where the command's words begin: everything after its name is its own."""
    takes_value = {name for option in OPTIONS if option.metavar is not None for name in option.names}
    flags = {name for option in OPTIONS if option.metavar is None for name in option.names}
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return len(arguments)
        if word.startswith("-") and word != "-":
            # In a cluster of short options, -qe, the last one may take a value.
            cluster = len(word) > 2 and word[1] != "-" and all(f"-{letter}" in flags for letter in word[1:-1])
            index += 2 if word in takes_value or (cluster and f"-{word[-1]}" in takes_value) else 1
        elif word in commands:
            return index
        else:
            index += 1
    return len(arguments)


def _refuse_option(word: str) -> UsageError:
    name = word.split("=", 1)[0]
    hint = suggest(name, [name for option in OPTIONS for name in option.names]) or "kcovdbg --help tells the options"
    return UsageError(f"no option is called {name}", hint=hint)


def _find_scripts(paths: Sequence[str], commands: CommandTable) -> tuple[list[str], list[str]]:
    """Tell what belongs to the target from what holds commands."""
    from kcovdbg.target.dumpfile import FileKind, identify

    files: list[str] = []
    scripts: list[str] = []
    for path in paths:
        if not Path(path).exists():
            hint = suggest(path, commands.names) or "kcovdbg help lists the commands"
            if "/" in path:
                raise UsageError(
                    f"there is no file {path}", hint="check the name; a relative one starts at the working directory"
                )
            raise UsageError(f"{path} is neither a command nor a file", hint=hint)
        # What comes through a pipe can be read once, and only commands are read so.
        is_script = Path(path).is_fifo() or (identify(path) is FileKind.OTHER and not _is_binary(path))
        (scripts if is_script else files).append(path)
    return files, scripts


def _is_binary(path: str) -> bool:
    # A vmlinuz for instance, which whoever opens the target has more to say about.
    with Path(path).open("rb") as file:
        return b"\0" in file.read(4096)
