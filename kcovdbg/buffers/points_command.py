# SPDX-License-Identifier: LGPL-2.1-or-later
"""``points``: coverage points of a function, file or directory, and which of them buffers cover."""

from __future__ import annotations

import posixpath
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from kcovdbg.abi.address import address_of
from kcovdbg.buffers.image_coverage import find_image_coverage
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import ADDRESS, NUMBER, PATH, SHARE, SYMBOL, WORD, Column, RowType
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_early_points, find_point_table
from kcovdbg.console.record_columns import frames_column, where_column
from kcovdbg.console.renderable import Table
from kcovdbg.console.wording import function_text
from kcovdbg.console.writer import Format
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.inputs.buffer_sources import (
    find_buffer,
    find_counts,
    name_remarks,
    read_trace_records,
    require_points,
)
from kcovdbg.inputs.code_names import unknown_file, unknown_function
from kcovdbg.inputs.kernel_points import FunctionPoint
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.code_states import CodeStates
from kcovdbg.records.line_states import SET, BlockState, Quality, TraceRecords
from kcovdbg.records.located_records import (
    is_file_name,
    matches_file,
    matches_path,
    matches_source_function,
)
from kcovdbg.records.source_coverage import (
    CoverageTotals,
    SourceCoverage,
    find_function_lines,
    merge_traces,
    select_reachable,
    sum_up,
)
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.function_starts import FunctionStart
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable

_NOT_INSTRUMENTED: Final = "'{}' is not instrumented: its code has no coverage point"
_BY_FUNCTION: Final = "function"
_BY_FILE: Final = "file"
_GROUPS: Final = ("directory", _BY_FILE, _BY_FUNCTION)


class _Row(NamedTuple):
    """A point, and how often the buffers have it."""

    pc: int
    kind: PointKind
    address: int
    location: Location
    hits: int | None


class _Found(NamedTuple):
    """The points of a place in the code."""

    points: Sequence[FunctionPoint]
    absence: str = ""
    """Why the place has no points, where it has none."""
    remarks: tuple[str, ...] = ()
    """The source of the points, or which points are missing."""


def _is_function(table: LocationTable, name: str) -> bool:
    if is_file_name(name):
        return False
    return bool(table.find(function=name) or table.functions_named(name))


def _find_in_table(table: LocationTable, place: str) -> _Found | None:
    """Return the points of a function, a file or a directory; None where the image or module of the
    table has no code of that name.
    """
    if _is_function(table, place):
        points = _get_points(table, table.find(function=place))
        if points:
            return _Found(points)
        return _Found((), _explain_absence(table, place, table.functions_named(place)))
    files = {file for file in table.files() if matches_path(place, file)}
    if files or any(matches_path(place, unit) for unit in table.units()):
        pcs = table.find(files=files) if files else ()
        return _Found(_get_points(table, pcs), _NOT_INSTRUMENTED.format(place))
    return None


def _get_points(table: LocationTable, pcs: Iterable[int]) -> list[FunctionPoint]:
    points = []
    pcs = list(pcs)
    for pc, row in zip(pcs, table.get_rows(pcs), strict=True):
        if row is not None:
            kind, frames = row
            points.append(FunctionPoint(pc, PointKind(kind), frames))
    return points


def _find_points(context: Context, place: str) -> _Found:
    """Return the points of a place in the code of the image or of a module.

    :raises KcovdbgError: when neither the kernel image nor a module that is known has code of that
        name.
    """
    early: Sequence[FunctionPoint] = ()
    if not is_file_name(place):
        early = find_early_points(context, place)
    if early:
        remark = (
            f"the table of this build is still being built: points of '{place}' inlined into "
            f"other functions are missing"
        )
        return _Found(early, remarks=(remark,))
    image = find_point_table(context)
    found = _find_in_table(image, place)
    if found is not None and _is_function(image, place):
        return found
    is_function = not is_file_name(place)
    if found is None and is_function:
        # A symbol of the image that the table has no function of.
        named = context.kernel.names.make_function_finder().find_in_image(place)
        if any(start.room for start in named):
            return _list_code(image, place, named)
    # A function of a module, or a file or directory that modules have parts of as well.
    modules = context.kernel.points.find_module_tables()
    parts = [found, *(_find_in_table(module, place) for module in modules)]
    known = [part for part in parts if part is not None]
    if known:
        points = chain.from_iterable(part.points for part in known)
        return _Found(sorted(points, key=attrgetter("pc")), known[0].absence)
    in_memory = context.kernel.points.find_in_module(place) if is_function else None
    if in_memory is None:
        raise _find_unknown(context, [image, *modules], place)
    module, own_points = in_memory
    absence = f"'{place}' of module {module} calls no callback: it is not instrumented"
    remark = (
        f"'{place}' is in module {module}; copies that are inlined into other functions are not "
        f"searched"
    )
    return _Found(own_points, absence, (remark,))


def _find_unknown(context: Context, tables: Sequence[LocationTable], place: str) -> KcovdbgError:
    """Return the error for a place that none of some tables has."""
    if not is_file_name(place):
        return unknown_function(tables, place, "function or directory")
    files = chain.from_iterable(table.files() for table in tables)
    return unknown_file(files, place, lacks_modules=context.kernel.points.lacks_modules)


def _list_code(table: LocationTable, place: str, named: Sequence[FunctionStart]) -> _Found:
    """Return the points of code whose name the table does not have.

    :param named: the code: labels of assembly, and functions with more than two names.
    """
    pcs: set[int] = set()
    functions: dict[FunctionSymbol, None] = {}
    for start in named:
        if start.pc is not None:
            pcs.update(table.find_in(range(start.pc, start.pc + (start.size or start.room or 0))))
            function = table.function_at(start.pc)
            if function is not None:
                functions[function] = None
    remarks = tuple(
        f"'{place}' is another name of {function.alias or function.name}" for function in functions
    )
    absence = _explain_absence(table, place, functions)
    return _Found(_get_points(table, sorted(pcs)), absence, remarks)


def _explain_absence(table: LocationTable, function: str, symbols: Iterable[FunctionSymbol]) -> str:
    """Return why a function has no points.

    :param symbols: the symbols of the function.
    """
    text = f"'{function}' is not instrumented: it has no coverage point"
    units = {symbol.unit for symbol in symbols if symbol.unit}
    if not units:
        return text
    names = " and ".join(sorted(units))
    if table.find(files=units):
        return (
            f"{text}, though {names} is instrumented: noinstr or __no_sanitize_coverage excludes "
            f"single functions"
        )
    return (
        f"{text}, and neither has anything else in {names}: KCOV_INSTRUMENT in a Makefile excludes "
        f"whole files"
    )


def _coverage(
    rows: Sequence[_Row], kinds: Collection[PointKind], *, is_incomplete: bool
) -> Iterator[str]:
    """Yield the number of points that a buffer has, and of points that it cannot have.

    :param kinds: the kinds of points that the buffer can have.
    :param is_incomplete: whether records could not be read.
    """
    recordable = [row for row in rows if row.kind in kinds]
    covered = sum(bool(row.hits) for row in recordable)
    text = f"{covered} of {len(recordable)} points are covered"
    if recordable and is_incomplete:
        yield f"at least {text}: of the others it is unknown"
    elif recordable:
        yield f"{text} ({covered / len(recordable):.0%})"
    for kind in sorted({row.kind for row in rows} - set(kinds)):
        count = sum(row.kind is kind for row in rows)
        yield f"{count} points of kind {kind.name.lower()} are not recorded in this mode"


def _function(row: _Row) -> str | None:
    return function_text(row.location) if row.location.frames else None


def _make_columns(offset: int, *, counted: bool) -> list[Column]:
    """Return the columns.

    :param offset: the KASLR offset.
    :param counted: whether there are buffers.
    """
    return [
        Column("pc", WORD),
        Column(
            "kind",
            value=lambda row: row.kind.name.lower(),
            meaning="kind of the point: `pc`, `cmp`, `entry` or `exit`",
        ),
        Column("address", ADDRESS, json_only=not offset),
        Column(
            "symbol",
            SYMBOL,
            title="FUNCTION",
            value="location.symbol",
            text=_function,
            elastic=16,
        ),
        where_column(),
        Column(
            "hits",
            NUMBER,
            json_only=not counted,
            style=lambda row: "covered" if row.hits else "uncovered",
            meaning="records of this point in the buffers",
            null=(
                "no buffer was named, or none can have points of this kind, or one was not read "
                "whole and what could be read has no record of the point"
            ),
            unit="records",
        ),
        frames_column(),
    ]


class _Group(NamedTuple):
    """The lines and functions of a directory, file or function, and how many were executed."""

    name: str
    totals: CoverageTotals
    file: str | None = None
    """The file of a function."""


def _group_files(files: Sequence[SourceCoverage], by: str) -> Iterator[_Group]:
    """Yield the figures of each directory, file or function."""
    if by == _BY_FUNCTION:
        for file in files:
            for function, lines, executed, unknown in find_function_lines(file):
                totals = CoverageTotals(
                    lines,
                    executed,
                    functions=int(function.hits is not None),
                    executed_functions=int(bool(function.hits)),
                    unknown_lines=unknown,
                )
                yield _Group(function.name, totals, file.path)
        return
    groups: defaultdict[str, list[SourceCoverage]] = defaultdict(list)
    for file in files:
        name = file.path if by == _BY_FILE else posixpath.dirname(file.path)
        groups[name].append(file)
    for name in sorted(groups):
        yield _Group(name, sum_up(groups[name]))


_KNOWN: Final = "of which it is known whether they ran"


def _make_figure_columns(noun: str, counted: str, *, hidden: bool) -> list[Column]:
    """Return the columns for how many lines or functions there are, and were executed.

    :param counted: which of them count.
    :param hidden: whether there is no trace.
    """

    def find_share(row: _Group) -> float | None:
        whole = getattr(row.totals, f"{noun}s")
        return getattr(row.totals, f"executed_{noun}s") / whole if whole else None

    executed = f"executed_{noun}s"
    return [
        Column(f"{noun}s", NUMBER, value=f"totals.{noun}s", meaning=f"{counted}, {_KNOWN}"),
        Column(
            executed,
            NUMBER,
            value=f"totals.{executed}",
            title="EXECUTED",
            json_only=hidden,
            meaning=f"{noun}s that were executed",
            unit=f"{noun}s",
        ),
        Column(
            f"{noun}_share",
            SHARE,
            title="%",
            value=find_share,
            json_only=hidden,
            meaning=f"share of these {noun}s that were executed",
            null=f"there is no such {noun}",
        ),
    ]


def _make_group_columns(by: str, *, has_trace: bool) -> list[Column]:
    """Return the columns of groups.

    :param has_trace: whether there are buffers.
    """
    hidden = not has_trace
    names = [Column("name", PATH, title=by.upper(), meaning="the directory or file")]
    if by == _BY_FUNCTION:
        names = [
            Column("name", SYMBOL, title=by.upper(), meaning="the function"),
            Column("file", PATH, meaning="file of the function"),
        ]
    return [
        *names,
        *_make_figure_columns("line", "lines with code in functions with points", hidden=hidden),
        *_make_figure_columns("function", "functions with points", hidden=hidden),
        Column(
            "unknown_lines",
            NUMBER,
            value="totals.unknown_lines",
            title="UNKNOWN",
            json_only=hidden,
            meaning="lines of which it is unknown whether they ran",
        ),
    ]


def _count_by_blocks(
    code: CodeStates, trace: TraceRecords, points: Iterable[int]
) -> dict[int, int]:
    """Return how often the block of each point was executed, by PC.

    A block that was executed without a record of its own, as other blocks show, counts once.
    """
    find_blocks = cache(partial(code.find_blocks, trace))
    counts = {}
    for pc in points:
        # In the call.
        address = pc - 1
        function = code.function_at(address)
        if function is None:
            continue
        found = find_blocks(function)
        index = found.find_index(address)
        if index is not None and found.blocks[index].state is BlockState.EXECUTED:
            counts[pc] = found.blocks[index].records or 1
    return counts


def _run_groups(context: Context, args: Namespace) -> Table:
    """Show the figures that export writes to lcov."""
    table = find_point_table(context, needs_points=False)
    tables = [table, *context.kernel.points.find_module_tables()]
    matches: Callable[[str, Frame], bool] = matches_file
    if any(_is_function(one, args.place) for one in tables):
        matches = matches_source_function
    elif all(_find_in_table(one, args.place) is None for one in tables):
        raise _find_unknown(context, tables, args.place)
    remarks = [*context.kernel.names.remarks]
    buffers = [find_buffer(context.inputs, what) for what in args.what or ()]
    for buffer in buffers:
        require_points(buffer, "points", takes_addresses=True)
        remarks += name_remarks(buffer.name, buffer.remarks)
    traces = [read_trace_records(context.inputs, buffer) for buffer in buffers]
    trace = merge_traces(traces) if traces else TraceRecords({}, SET, frozenset({PointKind.PC}))
    found = find_image_coverage(context, trace, partial(matches, args.place))
    remarks = list(dict.fromkeys(remarks))
    if traces:
        remarks += found.remarks
    files = found.files
    if args.reachable:
        files = select_reachable(table, files, context.kernel.code.call_graph.reachable)
        totals = sum_up(files)
        executed = f"{totals.executed_lines} of " if traces else ""
        remarks.append(
            f"{executed}{totals.lines} lines are in functions that system calls may reach, by "
            f"calls or through pointers: only these are counted"
        )
    rows = list(_group_files(files, args.by))
    if not rows:
        context.status = 1
    columns = _make_group_columns(args.by, has_trace=bool(traces))
    return Table(columns, rows, remarks=remarks, empty=_NOT_INSTRUMENTED.format(args.place))


def _run(context: Context, args: Namespace) -> Table:
    if args.by is not None:
        if args.uncovered:
            raise UsageError("points: --by has no points", hint="leave out --by or --uncovered")
        return _run_groups(context, args)
    if args.reachable:
        raise UsageError("points: --reachable is of --by", hint="add --by directory")
    if args.uncovered and not args.what:
        raise UsageError(
            "points: --uncovered needs a buffer", hint=f"points {args.place} --uncovered WHAT"
        )
    remarks = [*context.kernel.names.remarks]
    if remarks and is_file_name(args.place):
        raise CapabilityError(f"points: files are unknown: {remarks[0]}", hint="name a function")
    found = _find_points(context, args.place)
    absence = found.absence
    remarks += found.remarks
    hits = None
    if args.what:
        hits = _count_hits(context, args.what, [point.pc for point in found.points])
        remarks += hits.remarks
    rows = list(_make_rows(context, found.points, hits))
    if hits is not None:
        remarks += _coverage(rows, hits.kinds, is_incomplete=hits.is_incomplete)
    if not rows:
        context.status = 1
        if context.format is not Format.TEXT:
            # Other formats show remarks only.
            remarks.append(absence)
    elif hits is not None and args.uncovered:
        rows = [row for row in rows if row.kind in hits.kinds and not row.hits]
        absence = f"no uncovered point in '{args.place}'"
    columns = _make_columns(context.target.kaslr_offset, counted=hits is not None)
    return Table(columns, rows, remarks=remarks, empty=absence)


def _make_rows(
    context: Context, points: Iterable[FunctionPoint], hits: _Hits | None
) -> Iterator[_Row]:
    offset = context.target.kaslr_offset
    table = context.kernel.names.table
    for pc, kind, frames in points:
        mangled = count = None
        if table is not None:
            mangled = table.mangled_at(pc, frames)
        if hits is not None:
            count = hits.of(pc, kind)
        location = Location(pc, frames, mangled=mangled)
        yield _Row(pc, kind, address_of(pc, offset), location, count)


@dataclass(frozen=True, slots=True)
class _Hits:
    """How often points are in some buffers."""

    counts: Counter[int]
    """The number of records of each PC in all buffers."""
    kinds: Collection[PointKind]
    """The kinds of points that can be in the buffers."""
    is_incomplete: bool
    remarks: Sequence[str]

    def of(self, pc: int, kind: PointKind) -> int | None:
        """Return how often a point is in the buffers; None where that is unknown."""
        if kind not in self.kinds:
            return None
        if self.is_incomplete and pc not in self.counts:
            return None
        return self.counts[pc]


def _count_hits(context: Context, whats: Sequence[str], points: Sequence[int]) -> _Hits:
    """Count points in buffers.

    :param whats: names of the buffers.
    :param points: the points that are wanted.
    """
    counts: Counter[int] = Counter()
    kinds: set[PointKind] = set()
    remarks: dict[str, None] = {}
    is_incomplete = False
    find_modules = context.kernel.points.find_module_tables
    for what in whats:
        buffer = find_counts(context.inputs, what, takes_addresses=True)
        kinds |= buffer.trace.kinds
        remarks.update(dict.fromkeys(buffer.remarks))
        is_incomplete = is_incomplete or buffer.is_incomplete
        trace = buffer.trace
        if trace.quality & Quality.EXACT:
            code = CodeStates([find_point_table(context), *find_modules([trace])])
            counts.update(_count_by_blocks(code, trace, points))
            is_incomplete = is_incomplete or not trace.quality & Quality.COMPLETE
        else:
            counts.update(trace.counts)
    return _Hits(counts, kinds, is_incomplete, tuple(remarks))


COMMAND: Final = Command(
    name="points",
    summary="list the coverage points of a function, file or directory",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(_make_columns(0, counted=True)),
        RowType(
            _make_group_columns(_BY_FILE, has_trace=True),
            when="with `--by directory` or `--by file`",
        ),
        RowType(_make_group_columns(_BY_FUNCTION, has_trace=True), when="with `--by function`"),
    ),
    description=(
        "A coverage point is a call of the sanitizer's callback, placed by the compiler; KCOV "
        "never sees code without one. An inlined function has its points in its callers. KIND is "
        "pc for a basic block and cmp for a comparison; the mode of a buffer decides which kind "
        "it has. With WHAT, shows how often the buffers together have each point, and which share "
        "of the points of their kinds is covered. For a function of a loaded module, name the "
        "module's debug info with -s. FUNCTION is the name in the source, or a symbol "
        "(vfs_open.isra.0) for the points in the code of that symbol alone. Functions of Rust "
        "have paths (kernel::error::to_result).\n\n"
        "With --by, shows how many lines and functions of each directory, file or function were "
        "executed; lines and functions whose state is unknown do not count. export lcov writes "
        "the same figures.\n\n"
        "The exit status is 1 if the function, file or directory exists but has no point; a "
        "message gives the reason."
    ),
    arguments=(
        Argument(
            "place FUNCTION|FILE|DIR",
            Value.FUNCTION,
            "a function, a file such as fs/open.c, or a directory",
        ),
        Argument("what [WHAT…]", Value.BUFFER, "count the records of these buffers"),
        Argument("--uncovered", Value.FLAG, "only the points that the buffers could have and lack"),
        Argument(
            "--by",
            Value.CHOICE,
            "show how many lines and functions of each the buffers executed",
            choices=_GROUPS,
        ),
        Argument("--reachable", Value.FLAG, "with --by: only code that system calls may lead to"),
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("points vfs_read", "can KCOV see this function?"),
        Example("points net/ipv4/tcp.c 41", "how much of this file did task 41 execute?"),
        Example(
            "points fs 41 42 --uncovered", "what did both tasks together miss of this directory?"
        ),
        Example("points fs 41 --by file", "how much of each file did task 41 execute?"),
        Example(
            "points fs 41 --by directory --reachable",
            "and how much of what system calls may reach?",
        ),
        Example("points do_sys_openat2 all --uncovered", "what has nobody covered?"),
    ),
    needs=frozenset({Need.POINTS}),
)
