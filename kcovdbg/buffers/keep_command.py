# SPDX-License-Identifier: LGPL-2.1-or-later
"""``keep``: buffers kept in memory."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import NUMBER, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Table
from kcovdbg.errors import WordError
from kcovdbg.inputs.buffer_sources import find_buffer, find_kept
from kcovdbg.inputs.user_inputs import Kept, keep
from kcovdbg.records.pc_counts import distinct_words

_COLUMNS: Final = (
    Column("name", value=lambda row: row[0], meaning="name under which it is kept"),
    Column(
        "what",
        value=lambda row: row[1].source,
        meaning="name of the buffer that it was copied from",
    ),
    Column(
        "count",
        NUMBER,
        title="RECORDS",
        value=lambda row: row[1].buffer.count,
        meaning="number of records",
        unit="records",
    ),
    Column("distinct", NUMBER, value=lambda row: len(distinct_words(row[1].buffer))),
)


def _run(context: Context, args: Namespace) -> Table:
    kept = context.workspace.inputs.kept
    if args.delete:
        if args.name is None:
            raise WordError("keep: --delete needs the name of a kept buffer", None)
        find_kept(context.inputs.user, args.name)
        del kept[args.name]
        return _table(kept)
    if args.name is None:
        return _table(kept)
    if args.what is None:
        raise WordError(
            "keep: missing buffer",
            None,
            hint=f"keep {args.name} WHAT, for instance keep {args.name} 41",
        )
    buffer = find_buffer(context.inputs, args.what)
    kept[args.name] = keep(buffer, args.name, args.what)
    return _table({args.name: kept[args.name]}, buffer.remarks)


def _table(kept: Mapping[str, Kept], remarks: tuple[str, ...] = ()) -> Table:
    return Table(_COLUMNS, tuple(kept.items()), remarks=remarks, empty="no kept buffers")


COMMAND: Final = Command(
    name="keep",
    summary="keep a buffer in memory, or list the kept buffers",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "A kept buffer does not change when the kernel's memory does. Every command takes its "
        "name, @NAME, as a buffer."
    ),
    arguments=(
        Argument("name [@NAME]", Value.BUFFER_NAME, "a name"),
        Argument("what [WHAT]", Value.BUFFER, "the buffer"),
        Argument("--delete", Value.FLAG, "delete the kept buffer"),
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("keep @before 41", "keep what is in the buffer of task 41 now"),
        Example("keep", "which buffers are kept? diff @before 41 shows what was added"),
    ),
    needs=frozenset(),
)
