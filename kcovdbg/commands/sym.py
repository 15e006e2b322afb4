# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sym``: the source locations of recorded PCs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.address import address_of, pc_of
from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.command import Command, Example, Need, Topic
from kcovdbg.engine.context import Context
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.json_schema import RowType
from kcovdbg.render.record_columns import frames_column
from kcovdbg.render.renderable import Line, Table
from kcovdbg.render.value_kinds import ADDRESS, PATH, SYMBOL, WORD
from kcovdbg.render.wording import function_text, place_text


class _Row(NamedTuple):
    pc: int
    address: int
    location: Location


def _details(row: _Row) -> Iterator[Line]:
    """Yield the functions that the innermost one was inlined into."""
    for frame in row.location.frames[1:]:
        yield (("", "    inlined into "), ("symbol", frame.function or "?"), ("", "  "), ("path", place_text(frame)))


def _function(row: _Row) -> str | None:
    # What it was inlined into follows on lines of its own.
    return function_text(row.location._replace(frames=row.location.frames[:1]))


_COLUMNS: Final = (
    Column("pc", WORD),
    Column("address", ADDRESS),
    Column(
        "symbol",
        SYMBOL,
        title="FUNCTION",
        value=lambda row: row.location.symbol,
        text=_function,
    ),
    Column("where", PATH, text=lambda row: place_text(row.location.frames[0]) if row.location.frames else None, text_only=True),
    frames_column(lambda row: row.location.frames),
)


def _doubts(context: Context, row: _Row) -> Iterator[str]:
    """Yield why the address may be none that KCOV recorded."""
    workspace, offset = context.workspace, context.target.kaslr_offset
    start = None if workspace.symbolizer is None else workspace.symbolizer.function_starting_at(row.pc)
    if start is not None and row.location.remark is not None:
        yield f"start of {start}(), which is not a return address"
    elif offset and not row.location.frames and workspace.names[pc_of(row.pc, offset)].frames:
        yield f"its KASLR offset is included: sym --address {row.pc:#x}"
    elif row.location.remark is not None:
        yield row.location.remark


def _run(context: Context, args: Namespace) -> Table:
    offset = context.target.kaslr_offset
    pcs = [pc_of(word, offset) if args.address else word for word in args.pcs]
    names = context.workspace.names
    names.learn(pcs)
    rows = tuple(_Row(pc, address_of(pc, offset), names[pc]) for pc in pcs)
    return Table(
        _COLUMNS,
        rows,
        errors=lambda row: tuple(_doubts(context, row)),
        label=lambda row: f"{row.pc:#x}",
        details=_details,
    )


COMMAND: Final = Command(
    name="sym",
    summary="show the source locations of recorded PCs",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "A recorded PC is the return address of the compiler's call, minus the KASLR offset; the line shown is that of the "
        "call before it."
    ),
    arguments=(
        Argument(("pcs",), Value.PC, "PCs as recorded", count=Count.SOME, metavar="PC"),
        Argument(("--address",), Value.FLAG, "take addresses in the running kernel, KASLR offset included"),
    ),
    examples=(Example("sym ffffffff81234567", "one PC of a trace"),),
    needs=frozenset({Need.NAMES}),
)
