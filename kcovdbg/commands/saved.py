# SPDX-License-Identifier: LGPL-2.1-or-later
"""``saved``: saved state of sessions that a softirq section interrupted, wherever the kernel keeps
it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Final

from kcovdbg.console.column import (
    ADDRESS,
    COMM,
    CPU,
    MODE,
    NUMBER,
    PID,
    UNREAD,
    WORD,
    Column,
    RowType,
)
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Table
from kcovdbg.model.state import Part
from kcovdbg.model.task import SavedState

_STORED_COLUMNS: Final = (
    Column(
        "saved_mode_raw",
        WORD,
        value="mode",
        json_only=True,
        meaning="saved mode, the whole word",
        null=UNREAD,
    ),
    Column(
        "saved_size",
        NUMBER,
        title="SIZE",
        value="size",
        priority=1,
        meaning="saved size",
        null=UNREAD,
        unit="words",
    ),
    Column(
        "saved_area",
        ADDRESS,
        title="AREA",
        value="area",
        priority=2,
        meaning="saved address of the area or buffer",
        null=UNREAD,
    ),
    Column(
        "saved_kcov",
        ADDRESS,
        title="KCOV",
        value="kcov",
        meaning="saved address of the `struct kcov`",
        null=UNREAD,
    ),
    Column(
        "saved_sequence",
        NUMBER,
        title="SEQUENCE",
        value="sequence",
        priority=3,
        meaning="saved sequence",
        null=UNREAD,
    ),
)


def _make_columns(mode: Callable[[SavedState], str | None] | None = None) -> tuple[Column, ...]:
    """Return the columns.

    :param mode: returns the name of a saved state's mode.
    """
    return (
        Column("where"),
        Column("cpu", CPU),
        Column("pid", PID),
        Column("comm", COMM, elastic=8),
        Column(
            "saved_mode",
            MODE,
            title="MODE",
            value=mode,
            meaning="saved mode, without prefix and flags",
            null=UNREAD,
        ),
        *_STORED_COLUMNS,
    )


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    def mode(saved: SavedState) -> str | None:
        return context.layout.mode_of_saved(saved)

    rows = context.state(Part.SAVED).saved
    return Table(
        _make_columns(mode),
        rows,
        remarks=context.notes,
        empty="no interrupted session",
        errors=lambda saved: saved.errors,
        label=lambda saved: f"CPU {saved.cpu}" if saved.where == "cpu" else f"task {saved.pid}",
    )


COMMAND: Final = Command(
    name="saved",
    summary="list saved state of sessions that a softirq section interrupted",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_make_columns(), errors=True, unread=True),),
    description=(
        "Kernels since August 2026, stable ones included, save the state in the task (WHERE is "
        "task), older ones in the CPU's kcov_percpu_data (WHERE is cpu). State that is saved while "
        "no softirq section runs is of a session that was lost."
    ),
    examples=(Example("saved", "is a task's coverage suspended while a softirq runs?"),),
    former_names=("percpu",),
)
