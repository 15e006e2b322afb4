# SPDX-License-Identifier: LGPL-2.1-or-later
"""``slice``: a minimal core with the memory that the other commands read."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.check.runner import check
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import BOOL, LIST, NUMBER, PATH, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.output_files import STDOUT, binary_stdout, refuse_input
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.console.terminal import write_remarks
from kcovdbg.crash.crash_summary import find_crashed_task
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.model.remote import RemoteSite
from kcovdbg.model.state import Part, PointProof, State
from kcovdbg.target.target import Target
from kcovdbg.walk.buffers import read_buffer
from kcovdbg.walk.crash_evidence import read_crash_evidence
from kcovdbg.walk.layout import Layout, detect_layout
from kcovdbg.walk.printk_log import read_kernel_log
from kcovdbg.walk.state import StateReader

_COLUMNS: Final = (
    Column("file", PATH, title="file", meaning="path of the written file"),
    Column("bytes", NUMBER, title="bytes"),
    Column(
        "pages",
        NUMBER,
        title="pages of memory",
        meaning="number of pages of memory in it",
        unit="pages",
    ),
    Column(
        "consistent",
        BOOL,
        title="one moment",
        meaning="whether the target stood still while it was read",
    ),
    Column("buffers", NUMBER, title="buffers", meaning="number of buffers in it", unit="buffers"),
    Column("stacks", LIST, title="kernel stacks of", meaning="tasks whose kernel stacks are in it"),
)


# Bytes read before a return address. No call instruction is longer.
_CALL_ROOM: Final = 8
# What the commands on KCOV's state read.
_PARTS: Final = (
    Part.TASKS
    | Part.ALL_TASKS
    | Part.CURRENT
    | Part.SAVED
    | Part.REMOTE
    | Part.CACHED_AREAS
    | Part.AREAS
    | Part.OBJECTS
    | Part.DEVICES
)


def _buffer_names(state: State) -> Iterator[str]:
    """Yield the name of every buffer."""
    for address in state.objects:
        yield f"kcov:{address:#x}"
    for task in state.tasks:
        yield str(task.fields.pid)
    for area in state.areas:
        yield f"area:{area.address:#x}"
    for device in state.devices:
        for address in device.objects:
            yield f"{device.name}:{address:#x}"
        for session in device.sessions:
            yield f"{device.name}:{session.pid}"
    for saved in state.saved:
        yield saved.buffer


class _Contents(NamedTuple):
    """The contents of a slice."""

    buffers: int
    """Number of buffers."""
    stacks: Sequence[str]
    """Ids and names of the tasks with kernel stacks."""
    remarks: Sequence[str]


def read_everything(
    target: Target,
    layout: Layout,
    proof: PointProof | None,
    sites: Sequence[RemoteSite],
) -> _Contents:
    """Read everything that commands read: the state, every buffer, the kernel's log, and the stacks
    of tasks with KCOV state, of current tasks, and of the crashed one.

    :param sites: sites whose calls are read.
    """
    from kcovdbg.target.drgn.page_recorder import record_stack

    reader = StateReader(target, layout, None if proof is None else lambda: proof)
    state = reader.read(_PARTS)
    # For tasks, trace and view.
    reader.read(Part.NOTHING, syscalls=[task.fields for task in state.all_tasks])
    buffers = 0
    for name in _buffer_names(state):
        # A buffer that is missing or unreadable here will be missing in the slice as well.
        with contextlib.suppress(KcovdbgError):
            read_buffer(target, layout, reader, name)
            buffers += 1
    # For check: after a violation it reads back links, locks and the stacks of all tasks.
    with contextlib.suppress(KcovdbgError):
        check(reader, advice=True)
    # For sites.
    for site in sites:
        with contextlib.suppress(KcovdbgError):
            target.read(site.address - _CALL_ROOM, _CALL_ROOM)
    # For why.
    with contextlib.suppress(KcovdbgError):
        reader.read(Part.CARRIERS)
    # For info, last and log.
    read_kernel_log(target)
    crashed = find_crashed_task(read_crash_evidence(target, reader))

    with_stack = {task.fields.address: task.fields for task in state.tasks}
    for address in state.current.values():
        if address in state.task_by_address:
            with_stack.setdefault(address, state.task_by_address[address])
    for task in (crashed.task, crashed.reporter):
        if task is not None:
            with_stack.setdefault(task.fields.address, task.fields)
    for address in with_stack:
        record_stack(target, address)
    stacks = [f"{fields.pid} {fields.comm}" for fields in with_stack.values()]
    return _Contents(buffers, stacks, tuple(state.notes))


def _find_module_sites(context: Context) -> Sequence[RemoteSite]:
    """Return the sites in modules, whose calls ``sites`` finds in memory."""
    with contextlib.suppress(KcovdbgError):
        found = context.kernel.code.find_remote_sites()
        return [site for site in found.sites if site.module is not None]
    return ()


def _run(context: Context, args: Namespace) -> Renderable:
    stream = None
    if context.writes_stdout(args.output):
        stream = binary_stdout(context.terminal.stdout)
    from kcovdbg.target.drgn.target import DrgnTarget

    target = context.target
    # The open target tells which files it consists of.
    refuse_input(args.output, context.input_files)
    if not isinstance(target, DrgnTarget):
        raise CapabilityError(
            "slice: cannot read this target with drgn", hint="kcovdbg -c DUMP -e 'slice -o FILE'"
        )
    from kcovdbg.target.drgn.page_recorder import record
    from kcovdbg.target.slice_file import write_slice, write_stream

    proof = context.kernel.code.proof
    sites = _find_module_sites(context)
    # Detect the layout again, so that the slice has what that reads.
    recording, contents = record(
        target, lambda recorder: read_everything(recorder, detect_layout(recorder), proof, sites)
    )
    if stream is not None:
        size = write_stream(stream, recording.content(), STDOUT)
        stream.flush()
    else:
        size = write_slice(
            args.output,
            recording.content(),
            check=partial(refuse_input, args.output, context.input_files),
        )
    remarks = list(dict.fromkeys(contents.remarks))
    if not recording.is_consistent:
        remarks.append("the kernel was running: the slice is inconsistent, and is marked so")
    if target.build_id is not None:
        remarks.append(f"to open it: this file and the vmlinux with build-id {target.build_id}")
    if stream is not None:
        write_remarks(context.terminal, remarks)
        return Lines(())
    row = {
        "file": args.output,
        "bytes": size,
        "pages": len(recording.pages),
        "consistent": recording.is_consistent,
        "buffers": contents.buffers,
        "stacks": contents.stacks,
    }
    return Table(_COLUMNS, [row], remarks=remarks, is_record=True)


COMMAND: Final = Command(
    name="slice",
    summary="write a minimal core with the memory that these commands read",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "The file is an ELF core that kcovdbg, drgn and GDB open with the same vmlinux. It "
        "contains KCOV's state, the records of every buffer, the kernel stacks of tasks with KCOV "
        "state and of each CPU's current task, and the kernel's log, but no other memory. Review "
        "these before you share the file. A guest is paused while the slice is written, if that "
        "is possible."
    ),
    arguments=(
        Argument(
            "-o, --output FILE",
            Value.FILE,
            "the file to write, compressed if its name ends in .zst; - for standard output",
            is_output=True,
            is_required=True,
        ),
    ),
    examples=(
        Example("slice -o kcov.slice.zst", "KCOV's state of a 100 GB dump, for a bug report"),
    ),
)
