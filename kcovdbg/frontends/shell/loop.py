# SPDX-License-Identifier: LGPL-2.1-or-later
"""The loop of the shell: read a line, run it, update the completions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from kcovdbg.console.command_line import parse_line, split_commands
from kcovdbg.console.completion_index import Harvest
from kcovdbg.console.runner import report, run_line
from kcovdbg.console.terminal import is_terminal
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.shell.pager import find_pager, paged
from kcovdbg.frontends.shell.session_commands import PROMPT, LeaveShell, Transcript


class LineReader(Protocol):
    """A source of lines."""

    def read(self) -> str:
        """Return the next line, or several that were pasted.

        :raises EOFError: at the end.
        :raises KeyboardInterrupt: for C-c.
        """


class PlainReader:
    """Reads lines with ``input()``.

    :param read: returns a line.
    """

    def __init__(self, read: Callable[[], str] = input) -> None:
        self._read = read

    def read(self) -> str:
        """Return the next line.

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
            return self._read()
        except (EOFError, KeyboardInterrupt):
            if is_asking:
                # End the line of the prompt.
                stream.write("\n")
                stream.flush()
            raise


class Loop:
    """The shell without its prompt.

    :param workspace: runs the commands.
    :param reader: the source of lines.
    :param harvest: updated after each of them.
    :param environment: names the pager.
    :param transcript: records what is typed and shown.
    """

    def __init__(
        self,
        workspace: Workspace,
        reader: LineReader,
        harvest: Harvest,
        environment: Mapping[str, str],
        transcript: Transcript,
    ) -> None:
        self._transcript = transcript
        self._workspace = workspace
        self._reader = reader
        self._harvest = harvest
        self._environment = environment

    def run(self) -> int:
        """Run until the user leaves.

        :return: the exit status; a failed command does not change it.
        """
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                self._announce()
                self._refresh()
            try:
                text = self._reader.read()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return 0
            try:
                for line in text.splitlines():
                    run_in_shell(self._workspace, line, self._environment, self._transcript)
            except LeaveShell:
                return 0
            except KeyboardInterrupt:
                _end_line(self._workspace)

    def _announce(self) -> None:
        with self._transcript.recording(self._workspace.terminal()) as terminal:
            for line in self._workspace.announce():
                terminal.stdout.write(f"{terminal.painter.paint(line)}\n")
            terminal.stdout.flush()

    def _refresh(self) -> None:
        try:
            self._harvest.refresh()
        except Exception as error:  # noqa: BLE001 - a prompt without completions is better than none
            if self._workspace.debug:
                report(self._workspace, error)


def run_in_shell(workspace: Workspace, line: str, environment: Mapping[str, str], transcript: Transcript) -> None:
    """Run a line, with a pager if its answer is too large for the terminal, and report its error."""
    terminal = workspace.terminal()
    try:
        pager = None if _is_endless(workspace, line) else find_pager(environment, workspace.settings.pager)
        with paged(terminal, pager, environment) as its_terminal, transcript.recording(its_terminal, line) as recorded:
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
    try:
        lines = [[word.text for word in parse_line(command).words] for command in split_commands(line)]
        return any(words and workspace.commands.find(words[0]).endless for words in lines)
    except KcovdbgError:
        # Running the line reports the error.
        return False
