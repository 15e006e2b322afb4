# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``%kcov``: all commands on drgn's Program.

Pipes and redirections are ours: drgn hands a raw command its whole line.
"""

from __future__ import annotations

import os
from functools import partial

from drgn import Program
from drgn.commands import CommandError

from kcovdbg.commands import COMMANDS
from kcovdbg.console.messages import error_lines
from kcovdbg.console.runner import run_line
from kcovdbg.console.settings import read_settings
from kcovdbg.console.symbol_sources import find_symbolizer
from kcovdbg.console.theme import Painter
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import KcovdbgError
from kcovdbg.helpers import program_target
from kcovdbg.limits import set_limits

_WORKSPACE = "kcovdbg_workspace"


def _make_workspace(prog: Program) -> Workspace:
    settings = read_settings(COMMANDS, os.environ)
    set_limits(settings.limits)
    return Workspace(
        COMMANDS,
        lambda: program_target(prog),
        find_symbolizer=partial(find_symbolizer, tables=settings.symbol_tables),
        has_screen=True,
        color=settings.color,
        source_folders=settings.source_dirs,
        substitutions=settings.substitute_paths,
        settings=settings,
    )


def run_in_drgn(prog: Program, source: str) -> int:
    """Run one line of kcovdbg on a Program.

    :param source: the line after ``%kcov``; an empty one lists the commands.
    :return: the exit status.
    :raises drgn.commands.CommandError: when the line is wrong or the command fails.
    """
    # Types and kept buffers last as long as the Program.
    workspace = prog.cache.get(_WORKSPACE)
    try:
        if workspace is None:
            workspace = prog.cache[_WORKSPACE] = _make_workspace(prog)
        return run_line(workspace, source if source.strip() else "help")
    except KcovdbgError as error:
        paint = Painter().paint
        lines = [paint(line) for line in error_lines(error)]
        # drgn writes "drgn: error: " before it.
        raise CommandError("\n".join([lines[0].removeprefix("kcovdbg: "), *lines[1:]])) from error
