# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sym``: where recorded PCs are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.buffer import FRAME_COLUMNS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ADDRESS, PATH, SYMBOL, WORD
from kcovdbg.render.renderable import Line, Table
from kcovdbg.render.wording import frame_text, function_text

_MASK: Final = (1 << 64) - 1


class _Row(NamedTuple):
    pc: int
    address: int
    location: Location


def _details(row: _Row) -> Iterator[Line]:
    """Yield what the innermost function was inlined into."""
    for frame in row.location.frames[1:]:
        yield (("", "    inlined into "), ("symbol", frame.function or "?"), ("", "  "), ("path", frame_text(frame)))


_COLUMNS: Final = (
    Column("pc", WORD),
    Column("address", ADDRESS),
    Column(
        "symbol",
        SYMBOL,
        title="FUNCTION",
        value=lambda row: row.location.frames[-1].function if row.location.frames else None,
        text=lambda row: row.location.frames[0].function if row.location.frames else function_text(row.location),
    ),
    Column("where", PATH, text=lambda row: frame_text(row.location.frames[0]) if row.location.frames else None, text_only=True),
    Column("frames", items=FRAME_COLUMNS, value=lambda row: row.location.frames, json_only=True),
)


def _run(context: Context, args: Namespace) -> Table:
    offset = context.target.kaslr_offset
    pcs = [(word - offset & _MASK) if args.address else word for word in args.pcs]
    names = context.session.names
    names.learn(pcs)
    rows = tuple(_Row(pc, pc + offset & _MASK, names[pc]) for pc in pcs)
    return Table(
        _COLUMNS,
        rows,
        errors=lambda row: () if row.location.remark is None else (row.location.remark,),
        label=lambda row: f"{row.pc:#x}",
        details=_details,
    )


SYM = Command(
    name="sym",
    summary="where recorded PCs are in the source",
    run=_run,
    description=(
        "A recorded PC is the return address of the compiler's call, minus the KASLR offset: what is shown is the line of the "
        "call before it."
    ),
    arguments=(
        Argument(("pcs",), Value.PC, "as recorded", count=Count.SOME, metavar="PC"),
        Argument(("--address",), Value.FLAG, "they are addresses in the running kernel, KASLR offset included"),
    ),
    examples=(Example("sym ffffffff81234567", "one PC of a trace"),),
)
