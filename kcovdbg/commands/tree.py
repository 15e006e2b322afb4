# SPDX-License-Identifier: LGPL-2.1-or-later
"""``tree``: calls, from entry and exit records."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.record import RecordFormat
from kcovdbg.analysis.calls import build_calls, find_events
from kcovdbg.commands.argument import Argument, Value
from kcovdbg.commands.buffer import FRAME_COLUMNS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import find_buffer, name_remarks
from kcovdbg.errors import CapabilityError
from kcovdbg.model.call import Call, CallKind
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.kind import NUMBER, PATH, SYMBOL, TEXT, WORD
from kcovdbg.render.renderable import Lines, Renderable, Table
from kcovdbg.render.wording import frame_text, title


class _Row(NamedTuple):
    call: Call
    location: Location

    @property
    def function(self) -> str | None:
        return self.location.frames[-1].function if self.location.frames else None


_NOTES: Final = {
    CallKind.CALL: "",
    CallKind.BEGUN_EARLIER: "was running when the trace began",
    CallKind.UNFINISHED: "runs on after the last record",
}

_COLUMNS: Final = (
    Column("index", NUMBER, value=lambda row: row.call.first),
    Column("last", NUMBER, value=lambda row: row.call.last, json_only=True),
    Column("depth", NUMBER, value=lambda row: row.call.depth, json_only=True),
    Column("kind", TEXT, value=lambda row: row.call.kind, json_only=True),
    Column("records", NUMBER, value=lambda row: row.call.last - row.call.first + 1),
    Column("points", NUMBER, value=lambda row: row.call.points, json_only=True),
    Column(
        "function",
        SYMBOL,
        value=lambda row: row.function,
        text=lambda row: "  " * row.call.depth + (row.function or f"{row.call.pc:#x}"),
    ),
    Column(
        "where",
        PATH,
        text=lambda row: frame_text(row.location.frames[-1]) if row.location.frames else None,
        text_only=True,
        elastic=16,
        elide_start=True,
        priority=1,
    ),
    Column("note", TEXT, title="", text=lambda row: _NOTES[row.call.kind], text_only=True, elastic=12, priority=2),
    Column("pc", WORD, value=lambda row: row.call.pc, json_only=True),
    Column("frames", items=FRAME_COLUMNS, value=lambda row: row.location.frames, json_only=True),
)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    buffer = find_buffer(context, args.what)
    if buffer.encoding.format is not RecordFormat.PC_EXT:
        raise CapabilityError(
            f"{args.what} has no entry and exit records: a tree needs a kernel with KCOV_TRACE_PC_EXT, and that mode",
            hint="buffer shows runs of one function, which aren't calls",
        )
    calls = build_calls(find_events(buffer))
    if args.depth is not None:
        calls = [call for call in calls if call.depth < args.depth]
    names = context.session.names
    names.learn(call.pc for call in calls)
    yield Lines(((("header", title(buffer)),),))
    rows = (_Row(call, names[call.pc]) for call in calls)
    yield Table(_COLUMNS, rows, remarks=(*buffer.remarks, *name_remarks(context)), empty="no entry or exit is in the buffer")


TREE = Command(
    name="tree",
    summary="call tree from entry and exit records",
    run=_run,
    description=(
        "RECORDS counts those of calls within, too. A trace that starts or ends within calls has these calls all the same: "
        "what was running before it began encloses what came until its exit."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "which", metavar="WHAT"),
        Argument(("--depth",), Value.NUMBER, "only so many levels", metavar="N"),
    ),
    examples=(Example("tree 41 --depth 3", "the outer three levels"),),
    needs=frozenset(),
)
