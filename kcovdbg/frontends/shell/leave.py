# SPDX-License-Identifier: LGPL-2.1-or-later
"""``exit``: the one command that only a shell has."""

from __future__ import annotations

from argparse import Namespace

from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context


class LeaveShell(BaseException):
    """The user wants out. Not an Exception: it's nothing that went wrong."""


def _run(context: Context, args: Namespace) -> None:  # noqa: ARG001
    raise LeaveShell


LEAVE = Command(
    name="exit",
    summary="leave the shell, as C-d does",
    run=_run,
    examples=(Example("exit", "enough seen"),),
    needs=frozenset(),
    aliases=("quit",),
)
