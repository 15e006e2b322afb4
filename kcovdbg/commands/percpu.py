# SPDX-License-Identifier: LGPL-2.1-or-later
"""``percpu``: sessions that a softirq section interrupted, wherever this kernel saves them."""

from __future__ import annotations

from argparse import Namespace

from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.model.task import SavedState
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ADDRESS, COMM, CPU, MODE, NUMBER, PID, WORD
from kcovdbg.render.renderable import Table


def _make_columns(context: Context) -> tuple[Column, ...]:
    def mode(saved: SavedState) -> str | None:
        return None if saved.mode is None else context.layout.mode_name(saved.mode)

    return (
        Column("where"),
        Column("cpu", CPU),
        Column("pid", PID),
        Column("comm", COMM, elastic=8),
        Column("saved_mode", MODE, title="MODE", value=mode),
        Column("saved_mode_raw", WORD, value=lambda saved: saved.mode, json_only=True),
        Column("saved_size", NUMBER, title="SIZE", value=lambda saved: saved.size, priority=1),
        Column("saved_area", ADDRESS, title="AREA", value=lambda saved: saved.area, priority=2),
        Column("saved_kcov", ADDRESS, title="KCOV", value=lambda saved: saved.kcov),
        Column("saved_sequence", NUMBER, title="SEQUENCE", value=lambda saved: saved.sequence, priority=3),
    )


def _label(saved: SavedState) -> str:
    return f"CPU {saved.cpu}" if saved.where == "cpu" else f"task {saved.pid}"


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    rows = context.census.saved
    return Table(
        _make_columns(context),
        rows,
        remarks=context.census.remarks(),
        empty="no session is interrupted",
        errors=lambda saved: saved.errors,
        label=_label,
    )


PERCPU = Command(
    name="percpu",
    summary="saved state of sessions that a softirq section interrupted",
    run=_run,
    description=(
        "Kernels since August 2026, stable ones too, save it in the task (WHERE is task), older ones in kcov_percpu_data of "
        "the CPU (WHERE is cpu). State that is saved while no softirq section runs was lost."
    ),
    examples=(Example("percpu", "is coverage of a task parked while a softirq runs?"),),
    aliases=("saved",),
)
