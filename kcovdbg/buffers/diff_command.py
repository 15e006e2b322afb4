# SPDX-License-Identifier: LGPL-2.1-or-later
"""``diff``: the differences between two buffers, or between runs of two sides."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from kcovdbg.abi.address import address_of
from kcovdbg.buffers.line_diff import LINE_COLUMNS, diff_lines
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.compare.function_causes import CauseFinder, FunctionCause
from kcovdbg.compare.trace_builds import compare_builds, find_builds, read_sides
from kcovdbg.console.argument import SEPARATOR, Argument, Value
from kcovdbg.console.buffer_arguments import FILTERS, TRACE_OPTIONS, make_filters
from kcovdbg.console.column import ADDRESS, NUMBER, PATH, SYMBOL, WORD, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.grid import table_lines
from kcovdbg.console.record_columns import approximate_errors, frames_column
from kcovdbg.console.renderable import Drawing, Line, Lines, Renderable, Table
from kcovdbg.console.wording import COARSE, function_text, place_text, span_text
from kcovdbg.errors import CapabilityError, WordError
from kcovdbg.inputs.buffer_sources import (
    BufferCounts,
    count_buffer,
    find_buffer,
    name_remarks,
    order_remarks,
    read_trace_records,
    read_traces,
    require_comparable,
    require_order,
    require_points,
    require_same_kinds,
)
from kcovdbg.inputs.code_names import check_code
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.trace_paths import FILE, confine
from kcovdbg.model.location import Location
from kcovdbg.records.alignment import Alignment, align_records
from kcovdbg.records.function_trace import find_runs
from kcovdbg.records.joined_buffers import sum_up_remarks
from kcovdbg.records.line_states import TraceRecords
from kcovdbg.records.located_records import find_indices
from kcovdbg.records.pc_counts import count_pcs, pc_sequence, pick_words
from kcovdbg.records.pc_file import NotATraceError
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.run_counts import DifferingPc, DiffSide, RunCounts, RunDifference, compare_runs
from kcovdbg.records.side_file import find_traces, group_runs
from kcovdbg.records.source_coverage import merge_traces

_SEVERAL: Final = "diff A1 A2 A3 -- B1 B2 B3"
_LINES: Final = 4
"""Limit for the lines of a function that are listed."""


class _Row(NamedTuple):
    """A PC that not all runs have, or with ``--ordered`` one record that only one side has."""

    side: DiffSide
    pc: int
    location: Location
    address: int
    counterpart: int | None
    """The PC in the other build."""
    missing: str | None
    """The part that the other build lacks."""
    cause: FunctionCause | None
    """Why the other build recorded nothing of the function."""
    records: int = 1
    left_runs: int = 0
    right_runs: int = 0
    number: int = 0
    """The index of the record."""

    @property
    def function(self) -> str:
        """The function and the function that it was inlined into; the PC where they are unknown."""
        if self.location.innermost.function:
            return function_text(self.location)
        return f"{self.pc:#x}"


_COLUMNS: Final = (
    Column(
        "side",
        meaning="`left`, `right`, or `flicker` where only some runs of a side have it",
    ),
    Column("pc", WORD),
    Column("address", ADDRESS),
    Column(
        "count",
        NUMBER,
        value="records",
        meaning="number of records in all runs",
        unit="records",
    ),
    Column("left_runs", NUMBER, meaning="runs of the left side that have the PC", unit="runs"),
    Column("right_runs", NUMBER, meaning="runs of the right side that have the PC", unit="runs"),
    frames_column(),
)
_BUILD_COLUMNS: Final = (
    Column(
        "counterpart",
        WORD,
        meaning="the PC of the same point in the other build",
        null="the other build has no such point",
    ),
    Column(
        "missing",
        meaning=(
            "what the other build lacks: `function`, `line`; `lines` where a build has no debug "
            "info of the function, `location` where the PC has none"
        ),
        null="it lacks nothing",
    ),
    Column(
        "cause",
        value=lambda row: row.cause and row.cause.cause.value,
        meaning=(
            "why the other build recorded nothing of the function: `not-reached`; `unrecorded`: it "
            "ran, as follows from other records; `unknown`: whether it ran is; `renamed`; "
            "`not-instrumented`; `not-built`: its image has no code of the file; `gone` or `new`: "
            "the source of the right or the left build has no such function; `no-point`: inlined, "
            "left out, or its source is not at hand"
        ),
        null="it recorded some of it, or the PC has no location",
    ),
    Column(
        "cause_detail",
        value=lambda row: row.cause and row.cause.detail,
        meaning="the other name of a function that was renamed, or the option that builds the file",
        null="the cause names nothing",
    ),
)


class _Group(NamedTuple):
    """The differing PCs of one function."""

    points: int
    records: int
    function: str
    place: str
    cause: str | None
    runs: str | None


_GROUP_COLUMNS: Final = (
    Column("points", NUMBER),
    Column("records", NUMBER),
    Column("function", SYMBOL, elastic=16),
    Column("where", PATH, value=lambda group: group.place or None, elastic=16, priority=1),
    Column("cause", hide_empty=True, priority=2),
    Column("runs", hide_empty=True, priority=2),
)


def _split_sides(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split the words at ``--``; two words without it are one side each."""
    if SEPARATOR in words:
        at = words.index(SEPARATOR)
        left, right = words[:at], words[at + 1 :]
        if not left or not right or SEPARATOR in right:
            raise WordError("diff: buffers are needed on both sides of '--'", None, hint=_SEVERAL)
        return left, right
    if len(words) != 2:
        raise WordError(
            f"diff: two buffers expected, {len(words)} given", None, hint=f"diff A B, or {_SEVERAL}"
        )
    return words[:1], words[1:]


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    left, right = _split_sides(args.what)
    if args.ordered and len(left) + len(right) > 2:
        raise WordError("diff: more than two buffers given for --ordered", "--ordered")
    if args.by is not None:
        yield from _by_line(context, args, (left, right))
    elif args.ordered:
        yield from _ordered(context, args, (*left, *right))
    else:
        yield from _unordered(context, args, (left, right))


def _by_line(
    context: Context, args: Namespace, sides: Sequence[Sequence[str]]
) -> Iterator[Renderable]:
    if args.ordered:
        raise WordError("diff: --by line has no order of records", "--ordered")
    for option, given in (("--function", args.function), ("--not-function", args.not_function)):
        if given:
            raise WordError("diff: --by line selects by --file only", option)
    builds = find_builds(context, sides)
    kernel, other = builds.kernels
    if kernel is not other:
        raise CapabilityError(
            "diff: --by line compares traces of one build",
            hint="report shows what two builds executed of the lines that differ",
        )
    files = args.file or ()
    check_code([kernel.names.locations], files, are_files=True)

    def read(words: Sequence[str]) -> Iterator[BufferCounts]:
        for word, counted in _read_runs(context, words, kernel, takes_addresses=True):
            yield counted._replace(remarks=tuple(name_remarks(word, counted.remarks)))

    yield from diff_lines(context, [partial(read, words) for words in sides], builds, files)


def _read_runs(
    context: Context,
    words: Sequence[str],
    kernel: Kernel,
    *,
    takes_addresses: bool = False,
) -> Iterator[tuple[str, BufferCounts]]:
    """Yield the word that names each run of one side, and the counts of the run. One trace at a
    time is in memory. Remarks on a run do not name it.

    :param takes_addresses: as for :func:`count_buffer`.
    """
    inputs = context.inputs
    count = partial(count_buffer, inputs, takes_addresses=takes_addresses)
    for word in words:
        if not word.startswith(FILE):
            one = find_buffer(inputs, word, kernel)
            yield word, count(word, one)._replace(remarks=one.remarks)
            continue
        named, _ = confine(word.removeprefix(FILE), context.workspace.inputs.confinement)
        runs = group_runs(find_traces(named))
        paths = list(chain.from_iterable(runs))
        traces = read_traces(inputs, paths, kernel)
        others: list[NotATraceError] = []
        # A run is yielded once the next one was read, because the last run gets a remark on each
        # file that is no trace.
        latest: BufferCounts | None = None
        for run in runs:
            # A run has one file, or a file for each call of a program.
            counted: list[BufferCounts] = []
            remarks: list[str] = []
            # Take one trace for each file of the run; the next run takes the traces after them.
            for path, buffer in zip(run, traces, strict=False):
                if isinstance(buffer, NotATraceError):
                    others.append(buffer)
                    continue
                counted.append(count(f"{FILE}{path}", buffer))
                remarks += buffer.remarks
            if counted:
                if latest is not None:
                    yield word, latest
                latest = counted[0]._replace(
                    trace=merge_traces([one.trace for one in counted]),
                    remarks=tuple(dict.fromkeys(remarks)),
                    is_incomplete=any(one.is_incomplete for one in counted),
                )
        if latest is None:
            raise others[0]
        left_out = (f"left out: {error}" for error in others)
        yield word, latest._replace(remarks=(*latest.remarks, *left_out))


class _Side(NamedTuple):
    """The runs of one side."""

    runs: RunCounts
    trace: TraceRecords
    """All of their records."""
    remarks: Sequence[str]
    is_incomplete: bool
    """Whether some of their records could not be read."""


def _count_side(
    context: Context, comparison: BuildComparison, side: int, words: Sequence[str], build: Kernel
) -> _Side:
    """Count the runs of one side.

    :param build: the build of its traces.
    :param side: 0 for the left one.
    """
    runs = RunCounts()
    remark_counts: dict[str, Counter[str]] = {word: Counter() for word in words}
    traces: Counter[str] = Counter()
    is_incomplete = False
    recorded: TraceRecords | None = None
    for word, counted in _read_runs(context, words, build):
        # All records of a side are needed for the causes of differences between two builds only.
        if recorded is None or comparison.match is None:
            recorded = counted.trace
        else:
            recorded = merge_traces((recorded, counted.trace))
        runs.add(comparison.count(side, counted.trace.counts))
        remark_counts[word].update(counted.remarks)
        traces[word] += 1
        is_incomplete = is_incomplete or counted.is_incomplete
    remarks: list[str] = []
    for word, counts in remark_counts.items():
        remarks += name_remarks(word, sum_up_remarks(counts, traces[word], "traces"))
    assert recorded is not None
    return _Side(runs, recorded, remarks, is_incomplete)


def _find_pcs(context: Context, words: Sequence[str], build: Kernel) -> Iterator[int]:
    """Yield the PCs of all runs of a side."""
    for _, counted in _read_runs(context, words, build):
        yield from counted.trace.counts


def _unordered(
    context: Context, args: Namespace, sides: Sequence[Sequence[str]]
) -> Iterator[Renderable]:
    builds = find_builds(context, sides)
    # The first run of each side shows whether they can be compared, before all runs are read.
    firsts = []
    for words, build in zip(sides, builds.kernels, strict=True):
        word, counted = next(_read_runs(context, words, build))
        firsts.append((word, counted.records, counted.trace.kinds))
    require_same_kinds("diff", firsts)
    # Traces of two builds are read twice, since all PCs must be known first.
    pcs = map(partial(_find_pcs, context), sides, builds.kernels)
    comparison = compare_builds(context, builds.kernels, pcs)
    count_side = partial(_count_side, context, comparison)
    left, right = map(count_side, (0, 1), sides, builds.kernels)
    every = (*builds.remarks, *left.remarks, *right.remarks, *comparison.remarks())
    remarks = list(dict.fromkeys(every))
    difference = compare_runs(left.runs, right.runs)
    causes = CauseFinder(builds.kernels, comparison, (left.trace, right.trace))
    rows = _find_rows(args, builds.kernels, comparison, causes, difference)
    real = any(row.side is not DiffSide.FLICKER for row in rows)
    context.status = int(real)
    if real and not _is_of_several(difference):
        remarks.append(
            f"single runs vary; give several per side: {_SEVERAL}, or directories of trace files"
        )
    columns = _COLUMNS if comparison.match is None else (*_COLUMNS, *_BUILD_COLUMNS)
    doubts: dict[DiffSide, tuple[str, ...]] = {}
    for side, other, lacks in (
        (DiffSide.RIGHT, DiffSide.LEFT, left.is_incomplete),
        (DiffSide.LEFT, DiffSide.RIGHT, right.is_incomplete),
    ):
        if lacks:
            problem = f"the {other.value} side could not be read whole"
            doubts[side] = (f"{problem}, and may have it as well",)
            remarks.append(f"only {side.value} is not certain: {problem}")

    def errors(row: _Row) -> tuple[str, ...]:
        return (*approximate_errors(row), *doubts.get(row.side, ()))

    data = Table(columns, rows, errors=errors)
    parts = list(_find_parts(difference, rows))
    count = sum(len(groups) for _, _, groups in parts)
    drawing = Drawing(count, partial(_lines, context, difference, parts))
    yield Lines(drawing, data=data, remarks=remarks)


def _find_rows(
    args: Namespace,
    builds: Sequence[Kernel],
    comparison: BuildComparison,
    causes: CauseFinder,
    difference: RunDifference,
) -> list[_Row]:
    """Return the differing PCs that pass the filters."""
    filters = make_filters(args, *(build.names.locations for build in builds))
    placed: list[tuple[DifferingPc, int, int]] = []
    for one in difference.differences:
        # For a point of both builds, the left one's PC stands for it, unless only the right side
        # recorded it.
        side = 1 if one.side is DiffSide.RIGHT or not one.left_runs else 0
        pc = comparison.pc(one.pc, side)
        assert pc is not None
        placed.append((one, side, pc))
    for side, build in enumerate(builds):
        build.names.locations.prefetch(pc for _, of_side, pc in placed if of_side == side)
    rows: list[_Row] = []
    for one, side, pc in placed:
        if filters[side](pc):
            row = _make_row(comparison, causes, builds, side, pc, one.side)
            row = row._replace(
                records=one.records, left_runs=one.left_runs, right_runs=one.right_runs
            )
            rows.append(row)
    return rows


def _make_row(
    comparison: BuildComparison,
    causes: CauseFinder,
    builds: Sequence[Kernel],
    side: int,
    pc: int,
    which: DiffSide,
) -> _Row:
    """Return the row of a PC, with a count of one record.

    :param side: the side whose build has the PC, 0 for the left one.
    :param which: the runs that have the PC.
    """
    build = builds[side]
    location = build.names.locations[pc]
    return _Row(
        which,
        pc,
        location,
        address_of(pc, build.memory.kaslr_offset),
        comparison.counterpart(pc, side),
        comparison.missing(pc, side),
        causes.find(location.innermost, side),
    )


def _is_of_several(difference: RunDifference) -> bool:
    return difference.left_runs + difference.right_runs > 2


def _find_parts(
    difference: RunDifference, rows: Sequence[_Row]
) -> Iterator[tuple[str, str, Sequence[_Group]]]:
    """Yield the style, the heading and the functions of each side."""
    several = _is_of_several(difference)
    everywhere = ", in every run" if several else ""
    for side, style, text in (
        (DiffSide.LEFT, "left", f"only left{everywhere}"),
        (DiffSide.RIGHT, "right", f"only right{everywhere}"),
        (DiffSide.FLICKER, "remark", "flicker: in some runs of a side only"),
    ):
        is_flicker = side is DiffSide.FLICKER
        if is_flicker and not several:
            continue
        chosen = [row for row in rows if row.side is side]
        groups = _group(chosen, difference if is_flicker else None)
        heading = f"{text}: {len(chosen)} points"
        if groups:
            heading += f" in {len(groups)} functions"
        missing = sum(row.missing is not None for row in chosen)
        if missing:
            heading += f", {missing} of them without a counterpart in the other build"
        yield style, heading, groups


def _lines(
    context: Context,
    difference: RunDifference,
    parts: Sequence[tuple[str, str, Sequence[_Group]]],
    most: int,
) -> Iterator[Line]:
    everywhere = "in every run" if _is_of_several(difference) else "on both sides"
    yield (("header", f"{difference.common} points {everywhere}"),)
    for style, heading, every in parts:
        yield ()
        yield ((style, heading),)
        groups = every[:most]
        most -= len(groups)
        if groups:
            yield from table_lines(Table(_GROUP_COLUMNS, groups), context.width)


def _group(rows: Sequence[_Row], difference: RunDifference | None) -> list[_Group]:
    by_function: dict[object, list[_Row]] = {}
    for row in rows:
        # An inlined function is identified by its callers.
        by_function.setdefault((row.function, row.location.innermost.file), []).append(row)
    groups = []
    for members in by_function.values():
        first = members[0]
        records = sum(row.records for row in members)
        place = span_text((row.location.innermost for row in members), _LINES)
        cause = None if first.cause is None else first.cause.text
        runs = None
        if difference is not None:
            most = max(members, key=lambda row: row.left_runs + row.right_runs)
            runs = (
                f"{most.left_runs}/{difference.left_runs}, "
                f"{most.right_runs}/{difference.right_runs}"
            )
        groups.append(_Group(len(members), records, first.function, place, cause, runs))
    return sorted(groups, key=lambda group: (-group.records, group.function))


_SIDES: Final = (DiffSide.LEFT, DiffSide.RIGHT)
_ORDERED_COLUMNS: Final = (
    _COLUMNS[0],
    Column("index", NUMBER, value="number"),
    *(column for column in _COLUMNS[1:] if column.key not in ("left_runs", "right_runs")),
)


def _ordered(context: Context, args: Namespace, whats: Sequence[str]) -> Iterator[Renderable]:
    traces, assumptions = read_sides(context, whats)
    builds = [trace.kernel for trace in traces]
    buffers = [trace.buffer for trace in traces]
    remarks = [*assumptions]
    for buffer in buffers:
        require_points(buffer, "diff")
        require_order(buffer, "diff --ordered")
        remarks += name_remarks(buffer.name, (*buffer.remarks, *order_remarks(buffer)))
    require_comparable("diff", buffers)
    sides = [pc_sequence(buffer) for buffer in buffers]
    comparison = compare_builds(context, builds, map(count_pcs, buffers))
    remarks += comparison.remarks()
    numbers: list[Sequence[int]] = [range(len(side)) for side in sides]
    names_of = [build.names.locations for build in builds]
    filters = make_filters(args, *names_of)
    for side, (names, buffer, wanted) in enumerate(zip(names_of, buffers, filters, strict=True)):
        if not wanted.passes_all:
            names.prefetch(sides[side])
            numbers[side] = find_indices(buffer, wanted)
            sides[side] = pick_words(sides[side], numbers[side])
    alignment = align_records(
        *(comparison.number_records(side, pcs) for side, pcs in enumerate(sides))
    )
    if alignment.is_coarse:
        remarks.append(f"{COARSE}: parts with records in common may be shown as different")
    context.status = 1 if alignment.common < max(alignment.left, alignment.right) else 0

    causes = CauseFinder(
        builds, comparison, [read_trace_records(context.inputs, buffer) for buffer in buffers]
    )

    def changes() -> Iterator[_Row]:
        parts = (part.find_differing() for part in alignment.parts())
        for side, records in chain.from_iterable(parts):
            names_of[side].prefetch(sides[side][records.start : records.stop])
            for index in records:
                pc = sides[side][index]
                row = _make_row(comparison, causes, builds, side, pc, _SIDES[side])
                address = address_of(row.pc, buffers[side].kaslr_offset)
                yield row._replace(address=address, number=numbers[side][index])

    columns = _ORDERED_COLUMNS if comparison.match is None else (*_ORDERED_COLUMNS, *_BUILD_COLUMNS)
    left, right = alignment.left - alignment.common, alignment.right - alignment.common
    heading = f"{alignment.common} records in both, {left} only left, {right} only right"
    yield Lines(((("header", heading),),))
    yield Lines(
        _ordered_lines(alignment, sides, numbers, names_of),
        data=Table(columns, changes(), errors=approximate_errors),
        remarks=remarks,
    )


def _ordered_lines(
    alignment: Alignment,
    sides: Sequence[Sequence[int]],
    numbers: Sequence[Sequence[int]],
    names_of: Sequence[LocationCache],
) -> Iterator[Line]:
    for part in alignment.parts():
        if part.is_common:
            left, right = numbers[0][part.left.start], numbers[1][part.right.start]
            yield (("remark", f"  {len(part.left)} equal records from {left} and {right} on"),)
        for side, records in part.find_differing():
            names, pcs = names_of[side], sides[side]
            names.prefetch(pcs[records.start : records.stop])
            for run in find_runs(pcs, partial(_run_name, names), records.start, records.stop):
                where = place_text(names.frame(pcs[run.first]))
                times = f"×{run.length}" if run.length > 1 else ""
                number = numbers[side][run.first]
                yield (
                    (_SIDES[side].value, f"{'<>'[side]} {number:>8}  {times:>6}  {run.group}"),
                    ("path", f"  {where}".rstrip()),
                )


def _run_name(names: LocationCache, pc: int) -> str:
    return names.symbol(pc) if pc and names[pc].frames else f"{pc:#x}"


COMMAND: Final = Command(
    name="diff",
    summary="show the differences between two buffers, or between runs of two kinds",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(_COLUMNS, errors=True, when="without options"),
        RowType(LINE_COLUMNS, when="with `--by line`"),
        RowType(_ORDERED_COLUMNS, errors=True, when="with `--ordered`"),
        RowType((*_COLUMNS, *_BUILD_COLUMNS), errors=True, when="between two builds"),
        RowType(
            (*_ORDERED_COLUMNS, *_BUILD_COLUMNS),
            errors=True,
            when="between two builds with `--ordered`",
        ),
    ),
    description=(
        "Compares sets of PCs, by function; with --ordered, the sequences of records; with --by "
        "line, the states of lines as source shows them. Two runs of one workload rarely cover the "
        "same set. With several runs per side, separated by --, points that every run of one side "
        "covers, and no run of the other, are listed apart from points that flicker. file:DIR "
        "stands for all trace files in a directory, and file:DIR/PATTERN for those that match. "
        "Traces are read one at a time: thousands of them fit into memory.\n\n"
        "Traces of two builds of a kernel are compared by function and line. The side file of a "
        "trace names its build, and --other-vmlinux names the vmlinux of each build that is not "
        "the target's. A diff of both sources pairs the lines; without both, their order in each "
        "function does. Points without a counterpart are counted.\n\n"
        "The exit status is 1 if there is a difference. Points that flicker, and lines whose "
        "state is unknown in a run, are no difference."
    ),
    arguments=(
        Argument("what WHAT…", Value.BUFFER, "two buffers, or several on each side of --"),
        Argument(
            "--by",
            Value.CHOICE,
            "list the lines of source that one side executed and the other did not",
            choices=("line",),
        ),
        Argument(
            "--ordered",
            Value.FLAG,
            "align the records in their order; < marks the left, > the right",
        ),
        *FILTERS,
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("diff file:a.kcov file:b.kcov", "functions that only one of two traces has"),
        Example("diff @a1 @a2 @a3 -- @b1 @b2 @b3", "differences that every run shows"),
        Example("diff file:before/ file:after/", "the same, for two directories of traces"),
        Example("diff --by line file:good.kcov file:bad.kcov", "lines that only one of them ran"),
        Example("diff --ordered @a @b", "where two traces diverge"),
    ),
    needs=frozenset(),
    keeps_separator=True,
)
