# SPDX-License-Identifier: LGPL-2.1-or-later
"""``exit``: the command that only the shell has."""

from __future__ import annotations

from argparse import Namespace

from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context


class LeaveShell(BaseException):
    """Raised when the user leaves the shell; not an Exception, because nothing went wrong."""


def _run(context: Context, args: Namespace) -> None:  # noqa: ARG001
    raise LeaveShell


LEAVE = Command(
    name="exit",
    summary="leave the shell, as C-d does",
    topic=Topic.OTHER,
    run=_run,
    examples=(Example("exit", "leave the shell"),),
    needs=frozenset(),
    aliases=("quit", "q"),
)
