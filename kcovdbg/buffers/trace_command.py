# SPDX-License-Identifier: LGPL-2.1-or-later
"""``trace``: a summary of a buffer by its functions."""

from __future__ import annotations

from argparse import Namespace
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Final, NamedTuple, TypeVar

from kcovdbg.abi import record
from kcovdbg.buffers.call_listing import CALL_COLUMNS, CALL_ROWS, indent_name
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.compare.trace_builds import TraceSide, compare_builds, read_sides
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import FILTERS, TRACE_OPTIONS, make_filters
from kcovdbg.console.column import LIST, NUMBER, PATH, SYMBOL, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import approximate_errors, where_column
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.console.syscall_remarks import recorded_syscall_remarks, syscall_remarks
from kcovdbg.console.wording import APPROXIMATE, buffer_title, place_text, values_text
from kcovdbg.console.writer import Format
from kcovdbg.errors import WordError
from kcovdbg.inputs.buffer_sources import (
    name_remarks,
    order_remarks,
    require_comparable,
    require_named_names,
    require_order,
)
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
)
from kcovdbg.records.located_records import PcFilter, find_indices
from kcovdbg.records.native_loops import find_chains
from kcovdbg.records.pc_counts import make_numbering, pc_sequence, pick_words
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
    function_class: str | None
    """The name of the function's class."""
    values: tuple[str, ...] = ()
    """Arguments and result of the function, in the first of its rounds."""
    side: str = _WHAT
    """The trace that has it, of two that are compared."""
    records: int | None = None
    """If two traces are compared, its records in the trace that is shown; None if that lacks it."""
    against_records: int | None = None
    """The same for the trace that is compared with."""

    @property
    def frame(self) -> Frame:
        return self.location.outermost


def _function_text(row: _Row) -> str:
    name = indent_name(row.step.depth, row.frame.function or f"{row.location.address:#x}")
    return f"{name} {APPROXIMATE}" if row.location.approximate else name


_DEPTH: Final = Column("depth", NUMBER, value="step.depth", json_only=True)
# The columns on the function, after the numbers.
_FUNCTION_COLUMNS: Final = (
    Column("function", SYMBOL, value="frame.function", text=_function_text, elastic=24),
    Column(
        "values",
        LIST,
        elastic=16,
        hide_empty=True,
        meaning="arguments and returned value of the first call, in buffers that hold them",
    ),
    Column("file", PATH, value="frame.file", json_only=True),
    Column("line", NUMBER, value="frame.line", json_only=True),
    Column("class", value="function_class", hide_empty=True, priority=2),
    where_column(lambda row: place_text(row.frame) or None, priority=1),
)
_COLUMNS: Final = (
    _DEPTH,
    Column("records", NUMBER, value="step.records"),
    Column(
        "rounds",
        NUMBER,
        value="step.rounds",
        priority=2,
        meaning="how often a loop was folded into this line",
        unit="rounds",
    ),
    *_FUNCTION_COLUMNS,
)
_COMPARED_COLUMNS: Final = (
    Column(
        "side",
        text=lambda row: _SIGNS[row.side],
        title="",
        meaning="`what` or `against` where only one of the traces has the line, or `both`",
    ),
    _DEPTH,
    Column(
        "against_records",
        NUMBER,
        title="AGAINST",
        meaning="records of the trace that is compared with",
        null="it has none",
        unit="records",
    ),
    Column("records", NUMBER, meaning="records of WHAT", null="it has none", unit="records"),
    *_FUNCTION_COLUMNS,
)
_CLASS_COLUMNS: Final = (
    Column("class", value="name", meaning="name of the class"),
    Column("summary", meaning="what the class holds"),
    Column("functions", LIST, json_only=True, meaning="patterns of names of functions"),
    Column("files", LIST, json_only=True, meaning="patterns of source files"),
)


class _Story(NamedTuple):
    """The functions of one trace."""

    buffer: Buffer
    names: LocationCache
    pcs: array[int]
    """The PCs of the records that are not left out."""
    numbers: Sequence[int]
    """The numbers of these records in the buffer."""
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
    (side,), assumptions = read_sides(context, [args.what])
    (wanted,) = make_filters(args, side.kernel.names.locations)
    if not args.unique and has_calls(side.buffer):
        table = _list_calls(context, args, side, wanted)
    else:
        story = _read(context, args, side, wanted)
        shown, more = _choose(context, args, story.steps)
        rows = [_make_row(step, story) for step in shown]
        table = Table(_COLUMNS, rows, (*story.remarks, *more), "no records", approximate_errors)
    yield Lines(((("header", buffer_title(side.buffer)),),))
    yield replace(table, remarks=(*table.remarks, *assumptions))


def _list_calls(context: Context, args: Namespace, side: TraceSide, wanted: PcFilter) -> Table:
    """Return the calls of a buffer with entry and exit records."""
    pcs, remarks = _read_pcs(context, side)
    calls = build_calls(find_events(side.buffer, len(pcs)))
    if args.depth is not None:
        calls = [call for call in calls if call.depth < args.depth]
    names = side.kernel.names.locations
    names.prefetch(call.pc for call in calls)
    located = [row for row in locate_calls(calls, names) if wanted(row.call.pc)]
    shown, more = _choose(context, args, located)
    return Table(CALL_COLUMNS, shown, (*remarks, *more), "no calls", approximate_errors)


def _read_pcs(context: Context, side: TraceSide) -> tuple[array[int], list[str]]:
    """Return the PCs of a buffer's records, and remarks on them. The PCs end where too many are no
    coverage points.
    """
    buffer, kernel = side
    require_order(buffer, "trace")
    remarks = [*syscall_remarks(context, buffer), *buffer.remarks, *order_remarks(buffer)]
    pcs = pc_sequence(buffer)
    names = kernel.names.locations.of(buffer)
    # Executed addresses need not be points.
    end = len(pcs) if buffer.encoding.codec.is_exact else _find_end(pcs, names)
    if end < len(pcs):
        strangers = f"more than {_MOST_STRANGERS} distinct PCs that are no coverage points"
        remarks.append(
            f"the first {end} of {len(pcs)} records: with the others there are {strangers}"
        )
        pcs = pcs[:end]
    remarks += recorded_syscall_remarks(names, pcs)
    require_named_names(context.inputs, names, pcs, f"trace {buffer.name}")
    return pcs, remarks


def _read(context: Context, args: Namespace, side: TraceSide, wanted: PcFilter) -> _Story:
    buffer = side.buffer
    names = side.kernel.names.locations.of(buffer)
    pcs, remarks = _read_pcs(context, side)
    names.prefetch(pcs)
    numbers: Sequence[int] = range(len(pcs))
    if not wanted.passes_all:
        numbers = find_indices(buffer, wanted)
        numbers = numbers[: bisect_left(numbers, len(pcs))]
        pcs = pick_words(pcs, numbers)
    positions, left_out = _leave_out(pcs, names, frozenset(args.include or ()))
    kept = pick_words(pcs, positions)
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
    return _Story(buffer, names, kept, pick_words(numbers, positions), steps, remarks)


def _find_end(pcs: array[int], names: LocationCache) -> int:
    """Return the number of records to show. The next record would bring too many distinct PCs of
    the image that are no coverage points.
    """
    table = names.table
    if table is None:
        return len(pcs)
    distinct = make_numbering(pcs).number(pcs)
    others = pick_words(distinct, find_chains(distinct, table.columns).rest)
    strangers: set[int] = set()
    for text in table.text_ranges():
        strangers.update(others[bisect_right(others, text.start) : bisect_right(others, text.end)])
    if len(strangers) <= _MOST_STRANGERS:
        return len(pcs)
    seen: set[int] = set()
    for at, pc in enumerate(pcs):
        if pc in strangers:
            seen.add(pc)
            if len(seen) > _MOST_STRANGERS:
                return at
    return len(pcs)


def _compare(context: Context, args: Namespace) -> Iterator[Renderable]:
    """Yield the functions of two traces, aligned in their order."""
    sides, assumptions = read_sides(context, (args.against, args.what))
    kernels = [side.kernel for side in sides]
    filters = make_filters(args, *(kernel.names.locations for kernel in kernels))
    stories = list(map(partial(_read, context, args), sides, filters))
    require_comparable("trace", [side.buffer for side in sides])
    remarks = []
    for story in stories:
        remarks += name_remarks(story.buffer.name, story.remarks)
    comparison = compare_builds(context, kernels, (story.pcs for story in stories))
    remarks += [*assumptions, *comparison.remarks()]
    rows = list(_align(stories, comparison))
    context.status = int(any(row.side != _BOTH for row in rows))
    if args.n is None and args.offset is None and context.format is Format.TEXT:
        shown = _find_differing(rows)
        if len(shown) < len(rows):
            remarks.append(
                f"{len(rows) - len(shown)} of {len(rows)} lines are in both traces and not "
                f"shown; -n {len(rows)} shows all"
            )
    else:
        shown = _slice(args, rows)
    titles = map(buffer_title, (side.buffer for side in sides))
    yield Lines(
        [(("header", f"{sign} {title}"),) for sign, title in zip("<>", titles, strict=True)]
    )
    empty = "no difference" if rows else "no records"
    yield Table(_COMPARED_COLUMNS, shown, remarks, empty, approximate_errors)


def _align(stories: Sequence[_Story], comparison: BuildComparison) -> Iterator[_Row]:
    """Yield the functions of both traces in order, those in both once."""
    rows: list[list[_Row]] = []
    keys: list[list[Hashable]] = []
    for side, story in enumerate(stories):
        of_side = [_make_row(step, story) for step in story.steps]
        rows.append(of_side)
        keys.append([_find_key(comparison, row, side) for row in of_side])
    left, right = rows
    for part in align_records(*number_values(*keys)).parts():
        if part.is_common:
            for at, other in zip(part.left, part.right, strict=True):
                row, against = right[other], left[at].step.records
                yield row._replace(side=_BOTH, records=row.step.records, against_records=against)
        else:
            for at in part.left:
                row = left[at]
                yield row._replace(side=_AGAINST, against_records=row.step.records)
            for at in part.right:
                row = right[at]
                yield row._replace(side=_WHAT, records=row.step.records)


def _find_key(comparison: BuildComparison, row: _Row, side: int) -> Hashable:
    """Return a key that is equal for rows of one function, also of different sides."""
    if row.frame.function:
        return comparison.function(row.frame, side)
    if comparison.match is None:
        return row.location.address
    return side, row.location.address


def _find_differing(rows: Sequence[_Row]) -> list[_Row]:
    """Return the lines that differ, and the lines of their callers."""
    found: set[int] = set()
    path: list[int] = []
    for at, row in enumerate(rows):
        while path and rows[path[-1]].step.depth >= row.step.depth:
            path.pop()
        path.append(at)
        if row.side != _BOTH:
            found.update(path)
    return [rows[at] for at in sorted(found)]


def _leave_out(
    pcs: Sequence[int], names: LocationCache, included: frozenset[str]
) -> tuple[array[int], Counter[str]]:
    """Return the positions of records that are not left out, and the number of the others by class.

    Records without an address belong to no function and are left out as well.
    """
    class_of = {pc: find_class(*names[pc].outermost[:2]) for pc in set(pcs) if pc}
    kept = array("Q")
    left_out: Counter[str] = Counter()
    for at, pc in enumerate(pcs):
        if not pc:
            continue
        name = class_of[pc]
        if name is None or name in included or _ALL in included:
            kept.append(at)
        else:
            left_out[name] += 1
    return kept, left_out


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
_Item = TypeVar("_Item")


def _choose(
    context: Context, args: Namespace, steps: list[_Line]
) -> tuple[list[_Line], tuple[str, ...]]:
    """Return the lines to show, and a remark where there are more."""
    if args.n is None and not args.offset:
        if context.format is not Format.TEXT or len(steps) <= _LINES:
            return steps, ()
        left_out = len(steps) - _LINES
        remark = f"{left_out} more lines, with fewer records; -n {len(steps)} shows all"
        # A caller's total includes the records of its calls, so callers of shown lines stay.
        ranked = sorted(range(len(steps)), key=lambda at: -steps[at].total)
        return [steps[at] for at in sorted(ranked[:_LINES])], (remark,)
    shown = _slice(args, steps)
    left_out = len(steps) - len(shown)
    if context.format is not Format.TEXT or not left_out:
        return shown, ()
    end = (args.offset or 0) + len(shown)
    return shown, (f"{left_out} more lines; --offset {end} goes on",)


def _slice(args: Namespace, lines: list[_Item]) -> list[_Item]:
    """Return the lines that ``--offset`` and ``-n`` ask for."""
    first = args.offset or 0
    if args.n is None:
        return lines[first:]
    return lines[first : first + args.n]


def _make_row(step: TraceStep, story: _Story) -> _Row:
    location = story.names[story.pcs[step.first]]
    frame = location.outermost
    values = tuple(_step_values(step, story, frame))
    return _Row(step, location, find_class(frame.function, frame.file), values)


def _step_values(step: TraceStep, story: _Story, frame: Frame) -> Iterator[str]:
    """Yield the values of one call in a step's records: up to the first returned value."""
    buffer = story.buffer
    # Other records hold no values.
    if not buffer.encoding.codec.is_variable:
        return
    for at in range(step.first, min(len(story.pcs), step.first + step.records)):
        outer = story.names[story.pcs[at]].outermost
        if (outer.function, outer.file) != (frame.function, frame.file):
            return
        found = buffer.decode(story.numbers[at])
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
        RowType(_COLUMNS, errors=True, when="without `--classes`"),
        CALL_ROWS,
        RowType(_COMPARED_COLUMNS, errors=True, when="with `--against`"),
        RowType(_CLASS_COLUMNS, when="with `--classes`"),
    ),
    description=(
        "If a buffer records entries and exits of functions, each call is a line, indented below "
        "its caller, and RECORDS includes the records of nested calls. A call that began before "
        "the trace encloses everything up to its exit. No call is left out or folded.\n\n"
        "Other traces do not record calls, so the depth is inferred, as it is with --against. "
        "Functions are indented below the one that was executed before them, until that one "
        "continues. A function that is entered again from the same place is not repeated: ROUNDS "
        "says how often it was entered. With --unique each function is listed once, in order of "
        "first appearance. Inlined functions are part of the function that they are in.\n\n"
        "Functions of the kernel's infrastructure are left out by class; --classes lists the "
        "classes, and --include shows the functions of one. The functions of system calls always "
        "stay.\n\n"
        "With --against, the functions of two traces are aligned in order: < marks functions of "
        "the other trace alone, and > functions of WHAT alone. Text shows only these, below the "
        "functions around them. Functions of two builds are matched as by diff. The exit status is "
        "1 if there is a difference.\n\n"
        f"A million records take some 5 seconds. The trace is cut after {_MOST_STEPS} lines, and "
        f"after {_MOST_STRANGERS} distinct PCs that are no coverage points; a note says so.\n\n"
        f"A long trace is cut to the {_LINES} functions with the most records, functions below "
        "them included. -n N shows N lines in order, and --offset says from which line on. "
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
