# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of calls that ``trace`` shows."""

from __future__ import annotations

from typing import Final

from kcovdbg.console.column import NUMBER, PATH, SYMBOL, WORD, Column, RowType
from kcovdbg.console.record_columns import frames_column, where_column
from kcovdbg.console.wording import place_text
from kcovdbg.records.call_tree import CallKind, LocatedCall
from kcovdbg.records.function_trace import find_class

_INDENTED: Final = 24
"""Levels that are indented in text."""

_NOTES: Final = {
    CallKind.CALL: "",
    CallKind.BEGUN_EARLIER: "running when the trace began",
    CallKind.UNFINISHED: "still running at the last record",
}


def indent_name(depth: int, name: str) -> str:
    """Return the name of a function, indented by its depth."""
    if depth <= _INDENTED:
        return "  " * depth + name
    return "  " * _INDENTED + f"+{depth - _INDENTED} {name}"


def _function_text(row: LocatedCall) -> str:
    return indent_name(row.call.depth, row.function or f"{row.call.pc:#x}")


def _note_text(row: LocatedCall) -> str:
    notes = [_NOTES[row.call.kind]]
    if row.is_inlined and len(row.location.frames) == 1:
        notes.insert(0, "inlined, name unknown")
    return "; ".join(filter(None, notes))


def _class_name(row: LocatedCall) -> str | None:
    outermost = row.location.outermost
    return find_class(outermost.function, outermost.file)


CALL_COLUMNS: Final = (
    Column(
        "index",
        NUMBER,
        value="call.first",
        meaning="index of the first record of the call",
    ),
    Column(
        "last",
        NUMBER,
        value="call.last",
        json_only=True,
        meaning="index of the last record of the call",
    ),
    Column("depth", NUMBER, value="call.depth", json_only=True),
    Column(
        "kind",
        value="call.kind",
        json_only=True,
        meaning="`call`, `begun-earlier` (no entry record) or `unfinished` (no exit record)",
    ),
    Column(
        "records",
        NUMBER,
        value="call.total",
        meaning="records of the call, with those of nested calls",
        unit="records",
    ),
    Column("points", NUMBER, value="call.points", json_only=True),
    Column(
        "rounds",
        NUMBER,
        value=lambda _row: 1,
        json_only=True,
        meaning="1: calls are not folded",
        unit="rounds",
    ),
    Column(
        "function",
        SYMBOL,
        value="location.symbol",
        text=_function_text,
        meaning="name of the function",
        null="the address is in no known function",
    ),
    Column("file", PATH, value="location.outermost.file", json_only=True),
    Column("line", NUMBER, value="location.outermost.line", json_only=True),
    Column("class", value=_class_name, hide_empty=True, priority=2),
    where_column(lambda row: place_text(row.location.outermost) or None, priority=1),
    Column("note", title="", text=_note_text, text_only=True, elastic=12, priority=2),
    Column("pc", WORD, value="call.pc", json_only=True),
    frames_column(),
)

CALL_ROWS: Final = RowType(
    CALL_COLUMNS,
    errors=True,
    when="of a buffer with entry and exit records, without `--unique` and `--against`",
)
