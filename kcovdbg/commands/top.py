# SPDX-License-Identifier: LGPL-2.1-or-later
"""``top``: what fills a buffer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.analysis.algebra import is_expression
from kcovdbg.analysis.counting import count_pcs, pc_sequence
from kcovdbg.analysis.folding import find_runs
from kcovdbg.analysis.ranking import Share, count_repeats, group_key, rank
from kcovdbg.commands.argument import Argument, Value
from kcovdbg.commands.buffer import FILTERS, FRAME_COLUMNS, TEXT_PCS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import Filter, find_buffer, find_counts, name_remarks
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.kind import NUMBER, PATH, SHARE, SYMBOL, WORD
from kcovdbg.render.renderable import Lines, Renderable, Table
from kcovdbg.render.wording import title
from kcovdbg.render.writer import Format

_SHOWN: Final = 25


class _Row(NamedTuple):
    share: Share
    location: Location
    by: str

    @property
    def file(self) -> str | None:
        return self.location.frames[0].file if self.location.frames else None

    @property
    def function(self) -> str | None:
        # A file has many functions: that of its hottest PC isn't it.
        return self.location.frames[0].function if self.location.frames and self.by != "file" else None

    @property
    def line(self) -> int | None:
        return self.location.frames[0].line if self.location.frames and self.by == "pc" else None


def _make_columns(by: str, has_order: bool) -> tuple[Column, ...]:
    return (
        Column("count", NUMBER, title="RECORDS", value=lambda row: row.share.records),
        Column("share", SHARE, value=lambda row: row.share.share),
        Column("points", NUMBER, value=lambda row: row.share.points, json_only=by == "pc", priority=2),
        Column(
            "repeats",
            NUMBER,
            value=lambda row: row.share.repeats if has_order else None,
            json_only=not has_order,
            priority=1,
        ),
        Column("function", SYMBOL, elastic=16, json_only=by == "file", text=lambda row: row.function or f"{row.share.pc:#x}"),
        Column("file", PATH, elastic=16, elide_start=True),
        Column("line", NUMBER, json_only=by != "pc"),
        Column("pc", WORD, value=lambda row: row.share.pc, title="HOTTEST PC" if by != "pc" else "PC", priority=3),
        Column("frames", items=FRAME_COLUMNS, value=lambda row: row.location.frames, json_only=True),
    )


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    names = context.session.names
    remarks = [*name_remarks(context)]
    if is_expression(args.what):
        # A set has no order, so that nothing can be said about loops.
        counts = find_counts(context, args.what, remarks)
        heading, sequence = f"{args.what}, {len(counts)} points", None
    else:
        buffer = find_buffer(context, args.what)
        remarks += buffer.remarks
        counts, heading, sequence = count_pcs(buffer), title(buffer), pc_sequence(buffer)
    names.learn(counts)
    wanted = Filter(names, args.function or (), args.file or ())
    if not wanted.passes_all:
        counts = {pc: count for pc, count in counts.items() if wanted(pc)}
    repeats = (
        {} if sequence is None else count_repeats(sequence, find_runs(sequence, lambda pc: names.symbol(pc) if pc else ""))
    )
    shares = rank(counts, group_key(args.by, names), repeats)
    limit = args.n if args.n is not None else _SHOWN if context.format is Format.TEXT else len(shares)
    if len(shares) > limit:
        remarks.append(f"{len(shares) - limit} more: {sum(share.records for share in shares[limit:])} records; -n shows them")
    wasted = sum(share.repeats for share in shares)
    total = sum(counts.values())
    if wasted:
        remarks.append(
            f"{wasted} of {total} records ({wasted / total:.0%}) only repeat a point of the same run of one function"
        )
    yield Lines(((("header", heading),),))
    yield Table(
        _make_columns(args.by, sequence is not None),
        tuple(_Row(share, names[share.pc], args.by) for share in shares[:limit]),
        remarks=remarks,
        empty="no records",
    )


TOP = Command(
    name="top",
    summary="what fills a buffer, by function, file or PC",
    run=_run,
    description=(
        "REPEATS counts the records of points that the same run of one function already had: what a loop in a helper adds to "
        "the buffer without covering anything new. Inlined functions are counted as themselves."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "which", metavar="WHAT"),
        Argument(("--by",), Value.CHOICE, "what to sum up by", choices=("function", "file", "pc"), default="function"),
        Argument(("-n",), Value.NUMBER, f"at most so many lines; {_SHOWN} by default", metavar="N"),
        *FILTERS,
        TEXT_PCS,
    ),
    examples=(
        Example("top 41", "why is the buffer full?"),
        Example("top file:boot.kcov --by file", "which parts of the kernel?"),
        Example("top '@a - @b'", "of what only one trace has"),
    ),
    needs=frozenset(),
)
