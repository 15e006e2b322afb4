# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run of the program: one command, several, a script, or the shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcovdbg.console.command import CommandTable
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.console.grid import remark_line
from kcovdbg.console.runner import explain, report, run_reporting, run_script, run_words
from kcovdbg.console.settings import Settings
from kcovdbg.console.terminal import Color, find_terminal, settle_streams, write_remarks
from kcovdbg.errors import (
    CapabilityError,
    KcovdbgError,
    NoDebugInfoError,
    TargetError,
    UsageError,
    WordError,
)
from kcovdbg.frontends.options import OPTIONS, Options
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.target.demo_files import find_demo_source
from kcovdbg.target.target import Target
from kcovdbg.target.target_options import TargetOptions, find_gdb_arguments, sort_files

if TYPE_CHECKING:
    from kcovdbg.inputs.trace_paths import FileConfinement


_STDIN: Final = "-"
"""Names standard input as a script."""


def run_program(
    options: Options,
    settings: Settings,
    commands: CommandTable,
    color: Color,
    open_target: Callable[[TargetOptions], Target],
) -> int:
    """Run the commands that the options name, and report their errors.

    :param open_target: opens the target that the options name.
    :return: the exit status.
    :raises KeyboardInterrupt: on C-c.
    :raises BrokenPipeError: when nobody reads the answer.
    """
    workspace = _make_workspace(options, settings, commands, color, open_target)
    try:
        try:
            status = _run_commands(workspace, options)
            if status is None:
                status = _start_shell(workspace, options)
            elif workspace.stop_reason is not None:
                _go_on_where_stopped(workspace, options, workspace.stop_reason)
        finally:
            if ended := workspace.end_background():
                workspace.terminal().show(ended)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the user gets a line, not a traceback
        report(workspace, error)
        # At exit, Python would report an error of the streams again.
        settle_streams()
        status = explain(error).status
    return status


def _make_workspace(
    options: Options,
    settings: Settings,
    commands: CommandTable,
    color: Color,
    open_target: Callable[[TargetOptions], Target],
) -> Workspace:
    """Return the workspace for the options; its target is opened when it is first used."""
    demo_source = (str(find_demo_source()),) if options.target.demo else ()
    target = options.target
    given = KernelOptions(
        lambda: _warn_of_condition(_open_named_target(options, open_target), options, color),
        is_named=target.is_named or target.kernel or options.symbol_table is not None,
        table_file=options.symbol_table,
        tables=settings.symbol_tables,
        source_folders=(*options.source_folders, *settings.source_dirs, *demo_source),
        substitutions=(*options.substitutions, *settings.substitute_paths),
    )
    return Workspace(
        commands,
        UserInputs(
            Kernel(given),
            other_vmlinux=options.other_vmlinux,
            other_sources=options.other_sources,
            named_files=_find_named_files(options),
        ),
        Frontend(
            has_screen=True,
            serve_tools=partial(serve_tools, target),
            find_program=lambda: _background_program(options),
            find_gdb_arguments=lambda: find_gdb_arguments(target),
        ),
        color=color,
        settings=settings,
        debug=options.debug,
    )


def _open_named_target(options: Options, open_target: Callable[[TargetOptions], Target]) -> Target:
    """Open the target that the options name. A location table alone is the target, unless it is of
    the running kernel.

    :raises KcovdbgError: when it cannot be opened.
    """
    target = options.target
    if options.symbol_table is None or target.is_named or target.kernel:
        return _open_or_name(target, open_target)
    from kcovdbg.symbols.table_cache import open_table_file
    from kcovdbg.symbols.table_target import TableTarget
    from kcovdbg.target.local_kernel import running_build_id

    table = open_table_file(options.symbol_table, None)
    found = TableTarget(table, options.symbol_table)
    if table.build_id == running_build_id():
        try:
            return open_target(target)
        except TargetError as error:
            found.notes = (f"the running kernel is not read: {error}",)
    return found


def _open_or_name(target: TargetOptions, open_target: Callable[[TargetOptions], Target]) -> Target:
    """Open a target. For an image without debug info, take the names of its symbol table."""
    try:
        return open_target(target)
    except NoDebugInfoError as error:
        # One of the files without an option may be a dump.
        sorted_target = sort_files(target)
        has_memory = target.qemu or target.gdb_remote or target.kernel or target.demo
        if has_memory or sorted_target.core is not None:
            raise
        from kcovdbg.symbols.name_table import open_name_target

        return open_name_target(error.path, error.name)


def serve_tools(options: TargetOptions, workspace: Workspace, confinement: FileConfinement) -> None:
    """Serve commands as tools on standard input and output.

    :raises CapabilityError: when a package that this needs is missing.
    """
    try:
        server = import_module("kcovdbg.frontends.mcp.server")
    except ModuleNotFoundError as error:
        from kcovdbg.child_process import find_install_command

        raise CapabilityError(
            f"mcp needs {error.name}, which is not installed", hint=find_install_command("mcp")
        ) from error
    # QEMU and a GDB stub serve only one client.
    has_spare = options.qemu is None and options.gdb_remote is None
    server.serve_stdio(workspace, confinement, has_spare=has_spare)


def _warn_of_condition(target: Target, options: Options, color: Color) -> Target:
    """Warn users of single commands that the dump is damaged or the machine is stopped: the shell,
    info and resume show it anyway.
    """
    has_lines = options.words or options.commands or options.script is not None or options.inputs
    is_shell = not has_lines and sys.stdin.isatty()
    if not is_shell and options.words[:1] not in (("info",), ("resume",)):
        terminal = find_terminal(color)
        for note in filter(None, (*target.damage, target.connection.stop_note())):
            terminal.stderr.write(f"{terminal.error_painter.paint(remark_line(note))}\n")
        terminal.stderr.flush()
    return target


def _find_named_files(options: Options) -> tuple[str, ...]:
    """Return the files on the command line, and standard input: no output may overwrite them."""
    target = options.target
    named = (target.core, *target.symbols, *target.files, *options.other_vmlinux)
    # Not directories: an output may be a new file in one of them.
    named += tuple(one.path for one in options.inputs if not Path(one.path).is_dir())
    named += (options.script, options.symbol_table, "/dev/stdin")
    return tuple(path for path in named if path is not None)


def _background_program(options: Options) -> tuple[str, ...]:
    """Return the command line that runs kcovdbg in another process, on this machine's kernel."""
    target = options.target
    from kcovdbg.child_process import python_command

    program = python_command("kcovdbg.frontends.cli", str(os.getpid()))
    # The symbols of another kernel's dump or guest are not this machine's.
    if not (target.core or target.qemu or target.gdb_remote or target.demo):
        for path in (*target.symbols, *target.files):
            program += ("-s", path)
    return tuple(program)


def _run_commands(workspace: Workspace, options: Options) -> int | None:
    """Run the commands of the options or of standard input; return None if there are none, and the
    user is at a terminal.
    """
    if options.inputs:
        # Imported here: most commands read no files.
        from kcovdbg.frontends.input_answers import keep_traces

        if not (options.words or options.commands or options.script is not None):
            return _answer_inputs(workspace, options)
        keep_traces(workspace, options.inputs)
    if options.words:
        try:
            return run_words(workspace, options.words)
        except WordError as error:
            raise _explain_misplaced(error) from error
    if options.commands:
        return max(run_reporting(workspace, line).status for line in options.commands)
    if options.script not in (None, _STDIN):
        return _run_script(workspace, options)
    if options.script is None and sys.stdin.isatty():
        return None
    from kcovdbg.frontends.standard_input import run_standard_input

    read = run_standard_input(workspace, is_named=options.script is not None)
    target = options.target
    if read is None and (target.core or target.qemu or target.gdb_remote or target.files):
        # Without a command, open the named target to report if that is impossible.
        _ = workspace.inputs.kernel.target
    return read or 0


def _answer_inputs(workspace: Workspace, options: Options) -> int | None:
    """Answer files by their kind; return None if the shell follows, in which traces are kept."""
    from kcovdbg.frontends.input_answers import answer_inputs, are_traces, keep_traces

    status = answer_inputs(workspace, options.inputs)
    is_named = workspace.inputs.kernel.options.is_named
    if not (is_named and are_traces(options.inputs) and _is_at_terminal()):
        return status
    keep_traces(workspace, options.inputs)
    return None


def _is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _run_script(workspace: Workspace, options: Options) -> int:
    """Run the lines of a file. If no option names it as a script, its lines only read and print."""
    path = options.script or ""
    workspace.reads_only = not options.is_script_named
    with Path(path).open(encoding="utf-8", errors="surrogateescape") as script:
        return run_script(workspace, script, path, stops=not options.is_script_named)


def _go_on_where_stopped(workspace: Workspace, options: Options, reason: str) -> None:
    """Open the shell where a command stopped the kernel; without a terminal, leave the kernel
    stopped there.
    """
    if _is_at_terminal():
        _start_shell(workspace, options)
        return
    note = workspace.inputs.kernel.target.connection.leave_stopped(reason)
    if note is not None:
        write_remarks(workspace.terminal(), [note])


def _start_shell(workspace: Workspace, options: Options) -> int:
    try:
        shell = import_module("kcovdbg.frontends.shell")
    except ModuleNotFoundError as error:
        raise KcovdbgError(
            f"the shell needs {error.name}, which is not installed",
            hint="single commands work without it: kcovdbg tasks",
        ) from error
    status: int = shell.run_interactively(workspace, quiet=options.quiet)
    return status


def _explain_misplaced(error: WordError) -> UsageError:
    """Return the error; if an option of the program comes after a command, its hint says so."""
    name = (error.word or "").split("=", 1)[0]
    hint = error.hint
    if any(name in option.names for option in OPTIONS):
        hint = f"{name} comes before the command"
    explained = UsageError(str(error), hint=hint)
    explained.status = error.status
    return explained
