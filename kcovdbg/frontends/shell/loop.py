# SPDX-License-Identifier: LGPL-2.1-or-later
"""The loop of the shell: read a line, run it, update the completions; and the commands that only
the shell has.
"""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TextIO, cast

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import Command, Example
from kcovdbg.console.command_line import parse_line, split_commands
from kcovdbg.console.completion_index import Harvest
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.output_files import open_text
from kcovdbg.console.renderable import Lines, text_lines
from kcovdbg.console.runner import report, run_line
from kcovdbg.console.terminal import Terminal, is_terminal
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.shell.pager import SGR, find_pager, paged

_OFF: Final = "off"

PROMPT: Final = "kcovdbg> "


class LeaveShell(BaseException):
    """Raised when the user leaves the shell; not an Exception, because nothing went wrong."""


def _leave(context: Context, args: Namespace) -> None:  # noqa: ARG001
    raise LeaveShell


LEAVE: Final = Command(
    name="exit",
    summary="leave the shell, as C-d does",
    run=_leave,
    examples=(Example("exit", "leave the shell"),),
    needs=frozenset(),
    aliases=("quit", "q"),
)


def make_pager_command(workspace: Workspace) -> Command:
    """Return the command that switches the pager of a shell off and on."""
    configured = workspace.settings.pager

    def run(context: Context, args: Namespace) -> Lines | None:
        settings = context.workspace.settings
        if args.switch is None:
            return text_lines(_OFF if settings.pager == "" else "on")
        pager = "" if args.switch == _OFF else configured
        context.workspace.settings = replace(settings, pager=pager)
        return None

    return Command(
        name="pager",
        summary="show answers in the pager, or not",
        run=run,
        description="Without an argument, show which. The setting pager in config.toml, or "
        "$PAGER, is the program.",
        arguments=(Argument("switch [on|off]", Value.TEXT, "on or off", choices=("on", _OFF)),),
        examples=(
            Example("pager off", "let long answers scroll by"),
            Example("pager", "is it on?"),
        ),
        needs=frozenset(),
    )


class Transcript:
    """The file, if there is one, that gets everything that is typed and shown in a shell."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._file: TextIO | None = None
        self._open = contextlib.ExitStack()

    @contextlib.contextmanager
    def recording(self, terminal: Terminal, typed: str = "") -> Iterator[Terminal]:
        """Yield a terminal whose text also goes to the file.

        :param typed: the line whose answer follows.
        """
        if self._file is None:
            yield terminal
            return
        file = self._file
        if typed:
            file.write(f"{PROMPT}{typed}\n")
        try:
            stdout, stderr = (
                _CopiedStream(stream, partial(self._write, file))
                for stream in (terminal.stdout, terminal.stderr)
            )
            yield replace(terminal, stdout=cast("TextIO", stdout), stderr=cast("TextIO", stderr))
        finally:
            if self._file is file:
                file.flush()

    def _write(self, file: TextIO, text: str) -> None:
        # The command that runs may have ended the transcript.
        if self._file is file:
            file.write(text)

    def close(self) -> None:
        """End the file, if there is one."""
        self._open.close()
        self._path = self._file = None

    def make_command(self) -> Command:
        """Return the command that begins and ends the transcript."""

        def run(context: Context, args: Namespace) -> Lines | None:
            if args.file is None:
                return text_lines(self._path or _OFF)
            self.close()
            if args.file != _OFF:
                self._file = self._open.enter_context(
                    open_text(args.file, context.input_files, append=True)
                )
                self._path = args.file
            return None

        return Command(
            name="transcript",
            summary="write what is typed and shown to a file as well",
            run=run,
            description=(
                "A file that exists is continued. Without an argument, show which. Full-screen "
                "views are not written. Meanwhile shell commands do not have the terminal for "
                "their output."
            ),
            arguments=(Argument("file [FILE]", Value.FILE, "the file, or off", is_output=True),),
            examples=(
                Example("transcript session.txt", "keep what follows, for a report"),
                Example("transcript off", "no more"),
            ),
            needs=frozenset(),
        )


class _CopiedStream(io.TextIOBase):
    """A stream whose text also goes to a file, without colors. It has no descriptor, so that the
    output of children passes through it.

    :param stream: the stream.
    :param copy: writes to the file.
    """

    def __init__(self, stream: TextIO, copy: Callable[[str], None]) -> None:
        super().__init__()
        self._stream = stream
        self._copy = copy

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Write to both."""
        self._copy(SGR.sub("", text))
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def read_plain_line(read: Callable[[], str] = input) -> str:
    """Return the next line of standard input.

    :param read: returns a line.
    :raises EOFError: at the end.
    :raises KeyboardInterrupt: for C-c.
    """
    # input() would write the prompt to a file with the answers.
    stream = sys.stdout if is_terminal(sys.stdout) else sys.stderr
    is_asking = is_terminal(sys.stdin)
    if is_asking:
        stream.write(PROMPT)
        stream.flush()
    try:
        return read()
    except (EOFError, KeyboardInterrupt):
        if is_asking:
            # End the line of the prompt.
            stream.write("\n")
            stream.flush()
        raise


def run_lines(
    workspace: Workspace,
    read: Callable[[], str],
    harvest: Harvest,
    environment: Mapping[str, str],
    transcript: Transcript,
) -> int:
    """Run lines until the user leaves.

    :param read: returns the next line, or several that were pasted; raises EOFError at the end,
        KeyboardInterrupt for C-c.
    :param harvest: updated after each of them.
    :param environment: names the pager.
    :return: the exit status; a failed command does not change it.
    """
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            with transcript.recording(workspace.terminal()) as terminal:
                terminal.show(workspace.announce())
            _refresh(workspace, harvest)
        try:
            text = read()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        try:
            for line in text.splitlines():
                run_in_shell(workspace, line, environment, transcript)
        except LeaveShell:
            return 0
        except KeyboardInterrupt:
            _end_line(workspace)


def _refresh(workspace: Workspace, harvest: Harvest) -> None:
    try:
        harvest.refresh()
    except Exception as error:  # noqa: BLE001 - a prompt without completions is better than none
        if workspace.debug:
            report(workspace, error)


def run_in_shell(
    workspace: Workspace, line: str, environment: Mapping[str, str], transcript: Transcript
) -> None:
    """Run a line, with a pager if its answer is too large for the terminal, and report its
    error.
    """
    terminal = workspace.terminal()
    try:
        pager = None
        if not _is_endless(workspace, line):
            pager = find_pager(environment, workspace.settings.pager)
        with (
            paged(terminal, pager, environment) as its_terminal,
            transcript.recording(its_terminal, line) as recorded,
        ):
            run_line(workspace, line, recorded)
    except Exception as error:  # noqa: BLE001 - continue with the next line
        with transcript.recording(terminal) as recorded:
            report(workspace, error, terminal=recorded)


def _end_line(workspace: Workspace) -> None:
    """End the line on which the terminal echoed ^C."""
    terminal = workspace.terminal()
    if terminal.is_terminal:
        terminal.stdout.write("\n")
        terminal.stdout.flush()


def _is_endless(workspace: Workspace, line: str) -> bool:
    # Running the line reports its errors.
    with contextlib.suppress(KcovdbgError):
        for command in split_commands(line):
            words = parse_line(command).texts
            if words and workspace.commands.find(words[0]).endless:
                return True
    return False
