# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg`` on the command line: one command, several, a script, or the shell."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kcovdbg import __version__
from kcovdbg.collect.job import Jobs
from kcovdbg.commands import COMMANDS
from kcovdbg.commands.argument import WordError
from kcovdbg.commands.command import CommandTable
from kcovdbg.commands.jobs import announce, end_jobs
from kcovdbg.commands.run import INTERRUPTED, explain, report, run_reporting, run_words
from kcovdbg.commands.session import Session
from kcovdbg.commands.terminal import find_terminal
from kcovdbg.commands.viewing import View
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.frontends.options import (
    GENERAL_OPTIONS,
    TARGET_OPTIONS,
    USAGE,
    Option,
    Options,
    parse_options,
)
from kcovdbg.render.renderable import Line
from kcovdbg.target import Target

if TYPE_CHECKING:
    from kcovdbg.target.opening import TargetOptions


def open_with_drgn(options: TargetOptions) -> Target:
    """Open the target that the options name.

    :raises KcovdbgError: when it can't be opened.
    """
    # It brings drgn, which help and usage errors do without.
    from kcovdbg.target.opening import open_target

    return open_target(options)


def show_view(view: View) -> None:
    """Show a view full-screen; prompt_toolkit costs a tenth of a second, which only views pay."""
    import_module("kcovdbg.frontends.shell.view").show_view(view)


def main(
    arguments: Sequence[str] | None = None,
    *,
    open_target: Callable[[TargetOptions], Target] = open_with_drgn,
    commands: CommandTable = COMMANDS,
) -> int:
    """Run the program.

    :param arguments: without the program's name; by default the process's.
    :param open_target: opens what the options name.
    :param commands: the command table.
    :return: the exit status.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What the locale can't encode must not end an answer.
            stream.reconfigure(errors="backslashreplace")
    session = Session(commands)
    # Needed before options are understood, for errors in them.
    session.debug = "--debug" in arguments
    try:
        options = parse_options(arguments, commands)
        session = Session(commands, lambda: open_target(options.target), color=options.color)
        session.debug = options.debug
        session.show_view = show_view
        session.source_folders = options.source_folders
        session.substitutions = options.substitutions
        session.jobs = Jobs(_background_program(options))
        try:
            status = _run(session, options)
        finally:
            for line in end_jobs(session):
                sys.stdout.write(f"{session.terminal().painter.paint(line)}\n")
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets a line and not a traceback
        report(session, error)
        status = explain(error).status
    _settle_stdout()
    return status


def _background_program(options: Options) -> tuple[str, ...]:
    """Return what runs kcovdbg in another process, on this machine's kernel with the symbols that the user gave for it."""
    target = options.target
    program = (sys.executable, "-m", "kcovdbg.frontends.background", str(os.getpid()))
    if target.core or target.qemu or target.gdb_remote or target.demo:
        # The kernel that is looked at is another one.
        return program
    return (*program, *(word for path in (*target.symbols, *target.files) for word in ("-s", path)))


def _run(session: Session, options: Options) -> int:
    if options.version:
        sys.stdout.write(f"kcovdbg {__version__}\n")
        return 0
    if options.help:
        return _print_help(session)
    if options.words:
        try:
            return run_words(session, options.words)
        except WordError as error:
            raise _explain_misplaced(error) from error
    if options.commands:
        return max(run_reporting(session, line) for line in options.commands)
    if options.script is not None:
        with Path(options.script).open(encoding="utf-8", errors="surrogateescape") as script:
            return _run_script(session, script, options.script)
    if not sys.stdin.isatty():
        return _run_script(session, sys.stdin, "standard input")
    return _start_shell(session, options)


def _run_script(session: Session, lines: Iterable[str], name: str) -> int:
    """Run every line; one that fails doesn't keep the others from being run."""
    status = 0
    for number, line in enumerate(lines, 1):
        # So that a script can be made executable; a comment to the command language too.
        if number == 1 and line.startswith("#!"):
            continue
        status = max(status, run_reporting(session, line.rstrip("\n"), f"{name}:{number}"))
        for told in announce(session):
            sys.stdout.write(f"{session.terminal().painter.paint(told)}\n")
    return status


def _start_shell(session: Session, options: Options) -> int:
    try:
        shell = import_module("kcovdbg.frontends.shell")
    except ModuleNotFoundError as error:
        raise KcovdbgError(
            f"the shell needs {error.name}, which isn't installed", hint="commands work without it: kcovdbg tasks"
        ) from error
    status: int = shell.run_shell(session, quiet=options.quiet)
    return status


def _explain_misplaced(error: WordError) -> UsageError:
    """Say where the program's own options belong when one comes behind a command."""
    name = (error.word or "").split("=", 1)[0]
    is_ours = any(name in option.names for option in (*TARGET_OPTIONS, *GENERAL_OPTIONS))
    explained = UsageError(str(error), hint=f"{name} comes before the command" if is_ours else error.hint)
    explained.status = error.status
    return explained


def _print_help(session: Session) -> int:
    terminal = find_terminal(session.color)
    for line in _help_lines(session.commands):
        terminal.stdout.write(f"{terminal.painter.paint(line)}\n")
    return 0


def _help_lines(commands: CommandTable) -> Iterator[Line]:
    yield (("header", "Usage: "), ("", USAGE))
    yield (("", "See the Linux kernel's KCOV state: on a live machine, in a QEMU guest and in a crash dump."),)
    yield ()
    yield (("header", "Target:"), ("", " kcovdbg VMLINUX VMCORE, in either order, or one of"))
    for option in TARGET_OPTIONS:
        yield _option_line(option)
    yield ()
    yield (("header", "Options:"),)
    for option in GENERAL_OPTIONS:
        yield _option_line(option)
    yield ()
    yield (("header", "Commands:"), ("", " kcovdbg help COMMAND tells about one"))
    for command in commands:
        yield (("command", f"  {command.name:<12}"), ("", command.summary))
    yield ()
    yield (("", "Without a command: the shell, or the lines of standard input where that isn't a terminal."),)
    yield (("header", "Exit status: "), ("", "0 fine; 1 check found violations, or diff a difference; 2 failed; 130 C-c."))


def _option_line(option: Option) -> Line:
    value = "" if option.metavar is None else f" {option.metavar}"
    names = ", ".join(option.names)
    text = option.help + ("; repeatable" if option.repeatable else "")
    if option.choices:
        text += f": {', '.join(option.choices)}"
    return (("key", f"  {names}{value}".ljust(24) + " "), ("", text))


def _settle_stdout(stdout: TextIO | None = None) -> None:
    """Keep Python from complaining at its end that nobody reads standard output any more."""
    stdout = sys.stdout if stdout is None else stdout
    try:
        stdout.flush()
    except OSError:
        # Closed by its reader, or on a full disk: what mattered was told already. Python flushes once more, and some of its
        # versions (3.11.2 is one) have kept what couldn't be written.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    except ValueError:
        # Closed by ourselves.
        pass
