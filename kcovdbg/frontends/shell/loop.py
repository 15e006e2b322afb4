# SPDX-License-Identifier: LGPL-2.1-or-later
"""The loop of the shell: read a line, run it, update the completions; and the command that leaves
it.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Final

from kcovdbg.console.command import Command, Example
from kcovdbg.console.command_line import parse_line, split_commands
from kcovdbg.console.completion_index import Harvest
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.runner import report, run_line
from kcovdbg.console.terminal import is_terminal
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.shell.pager import find_pager, paged

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
            workspace.terminal().show(workspace.announce())
            _refresh(workspace, harvest)
        try:
            text = read()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        try:
            for line in text.splitlines():
                run_in_shell(workspace, line, environment)
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


def run_in_shell(workspace: Workspace, line: str, environment: Mapping[str, str]) -> None:
    """Run a line, with a pager if its answer is too large for the terminal, and report its
    error.
    """
    terminal = workspace.terminal()
    try:
        pager = None
        if not _is_endless(workspace, line):
            pager = find_pager(environment, workspace.settings.pager)
        with paged(terminal, pager, environment) as its_terminal:
            run_line(workspace, line, its_terminal)
    except Exception as error:  # noqa: BLE001 - continue with the next line
        report(workspace, error)


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
            words = [word.text for word in parse_line(command).words]
            if words and workspace.commands.find(words[0]).endless:
                return True
    return False
