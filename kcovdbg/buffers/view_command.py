# SPDX-License-Identifier: LGPL-2.1-or-later
"""``view``: a buffer full-screen, or two side by side."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_view import TracePane, TraceView, make_view
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import NOT_FUNCTION, TRACE_OPTIONS
from kcovdbg.console.column import NUMBER, SYMBOL, WORD, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import frames_column
from kcovdbg.console.renderable import Drawing, Line, Lines, Table
from kcovdbg.console.writer import Format
from kcovdbg.errors import WordError
from kcovdbg.model.location import Location
from kcovdbg.records.alignment import Mark

# Columns without a terminal: enough for two functions with their places.
_WIDTH: Final = 160
_LEAST: Final = 20
_MOST: Final = 10_000


_MARKS: Final = {
    Mark.EQUAL: "both",
    Mark.LEFT: "left",
    Mark.RIGHT: "right",
    Mark.CHANGED: "changed",
    Mark.NONE: None,
}
_COLUMNS: Final = (
    Column(
        "mark",
        meaning="which sides have the record: `both`, `left`, `right`, or `changed`",
        null="there is one side",
    ),
    Column("rounds", NUMBER, meaning="number of rows that are folded into this one"),
    Column(
        "left", NUMBER, meaning="index of the record on the left", null="it is only on the right"
    ),
    Column("left_pc", WORD, meaning="its PC, as recorded", null="there is none"),
    Column(
        "right", NUMBER, meaning="index of the record on the right", null="it is only on the left"
    ),
    Column("right_pc", WORD, meaning="its PC, as recorded", null="there is none"),
    Column(
        "symbol", SYMBOL, value=lambda row: None if row.location is None else row.location.symbol
    ),
    frames_column(lambda row: () if row.location is None else row.location.frames),
)


class _ViewLine(NamedTuple):
    """A row of a view, with the indexes and PCs of its records."""

    mark: str | None
    rounds: int | None
    left: int | None
    left_pc: int | None
    right: int | None
    right_pc: int | None
    location: Location | None


def _make_row(view: TraceView, number: int) -> _ViewLine:
    row = view.rows.row(number)
    left, right = _find_record(view.left, row.left), _find_record(view.right, row.right)
    return _ViewLine(_MARKS[row.mark], row.rounds, *left, *right, view.location(row))


def _find_record(pane: TracePane | None, index: int | None) -> tuple[int | None, int | None]:
    """Return index and PC of a record on one side."""
    if pane is None or index is None:
        return None, None
    pc = None
    if not pane.is_missing(index):
        pc = pane.buffer.decode(index).pc
    return pane.number(index), pc


def _run(context: Context, args: Namespace) -> Lines | None:
    if args.width is not None and not _LEAST <= args.width <= _MOST:
        raise WordError(
            f"view: --width {args.width} is impossible, {_LEAST} to {_MOST} are possible",
            str(args.width),
        )
    has_text = args.text or context.format is not Format.TEXT or context.terminal.is_dumb
    if not has_text:
        context.require_screen("view --text prints the same")
    view = make_view(
        context, args.what, args.other, args.not_function or (), by_index=args.by_index
    )
    if args.fold:
        view.rows = view.folded()
    if has_text:
        # Text that goes through a pipe is mostly read on the terminal that errors go to.
        width = args.width or context.width or context.terminal.error_width or _WIDTH
        data = Table(_COLUMNS, (_make_row(view, number) for number in range(len(view.rows))))
        drawing = Drawing(len(view.rows), partial(_text_lines, view, max(width, _LEAST)))
        return Lines(drawing, data=data, remarks=view.remarks)
    # Imported here: prompt_toolkit takes a tenth of a second.
    from kcovdbg.buffers.view_screen import show_view

    show_view(view)
    return None


def _text_lines(view: TraceView, width: int, most: int) -> Iterator[Line]:
    yield view.heading(width)
    for number in range(min(most, len(view.rows))):
        yield view.line(view.rows.row(number), width)


COMMAND: Final = Command(
    name="view",
    summary="view a buffer with its source full-screen, or two side by side",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Two traces are aligned by the records that both have. With --by-index, or if both names "
        "mean one buffer, records are paired by index. On this machine, fd:PID/FD alone shows the "
        "user's view of the buffer (user:PID/FD) beside the kernel's, reads both every second, "
        "and reports differences as findings, except in the record in flight. At the last record, "
        "the view follows new records. ? shows the keys.\n\n"
        "Traces of two builds of a kernel are aligned by function and line, as in diff.\n\n"
        "--text prints both sides, as wide as the terminal or as --width says: < marks records "
        "only on the left, > only on the right, | pairs that differ."
    ),
    arguments=(
        Argument("what A", Value.BUFFER, "the buffer, or the left one"),
        Argument("other [B]", Value.BUFFER, "the right buffer"),
        Argument("--text", Value.FLAG, "print the view as text"),
        Argument("--width N", Value.NUMBER, f"width of --text; {_WIDTH} without a terminal"),
        Argument("--by-index", Value.FLAG, "pair records by index"),
        Argument("--fold", Value.FLAG, "fold equal records and runs of one function"),
        NOT_FUNCTION,
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("view 41", "browse a trace"),
        Example("view @before 41", "two traces side by side"),
        Example("view fd:41/3", "the user's view beside the kernel's, on this machine"),
        Example(
            "view file:run.kcov fd:41/1000",
            "a trace collected in a guest beside the guest's memory (--qemu)",
        ),
    ),
    needs=frozenset(),
)
