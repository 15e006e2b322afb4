# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run commands from a line, or from words that are already split."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from kcovdbg.console.argument import Value
from kcovdbg.console.command import FORMATS, Command, Topic, parse_arguments
from kcovdbg.console.command_line import CommandLine, parse_line, split_commands
from kcovdbg.console.context import Context, Workspace, find_input_files
from kcovdbg.console.renderable import Lines, Renderable, error_lines, find_data, spell_remarks
from kcovdbg.console.terminal import Terminal
from kcovdbg.console.writer import Format, read_choice, write
from kcovdbg.errors import (
    GoneError,
    KcovdbgError,
    LineError,
    UsageError,
    WordError,
    find_write_hint,
)
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.user_inputs import CommandInputs
from kcovdbg.limits import MEMORY, one_command, over_limit
from kcovdbg.model.state import Lack
from kcovdbg.target.target import Target
from kcovdbg.user_folder import expand_user

if TYPE_CHECKING:
    from kcovdbg.symbols.awaited_table import AwaitedTable

FAILED = KcovdbgError.status
_LONGEST_LINE: Final = 1 << 16
# Seconds to wait for the end of a machine whose memory is gone, and between two checks.
_END_SECONDS: Final = 1.0
_END_INTERVAL: Final = 0.01


def run_line(workspace: Workspace, source: str, terminal: Terminal | None = None) -> int:
    """Run the commands of a line, up to one that fails.

    :param terminal: where the answers go; by default the process's current streams.
    :return: the highest exit status.
    :raises KcovdbgError: when a command is wrong or fails.
    """
    if len(source) > _LONGEST_LINE:
        raise UsageError(
            f"a line of {len(source)} characters is no command",
            hint="sym file:FILE and top file:FILE read data",
        )
    return max(
        _run_one(workspace, parse_line(command), terminal) for command in split_commands(source)
    )


def run_script(
    workspace: Workspace,
    script: TextIO,
    name: str,
    terminal: Terminal | None = None,
    *,
    stops: bool = False,
) -> int:
    """Run the lines of a file, and report their errors.

    :param stops: whether to stop after a line that fails.
    :return: the highest exit status.
    """
    status = 0
    # Limit the length: a file such as /dev/zero has no line ends.
    lines = iter(partial(script.readline, _LONGEST_LINE + 2), "")
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith("#!"):
            continue
        result = run_reporting(workspace, line.rstrip("\r\n"), f"{name}:{number}", terminal)
        status = max(status, result.status)
        (terminal or workspace.terminal()).show(workspace.announce())
        if result.has_failed and (stops or len(line) > _LONGEST_LINE + 1):
            break
    return status


def _run_file(workspace: Workspace, path: str, terminal: Terminal) -> int:
    """Run the commands in a file.

    :raises KcovdbgError: when the file is being run already.
    """
    if path in workspace.scripts:
        raise UsageError(f"'{path}' runs itself")
    with expand_user(path).open(encoding="utf-8", errors="surrogateescape") as script:
        workspace.scripts.append(path)
        try:
            return run_script(workspace, script, path, terminal)
        finally:
            workspace.scripts.pop()


def _run_one(workspace: Workspace, line: CommandLine, terminal: Terminal | None) -> int:
    terminal = terminal or workspace.terminal()
    if workspace.reads_only:
        _refuse_actions(line)
    if line.shell is not None:
        from kcovdbg.console.output_files import run_shell

        if run_shell(line.shell, terminal.stdout):
            return FAILED
        return 0
    if line.script is not None:
        return _run_file(workspace, line.script.text, terminal)
    if not line.words:
        return 0
    try:
        return _run_words_of(workspace, line, terminal)
    except WordError as error:
        # Show where the word is in the line.
        column = _find_column(line, error.word)
        pointed = LineError(str(error), line.source.rstrip(), column, hint=error.hint)
        pointed.status = error.status
        raise pointed from error


_NAME_SCRIPT: Final = "to allow it: kcovdbg --script FILE, or --script - for standard input"


def _refuse_actions(line: CommandLine) -> None:
    """Make sure that a line runs no other program or script, and writes no file.

    :raises LineError: when it does.
    """
    source = line.source
    column = len(source) - len(source.lstrip())
    if line.redirection is not None:
        column = line.redirection.column
    elif line.pipeline is not None:
        column = source.rfind(line.pipeline)
    elif line.is_background:
        column = len(source.rstrip()) - 1
    elif line.shell is None and line.script is None:
        return
    raise LineError(
        "only a script that is named may run programs, run other scripts or write files",
        source,
        column,
        hint=_NAME_SCRIPT,
    )


def _refuse_acting(command: Command, args: Namespace) -> None:
    """Make sure that a command only reads and prints.

    :raises UsageError: when it does more.
    """
    for argument in command.arguments:
        if argument.is_output and getattr(args, argument.attribute, None) not in (None, "-"):
            raise UsageError(
                f"{command.name} {argument.names[0]}: only a script that is named may write files",
                hint=_NAME_SCRIPT,
            )
    if command.acts:
        raise UsageError(
            f"{command.name}: only a script that is named may run programs, write files or "
            f"change a machine",
            hint=_NAME_SCRIPT,
        )


def _run_words_of(workspace: Workspace, line: CommandLine, terminal: Terminal) -> int:
    command, args = find_command(workspace, line.texts)
    if line.is_background:
        source = line.source.rstrip()
        start, words = command.start, line.texts[1:]
        if start is None:
            raise LineError(
                f"{command.name}: cannot run in the background",
                source,
                len(source) - 1,
                hint="collect … & can",
            )
        started = replace(command, run=lambda context, args: start(context, args, words))
        return run_command(workspace, started, args, terminal)
    if line.redirection is None and line.pipeline is None:
        return run_command(workspace, command, args, terminal)
    from kcovdbg.console.output_files import open_destination

    with open_destination(
        line, terminal, partial(find_input_files, workspace, command, args)
    ) as destination:
        status = run_command(workspace, command, args, terminal.with_stdout(destination.stream))
    return destination.find_status() or status


def run_words(workspace: Workspace, words: Sequence[str], terminal: Terminal | None = None) -> int:
    """Run a command from words that are already split, by a shell for instance.

    :return: the exit status.
    :raises KcovdbgError: when the words are wrong or the command fails.
    """
    command, args = find_command(workspace, words)
    return run_command(workspace, command, args, terminal or workspace.terminal())


def find_command(workspace: Workspace, words: Sequence[str]) -> tuple[Command, Namespace]:
    """Return the command in these words, and its arguments.

    :raises UsageError: when they are wrong.
    """
    command = workspace.commands.find(words[0])
    with _failing_as(command):
        called = command
        if words[0] in command.aliases:
            # Errors show the alias that the user typed.
            called = replace(command, name=words[0])
        return command, parse_arguments(called, words[1:])


def run_command(workspace: Workspace, command: Command, args: Namespace, terminal: Terminal) -> int:
    """Run a command and write its answer.

    :return: the exit status.
    :raises KcovdbgError: when it fails.
    """
    _ = workspace.settings_problems
    context = make_context(workspace, command, args, terminal, find_format(workspace, args))
    # The reader of the answer may close it early.
    with contextlib.suppress(BrokenPipeError), _failing_as(command), guarded(context, args):
        write(answer(context, args), terminal, context.format)
    return context.status


def make_context(
    workspace: Workspace,
    command: Command,
    args: Namespace,
    terminal: Terminal,
    format: Format,  # noqa: A002
) -> Context:
    """Return the context of one run of a command. If its arguments name traces of another kernel,
    it runs on that kernel.

    :raises UsageError: when the command acts in a workspace that only reads.
    """
    if workspace.reads_only and not args.help:
        _refuse_acting(command, args)
    inputs = CommandInputs(workspace.inputs, workspace.inputs.kernel, command.name)
    if not args.help and any(argument.value is Value.BUFFER for argument in command.arguments):
        from kcovdbg.console.buffer_arguments import find_reading

        inputs.kernel = _find_kernel(workspace, command, args, terminal)
        inputs.reading = find_reading(args)
        inputs.wait = partial(_wait_for_names, workspace.terminal())
    return Context(workspace, inputs, command, args, terminal, format)


def _wait_for_names(terminal: Terminal, table: AwaitedTable) -> None:
    # Imported here: a command whose traces are not named reads no table.
    from kcovdbg.console.table_progress import wait_for_names

    wait_for_names(terminal, table)


def _find_kernel(
    workspace: Workspace, command: Command, args: Namespace, terminal: Terminal
) -> Kernel:
    """Return the kernel of the traces that a command names; wait for its table."""
    words: list[str] = []
    for argument in command.arguments:
        value = getattr(args, argument.attribute, None)
        if argument.value is Value.BUFFER and value:
            words += [value] if isinstance(value, str) else value
    if not words:
        return workspace.inputs.kernel
    from kcovdbg.console.table_progress import build_table
    from kcovdbg.inputs.trace_kernel import find_kernel

    return find_kernel(workspace.inputs, words, partial(build_table, terminal))


@contextlib.contextmanager
def guarded(context: Context, args: Namespace) -> Iterator[None]:
    """Check a command's output files, then run the block. If the machine has ended, raise that
    instead of the block's error.

    :raises KcovdbgError: when an output cannot be written, or is an input.
    :raises GoneError: when the machine has ended.
    """
    from kcovdbg.console.output_files import check_output, check_stdout

    try:
        check_stdout(context.terminal.stdout, context.input_files)
        for argument in context.command.arguments:
            path = getattr(args, argument.attribute, None) if argument.is_output else None
            if path is not None:
                check_output(path, context.input_files)
        with one_command(holds_memory=not context.command.acts):
            yield
    except (OSError, KcovdbgError) as error:
        is_known = isinstance(error, GoneError) or not context.inputs.uses_target
        if is_known or not _has_ended(context.kernel.target, error):
            raise
        raise GoneError(context.kernel.target.name) from error
    if context.inputs.uses_target and context.kernel.target.is_gone():
        raise GoneError(context.kernel.target.name)


def _has_ended(target: Target, error: Exception) -> bool:
    """Return whether an error comes from the end of a target's machine."""
    # A killed QEMU loses its memory before its sockets are closed.
    deadline = time.monotonic() + (_END_SECONDS if isinstance(error, ProcessLookupError) else 0)
    while not target.is_gone():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_END_INTERVAL)
    return True


@contextlib.contextmanager
def _failing_as(command: Command) -> Iterator[None]:
    """Give errors of the block the exit status that a failure of the command has."""
    try:
        yield
    except KcovdbgError as error:
        if error.status == KcovdbgError.status:
            error.status = command.failed
        raise
    except OSError as error:
        if command.failed == KcovdbgError.status or isinstance(error, BrokenPipeError):
            raise
        explained = explain(error)
        explained.status = command.failed
        raise explained from error


def find_format(workspace: Workspace, args: Namespace) -> Format:
    """Return the format that the arguments ask for."""
    for name in FORMATS:
        if getattr(args, name):
            return Format(name)
    return workspace.format


def answer(context: Context, args: Namespace) -> Iterator[Renderable]:
    """Check what a command needs, run it, and iterate over its answer."""
    if args.help:
        from kcovdbg.console.help_text import command_help

        yield command_help(context.command, context.width)
        return
    for need in context.command.needs:
        context.require(need)
    settings = context.workspace.settings
    chosen: Sequence[str] = ()
    for name in context.command.names:
        chosen = chosen or settings.columns.get(name, ())
    choice = read_choice(args, context.format, chosen, str(settings.path))
    result = context.command.run(context, args)
    parts = (result,) if isinstance(result, Renderable) else result or ()
    spell = context.terminal.spell
    for part in parts:
        chosen_part = choice.apply(_say_unread(context, part))
        yield chosen_part if spell is None else spell_remarks(chosen_part, spell)


def _say_unread(context: Context, part: Renderable) -> Renderable:
    """Return a part of an answer. If a table of KCOV's state has no rows, and a part of the state
    that they are made of could not be read, the table says that the rows are unknown.

    The exit status is then 2 if nothing could be read.
    """
    data = find_data(part)
    is_drawn = isinstance(part, Lines) and context.format is Format.TEXT
    if context.command.topic is not Topic.STATE or data is None or is_drawn:
        return part
    if isinstance(data.rows, Sized):
        is_empty = not len(data.rows)
    else:
        rows = iter(data.rows)
        read = list(islice(rows, 1))
        is_empty = not read
        data = replace(data, rows=chain(read, rows))
    lack = Lack()
    if is_empty:
        lack = context.inputs.find_lack(data.rests_on)
    if lack.lines:
        if lack.is_total:
            context.status = max(context.status, FAILED)
        remarks = [remark for remark in data.remarks if remark != lack.lines[0]]
        empty = data.empty or ""
        if lack.lines[0] not in empty:
            empty = f"{context.command.name}: unknown: {lack.lines[0]}"
        data = replace(data, unread=lack.lines, empty=empty, remarks=remarks)
    if isinstance(part, Lines):
        return replace(part, data=data)
    return data


def _find_column(line: CommandLine, wrong: str | None) -> int:
    """Return the column of a wrong word, or for a missing word the end of the line."""
    if wrong is None:
        return len(line.source.rstrip())
    for word in line.words[1:]:
        if (
            wrong == word.text
            or word.text.endswith(f"={wrong}")
            or word.text.startswith(f"{wrong}=")
        ):
            return word.column
    return line.words[0].column


class LineResult(NamedTuple):
    """What became of one line."""

    status: int
    """The exit status."""
    has_failed: bool = False
    """Whether there was an error. A violation or a difference is none."""


def run_reporting(
    workspace: Workspace, source: str, where: str | None = None, terminal: Terminal | None = None
) -> LineResult:
    """Run one line, and report its error.

    :param where: the file and the number of the line; None for a line that the user typed.
    """
    try:
        return LineResult(run_line(workspace, source, terminal))
    except Exception as error:  # noqa: BLE001 - continue with the next line
        report(workspace, error, where, terminal)
        return LineResult(explain(error).status, has_failed=True)


def report(
    workspace: Workspace,
    error: Exception,
    where: str | None = None,
    terminal: Terminal | None = None,
) -> None:
    """Write an error and its hint; with ``--debug``, also its traceback."""
    terminal = terminal or workspace.terminal()
    if workspace.debug:
        import traceback

        terminal.stderr.write("".join(traceback.format_exception(error)))
    for line in error_lines(explain(error), where, terminal.error_width):
        terminal.stderr.write(f"{terminal.error_painter.paint(line)}\n")
    terminal.stderr.flush()


def explain(error: Exception) -> KcovdbgError:
    """Return any error as one for the user."""
    if isinstance(error, KcovdbgError):
        if error.wrong_file is not None:
            # Most errors are about something else.
            from kcovdbg.inputs.input_commands import find_kind_hint

            error.hint = find_kind_hint(error.wrong_file) or error.hint
        return error
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return over_limit(MEMORY, "the command")
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename is not None else ""
        hint = find_write_hint(error) if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
        if isinstance(error, PermissionError):
            hint = "run kcovdbg as root, or as a user with access"
            if os.geteuid() == 0:
                hint = "check the permissions of the file"
        elif isinstance(error, FileNotFoundError):
            hint = "a relative path starts at the working directory"
        return KcovdbgError(f"{file}{error.strerror or error}", hint=hint)
    return KcovdbgError(
        f"internal error: {type(error).__name__}: {error}",
        hint="please report it with the command and the output of --debug",
    )
