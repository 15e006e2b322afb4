# SPDX-License-Identifier: LGPL-2.1-or-later
"""``diff``: what only one of two buffers has, or every run of one side and none of the other."""

from __future__ import annotations

from argparse import Namespace
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.address import address_of
from kcovdbg.analysis.alignment import Alignment, align
from kcovdbg.analysis.located_records import PcFilter, find_indices
from kcovdbg.analysis.loop_folding import find_runs
from kcovdbg.analysis.native_loops import Block
from kcovdbg.analysis.pc_counts import pc_sequence
from kcovdbg.analysis.pc_names import Names
from kcovdbg.analysis.run_counts import DifferingPc, DiffSide, RunCounts, RunDifference, compare_runs
from kcovdbg.analysis.set_expressions import is_expression
from kcovdbg.engine.argument import SEPARATOR, Argument, Count, Value, WordError
from kcovdbg.engine.buffer_arguments import FILTERS, TEXT_PCS, make_filter
from kcovdbg.engine.buffer_sources import FILE, find_buffer, find_counts, find_trace_files, kaslr_offset, name_remarks
from kcovdbg.engine.command import Command, Example, Topic
from kcovdbg.engine.context import Context
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.grid import table_lines
from kcovdbg.render.json_schema import RowType
from kcovdbg.render.key_meanings import Meaning
from kcovdbg.render.record_columns import approximate_errors, frames_column
from kcovdbg.render.renderable import Line, Lines, Renderable, Table
from kcovdbg.render.value_kinds import ADDRESS, NUMBER, PATH, SYMBOL, TEXT, WORD
from kcovdbg.render.wording import COARSE, function_text, place_text, span_text

_SEVERAL: Final = "diff A1 A2 A3 -- B1 B2 B3"
_MAX_REMARKS: Final = 5
"""Limit for remarks on the traces that one word names."""
_LINES: Final = 4
"""Limit for the lines of a function that are listed."""


class _DiffRow(NamedTuple):
    """A PC that not all runs have."""

    differing: DifferingPc
    location: Location
    address: int


_COLUMNS: Final = (
    Column("side", TEXT, value=lambda row: row.differing.side),
    Column("pc", WORD, value=lambda row: row.differing.pc),
    Column("address", ADDRESS),
    Column("count", NUMBER, value=lambda row: row.differing.records),
    Column("left_runs", NUMBER, value=lambda row: row.differing.left_runs),
    Column("right_runs", NUMBER, value=lambda row: row.differing.right_runs),
    frames_column(lambda row: row.location.frames),
)


_MEANINGS: Final = {
    "side": Meaning("`left`, `right`, or `flicker` where only some runs of a side have it"),
    "left_runs": Meaning("runs of the left side that have the PC", unit="runs"),
    "right_runs": Meaning("runs of the right side that have the PC", unit="runs"),
}


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


def _split_sides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words at ``--``; two words without it are one side each."""
    if SEPARATOR in words:
        at = words.index(SEPARATOR)
        left, right = list(words[:at]), list(words[at + 1 :])
        if not left or not right or SEPARATOR in right:
            raise WordError("diff: buffers are needed on both sides of '--'", None, hint=_SEVERAL)
        return left, right
    if len(words) != 2:
        raise WordError(f"diff: two buffers expected, {len(words)} given", None, hint=f"diff A B, or {_SEVERAL}")
    return [words[0]], [words[1]]


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    left, right = _split_sides(args.what)
    if args.ordered:
        if len(left) + len(right) > 2:
            raise WordError("diff: more than two buffers given for --ordered", "--ordered")
        yield from _ordered(context, left[0], right[0], make_filter(context.workspace.names, args))
        return
    yield from _unordered(context, args, left, right)


def _count_side(context: Context, words: Sequence[str]) -> tuple[RunCounts, list[str]]:
    """Count the runs of one side, one trace in memory at a time.

    :return: the counts, and remarks about the traces.
    """
    runs = RunCounts()
    remarks: list[str] = []
    for word in words:
        if is_expression(word) or not word.startswith(FILE):
            counted = find_counts(context, word)
            runs.add(counted.counts)
            remarks += counted.remarks
            continue
        paths = find_trace_files(context.workspace, word.removeprefix(FILE))
        told: Counter[str] = Counter()
        for path in paths:
            name = f"{FILE}{path}"
            counted = find_counts(context, name)
            runs.add(counted.counts)
            told.update(remark.removeprefix(f"{name}: ") for remark in counted.remarks)
        remarks += _sum_up_remarks(word, told, len(paths))
    return runs, remarks


def _sum_up_remarks(word: str, told: Counter[str], traces: int) -> Iterator[str]:
    """Yield the most frequent remarks about the traces that a word names."""
    for remark, times in told.most_common(_MAX_REMARKS):
        yield f"{word}: {remark}" if traces == 1 else f"{word}: {times} of {traces} traces: {remark}"
    if len(told) > _MAX_REMARKS:
        yield f"{word}: {len(told) - _MAX_REMARKS} more remarks about single traces"


def _unordered(context: Context, args: Namespace, left: list[str], right: list[str]) -> Iterator[Renderable]:
    names = context.workspace.names
    left_runs, left_remarks = _count_side(context, left)
    right_runs, right_remarks = _count_side(context, right)
    remarks = list(dict.fromkeys((*name_remarks(context), *left_remarks, *right_remarks)))
    difference = compare_runs(left_runs, right_runs)
    names.learn(one.pc for one in difference.differences)
    wanted = make_filter(names, args)
    found = [one for one in difference.differences if wanted(one.pc)]
    real = any(one.side is not DiffSide.FLICKER for one in found)
    context.status = 1 if real else 0
    if real and not _is_of_several(difference) and not any(is_expression(what) for what in (*left, *right)):
        remarks.append(f"single runs vary; give several per side: {_SEVERAL}, or directories of trace files")
    offset = kaslr_offset(context)
    rows = [_DiffRow(one, names[one.pc], address_of(one.pc, offset)) for one in found]
    data = Table(_COLUMNS, rows, errors=lambda row: approximate_errors(row.location))
    yield Lines(_lines(context, difference, rows, names), data=data, remarks=remarks)


def _is_of_several(difference: RunDifference) -> bool:
    return difference.left_runs + difference.right_runs > 2


def _lines(
    context: Context, difference: RunDifference, rows: Sequence[_DiffRow], names: Names
) -> Iterator[Sequence[tuple[str, str]]]:
    several = _is_of_several(difference)
    everywhere = "in every run" if several else "on both sides"
    yield (("header", f"{difference.common} points {everywhere}"),)
    for side, style, text in (
        (DiffSide.LEFT, "left", f"only left{', in every run' if several else ''}"),
        (DiffSide.RIGHT, "right", f"only right{', in every run' if several else ''}"),
        (DiffSide.FLICKER, "remark", "flicker: in some runs of a side only"),
    ):
        chosen = [row for row in rows if row.differing.side is side]
        if side is DiffSide.FLICKER and not several:
            continue
        groups = _group(chosen, names, difference if side is DiffSide.FLICKER else None)
        yield ()
        yield ((style, f"{text}: {len(chosen)} points" + (f" in {len(groups)} functions" if groups else "")),)
        if groups:
            yield from table_lines(Table(_GROUP_COLUMNS, groups), context.width)


def _group(rows: Sequence[_DiffRow], names: Names, difference: RunDifference | None) -> list[_Group]:
    by_function: dict[object, list[_DiffRow]] = {}
    for row in rows:
        frame = names.frame(row.differing.pc)
        # An inlined function is told apart by its callers.
        key = (function_text(row.location), frame.file) if frame.function else row.differing.pc
        by_function.setdefault(key, []).append(row)
    groups = []
    for members in by_function.values():
        frame = names.frame(members[0].differing.pc)
        place = span_text((names.frame(row.differing.pc) for row in members), _LINES)
        runs = ""
        if difference is not None:
            most = max(members, key=lambda row: row.differing.left_runs + row.differing.right_runs).differing
            runs = f"{most.left_runs}/{difference.left_runs}, {most.right_runs}/{difference.right_runs}"
        groups.append(
            _Group(
                len(members),
                sum(row.differing.records for row in members),
                function_text(members[0].location) if frame.function else f"{members[0].differing.pc:#x}",
                place,
                runs,
            )
        )
    return sorted(groups, key=lambda group: (-group.records, group.function))


class _Change(NamedTuple):
    """One record that only one side has."""

    side: DiffSide
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
    frames_column(lambda change: change.location.frames),
)


def _ordered(context: Context, left: str, right: str, wanted: PcFilter) -> Iterator[Renderable]:
    if is_expression(left) or is_expression(right):
        raise WordError("diff: --ordered takes buffers, not expressions", left if is_expression(left) else right)
    names = context.workspace.names
    buffers = [find_buffer(context, what) for what in (left, right)]
    remarks = [*name_remarks(context)]
    remarks += [f"{buffer.name}: {remark}" for buffer in buffers for remark in buffer.remarks]
    if not all(buffer.encoding.has_count for buffer in buffers):
        remarks.append("a bitmap of the text has no order in time")
    sides = [pc_sequence(buffer) for buffer in buffers]
    numbers: list[Sequence[int]] = [range(len(side)) for side in sides]
    if not wanted.passes_all:
        names.learn(pc for side in sides for pc in set(side) if pc)
        numbers = [find_indices(buffer, wanted) for buffer in buffers]
        sides = [array("Q", map(side.__getitem__, kept)) for side, kept in zip(sides, numbers, strict=True)]
    alignment = align(*sides)
    if alignment.is_coarse:
        remarks.append(f"{COARSE}: parts with records in common may be shown as different")
    context.status = 1 if alignment.common < max(alignment.left, alignment.right) else 0
    offsets = [buffer.kaslr_offset for buffer in buffers]

    def changes() -> Iterator[_Change]:
        for side, start, end in _spans(alignment):
            place = 0 if side is DiffSide.LEFT else 1
            names.learn(pc for pc in sides[place][start:end] if pc)
            for index in range(start, end):
                pc = sides[place][index]
                yield _Change(side, numbers[place][index], pc, names[pc], address_of(pc, offsets[place]))

    yield Lines(
        _ordered_lines(alignment, sides, numbers, names),
        data=Table(_CHANGE_COLUMNS, changes(), errors=lambda change: approximate_errors(change.location)),
        remarks=remarks,
    )


def _spans(alignment: Alignment) -> Iterator[tuple[DiffSide, int, int]]:
    """Yield the spans on one side only: the side, the first record and the one after the last."""
    i = j = 0
    for left, right, length in (*alignment.blocks, (alignment.left, alignment.right, 0)):
        if i < left:
            yield DiffSide.LEFT, i, left
        if j < right:
            yield DiffSide.RIGHT, j, right
        i, j = left + length, right + length


def _ordered_lines(
    alignment: Alignment, sides: Sequence[Sequence[int]], numbers: Sequence[Sequence[int]], names: Names
) -> Iterator[Sequence[tuple[str, str]]]:
    left, right = alignment.left - alignment.common, alignment.right - alignment.common
    yield (("header", f"{alignment.common} records in both, {left} only left, {right} only right"),)
    following = iter(alignment.blocks)
    block = next(following, None)
    for side, start, end in _spans(alignment):
        # First the equal records before it.
        while (
            block is not None and (block.left + block.length if side is DiffSide.LEFT else block.right + block.length) <= start
        ):
            yield _equal_line(block, numbers)
            block = next(following, None)
        place, sign, style = (0, "-", "left") if side is DiffSide.LEFT else (1, "+", "right")
        names.learn(pc for pc in sides[place][start:end] if pc)
        for run in find_runs(sides[place], lambda pc: _run_name(names, pc), start, end):
            where = place_text(names.frame(sides[place][run.first]))
            text = f"{sign} {numbers[place][run.first]:>8}  {f'×{run.length}' if run.length > 1 else '':>6}  {run.group}"
            yield ((style, text), ("path", f"  {where}" if where else ""))
    while block is not None:
        yield _equal_line(block, numbers)
        block = next(following, None)


def _equal_line(block: Block, numbers: Sequence[Sequence[int]]) -> Line:
    left, right = numbers[0][block.left], numbers[1][block.right]
    return (("remark", f"  {block.length} equal records from {left} and {right} on"),)


def _run_name(names: Names, pc: int) -> str:
    return (names[pc].symbol if pc else None) or f"{pc:#x}"


COMMAND: Final = Command(
    name="diff",
    summary="show the differences between two buffers, or between runs of two kinds",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(_COLUMNS, _MEANINGS, errors=True, when="without options"),
        RowType(_CHANGE_COLUMNS, _MEANINGS, errors=True, when="with `--ordered`"),
    ),
    description=(
        "Compares sets of PCs, by function; with --ordered, the sequences of records. Two runs of one workload never cover "
        "the same set: given several runs per side, separated by --, diff separates what every run of one side and none of the "
        "other covers from what flickers. file:DIR stands for all trace files in a directory, and file:DIR/PATTERN for those "
        "that match; traces are read one at a time, so that thousands of them fit into memory.\n\n"
        "An expression can take the place of a buffer's name: '@a & @b', '@a | @b', '@a - @b', '@a ^ @b', with parentheses.\n\n"
        "The exit status is 1 when there is a difference; flicker is not a difference."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "two buffers, or several on each side of --", count=Count.SOME, metavar="WHAT"),
        Argument(("--ordered",), Value.FLAG, "align the records in their order"),
        *FILTERS,
        TEXT_PCS,
    ),
    examples=(
        Example("diff file:a.kcov file:b.kcov", "functions that only one of two traces has"),
        Example("diff @a1 @a2 @a3 -- @b1 @b2 @b3", "differences that every run shows"),
        Example("diff file:before/ file:after/", "the same, for two directories of traces"),
        Example("diff '@a & @b' @c", "what a and b share and c lacks"),
        Example("diff --ordered @a @b", "where two traces part"),
    ),
    needs=frozenset(),
    keeps_separator=True,
)
