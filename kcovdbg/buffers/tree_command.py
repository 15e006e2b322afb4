# SPDX-License-Identifier: LGPL-2.1-or-later
"""``tree``: calls, from entry and exit records."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import RecordKind
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.buffer_sources import find_buffer
from kcovdbg.console.column import NUMBER, SYMBOL, TEXT, WORD, Column, Meaning, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import frames_column, where_column
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.console.wording import buffer_title, place_text
from kcovdbg.errors import CapabilityError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.records.pc_names import LocationCache
from kcovdbg.series.table import call_mode_hint


class CallKind(str, Enum):
    """The part of a call that is in the buffer."""

    CALL = "call"
    """All of it, from entry to exit."""
    BEGUN_EARLIER = "begun-earlier"
    """Its exit only: the entry was before the first record."""
    UNFINISHED = "unfinished"
    """Its entry only: the buffer ends within it."""


@dataclass(slots=True)
class Call:
    """One call of a function."""

    depth: int
    """0 for the outermost calls in the buffer."""
    kind: CallKind
    pc: int
    """PC of its entry, or of its exit if it began earlier."""
    first: int
    """Index of its first record."""
    last: int
    """Index of its last record."""
    points: int = 0
    """Records between, without those of nested calls."""


def find_events(buffer: Buffer) -> Iterator[tuple[int, RecordKind, int]]:
    """Iterate over the readable records that have an address: their indexes, kinds and PCs."""
    missing = buffer.missing
    decode = cache(lambda word: record.pc_of_word(word, buffer.encoding))
    for index, word in enumerate(record.pc_words(buffer.words, buffer.encoding)):
        kind, pc = decode(word)
        if pc is not None and index not in missing:
            yield index, kind, pc


def build_calls(events: Iterable[tuple[int, RecordKind, int]]) -> list[Call]:
    """Return the calls of a trace, in the order of their first records.

    Each exit closes the innermost open call. An exit without an open call belongs to a function that was running when the
    trace began: its call encloses all records before. Calls that are still open at the end are closed there.
    """
    calls: list[Call] = []
    begun: list[Call] = []
    stack: list[Call] = []
    level = outside = last = 0
    start: int | None = None
    for index, kind, pc in events:
        last = index
        start = index if start is None else start
        if kind is RecordKind.ENTRY:
            stack.append(Call(level, CallKind.UNFINISHED, pc, index, index))
            calls.append(stack[-1])
            level += 1
        elif kind is RecordKind.EXIT:
            level -= 1
            if stack:
                call = stack.pop()
                call.kind, call.last = CallKind.CALL, index
            else:
                begun.append(Call(level, CallKind.BEGUN_EARLIER, pc, start, index, outside))
                outside = 0
        elif stack:
            stack[-1].points += 1
        else:
            outside += 1
    for call in stack:
        call.last = last
    # The function that exits last is the outermost one.
    calls = [*reversed(begun), *calls]
    for call in calls:
        call.depth += len(begun)
    return calls


class _Row(NamedTuple):
    call: Call
    location: Location
    is_inlined: bool
    """Whether it was inlined into its caller, whose symbol it has."""

    @property
    def name(self) -> str:
        """The name of the function; of an inlined one that of the caller, where there is no debug info."""
        frames = self.location.frames
        return (frames[0 if self.is_inlined else -1].function if frames else None) or f"{self.call.pc:#x}"

    @property
    def note(self) -> str:
        is_unnamed = self.is_inlined and len(self.location.frames) == 1
        return "; ".join(filter(None, ("inlined, name unknown" if is_unnamed else "", _NOTES[self.call.kind])))


def _make_rows(calls: Iterable[Call], names: LocationCache) -> Iterator[_Row]:
    callers: list[_Row] = []
    for call in calls:
        location = names[call.pc]
        del callers[call.depth :]
        caller = callers[-1] if callers else None
        # A function that calls itself has one entry; two entries within one symbol are of two functions.
        is_inlined = (
            caller is not None
            and CallKind.BEGUN_EARLIER not in (call.kind, caller.call.kind)
            and caller.location.symbol is not None
            and location.symbol == caller.location.symbol
            and caller.call.pc != call.pc
        )
        row = _Row(call, location, is_inlined)
        callers.append(row)
        yield row


_NOTES: Final = {
    CallKind.CALL: "",
    CallKind.BEGUN_EARLIER: "running when the trace began",
    CallKind.UNFINISHED: "still running at the last record",
}

_COLUMNS: Final = (
    Column("index", NUMBER, value=lambda row: row.call.first, meaning="index of the first record of the call"),
    Column("last", NUMBER, value=lambda row: row.call.last, json_only=True, meaning="index of the last record of the call"),
    Column("depth", NUMBER, value=lambda row: row.call.depth, json_only=True),
    Column("kind", TEXT, value=lambda row: row.call.kind, json_only=True),
    Column("records", NUMBER, value=lambda row: row.call.last - row.call.first + 1),
    Column("points", NUMBER, value=lambda row: row.call.points, json_only=True),
    Column(
        "function",
        SYMBOL,
        value=lambda row: row.location.symbol,
        text=lambda row: "  " * row.call.depth + row.name,
        meaning="name of the function",
        null="the address is in no known function",
    ),
    where_column(lambda row: place_text(row.location.frames[-1]) if row.location.frames else None, priority=1),
    Column("note", TEXT, title="", text=lambda row: row.note, text_only=True, elastic=12, priority=2),
    Column("pc", WORD, value=lambda row: row.call.pc, json_only=True),
    frames_column(lambda row: row.location.frames),
)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    buffer = find_buffer(context, args.what)
    if not buffer.encoding.codec.has_calls:
        raise CapabilityError(
            f"{args.what} has no entry and exit records",
            hint=f"{call_mode_hint()}; buffer shows runs of one function, which are not calls",
        )
    calls = build_calls(find_events(buffer))
    if args.depth is not None:
        calls = [call for call in calls if call.depth < args.depth]
    names = context.kernel.names
    names.prefetch(call.pc for call in calls)
    yield Lines(((("header", buffer_title(buffer)),),))
    yield Table(
        _COLUMNS,
        _make_rows(calls, names),
        remarks=(*buffer.remarks, *context.kernel.name_remarks),
        empty="no entry or exit record",
    )


COMMAND: Final = Command(
    name="tree",
    summary="show the call tree from entry and exit records",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(_COLUMNS, {"kind": Meaning("`call`, `begun-earlier` (no entry record) or `unfinished` (no exit record)")}),
    ),
    description=(
        "RECORDS includes the records of nested calls. Calls that were running when the trace began or ended are shown as "
        "well: one that began earlier encloses everything up to its exit."
    ),
    arguments=(
        Argument("what WHAT", Value.BUFFER, "the buffer"),
        Argument("--depth N", Value.NUMBER, "show N levels"),
        *TRACE_OPTIONS,
    ),
    examples=(Example("tree 41 --depth 3", "the outermost three levels"),),
    needs=frozenset(),
)
