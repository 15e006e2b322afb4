# SPDX-License-Identifier: LGPL-2.1-or-later
"""``info``: which kernel this is and which KCOV it has."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kcovdbg.console.column import BOOL, LIST, WORD, Column, RowType
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.log_lines import end_lines
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.log_record import KernelLog
from kcovdbg.series import table
from kcovdbg.target.connection import MachineState
from kcovdbg.walk.printk_log import LOG_RECORDS, read_kernel_log


def _era_text(row: Mapping[str, Any]) -> str | None:
    generation: str | None = row["generation"]
    era = next((era for era in table.eras() if era.name == generation), None)
    if era is None:
        return generation
    return f"{era.name} ({era.kernels}): {era.summary}"


_COLUMNS: Final = (
    Column("target", title="target"),
    Column("release", title="release"),
    Column("machine", title="machine"),
    Column("build_id", title="build id"),
    Column("kaslr_offset", WORD, title="KASLR offset"),
    Column("generation", title="KCOV generation", text=_era_text),
    Column(
        "variants",
        LIST,
        title="variants",
        hide_empty=True,
        meaning="names of posted series that this kernel has",
        null="the kernel has no KCOV",
    ),
    Column(
        "features",
        LIST,
        title="features",
        meaning="names of facilities that this generation has",
        null="the kernel has no KCOV",
    ),
    Column("live", BOOL, title="live", meaning="whether the target runs while it is read"),
    Column(
        "state",
        title="machine is",
        hide_empty=True,
        meaning="`running`, `stopped` or `gone`",
        null="the target is not a live guest",
    ),
    Column(
        "report",
        title="crash report",
        hide_empty=True,
        meaning="first line of the report in the kernel's log that led to the crash",
        null="there is none",
    ),
    Column(
        "panic",
        title="panic",
        hide_empty=True,
        meaning="the message of panic(), in the kernel's log",
        null="the kernel has not panicked",
    ),
    Column("log", LIST, json_only=True, meaning="last lines of the kernel's log"),
)
# Number of records of the kernel's log that are shown.
_NEWEST: Final = 10


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:  # noqa: ARG001
    # The facts about a guest are shown even after it has ended.
    target = context.kernel.target
    state = target.state()
    stop_note = None
    if state is MachineState.STOPPED:
        stop_note = target.connection.stop_note()
    errors: list[str] = []
    generation = None
    try:
        generation = context.layout.generation
    except KcovdbgError as error:
        # The other facts are also shown of a kernel without KCOV.
        errors.append(str(error))
    else:
        hidden = "state that it holds is not shown"
        errors += [f"{name} is unknown to kcovdbg: {hidden}" for name in generation.unrecognised]
        errors += [
            f"{name} is missing from the debug info: {hidden}" for name in generation.missing
        ]
    log, title, panic = KernelLog(), None, None
    if state is not MachineState.GONE and target.memory_problem is None:
        # Imported here: an image has no log, and compiling the patterns of reports takes time.
        from kcovdbg.records.crash_report import find_report

        log = read_kernel_log(target, LOG_RECORDS)
        report = find_report(log.records)
        title, panic = report.title, report.panic
    newest = log.records[-_NEWEST:]
    row = {
        "target": target.name,
        "release": target.release,
        "machine": target.machine,
        "build_id": target.build_id,
        "kaslr_offset": target.kaslr_offset,
        "generation": generation and generation.era,
        "variants": generation and generation.variants,
        "features": generation and sorted(generation.features),
        "live": target.live and state is not MachineState.GONE,
        "state": state and state.value,
        "report": title,
        "panic": panic,
        "log": [line for record in newest for line in record.lines()],
    }
    # The target's notes are not part of `errors`: they differ between a dump and its slice.
    remarks = [*target.notes, *log.remarks]
    if stop_note is not None:
        remarks.append(stop_note)
    yield Table(_COLUMNS, [row], remarks=remarks, errors=lambda _: errors, is_record=True)
    yield Lines(end_lines(newest, context.width))


COMMAND: Final = Command(
    name="info",
    summary="show the target, its kernel, and the generation of its KCOV",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "The generation is detected from the members of KCOV's structures, not from the kernel's "
        "release: stable kernels carry newer layouts than newer releases. Notes say what could "
        "not be read or is unknown. For a guest, info also shows whether it is running, stopped "
        "or gone; for a crash, the report in the kernel's log. The end of the log follows; the "
        "command log shows all of it."
    ),
    examples=(
        Example("info", "which kernel is this, and which KCOV?"),
        Example("info --json", "the same for a script"),
    ),
    needs=frozenset({Need.KERNEL}),
)
