# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg`` on the command line: one command, several, a script, or the shell."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kcovdbg import __version__
from kcovdbg.child_process import find_install_command, python_command
from kcovdbg.commands import COMMANDS
from kcovdbg.console.argument import WordError
from kcovdbg.console.command import CommandTable
from kcovdbg.console.file_confinement import FileConfinement
from kcovdbg.console.grid import remark_line
from kcovdbg.console.help_text import command_list_lines
from kcovdbg.console.renderable import Line
from kcovdbg.console.runner import INTERRUPTED, explain, report, run_reporting, run_script, run_words
from kcovdbg.console.settings import read_settings
from kcovdbg.console.symbol_sources import find_symbolizer
from kcovdbg.console.terminal import find_terminal, write_remarks
from kcovdbg.console.theme import Color
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError, UsageError
from kcovdbg.frontends.options import (
    GENERAL_OPTIONS,
    TARGET_OPTIONS,
    USAGE,
    Option,
    Options,
    parse_options,
)
from kcovdbg.frontends.standard_streams import replace_closed_streams
from kcovdbg.limits import set_limits
from kcovdbg.target.local_kernel import running_build_id
from kcovdbg.target.protocol import Target
from kcovdbg.user_folder import find_temporary_folder, find_user_folder

if TYPE_CHECKING:
    from kcovdbg.target.opener import TargetOptions


def open_with_drgn(options: TargetOptions) -> Target:
    """Open the target that the options name.

    :raises KcovdbgError: when it cannot be opened.
    """
    # Imported here: it imports drgn, which help and usage errors do without.
    from kcovdbg.target.opener import open_target

    return open_target(options)


def _open_named_target(options: Options, open_target: Callable[[TargetOptions], Target]) -> Target:
    """Open what the options name; a location table alone unless it is the running kernel's.

    :raises KcovdbgError: when it cannot be opened.
    """
    target = options.target
    if options.symbol_table is None or target.is_named or target.kernel:
        return open_target(target)
    from kcovdbg.console.table_target import TableTarget
    from kcovdbg.symbols.table_cache import open_table_file

    table = open_table_file(options.symbol_table, None)
    found = TableTarget(table, options.symbol_table)
    if table.build_id == running_build_id():
        try:
            return open_target(target)
        except TargetError as error:
            found.notes = (f"the running kernel is not read: {error}",)
    return found


def serve_tools(workspace: Workspace, confinement: FileConfinement) -> None:
    """Serve commands as tools on standard input and output.

    :raises CapabilityError: when a package that this needs is missing.
    """
    try:
        server = import_module("kcovdbg.frontends.mcp.stdio")
    except ModuleNotFoundError as error:
        raise CapabilityError(f"mcp needs {error.name}, which is not installed", hint=find_install_command("mcp")) from error
    server.serve_stdio(workspace, confinement)


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
    replace_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the locale cannot encode must not end an answer.
            stream.reconfigure(errors="backslashreplace")
    # For errors in the options.
    workspace = Workspace(commands, debug="--debug" in arguments)
    try:
        settings = read_settings(commands, os.environ)
        options = parse_options(arguments, commands, settings.aliases)
        set_limits({**settings.limits, **options.limits})
        color = settings.color if options.color is None else options.color
        write_remarks(find_terminal(color), [f"not used: {problem}" for problem in _refuse_folders()])
        workspace = Workspace(
            commands,
            lambda: _tell_condition(_open_named_target(options, open_target), options, color),
            is_target_named=options.target.is_named or options.target.kernel or options.symbol_table is not None,
            color=color,
            find_symbolizer=partial(find_symbolizer, table_file=options.symbol_table, tables=settings.symbol_tables),
            has_screen=True,
            serve_tools=serve_tools,
            program=_background_program(options),
            source_folders=(*options.source_folders, *settings.source_dirs, *_find_demo_source(options)),
            substitutions=(*options.substitutions, *settings.substitute_paths),
            other_vmlinux=options.other_vmlinux,
            other_sources=options.other_sources,
            settings=settings,
            named_files=_find_named_files(options),
            find_gdb_arguments=lambda: _find_gdb_arguments(options),
            debug=options.debug,
        )
        try:
            status = _run(workspace, options)
        finally:
            for line in workspace.end_background():
                sys.stdout.write(f"{workspace.terminal().painter.paint(line)}\n")
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = 0
    except Exception as error:  # noqa: BLE001 - the user gets a line, not a traceback
        report(workspace, error)
        status = explain(error).status
    _settle_stdout()
    return status


def _refuse_folders() -> Iterator[str]:
    """Make no temporary files where others can replace them; iterate over the folders that root does not use, and why."""
    temporary = find_temporary_folder()
    if temporary.problem is not None:
        import tempfile

        tempfile.tempdir = str(temporary.path)
        yield temporary.problem
    for kind in ("config", "state"):
        problem = find_user_folder(kind).problem
        if problem is not None:
            yield problem


def _tell_condition(target: Target, options: Options, color: Color) -> Target:
    """Warn users of single commands that the dump is damaged or the machine stopped; the shell and info show it themselves."""
    is_shell = not options.words and not options.commands and options.script is None and sys.stdin.isatty()
    if not is_shell and options.words[:1] not in (("info",), ("resume",)):
        terminal = find_terminal(color)
        for note in filter(None, (*target.damage, target.stop_note())):
            terminal.stderr.write(f"{terminal.error_painter.paint(remark_line(note))}\n")
        terminal.stderr.flush()
    return target


def _find_demo_source(options: Options) -> tuple[str, ...]:
    """Return the folder with the source of the demo's module, for the demo."""
    if not options.target.demo:
        return ()
    from kcovdbg.target.demo_files import find_demo_source

    return (str(find_demo_source()),)


def _find_gdb_arguments(options: Options) -> Sequence[str]:
    from kcovdbg.target.opener import find_gdb_arguments

    return find_gdb_arguments(options.target)


def _find_named_files(options: Options) -> tuple[str, ...]:
    """Return the files on the command line, which no output may overwrite; commands may also come from standard input."""
    target = options.target
    named = (target.core, *target.symbols, *target.files, *options.other_vmlinux)
    named += (options.script, options.symbol_table, "/dev/stdin")
    return tuple(path for path in named if path is not None)


def _background_program(options: Options) -> tuple[str, ...]:
    """Return the words that run kcovdbg in another process, on this machine's kernel with the symbols that the user named."""
    target = options.target
    program = tuple(python_command("kcovdbg.frontends.background_process", str(os.getpid())))
    if target.core or target.qemu or target.gdb_remote or target.demo:
        # The symbols are those of another kernel.
        return program
    return (*program, *(word for path in (*target.symbols, *target.files) for word in ("-s", path)))


def _run(workspace: Workspace, options: Options) -> int:
    if options.version:
        sys.stdout.write(f"kcovdbg {__version__}\n")
        return 0
    if options.help:
        return _print_help(workspace)
    if options.traces and (options.words or options.commands or options.script is not None or sys.stdin.isatty()):
        _keep_traces(workspace, options)
    if options.words:
        try:
            status = run_words(workspace, options.words)
        except WordError as error:
            raise _explain_misplaced(error) from error
        return _go_on_where_stopped(workspace, options, status)
    if options.commands:
        status = max(run_reporting(workspace, line) for line in options.commands)
        return _go_on_where_stopped(workspace, options, status)
    if options.script is not None:
        with Path(options.script).open(encoding="utf-8", errors="surrogateescape") as script:
            return _go_on_where_stopped(workspace, options, run_script(workspace, script, options.script))
    if options.traces and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return max(run_words(workspace, ["top", f"file:{path}"]) for path in options.traces)
    if not sys.stdin.isatty():
        head: list[str] = []
        for line in sys.stdin:
            head.append(line)
            if line.strip():
                break
        # Further lines are run as they come.
        status = run_script(workspace, chain(head, sys.stdin), "standard input")
        target = options.target
        if not any(map(str.strip, head)) and (target.core or target.qemu or target.gdb_remote or target.files):
            # Nothing else reports a named target that cannot be opened.
            _ = workspace.target
        return _go_on_where_stopped(workspace, options, status)
    return _start_shell(workspace, options)


def _keep_traces(workspace: Workspace, options: Options) -> None:
    """Keep the traces that were named beside the target under their names, for the shell and for commands."""
    terminal = workspace.terminal()
    if options.words or options.commands or options.script is not None:
        terminal = terminal.with_stdout(io.StringIO())
    for path in options.traces:
        name = re.sub(r"\W", "_", Path(path).name.partition(".")[0])
        run_words(workspace, ["keep", f"@{name}", f"file:{path}"], terminal)


def _go_on_where_stopped(workspace: Workspace, options: Options, status: int) -> int:
    """Open the shell where a command stopped the kernel; without a terminal, leave the kernel stopped there.

    :param status: of the commands, returned as it is.
    """
    if workspace.stop_reason is None:
        return status
    if sys.stdin.isatty() and sys.stdout.isatty():
        _start_shell(workspace, options)
        return status
    note = workspace.target.leave_stopped(workspace.stop_reason)
    if note is not None:
        write_remarks(workspace.terminal(), [note])
    return status


def _start_shell(workspace: Workspace, options: Options) -> int:
    try:
        shell = import_module("kcovdbg.frontends.shell")
    except ModuleNotFoundError as error:
        raise KcovdbgError(
            f"the shell needs {error.name}, which is not installed", hint="single commands work without it: kcovdbg tasks"
        ) from error
    status: int = shell.run_shell(workspace, quiet=options.quiet)
    return status


def _explain_misplaced(error: WordError) -> UsageError:
    """Return the error with a hint where the program's options belong, if one comes after a command."""
    name = (error.word or "").split("=", 1)[0]
    is_ours = any(name in option.names for option in (*TARGET_OPTIONS, *GENERAL_OPTIONS))
    explained = UsageError(str(error), hint=f"{name} comes before the command" if is_ours else error.hint)
    explained.status = error.status
    return explained


def _print_help(workspace: Workspace) -> int:
    terminal = find_terminal(workspace.color)
    for line in _help_lines(workspace.commands):
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
    yield from command_list_lines(commands)
    yield ()
    yield (("hint", "kcovdbg help COMMAND shows help for a command."),)
    yield (("", "Without a command, runs the shell, or the lines of standard input if that is not a terminal."),)
    yield (("header", "Exit status: "), ("", "0 success; 1 check found violations, or diff a difference; 2 failure; 130 C-c."))


def _option_line(option: Option) -> Line:
    value = "" if option.metavar is None else f" {option.metavar}"
    names = ", ".join(option.names)
    text = option.help + ("; repeatable" if option.repeatable else "")
    if option.choices:
        text += f": {', '.join(option.choices)}"
    return (("key", f"  {names}{value}".ljust(24) + " "), ("", text))


def _settle_stdout(stdout: TextIO | None = None) -> None:
    """Flush standard output, and keep Python from reporting at exit that its reader is gone."""
    stdout = sys.stdout if stdout is None else stdout
    try:
        stdout.flush()
    except OSError:
        # The reader is gone or the disk is full, which was reported. Python flushes again at exit, and some versions (3.11.2)
        # keep what could not be written.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    except ValueError:
        # Closed before.
        pass
