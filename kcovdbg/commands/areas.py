# SPDX-License-Identifier: LGPL-2.1-or-later
"""``areas``: the kernel's own buffers for remote and softirq sections."""

from __future__ import annotations

from argparse import Namespace

from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ADDRESS, CPU, NUMBER, PID
from kcovdbg.render.renderable import Table

_COLUMNS = (
    Column("area", ADDRESS, value=lambda area: area.address),
    Column("size", NUMBER),
    Column("list"),
    Column("state", style=lambda area: "idle" if area.state == "cached" else "warning" if area.state == "unclaimed" else ""),
    Column("pid", PID),
    Column("cpu", CPU),
)


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    rows = context.census.areas
    return Table(
        _COLUMNS,
        rows,
        remarks=context.census.remarks(),
        empty="no remote or softirq area",
        errors=lambda area: area.errors,
        label=lambda area: f"area {area.address:#x}",
    )


AREAS = Command(
    name="areas",
    summary="areas of remote and softirq sections, cached or in use",
    run=_run,
    description=(
        "A section collects into an area of the kernel's own, and its end copies that into the buffer of the handle's owner. "
        "LIST tells whether it is kept for tasks or for softirqs. STATE is cached (free), in-use (by the task in PID), saved "
        "(of a section that a softirq interrupted) or unclaimed (allocated, and found nowhere)."
    ),
    examples=(Example("areas", "which sections are running, and what is left over?"),),
)
