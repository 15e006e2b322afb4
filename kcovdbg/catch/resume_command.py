# SPDX-License-Identifier: LGPL-2.1-or-later
"""``resume``: let a stopped guest continue that a killed run of kcovdbg left behind."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from kcovdbg.console.column import Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Table

_COLUMNS: Final = (
    Column("target", title="target"),
    Column("state", title="machine is", meaning="state of the machine now", null="it is unknown"),
)


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    target = context.target
    remark = target.connection.resume()
    data = {"target": target.name, "state": target.state()}
    return Table(_COLUMNS, [data], remarks=[*filter(None, (remark,))], is_record=True)


COMMAND: Final = Command(
    name="resume",
    summary="resume a guest that a killed run of kcovdbg left stopped",
    topic=Topic.MAINTENANCE,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "kcovdbg stops a guest while it writes a slice, and while it is attached to a GDB stub. "
        "It resumes the guest when it ends, unless SIGKILL ends it. Then a record beside the "
        "guest's socket says which run stopped the guest; info and the start of kcovdbg show it. "
        "resume leaves a guest alone that something else stopped."
    ),
    examples=(Example("resume", "let the guest go on"),),
    acts=True,
)
