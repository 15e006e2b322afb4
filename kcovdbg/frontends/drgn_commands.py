# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``%kcov``: all commands on drgn's Program.

Pipes and redirections are ours: drgn hands a raw command its whole line.
"""

from __future__ import annotations

import os

from drgn import Program
from drgn.commands import CommandError

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.console.renderable import error_lines
from kcovdbg.console.runner import run_line
from kcovdbg.console.settings import read_settings
from kcovdbg.console.terminal import Painter
from kcovdbg.errors import KcovdbgError
from kcovdbg.helpers import program_target
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.limits import set_limits

_WORKSPACE = "kcovdbg_workspace"
_HARVEST = "kcovdbg_completion"


def _find_workspace(prog: Program) -> Workspace:
    # Types and kept buffers last as long as the Program.
    found: Workspace | None = prog.cache.get(_WORKSPACE)
    if found is None:
        settings = read_settings(COMMANDS, os.environ)
        set_limits(settings.limits)
        kernel = Kernel(
            KernelOptions(
                lambda: program_target(prog),
                tables=settings.symbol_tables,
                source_folders=settings.source_dirs,
                substitutions=settings.substitute_paths,
            )
        )
        found = Workspace(
            COMMANDS,
            UserInputs(kernel),
            Frontend(has_screen=True),
            color=settings.color,
            settings=settings,
        )
        prog.cache[_WORKSPACE] = found
    return found


def complete_in_drgn(prog: Program, line: str, word: str) -> list[str]:
    """Return the completions of a line of kcovdbg; none if the Program has no kernel.

    :param line: the line up to the cursor, after ``%kcov``.
    :param word: the end of the line that is replaced.
    """
    from kcovdbg.console.completion import complete_word
    from kcovdbg.console.completion_index import Harvest

    try:
        workspace = _find_workspace(prog)
        harvest = prog.cache.get(_HARVEST)
        if harvest is None:
            harvest = prog.cache[_HARVEST] = Harvest(workspace)
        harvest.refresh()
    except KcovdbgError:
        return []
    return complete_word(line, word, workspace.commands, harvest.index)


def run_in_drgn(prog: Program, source: str) -> int:
    """Run one line of kcovdbg on a Program.

    :param source: the line after ``%kcov``; an empty one lists the commands.
    :return: the exit status.
    :raises drgn.commands.CommandError: when the line is wrong or the command fails.
    """
    try:
        return run_line(_find_workspace(prog), source if source.strip() else "help")
    except KcovdbgError as error:
        paint = Painter().paint
        lines = [paint(line) for line in error_lines(error)]
        # drgn writes "drgn: error: " before it.
        raise CommandError("\n".join([lines[0].removeprefix("kcovdbg: "), *lines[1:]])) from error
