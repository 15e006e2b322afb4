# SPDX-License-Identifier: LGPL-2.1-or-later
"""``slice``: a minimal core that holds what the other commands read."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kcovdbg.analysis.check.looking import check
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.render.column import Column
from kcovdbg.render.kind import BOOL, LIST, NUMBER, PATH
from kcovdbg.render.renderable import Record
from kcovdbg.target import Target
from kcovdbg.walk.buffers import read_buffer
from kcovdbg.walk.carriers import CarrierWalk
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import Layout, detect_layout
from kcovdbg.walk.tasks import find_current_tasks


@dataclass(slots=True)
class _Reading:
    """What was read for a slice."""

    buffers: int = 0
    stacks: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Slice:
    file: str
    bytes: int
    pages: int
    consistent: bool
    reading: _Reading


_COLUMNS: Final = (
    Column("file", PATH, title="file"),
    Column("bytes", NUMBER, title="bytes"),
    Column("pages", NUMBER, title="pages of memory"),
    Column("consistent", BOOL, title="one moment"),
    Column("buffers", NUMBER, title="buffers", value=lambda made: made.reading.buffers),
    Column("stacks", LIST, title="kernel stacks of", value=lambda made: made.reading.stacks),
)


def _buffer_names(census: Census) -> Iterator[str]:
    """Name every buffer there is."""
    for address in census.objects:
        yield f"kcov:{address:#x}"
    for task in census.tasks():
        yield str(task.fields.pid)
    for area in census.areas:
        yield f"area:{area.address:#x}"
    for saved in census.saved:
        yield f"saved:{saved.cpu}" if saved.where == "cpu" else f"saved:t{saved.pid}"


def read_everything(target: Target, layout: Layout, reading: _Reading) -> None:
    """Read all that commands read: the state, every buffer, the stacks of tasks with KCOV state and of current ones."""
    from kcovdbg.target.recording import record_stack

    census = Census(target, layout)
    snapshot = census.snapshot()
    reading.remarks += snapshot.remarks
    for name in _buffer_names(census):
        # What has no buffer, or one that can't be read, has none in the slice either.
        with contextlib.suppress(KcovdbgError):
            read_buffer(target, layout, census, name)
            reading.buffers += 1
    with contextlib.suppress(KcovdbgError):
        # It looks at links back, locks and everybody's stacks where something is wrong.
        check(target, layout, census, advice=True)
    with contextlib.suppress(KcovdbgError):
        # Who carries a handle is for why.
        tuple(CarrierWalk(target, census.task_fields))
    wanted = {task.fields.address: task.fields for task in census.tasks()}
    for address in find_current_tasks(target).values():
        if address in census.by_address:
            wanted.setdefault(address, census.by_address[address])
    if target.stacks is not None:
        with contextlib.suppress(KcovdbgError):
            crashed = target.stacks.crashed_task()
            if crashed is not None and crashed in census.by_address:
                wanted.setdefault(crashed, census.by_address[crashed])
    for address, fields in wanted.items():
        record_stack(target, address)
        reading.stacks.append(f"{fields.pid} {fields.comm}")


def _run(context: Context, args: Namespace) -> Record:
    if args.output is None:
        raise WordError("slice needs the name of a file", None, hint="slice -o FILE, for instance slice -o kcov.slice.zst")
    from kcovdbg.target.drgn import DrgnTarget

    target = context.target
    if not isinstance(target, DrgnTarget):
        raise CapabilityError("slice needs a target that drgn reads", hint="kcovdbg -c DUMP -e 'slice -o FILE'")
    from kcovdbg.target.recording import record, write_slice

    # Each look reads types once; the slice must hold what a fresh look reads.
    reading = _Reading()
    recording = record(target, lambda recorder: read_everything(recorder, detect_layout(recorder), reading))
    size = write_slice(args.output, recording)
    made = _Slice(args.output, size, len(recording.pages), recording.is_consistent, reading)
    remarks = list(dict.fromkeys(reading.remarks))
    if not recording.is_consistent:
        remarks.append("the kernel ran meanwhile: the slice shows no single moment, and says so when it is opened")
    if target.build_id is not None:
        remarks.append(f"who opens it needs the vmlinux with build-id {target.build_id}, too")
    return Record(_COLUMNS, made, remarks=remarks)


SLICE = Command(
    name="slice",
    summary="write a minimal core that holds what these commands read",
    run=_run,
    description=(
        "The file is an ELF core that kcovdbg, drgn and GDB open with the same vmlinux. It holds KCOV's state, every buffer's "
        "records, and the kernel stacks of tasks with KCOV state and of the CPUs' current tasks: check what is in them before "
        "you give it away. Memory that nothing of this reads isn't in it. A guest is paused meanwhile where that is possible."
    ),
    arguments=(
        Argument(
            ("-o", "--output"),
            Value.FILE,
            "the file to write; compressed when it ends in .zst",
            metavar="FILE",
            count=Count.ONE,
        ),
    ),
    examples=(Example("slice -o kcov.slice.zst", "KCOV's state of a 100 GB dump, for a bug report"),),
)
