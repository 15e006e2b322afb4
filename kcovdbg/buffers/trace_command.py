# SPDX-License-Identifier: LGPL-2.1-or-later
"""``trace``: the functions of a buffer, in short."""

from __future__ import annotations

from argparse import Namespace
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Final, NamedTuple, TypeVar

from kcovdbg.abi import record
from kcovdbg.buffers.call_listing import CALL_COLUMNS, CALL_ROWS, indent_name
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.compare.trace_builds import compare_builds, find_builds
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import FILTERS, TRACE_OPTIONS, make_filters
from kcovdbg.console.column import LIST, NUMBER, PATH, SYMBOL, TEXT, Column, Meaning, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import approximate_errors, where_column
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.console.syscall_remarks import recorded_syscall_remarks, syscall_remarks
from kcovdbg.console.wording import APPROXIMATE, buffer_title, place_text, values_text
from kcovdbg.console.writer import Format
from kcovdbg.errors import WordError
from kcovdbg.inputs.buffer_sources import (
    find_buffer,
    order_remarks,
    require_comparable,
    require_named_names,
    require_order,
)
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.alignment import align_records, number_values
from kcovdbg.records.call_tree import LocatedCall, build_calls, find_events, has_calls, locate_calls
from kcovdbg.records.function_trace import (
    CLASSES,
    OUTERMOST,
    Chain,
    TraceStep,
    chain_functions,
    find_class,
    find_runs,
    group_by_function,
    list_functions,
    select_largest,
)
from kcovdbg.records.located_records import PcFilter, find_indices
from kcovdbg.records.native_loops import find_chains
from kcovdbg.records.pc_counts import make_numbering, pc_sequence
from kcovdbg.records.pc_locations import LocationCache

_LINES: Final = 100
"""About two screens."""
_MOST_STEPS: Final = 1 << 18
"""Limit for the lines of a trace; real ones of ten million records have some thousands, as loops
are folded.
"""
_MOST_STRANGERS: Final = 1 << 12
"""Limit for distinct PCs in the image that are no coverage points: a look-up takes a millisecond,
and real traces have none.
"""
_ALL: Final = "all"

_BOTH: Final = "both"
_WHAT: Final = "what"
_AGAINST: Final = "against"
_SIGNS: Final = {_BOTH: "", _WHAT: ">", _AGAINST: "<"}


class _Row(NamedTuple):
    step: TraceStep
    location: Location
    name: str | None
    """Of its class."""
    values: tuple[str, ...] = ()
    """Arguments and result of the function, in the first of its rounds."""
    side: str = _WHAT
    """The trace that has it, of two that are compared."""
    against: int | None = None
    """Its records in the trace that is compared with, where both have it."""

    @property
    def records(self) -> tuple[int | None, int | None]:
        """In the trace that is compared with, and in the other one."""
        own = self.step.records
        return (own, None) if self.side == _AGAINST else (self.against, own)

    @property
    def frame(self) -> Frame:
        return self.location.outermost


def _function_text(row: _Row) -> str:
    name = indent_name(row.step.depth, row.frame.function or f"{row.location.address:#x}")
    return f"{name} {APPROXIMATE}" if row.location.approximate else name


_COLUMNS: Final = (
    Column("depth", NUMBER, value=lambda row: row.step.depth, json_only=True),
    Column("records", NUMBER, value=lambda row: row.step.records),
    Column("rounds", NUMBER, value=lambda row: row.step.rounds, priority=2),
    Column(
        "function", SYMBOL, value=lambda row: row.frame.function, text=_function_text, elastic=24
    ),
    Column("values", LIST, elastic=16, hide_empty=True),
    Column("file", PATH, value=lambda row: row.frame.file, json_only=True),
    Column("line", NUMBER, value=lambda row: row.frame.line, json_only=True),
    Column("class", TEXT, value=lambda row: row.name, hide_empty=True, priority=2),
    where_column(lambda row: place_text(row.frame) or None, priority=1),
)
_COMPARED_COLUMNS: Final = (
    Column("side", TEXT, text=lambda row: _SIGNS[row.side], title=""),
    _COLUMNS[0],
    Column("against_records", NUMBER, value=lambda row: row.records[0], title="AGAINST"),
    Column("records", NUMBER, value=lambda row: row.records[1]),
    *_COLUMNS[3:],
)
_CLASS_COLUMNS: Final = (
    Column("class", TEXT, value=lambda one: one.name, meaning="name of the class"),
    Column("summary", TEXT, meaning="what the class holds"),
    Column("functions", LIST, json_only=True, meaning="patterns of names of functions"),
    Column("files", LIST, json_only=True, meaning="patterns of source files"),
)


_VALUES: Final = Meaning(
    "arguments and returned value of the first call, in buffers that hold them"
)


class _Story(NamedTuple):
    """The functions of one trace."""

    buffer: Buffer
    names: LocationCache
    pcs: array[int]
    """Of the records that are not left out."""
    numbers: Sequence[int]
    """The numbers of these records in the buffer, where records hold values."""
    steps: list[TraceStep]
    remarks: Sequence[str]


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    if args.classes:
        yield Table(_CLASS_COLUMNS, CLASSES)
        return
    if args.what is None:
        raise WordError(
            "trace: buffer name is missing", None, hint="trace 41, for the buffer of task 41"
        )
    if args.against is not None:
        yield from _compare(context, args)
        return
    (kernel,), assumptions = find_builds(context, [[args.what]])
    (wanted,) = make_filters(args, kernel.names.locations)
    buffer = find_buffer(context.inputs, args.what, kernel)
    if not args.unique and has_calls(buffer):
        yield from _show_calls(context, args, buffer, kernel, assumptions, wanted)
        return
    story = _read(context, args, buffer, kernel, wanted)
    shown, more = _choose(context, args, story.steps)
    yield Lines(((("header", buffer_title(story.buffer)),),))
    yield Table(
        _COLUMNS,
        tuple(_make_row(step, story) for step in shown),
        remarks=(*story.remarks, *assumptions, *more),
        empty="no records",
        errors=lambda row: approximate_errors(row.location),
    )


def _show_calls(
    context: Context,
    args: Namespace,
    buffer: Buffer,
    kernel: Kernel,
    assumptions: Sequence[str],
    wanted: PcFilter,
) -> Iterator[Renderable]:
    """Yield the calls of a buffer with entry and exit records."""
    pcs, remarks = _read_pcs(context, buffer, kernel)
    calls = build_calls(find_events(buffer, len(pcs)))
    if args.depth is not None:
        calls = [call for call in calls if call.depth < args.depth]
    names = kernel.names.locations
    names.prefetch(call.pc for call in calls)
    located = [row for row in locate_calls(calls, names) if wanted(row.call.pc)]
    shown, more = _choose(context, args, located)
    yield Lines(((("header", buffer_title(buffer)),),))
    yield Table(
        CALL_COLUMNS,
        shown,
        remarks=(*remarks, *assumptions, *more),
        empty="no calls",
        errors=lambda row: approximate_errors(row.location),
    )


def _read_pcs(context: Context, buffer: Buffer, kernel: Kernel) -> tuple[array[int], list[str]]:
    """Return the PCs of a buffer's records, without those behind too many strange ones, and remarks
    on them.
    """
    require_order(buffer, "trace")
    remarks = [*syscall_remarks(context, buffer), *buffer.remarks]
    remarks += order_remarks(buffer)
    pcs = pc_sequence(buffer)
    names = kernel.names.locations.of(buffer)
    # Executed addresses are no points, and nothing is strange about that.
    end = len(pcs) if buffer.encoding.codec.is_exact else _find_end(pcs, names)
    if end < len(pcs):
        strangers = f"more than {_MOST_STRANGERS} distinct PCs that are no coverage points"
        remarks.append(
            f"the first {end} of {len(pcs)} records: with the others there are {strangers}"
        )
        pcs = pcs[:end]
    remarks += recorded_syscall_remarks(names, buffer.name, pcs)
    require_named_names(context.inputs, names, pcs, f"trace {buffer.name}")
    return pcs, remarks


def _read(
    context: Context, args: Namespace, buffer: Buffer, kernel: Kernel, wanted: PcFilter
) -> _Story:
    names = kernel.names.locations.of(buffer)
    pcs, remarks = _read_pcs(context, buffer, kernel)
    names.prefetch(pcs)
    numbers: Sequence[int] = range(len(pcs))
    if not wanted.passes_all:
        numbers = find_indices(buffer, wanted)
        numbers = numbers[: bisect_left(numbers, len(pcs))]
        pcs = array("Q", (pcs[index] for index in numbers))
    positions, left_out = _leave_out(pcs, names, frozenset(args.include or ()))
    kept = array("Q", (pcs[at] for at in positions))
    numbers = (
        array("Q", (numbers[at] for at in positions)) if buffer.encoding.codec.is_variable else ()
    )
    if left_out:
        named = ", ".join(f"{name} {count}" for name, count in left_out.most_common())
        remarks.append(
            f"{sum(left_out.values())} of {len(pcs)} records left out: {named}; --include "
            f"{_ALL} shows them"
        )
    steps, end_of_steps = _find_steps(kept, names, in_chain=not args.unique)
    if end_of_steps is not None:
        remarks.append(
            f"the first {end_of_steps} of {len(kept)} records: further ones have more than "
            f"{_MOST_STEPS} lines"
        )
    if args.depth is not None:
        steps = [step for step in steps if step.depth < args.depth]
    return _Story(buffer, names, kept, numbers, steps, remarks)


def _find_end(pcs: array[int], names: LocationCache) -> int:
    """Return how many records have few enough distinct PCs in the image that are no coverage
    points.
    """
    table = names.table
    if table is None:
        return len(pcs)
    distinct = make_numbering(pcs).number(pcs)
    others = list(map(distinct.__getitem__, find_chains(distinct, table.columns).rest))
    texts = [
        (bisect_right(others, text.start), bisect_right(others, text.end))
        for text in table.text_ranges()
    ]
    strangers = {pc for start, end in texts for pc in others[start:end]}
    if len(strangers) <= _MOST_STRANGERS:
        return len(pcs)
    least = len(strangers) - _MOST_STRANGERS
    for at, pc in enumerate(pcs):
        strangers.discard(pc)
        if len(strangers) < least:
            return at
    return len(pcs)


def _compare(context: Context, args: Namespace) -> Iterator[Renderable]:
    """Yield the functions of two traces, aligned in their order."""
    whats = (args.against, args.what)
    kernels, assumptions = find_builds(context, [[what] for what in whats])
    filters = make_filters(args, *(kernel.names.locations for kernel in kernels))
    buffers = [
        find_buffer(context.inputs, what, kernel)
        for what, kernel in zip(whats, kernels, strict=True)
    ]
    stories = [_read(context, args, *side) for side in zip(buffers, kernels, filters, strict=True)]
    require_comparable("trace", [story.buffer for story in stories])
    remarks = [f"{story.buffer.name}: {remark}" for story in stories for remark in story.remarks]
    comparison = compare_builds(context, kernels, [set(story.pcs) for story in stories])
    remarks += [*assumptions, *comparison.remarks()]
    rows = list(_align(stories, comparison))
    differing = sum(row.side != _BOTH for row in rows)
    context.status = 1 if differing else 0
    shown = rows
    if args.n is None and args.offset is None and context.format is Format.TEXT:
        shown = [
            rows[at]
            for at in _find_context(
                [row.side != _BOTH for row in rows], [row.step.depth for row in rows]
            )
        ]
        if len(shown) < len(rows):
            remarks.append(
                f"{len(rows) - len(shown)} of {len(rows)} lines are in both traces and not "
                f"shown; -n {len(rows)} shows all"
            )
    else:
        first = args.offset or 0
        shown = rows[first : len(rows) if args.n is None else first + args.n]
    yield Lines(
        tuple(
            (("header", f"{sign} {buffer_title(story.buffer)}"),)
            for sign, story in zip("<>", stories, strict=True)
        )
    )
    yield Table(
        _COMPARED_COLUMNS,
        tuple(shown),
        remarks=remarks,
        empty="no difference" if rows else "no records",
        errors=lambda row: approximate_errors(row.location),
    )


def _align(stories: Sequence[_Story], comparison: BuildComparison) -> Iterator[_Row]:
    """Yield the functions of both traces in order, those in both once."""
    rows = [[_make_row(step, story) for step in story.steps] for story in stories]
    sides = number_values(
        *([_find_key(comparison, row, side) for row in its] for side, its in enumerate(rows))
    )
    for part in align_records(*sides).parts():
        if part.is_common:
            for at, other in zip(part.left, part.right, strict=True):
                yield rows[1][other]._replace(side=_BOTH, against=rows[0][at].step.records)
        else:
            yield from (rows[0][at]._replace(side=_AGAINST) for at in part.left)
            yield from (rows[1][at] for at in part.right)


def _find_key(comparison: BuildComparison, row: _Row, side: int) -> Hashable:
    """Return what rows of one function have in common, on both sides."""
    if row.frame.function:
        return comparison.function(row.frame, side)
    return row.location.address if comparison.match is None else (side, row.location.address)


def _find_context(differs: Sequence[bool], depths: Sequence[int]) -> list[int]:
    """Return the lines that differ, and those that they are below."""
    found: set[int] = set()
    path: list[int] = []
    for at, depth in enumerate(depths):
        while path and depths[path[-1]] >= depth:
            path.pop()
        path.append(at)
        if differs[at]:
            found.update(path)
    return sorted(found)


def _leave_out(
    pcs: Sequence[int], names: LocationCache, included: frozenset[str]
) -> tuple[array[int], Counter[str]]:
    """Return where the records outside the classes that are left out are, and the number of the
    others by class.

    Records without an address belong to no function and are left out as well.
    """
    class_of = {pc: find_class(*names[pc].outermost[:2]) for pc in set(pcs) if pc}
    left_out = Counter(
        name for pc in pcs if pc and (name := class_of[pc]) is not None and name not in included
    )
    if _ALL in included:
        left_out.clear()
    return array(
        "Q", (at for at, pc in enumerate(pcs) if pc and class_of[pc] not in left_out)
    ), left_out


def _find_steps(pcs: Sequence[int], names: LocationCache, *, in_chain: bool) -> Chain:
    groups = group_by_function({pc: names[pc].outermost for pc in set(pcs)})
    runs = find_runs(pcs, groups.__getitem__)
    if not in_chain:
        return Chain(list_functions(runs))
    entries: dict[object, int] = {}
    for pc in pcs:
        entries.setdefault(groups[pc], pc)

    @cache
    def is_outermost(group: object) -> bool:
        return isinstance(group, tuple) and any(
            fnmatchcase(group[0], pattern) for pattern in OUTERMOST
        )

    return chain_functions(
        runs, lambda at: entries[groups[pcs[at]]] == pcs[at], is_outermost, _MOST_STEPS
    )


_Line = TypeVar("_Line", TraceStep, LocatedCall)


def _choose(
    context: Context, args: Namespace, steps: list[_Line]
) -> tuple[list[_Line], tuple[str, ...]]:
    """Return the lines to show, and a remark where there are more."""
    first = args.offset or 0
    if args.n is None and not first:
        if context.format is not Format.TEXT or len(steps) <= _LINES:
            return steps, ()
        shown = select_largest(steps, _LINES)
        return shown, (
            f"{len(steps) - _LINES} more lines, with fewer records; -n {len(steps)} shows all",
        )
    end = len(steps) if args.n is None else first + args.n
    shown = steps[first:end]
    if context.format is Format.TEXT and len(shown) < len(steps):
        return shown, (
            f"{len(steps) - len(shown)} more lines; --offset {first + len(shown)} goes on",
        )
    return shown, ()


def _make_row(step: TraceStep, story: _Story) -> _Row:
    location = story.names[story.pcs[step.first]]
    return _Row(
        step,
        location,
        find_class(*location.outermost[:2]),
        tuple(_step_values(step, story, location.outermost)),
    )


def _step_values(step: TraceStep, story: _Story, frame: Frame) -> Iterator[str]:
    """Yield the values in a step's records, up to the first returned one: those of one call."""
    buffer = story.buffer
    if not buffer.encoding.codec.is_variable:
        return
    for at in range(step.first, min(len(story.pcs), step.first + step.records)):
        outer = story.names[story.pcs[at]].outermost
        if (outer.function, outer.file) != (frame.function, frame.file):
            return
        found = record.decode_record(buffer.words, story.numbers[at], buffer.encoding)
        if found.values is not None:
            yield values_text(found.values)
        if found.kind is record.RecordKind.RETURN:
            return


COMMAND: Final = Command(
    name="trace",
    summary="show the functions of a buffer in short, in order of appearance",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(
            _COLUMNS,
            {
                "rounds": Meaning("how often a loop was folded into this line", unit="rounds"),
                "values": _VALUES,
            },
            errors=True,
            when="without `--classes`",
        ),
        CALL_ROWS,
        RowType(
            _COMPARED_COLUMNS,
            {
                "values": _VALUES,
                "side": Meaning(
                    "`what` or `against` where only one of the traces has the line, or `both`"
                ),
                "records": Meaning("records of WHAT, null where it has none", unit="records"),
                "against_records": Meaning(
                    "records of the trace that is compared with, null where it has none",
                    unit="records",
                ),
            },
            errors=True,
            when="with `--against`",
        ),
        RowType(_CLASS_COLUMNS, when="with `--classes`"),
    ),
    description=(
        "Where a buffer has records of functions' entries and exits, each call is a line, indented "
        "below its caller: RECORDS includes those of nested calls. Calls that were running when "
        "the trace began or ended are shown as well: one that began earlier encloses everything up "
        "to its exit. No call is left out or folded.\n\n"
        "Other traces do not record calls, so the depth is inferred, as it is with --against. "
        "Functions are indented below the one that was executed before them, until that one "
        "continues. A function that is entered again from the same place is not repeated: ROUNDS "
        "says how often it was entered. With --unique each function is listed once, in order of "
        "first appearance. Inlined functions are part of the function that they are in.\n\n"
        "Functions of the kernel's infrastructure are left out by class; --classes lists the "
        "classes, and --include shows those of one. The functions of system calls always stay.\n\n"
        "With --against, the functions of two traces are aligned in their order: < marks those of "
        "the other trace alone, and > those of WHAT alone. Text shows only these, below the "
        "functions around them. Functions of two builds are matched as by diff. The exit status is "
        "1 where there is a difference.\n\n"
        "A million records take some 5 seconds. Damaged buffers take no longer: the story ends "
        f"after {_MOST_STEPS} lines, and before there are more than {_MOST_STRANGERS} distinct PCs "
        "that are no coverage points; a note says so.\n\n"
        f"A long trace is cut to the {_LINES} functions with the most records, those of functions "
        "below them included. -n N shows N lines in order, and --offset says from which line on. "
        "JSON has all lines."
    ),
    arguments=(
        Argument("what [WHAT]", Value.BUFFER, "the buffer"),
        Argument(
            "--against OTHER", Value.BUFFER, "show the differences from this buffer, the older one"
        ),
        Argument("--unique", Value.FLAG, "list each function once"),
        Argument(
            "--include CLASS…",
            Value.CHOICE,
            "also show functions of this class",
            choices=(*(one.name for one in CLASSES), _ALL),
        ),
        Argument("--classes", Value.FLAG, "list the classes"),
        Argument("--depth N", Value.NUMBER, "show the outermost N levels"),
        Argument("-n N", Value.NUMBER, "show at most N lines"),
        Argument("--offset N", Value.NUMBER, "leave out the first N lines"),
        *FILTERS,
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("trace 41", "what did task 41 do?"),
        Example("trace @run --unique --not-function 'x86_*'", "each function once, without some"),
        Example("trace 41 --offset 100 -n 100", "the second hundred of all lines"),
        Example(
            "trace file:new.kcov --against file:old.kcov",
            "functions that only one of two traces has, in order",
        ),
        Example("trace 41 --include locking", "with the locks that it took"),
        Example("trace 41 --depth 3", "the outermost three levels"),
    ),
    needs=frozenset(),
)
