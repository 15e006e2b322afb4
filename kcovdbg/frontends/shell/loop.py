# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read a line, run it, make the completions of the next: until the user leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

from kcovdbg.commands.jobs import announce
from kcovdbg.commands.line import parse_line
from kcovdbg.commands.run import report, run_line
from kcovdbg.commands.session import Session
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.completion.harvest import Harvest
from kcovdbg.frontends.shell.leave import LeaveShell
from kcovdbg.frontends.shell.pager import find_pager, paged


class LineReader(Protocol):
    """Where lines come from."""

    def read(self) -> str:
        """Return the next line, or several that were pasted.

        :raises EOFError: at the end.
        :raises KeyboardInterrupt: for C-c.
        """


class Loop:
    """The shell without its prompt.

    :param session: runs the commands.
    :param reader: gives the lines.
    :param harvest: is brought up to date after each of them.
    :param environment: says which pager.
    """

    def __init__(self, session: Session, reader: LineReader, harvest: Harvest, environment: Mapping[str, str]) -> None:
        self._session = session
        self._reader = reader
        self._harvest = harvest
        self._environment = environment

    def run(self) -> int:
        """Run until the user leaves.

        :return: the exit status: that a command failed is no failure of the shell's.
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
                    run_in_shell(self._session, line, self._environment)
            except LeaveShell:
                return 0
            except KeyboardInterrupt:
                _end_line(self._session)

    def _announce(self) -> None:
        terminal = self._session.terminal()
        for line in announce(self._session):
            terminal.stdout.write(f"{terminal.painter.paint(line)}\n")
        terminal.stdout.flush()

    def _refresh(self) -> None:
        try:
            self._harvest.refresh()
        except Exception as error:  # noqa: BLE001 - a prompt without completions is better than none
            if self._session.debug:
                report(self._session, error)


def run_in_shell(session: Session, line: str, environment: Mapping[str, str]) -> None:
    """Run a line, its answer through the pager if it is too large for the terminal, and tell what went wrong."""
    terminal = session.terminal()
    try:
        pager = None if _is_endless(session, line) else find_pager(environment)
        with paged(terminal, pager, environment) as its_terminal:
            run_line(session, line, its_terminal)
    except Exception as error:  # noqa: BLE001 - the shell goes on with the next line
        report(session, error)


def _end_line(session: Session) -> None:
    """Begin a line: the terminal has echoed ^C, and a prompt comes next."""
    terminal = session.terminal()
    if terminal.is_terminal:
        terminal.stdout.write("\n")
        terminal.stdout.flush()


def _is_endless(session: Session, line: str) -> bool:
    try:
        words = parse_line(line).words
        return bool(words) and session.commands.find(words[0].text).endless
    except KcovdbgError:
        # Running it says what is wrong with it.
        return False
