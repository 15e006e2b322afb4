# SPDX-License-Identifier: LGPL-2.1-or-later
"""``areas``: the kernel's own buffers for remote and softirq sections."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from kcovdbg.console.column import ADDRESS, CPU, NUMBER, PID, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Table
from kcovdbg.model.state import Part
from kcovdbg.series.table import find_device

_STYLES: Final = {"cached": "idle", "unclaimed": "warning"}
_COLUMNS: Final = (
    Column("area", ADDRESS, value="address", meaning="address of the area"),
    Column("size", NUMBER),
    Column("list", meaning="what kind of section the area is for: tasks or softirqs"),
    Column(
        "state",
        style=lambda area: _STYLES.get(area.state, ""),
        meaning="`cached`, `in-use`, `saved` or `unclaimed`",
        null="some of its possible users are unknown",
    ),
    Column("pid", PID, meaning="thread id of the task that uses it", null="no task does"),
    Column("cpu", CPU, meaning="CPU that the area belongs to", null="it belongs to none"),
    Column(
        "device",
        hide_empty=True,
        meaning="device of a posted series that it belongs to",
        null="it is one of KCOV's own",
    ),
)


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    state = context.state(Part.AREAS | Part.DEVICES | Part.TASKS | Part.VMALLOC)
    areas = list(state.areas)
    for device in state.devices:
        sections = find_device(device.feature).remote
        if sections is not None:
            areas += sections.find_areas(state, device)
    return Table(
        _COLUMNS,
        areas,
        remarks=context.notes,
        empty="no remote or softirq area",
        errors=lambda area: area.errors,
        label=lambda area: f"area {area.address:#x}",
        rests_on=Part.AREAS | Part.DEVICES,
    )


COMMAND: Final = Command(
    name="areas",
    summary="list areas of remote and softirq sections, cached or in use",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True, unread=True),),
    description=(
        "A section collects into one of the kernel's own areas; when it ends, the records are "
        "copied to the buffer of the handle's owner. LIST says whether the area is for tasks or "
        "for softirqs. STATE is cached (free), in-use (by the task in PID), saved (of a section "
        "that a softirq interrupted), or unclaimed (allocated, but in use nowhere)."
    ),
    examples=(Example("areas", "which sections are running, and what is left over?"),),
)
