# SPDX-License-Identifier: LGPL-2.1-or-later
"""``top``: what fills a buffer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import FILTERS, TRACE_OPTIONS, make_filters
from kcovdbg.console.column import NUMBER, PATH, SHARE, SYMBOL, WORD, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import approximate_errors, frames_column
from kcovdbg.console.renderable import Renderable, Table
from kcovdbg.console.wording import APPROXIMATE, buffer_heading
from kcovdbg.console.writer import Format
from kcovdbg.inputs.buffer_sources import find_buffer, require_named_names
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.records.pc_counts import count_pcs, pc_sequence
from kcovdbg.records.pc_shares import Share, count_repeats, rank

_SHOWN: Final = 25


class _Row(NamedTuple):
    share: Share
    location: Location
    by: str
    pc: int
    """The PC of the share; of executed addresses the address itself."""
    file_pc: int | None = None
    """The PC as the file has it."""

    @property
    def file(self) -> str | None:
        return self.location.innermost.file

    @property
    def function(self) -> str | None:
        # A file has many functions; its hottest PC is in one of them.
        return self.location.innermost.function if self.by != "file" else None

    @property
    def line(self) -> int | None:
        return self.location.innermost.line if self.by == "pc" else None


def _function_text(row: _Row) -> str:
    if row.function is None:
        return f"{row.pc:#x}"
    if row.location.approximate:
        return f"{row.function} {APPROXIMATE}"
    return row.function


def _errors(row: _Row) -> tuple[str, ...]:
    return () if row.by == "file" else approximate_errors(row)


_SHARE_COLUMNS: Final = (
    Column(
        "count",
        NUMBER,
        title="RECORDS",
        value="share.records",
        meaning="number of records of the group",
        unit="records",
    ),
    Column(
        "share", SHARE, value="share.share", meaning="share of the buffer's records, from 0 to 1"
    ),
)


def _make_columns(by: str, *, is_moved: bool = False) -> tuple[Column, ...]:
    """Return the columns.

    :param is_moved: whether a list has other addresses than KCOV recorded.
    """
    return (
        *_SHARE_COLUMNS,
        Column("points", NUMBER, value="share.points", json_only=by == "pc", priority=2),
        Column(
            "repeats",
            NUMBER,
            value="share.repeats",
            priority=1,
            meaning="records of points that the same run of a function already had",
            unit="records",
        ),
        Column(
            "function",
            SYMBOL,
            elastic=16,
            json_only=by == "file",
            text=_function_text,
            meaning="name of the function",
            null="grouped by file, or unknown",
        ),
        Column("file", PATH, elastic=16),
        Column(
            "line",
            NUMBER,
            json_only=by != "pc",
            meaning="line in the file",
            null="not grouped by PC, or unknown",
        ),
        Column(
            "pc",
            WORD,
            title="HOTTEST PC" if by != "pc" else "PC",
            priority=3,
            meaning="PC of the group with the most records",
        ),
        Column(
            "file_pc",
            WORD,
            title="IN FILE",
            json_only=not is_moved,
            priority=3,
            meaning="this PC as the file has it: a call, or with the KASLR offset",
            null="it is no list of PCs",
        ),
        frames_column(),
    )


def _find_file_pcs(buffer: Buffer) -> Mapping[int, int]:
    """Return each PC of a list as its file has it; the first one of several."""
    if buffer.file_words is None:
        return {}
    return dict(zip(reversed(buffer.words), reversed(buffer.file_words), strict=True))


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    remarks = [*context.kernel.names.remarks]
    buffer = find_buffer(context.inputs, args.what)
    names = context.names.of(buffer)
    heading, more = buffer_heading(buffer, is_text=context.format is Format.TEXT)
    remarks += more
    known = count_pcs(buffer)
    require_named_names(context.inputs, names, known.pcs, f"top {args.what}")
    columns = names.columns(known.pcs)
    (wanted,) = make_filters(args, names)
    repeats = count_repeats(columns, pc_sequence(buffer))
    limit = args.n
    if limit is None and context.format is Format.TEXT:
        limit = _SHOWN
    chosen = None if wanted.passes_all else wanted.select(columns)
    ranking = rank(columns, known.records, repeats, args.by, chosen, limit)
    others, records = ranking.rest
    if others:
        remarks.append(f"{others} more lines with {records} records; -n shows them")
    if ranking.repeats:
        part = (
            f"{ranking.repeats} of {ranking.records} records "
            f"({ranking.repeats / ranking.records:.0%})"
        )
        remarks.append(f"{part} repeat a point within one run of a function")
    names.prefetch(share.pc for share in ranking.shares)
    file_pcs = _find_file_pcs(buffer)
    is_moved = any(pc != word for pc, word in file_pcs.items())
    rows = []
    for share in ranking.shares:
        pc = share.pc - buffer.encoding.codec.lead
        rows.append(_Row(share, names[share.pc], args.by, pc, file_pcs.get(pc)))
    yield heading
    yield Table(
        _make_columns(args.by, is_moved=is_moved),
        rows,
        remarks=remarks,
        empty="no records",
        errors=_errors,
    )


COMMAND: Final = Command(
    name="top",
    summary="show what fills a buffer, by function, file or PC",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_make_columns("pc"), errors=True),),
    description=(
        "REPEATS counts records that cover nothing new, as in loops: the same run of the function "
        "already had their points. Inlined functions count separately."
    ),
    arguments=(
        Argument("what WHAT", Value.BUFFER, "the buffer"),
        Argument(
            "--by",
            Value.CHOICE,
            "group records by this",
            choices=("function", "file", "pc"),
            default="function",
        ),
        Argument("-n N", Value.NUMBER, f"show at most N lines; default {_SHOWN}"),
        *FILTERS,
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("top 41", "why is the buffer full?"),
        Example("top file:boot.kcov --by file", "which parts of the kernel are in a boot trace?"),
    ),
    needs=frozenset(),
)
