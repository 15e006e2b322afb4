# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``%kcov`` runs: the same commands on drgn's Program.

Pipes and redirections are ours: drgn hands a raw command its whole line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from drgn import Program
from drgn.commands import CommandError

from kcovdbg.commands import COMMANDS
from kcovdbg.commands.run import run_line
from kcovdbg.commands.session import Session
from kcovdbg.errors import KcovdbgError
from kcovdbg.helpers import program_target
from kcovdbg.render.errorlines import error_lines
from kcovdbg.render.paint import Painter

if TYPE_CHECKING:
    from kcovdbg.commands.viewing import View

_SESSION = "kcovdbg_session"


def _show_view(view: View) -> None:
    """Show a view full-screen; only views pay for prompt_toolkit."""
    import_module("kcovdbg.frontends.shell.view").show_view(view)


def run_in_drgn(prog: Program, source: str) -> int:
    """Run one line of kcovdbg on a Program.

    :param source: what follows ``%kcov``; nothing lists the commands.
    :return: the exit status.
    :raises drgn.commands.CommandError: when it can't be understood, or fails.
    """
    # Types, and buffers that were kept, last as long as the Program does.
    session = prog.cache.get(_SESSION)
    if session is None:
        session = Session(COMMANDS, lambda: program_target(prog))
        session.show_view = _show_view
        prog.cache[_SESSION] = session
    try:
        return run_line(session, source if source.strip() else "help")
    except KcovdbgError as error:
        paint = Painter().paint
        lines = [paint(line) for line in error_lines(error)]
        # drgn writes "drgn: error: " before it.
        raise CommandError("\n".join([lines[0].removeprefix("kcovdbg: "), *lines[1:]])) from error
