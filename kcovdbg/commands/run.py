# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs commands: a line as a user types it, or words that are split already."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from kcovdbg.commands.argument import WordError
from kcovdbg.commands.command import Answer, Command
from kcovdbg.commands.destination import open_destination, run_shell
from kcovdbg.commands.helptext import command_help
from kcovdbg.commands.line import CommandLine, Word, parse_line
from kcovdbg.commands.parse import parse_arguments
from kcovdbg.commands.session import Context, Session
from kcovdbg.commands.terminal import Terminal
from kcovdbg.errors import KcovdbgError, LineError, UsageError
from kcovdbg.render.errorlines import error_lines
from kcovdbg.render.renderable import Clear, Flush, Lines, Record, Renderable, Table
from kcovdbg.render.writer import Format, Output, write

FAILED = KcovdbgError.status
INTERRUPTED = 130


def run_line(session: Session, source: str, terminal: Terminal | None = None) -> int:
    """Run one line.

    :param terminal: where the answer goes; by default the process's streams as they are now.
    :return: the exit status.
    :raises KcovdbgError: when it can't be understood, or fails.
    """
    terminal = session.terminal() if terminal is None else terminal
    line = parse_line(source)
    if line.shell is not None:
        return FAILED if run_shell(line.shell, terminal.stdout) else 0
    if not line.words:
        return 0
    try:
        command, args = find_command(session, [word.text for word in line.words])
    except WordError as error:
        pointed = LineError(str(error), source.rstrip(), _find_column(line, error.word), hint=error.hint)
        pointed.status = error.status
        raise pointed from error
    except UsageError as error:
        raise LineError(str(error), source.rstrip(), line.words[0].column, hint=error.hint) from error
    if line.is_background:
        if command.start is None:
            raise LineError(
                f"{command.name} doesn't run in the background",
                source.rstrip(),
                len(source.rstrip()) - 1,
                hint="collect … & does",
            )
        return run_command(session, replace(command, run=_starter(command, line)), args, terminal)
    with open_destination(line, terminal.stdout) as stream:
        return run_command(session, command, args, terminal if stream is terminal.stdout else terminal.with_stdout(stream))


def _starter(command: Command, line: CommandLine) -> Callable[[Context, Namespace], Answer]:
    words = [word.text for word in line.words[1:]]

    def start(context: Context, args: Namespace) -> Answer:
        assert command.start is not None
        return command.start(context, args, words)

    return start


def run_words(session: Session, words: Sequence[str], terminal: Terminal | None = None) -> int:
    """Run a command whose words are split already, by a shell for instance.

    :return: the exit status.
    :raises KcovdbgError: when they can't be understood, or it fails.
    """
    command, args = find_command(session, words)
    return run_command(session, command, args, session.terminal() if terminal is None else terminal)


def find_command(session: Session, words: Sequence[str]) -> tuple[Command, Namespace]:
    """Return the command that these words name, and its arguments.

    :raises UsageError: when there is none.
    """
    command = session.commands.find(words[0])
    with _failing_as(command):
        return command, parse_arguments(command, words[1:])


def run_command(session: Session, command: Command, args: Namespace, terminal: Terminal) -> int:
    """Run a command and write its answer.

    :return: the exit status.
    :raises KcovdbgError: when it fails.
    """
    context = Context(session, command, terminal, find_format(session, args), pc=getattr(args, "pc", None) or "auto")
    output = Output(terminal.stdout, terminal.stderr, context.format, terminal.painter, terminal.width, terminal.error_painter)
    # Whoever reads the answer may have seen enough of it.
    with contextlib.suppress(BrokenPipeError), _failing_as(command):
        write(answer(context, args), output)
    return context.status


@contextlib.contextmanager
def _failing_as(command: Command) -> Iterator[None]:
    """Have errors inside end the program with the command's own status."""
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


def find_format(session: Session, args: Namespace) -> Format:
    """Return the format that the arguments ask for."""
    return Format.JSON if args.json else Format.CSV if args.csv else session.format


def answer(context: Context, args: Namespace) -> Iterator[Renderable]:
    """Ask a command, once all that it needs is there."""
    if args.help:
        yield command_help(context.command, context.width)
        return
    for need in context.command.needs:
        context.require(need)
    yield from _flatten(context.command.run(context, args))


def _flatten(result: Answer) -> Iterable[Renderable]:
    if result is None:
        return ()
    return (result,) if isinstance(result, (Table, Record, Lines, Flush, Clear)) else result


def _find_column(line: CommandLine, wrong: str | None) -> int:
    """Return where the word that is wrong begins; the line's end for one that is missing."""
    found: Word | None = None
    if wrong is not None:
        found = next((word for word in line.words[1:] if wrong == word.text or word.text.endswith(f"={wrong}")), None)
    return len(line.source.rstrip()) if found is None else found.column


def run_reporting(session: Session, source: str, where: str | None = None) -> int:
    """Run one line, and tell what went wrong.

    :param where: file and line, for the message.
    :return: the exit status.
    """
    try:
        return run_line(session, source)
    except Exception as error:  # noqa: BLE001 - the session goes on with the next line
        report(session, error, where)
        return explain(error).status


def report(session: Session, error: Exception, where: str | None = None) -> None:
    """Tell the user about an error, in a line or two; with ``--debug`` where it comes from, too."""
    terminal = session.terminal()
    if session.debug:
        import traceback

        terminal.stderr.write("".join(traceback.format_exception(error)))
    for line in error_lines(explain(error), where):
        terminal.stderr.write(f"{terminal.error_painter.paint(line)}\n")
    terminal.stderr.flush()


def explain(error: Exception) -> KcovdbgError:
    """Make an error of ours of any error."""
    if isinstance(error, KcovdbgError):
        return error
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return KcovdbgError(f"{place}{error.strerror or error}")
    if isinstance(error, MemoryError):
        return KcovdbgError("there isn't enough memory for that", hint="ask for less, by -n for instance")
    return KcovdbgError(
        f"internal error: {type(error).__name__}: {error}", hint="--debug shows where; please report it with the command"
    )
