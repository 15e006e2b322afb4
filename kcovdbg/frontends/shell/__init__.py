# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell: a prompt with history, completion and a status line; without them where the terminal can't show them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kcovdbg.commands.session import Session
from kcovdbg.frontends.completion.harvest import Harvest
from kcovdbg.frontends.shell.banner import banner_lines
from kcovdbg.frontends.shell.leave import LEAVE
from kcovdbg.frontends.shell.loop import LineReader, Loop
from kcovdbg.frontends.shell.opening import open_session
from kcovdbg.frontends.shell.plain import PlainReader
from kcovdbg.render.theme import is_terminal

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output


def run_shell(
    session: Session,
    *,
    quiet: bool,
    input: Input | None = None,  # noqa: A002 - as prompt_toolkit calls it
    output: Output | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run the shell until the user leaves it.

    :param session: its target is opened at once, so that errors come before the prompt.
    :param quiet: no banner.
    :param input: where keys come from; by default the terminal.
    :param output: where the prompt goes; by default the terminal.
    :param environment: by default the process's.
    :return: the exit status.
    :raises KcovdbgError: when the target can't be opened, or has no KCOV.
    """
    environment = os.environ if environment is None else environment
    session.commands = session.commands.with_commands(LEAVE)
    open_session(session)
    if not quiet:
        terminal = session.terminal()
        for line in banner_lines(session):
            terminal.stdout.write(f"{terminal.painter.paint(line)}\n")
        terminal.stdout.flush()
    harvest = Harvest(session)
    reader = _find_reader(session, harvest, environment, input, output)
    return Loop(session, reader, harvest, environment).run()


def _find_reader(
    session: Session, harvest: Harvest, environment: Mapping[str, str], keys: Input | None, screen: Output | None
) -> LineReader:
    if keys is None and not is_terminal(sys.stdin):
        return PlainReader()
    if screen is None and not (is_terminal(sys.stdout) or is_terminal(sys.stderr)):
        return PlainReader()
    if environment.get("TERM", "dumb") in ("dumb", "unknown") and screen is None:
        return PlainReader()
    # It costs a tenth of a second, which scripts and single commands don't pay.
    from kcovdbg.frontends.shell.prompt import make_reader

    return make_reader(session, harvest, environment, keys, screen)
