# SPDX-License-Identifier: LGPL-2.1-or-later
"""``diff``: what only one of two buffers has, or of several runs of two kinds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.analysis.algebra import is_expression
from kcovdbg.analysis.aligning import Alignment, align
from kcovdbg.analysis.counting import pc_sequence
from kcovdbg.analysis.difference import Comparison, Difference, Side, compare
from kcovdbg.analysis.folding import find_runs
from kcovdbg.analysis.naming import Names
from kcovdbg.commands.argument import SEPARATOR, Argument, Count, Value, WordError
from kcovdbg.commands.buffer import FILTERS, FRAME_COLUMNS, TEXT_PCS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import Filter, find_buffer, find_counts, kaslr_offset, name_remarks
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.grid import table_lines
from kcovdbg.render.kind import ADDRESS, NUMBER, PATH, SYMBOL, TEXT, WORD
from kcovdbg.render.renderable import Lines, Renderable, Table
from kcovdbg.render.wording import function_text

_MASK: Final = (1 << 64) - 1


class _Row(NamedTuple):
    """A PC that isn't everywhere."""

    difference: Difference
    location: Location
    address: int


_COLUMNS: Final = (
    Column("side", TEXT, value=lambda row: row.difference.side),
    Column("pc", WORD, value=lambda row: row.difference.pc),
    Column("address", ADDRESS),
    Column("count", NUMBER, value=lambda row: row.difference.records),
    Column("left_runs", NUMBER, value=lambda row: row.difference.left_runs),
    Column("right_runs", NUMBER, value=lambda row: row.difference.right_runs),
    Column("frames", items=FRAME_COLUMNS, value=lambda row: row.location.frames),
)


class _Group(NamedTuple):
    """The differing PCs of one function."""

    points: int
    records: int
    function: str
    place: str
    runs: str


_GROUP_COLUMNS: Final = (
    Column("points", NUMBER),
    Column("records", NUMBER),
    Column("function", SYMBOL, elastic=16),
    Column("where", PATH, value=lambda group: group.place or None, elastic=16, elide_start=True, priority=1),
    Column("runs", TEXT, value=lambda group: group.runs or None, hide_empty=True, priority=2),
)


def _sides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words at ``--``; two words without it are one side each."""
    if SEPARATOR in words:
        at = words.index(SEPARATOR)
        left, right = list(words[:at]), list(words[at + 1 :])
        if not left or not right or SEPARATOR in right:
            raise WordError("diff needs buffers on both sides of --", None, hint="diff A1 A2 A3 -- B1 B2 B3")
        return left, right
    if len(words) != 2:
        raise WordError(
            "diff compares two buffers, or several of two kinds", None, hint="diff A B, or diff A1 A2 A3 -- B1 B2 B3"
        )
    return [words[0]], [words[1]]


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    left, right = _sides(args.what)
    if args.ordered:
        if len(left) + len(right) > 2:
            raise WordError("diff --ordered compares two buffers", None)
        yield from _ordered(context, left[0], right[0])
        return
    yield from _unordered(context, args, left, right)


def _unordered(context: Context, args: Namespace, left: list[str], right: list[str]) -> Iterator[Renderable]:
    names = context.session.names
    remarks = [*name_remarks(context)]
    sides = [[find_counts(context, what, remarks) for what in side] for side in (left, right)]
    comparison = compare(*sides)
    names.learn(difference.pc for difference in comparison.differences)
    wanted = Filter(names, args.function or (), args.file or ())
    found = [difference for difference in comparison.differences if wanted(difference.pc)]
    several = len(left) + len(right) > 2
    real = [difference for difference in found if difference.side is not Side.FLICKER]
    context.status = 1 if real else 0
    if real and not several and not any(is_expression(what) for what in (*left, *right)):
        remarks.append("two single runs differ by chance, too: give several of each, as in diff A1 A2 A3 -- B1 B2 B3")
    offset = kaslr_offset(context)
    rows = [_Row(difference, names[difference.pc], difference.pc + offset & _MASK) for difference in found]
    data = Table(_COLUMNS, rows)
    yield Lines(_lines(context, comparison, rows, names), data=data, remarks=remarks)


def _lines(context: Context, comparison: Comparison, rows: Sequence[_Row], names: Names) -> Iterator[Sequence[tuple[str, str]]]:
    several = comparison.left_runs + comparison.right_runs > 2
    everywhere = "in every run" if several else "on both sides"
    yield (("header", f"{comparison.common} points {everywhere}"),)
    for side, style, text in (
        (Side.LEFT, "left", f"only left{', in every run there' if several else ''}"),
        (Side.RIGHT, "right", f"only right{', in every run there' if several else ''}"),
        (Side.FLICKER, "remark", "flicker: in some runs of a side only"),
    ):
        chosen = [row for row in rows if row.difference.side is side]
        if side is Side.FLICKER and not several:
            continue
        groups = _group(chosen, names, comparison if side is Side.FLICKER else None)
        yield ()
        yield ((style, f"{text}: {len(chosen)} points" + (f" in {len(groups)} functions" if groups else "")),)
        if groups:
            yield from table_lines(Table(_GROUP_COLUMNS, groups), context.width)


def _group(rows: Sequence[_Row], names: Names, comparison: Comparison | None) -> list[_Group]:
    by_function: dict[object, list[_Row]] = {}
    for row in rows:
        frame = names.frame(row.difference.pc)
        # What was inlined says little without where.
        key = (function_text(row.location), frame.file) if frame.function else row.difference.pc
        by_function.setdefault(key, []).append(row)
    groups = []
    for members in by_function.values():
        frame = names.frame(members[0].difference.pc)
        lines = sorted({line for row in members if (line := names.frame(row.difference.pc).line)})
        place = frame.file or ""
        if place and lines:
            place += f":{_short_list(lines)}"
        runs = ""
        if comparison is not None:
            most = max(members, key=lambda row: row.difference.left_runs + row.difference.right_runs).difference
            runs = f"{most.left_runs}/{comparison.left_runs}, {most.right_runs}/{comparison.right_runs}"
        groups.append(
            _Group(
                len(members),
                sum(row.difference.records for row in members),
                function_text(members[0].location) if frame.function else f"{members[0].difference.pc:#x}",
                place,
                runs,
            )
        )
    return sorted(groups, key=lambda group: (-group.records, group.function))


def _short_list(lines: Sequence[int]) -> str:
    shown = ",".join(str(line) for line in lines[:4])
    return shown if len(lines) <= 4 else f"{shown},…"


class Change(NamedTuple):
    """One record that only one side has."""

    side: Side
    number: int
    """Its index."""
    pc: int
    location: Location
    address: int


_CHANGE_COLUMNS: Final = (
    Column("side", TEXT),
    Column("index", NUMBER, value=lambda change: change.number),
    Column("pc", WORD),
    Column("address", ADDRESS),
    Column("count", NUMBER, value=lambda _change: 1),
    Column("frames", items=FRAME_COLUMNS, value=lambda change: change.location.frames),
)


def _ordered(context: Context, left: str, right: str) -> Iterator[Renderable]:
    if is_expression(left) or is_expression(right):
        raise WordError("diff --ordered compares buffers: a set has no order", None)
    names = context.session.names
    buffers = [find_buffer(context, what) for what in (left, right)]
    remarks = [*name_remarks(context)]
    remarks += [f"{buffer.name}: {remark}" for buffer in buffers for remark in buffer.remarks]
    if any(buffer.encoding.format is record.RecordFormat.TEXT_BITMAP for buffer in buffers):
        remarks.append("a bitmap of the text has no order of time")
    sides = [pc_sequence(buffer) for buffer in buffers]
    alignment = align(*sides)
    if alignment.coarse:
        remarks.append(
            "the traces are too unlike to be aligned throughout: parts that have more in common are called different"
        )
    context.status = 1 if alignment.common < max(alignment.left, alignment.right) else 0
    offsets = [buffer.kaslr_offset for buffer in buffers]

    def changes() -> Iterator[Change]:
        for side, start, end in spans(alignment):
            place = 0 if side is Side.LEFT else 1
            names.learn(pc for pc in sides[place][start:end] if pc)
            for index in range(start, end):
                pc = sides[place][index]
                yield Change(side, index, pc, names[pc], pc + offsets[place] & _MASK)

    yield Lines(_ordered_lines(alignment, sides, names), data=Table(_CHANGE_COLUMNS, changes()), remarks=remarks)


def spans(alignment: Alignment) -> Iterator[tuple[Side, int, int]]:
    """Yield what is on one side only: the side, the first record and the one after the last."""
    i = j = 0
    for left, right, length in (*alignment.blocks, (alignment.left, alignment.right, 0)):
        if i < left:
            yield Side.LEFT, i, left
        if j < right:
            yield Side.RIGHT, j, right
        i, j = left + length, right + length


def _ordered_lines(alignment: Alignment, sides: Sequence[Sequence[int]], names: Names) -> Iterator[Sequence[tuple[str, str]]]:
    left, right = alignment.left - alignment.common, alignment.right - alignment.common
    yield (("header", f"{alignment.common} records in both, {left} only left, {right} only right"),)
    following = iter(alignment.blocks)
    block = next(following, None)
    for side, start, end in spans(alignment):
        # What is equal before it.
        while block is not None and (block.left + block.length if side is Side.LEFT else block.right + block.length) <= start:
            yield (("remark", f"  {block.length} equal, from {block.left} and {block.right} on"),)
            block = next(following, None)
        place, sign, style = (0, "-", "left") if side is Side.LEFT else (1, "+", "right")
        names.learn(pc for pc in sides[place][start:end] if pc)
        for run in find_runs(sides[place], lambda pc: _run_name(names, pc), start, end):
            frame = names.frame(sides[place][run.first])
            text = f"{sign} {run.first:>8}  {f'×{run.length}' if run.length > 1 else '':>6}  {run.group}"
            where = "" if frame.file is None else f"  {frame.file}:{frame.line}"
            yield ((style, text), ("path", where))
    while block is not None:
        yield (("remark", f"  {block.length} equal, from {block.left} and {block.right} on"),)
        block = next(following, None)


def _run_name(names: Names, pc: int) -> str:
    frames = names[pc].frames if pc else ()
    return (frames[-1].function if frames else None) or f"{pc:#x}"


DIFF = Command(
    name="diff",
    summary="what only one of two buffers has",
    run=_run,
    description=(
        "By default sets of PCs are compared, by function. With --ordered the sequences are aligned. Two runs of one workload "
        "never give the same set: with several runs of each kind, separated by --, what is in every run of one side and in "
        "none of the other is told from what flickers.\n\n"
        "Instead of a buffer's name an expression may stand: '@a & @b', '@a | @b', '@a - @b', '@a ^ @b', with parentheses.\n\n"
        "The exit status is 1 when there is a difference; flicker is none."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "two buffers, or several on each side of --", count=Count.SOME, metavar="WHAT"),
        Argument(("--ordered",), Value.FLAG, "align the records in their order"),
        *FILTERS,
        TEXT_PCS,
    ),
    examples=(
        Example("diff file:a.kcov file:b.kcov", "which functions does only one have?"),
        Example("diff @a1 @a2 @a3 -- @b1 @b2 @b3", "and which of these differences are there in every run?"),
        Example("diff '@a & @b' @c", "what do a and b share that c hasn't?"),
        Example("diff --ordered @a @b", "where do they part?"),
    ),
    needs=frozenset(),
    keeps_separator=True,
)
