# SPDX-License-Identifier: LGPL-2.1-or-later
"""``points``: coverage points of a function, file or directory, and which of them buffers cover."""

from __future__ import annotations

import posixpath
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from kcovdbg.abi.address import address_of
from kcovdbg.buffers.image_coverage import find_image_coverage
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import (
    ADDRESS,
    NUMBER,
    PATH,
    SHARE,
    SYMBOL,
    TEXT,
    WORD,
    Column,
    Meaning,
    RowType,
)
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_early_points, find_point_table
from kcovdbg.console.record_columns import frames_column, where_column
from kcovdbg.console.renderable import Table
from kcovdbg.console.wording import function_text, place_text
from kcovdbg.console.writer import Format
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.inputs.buffer_sources import (
    find_buffer,
    find_counts,
    read_trace_records,
    require_points,
)
from kcovdbg.inputs.code_names import unknown_file, unknown_function
from kcovdbg.inputs.kernel_points import FunctionPoint
from kcovdbg.model.location import Location
from kcovdbg.records.line_states import (
    SET,
    BlockState,
    FunctionBlocks,
    Quality,
    TraceRecords,
    make_finder,
)
from kcovdbg.records.located_records import (
    is_file_name,
    matches_file,
    matches_path,
    matches_source_function,
)
from kcovdbg.records.source_coverage import (
    SourceCoverage,
    find_function_lines,
    merge_traces,
    select_reachable,
    sum_up,
)
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.function_starts import FunctionStart
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable

_BY_FUNCTION: Final = "function"
_BY_FILE: Final = "file"
_GROUPS: Final = ("directory", _BY_FILE, _BY_FUNCTION)


class _Row(NamedTuple):
    pc: int
    kind: PointKind
    address: int
    location: Location
    hits: int | None


def _find_place(table: LocationTable, wanted: str) -> tuple[Sequence[int], str]:
    """Return the points of a function, a file or a directory, and why there are none, where there
    are none.

    :raises KcovdbgError: when the kernel image has no code of that name.
    """
    if not is_file_name(wanted):
        found = table.find(function=wanted)
        named = table.functions_named(wanted)
        if found or named:
            units = {symbol.unit for symbol in named if symbol.unit}
            return found, "" if found else _explain_absence(table, wanted, units)
    files = {file for file in table.files() if matches_path(wanted, file)}
    if files or any(matches_path(wanted, unit) for unit in table.units()):
        pcs = table.find(files=files) if files else ()
        return pcs, f"'{wanted}' is not instrumented: its code has no coverage point"
    if is_file_name(wanted):
        raise unknown_file([table], wanted)
    raise unknown_function([table], wanted, "function or directory")


def _find_points(
    context: Context, wanted: str
) -> tuple[Sequence[FunctionPoint], str, tuple[str, ...]]:
    """Return the points of a place, why there are none, and a remark on where they are from.

    :raises KcovdbgError: when neither the kernel image nor a module that is known has code of that
        name.
    """
    table = find_point_table(context)
    try:
        pcs, absence = _find_place(table, wanted)
    except KcovdbgError:
        named = (
            ()
            if is_file_name(wanted)
            else context.kernel.names.make_function_finder().find_in_image(wanted)
        )
        if any(start.room for start in named):
            return _list_code(table, wanted, named)
        found = None if is_file_name(wanted) else context.kernel.points.find_in_module(wanted)
        if found is None:
            raise
        module, points = found
        absence = f"'{wanted}' of module {module} calls no callback: it is not instrumented"
        remark = (
            f"'{wanted}' is in module {module}; copies that are inlined into other functions are "
            f"not searched"
        )
        return points, absence, (remark,)
    rows = zip(pcs, table.get_rows(pcs), strict=True)
    return (
        [FunctionPoint(pc, PointKind(row[0]), row[1]) for pc, row in rows if row is not None],
        absence,
        (),
    )


def _list_code(
    table: LocationTable, wanted: str, named: Sequence[FunctionStart]
) -> tuple[Sequence[FunctionPoint], str, tuple[str, ...]]:
    """Return the points of code whose name the table does not have, and why there are none.

    :param named: the code: labels of assembly, and functions with more than two names.
    """
    pcs: set[int] = set()
    functions: dict[FunctionSymbol, None] = {}
    for start in named:
        if start.pc is not None:
            pcs.update(table.find_in(range(start.pc, start.pc + (start.size or start.room or 0))))
            function = table.function_at(start.pc)
            functions.update({} if function is None else {function: None})
    found = sorted(pcs)
    rows = zip(found, table.get_rows(found), strict=True)
    points = [FunctionPoint(pc, PointKind(row[0]), row[1]) for pc, row in rows if row is not None]
    remarks = tuple(
        f"'{wanted}' is another name of {function.alias or function.name}" for function in functions
    )
    return (
        points,
        _explain_absence(table, wanted, {one.unit for one in functions if one.unit}),
        remarks,
    )


def _explain_absence(table: LocationTable, function: str, units: Collection[str]) -> str:
    text = f"'{function}' is not instrumented: it has no coverage point"
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
    """Yield how many of the points that a buffer can have are in it, and how many it cannot have.

    :param kinds: what the buffer can have.
    :param is_incomplete: whether records could not be read.
    """
    recordable = [row for row in rows if row.kind in kinds]
    covered = sum(bool(row.hits) for row in recordable)
    if recordable:
        if is_incomplete:
            yield (
                f"at least {covered} of {len(recordable)} points are covered: of the others it is "
                f"unknown"
            )
        else:
            yield (
                f"{covered} of {len(recordable)} points are covered "
                f"({covered / len(recordable):.0%})"
            )
    for kind in sorted({row.kind for row in rows} - set(kinds)):
        count = sum(row.kind is kind for row in rows)
        yield f"{count} points of kind {kind.name.lower()} are not recorded in this mode"


def _make_columns(offset: int, *, counted: bool) -> list[Column]:
    """Return the columns.

    :param offset: the KASLR offset.
    :param counted: whether there are buffers.
    """
    return [
        Column("pc", WORD),
        Column("kind", TEXT, value=lambda row: row.kind.name.lower()),
        Column("address", ADDRESS, json_only=not offset),
        Column(
            "symbol",
            SYMBOL,
            title="FUNCTION",
            value=lambda row: row.location.symbol,
            text=lambda row: function_text(row.location) if row.location.frames else None,
            elastic=16,
        ),
        where_column(
            lambda row: place_text(row.location.frames[0]) if row.location.frames else None
        ),
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
        frames_column(lambda row: row.location.frames),
    ]


class _Group(NamedTuple):
    """What a directory, a file or a function has, and how much of it was executed."""

    name: str
    file: str | None
    """Of a function."""
    lines: int
    executed_lines: int
    functions: int
    executed_functions: int
    unknown_lines: int


def _group_files(files: Sequence[SourceCoverage], by: str) -> Iterator[_Group]:
    """Yield the figures of each directory, file or function."""
    if by == _BY_FUNCTION:
        for file in files:
            for function, lines, executed, unknown, _ in find_function_lines(file):
                is_known = function.hits is not None
                yield _Group(
                    function.name,
                    file.path,
                    lines,
                    executed,
                    int(is_known),
                    int(bool(function.hits)),
                    unknown,
                )
        return
    groups: dict[str, list[SourceCoverage]] = {}
    for file in files:
        groups.setdefault(file.path if by == _BY_FILE else posixpath.dirname(file.path), []).append(
            file
        )
    for name in sorted(groups):
        totals = sum_up(groups[name])
        yield _Group(
            name,
            None,
            totals.lines,
            totals.executed_lines,
            totals.functions,
            totals.executed_functions,
            totals.unknown_lines,
        )


def _make_share_column(noun: str, *, hidden: bool) -> Column:
    """Return the column for the share of the lines or functions that were executed."""

    def find_share(row: Any) -> float | None:
        whole = getattr(row, f"{noun}s")
        return getattr(row, f"executed_{noun}s") / whole if whole else None

    return Column(
        f"{noun}_share",
        SHARE,
        title="%",
        value=find_share,
        json_only=hidden,
        meaning=f"share of these {noun}s that were executed",
        null=f"there is no such {noun}",
    )


def _make_group_columns(by: str, *, has_trace: bool) -> list[Column]:
    """Return the columns of groups.

    :param has_trace: whether there are buffers.
    """
    hidden = not has_trace
    names = [Column("name", PATH if by != _BY_FUNCTION else SYMBOL, title=by.upper())]
    if by == _BY_FUNCTION:
        names.append(Column("file", PATH))
    return [
        *names,
        Column(
            "lines",
            NUMBER,
            meaning="lines with code in functions with points, of which it is known whether they "
            "ran",
        ),
        Column(
            "executed_lines",
            NUMBER,
            title="EXECUTED",
            json_only=hidden,
            meaning="lines that were executed",
            unit="lines",
        ),
        _make_share_column("line", hidden=hidden),
        Column(
            "functions",
            NUMBER,
            meaning="functions with points, of which it is known whether they ran",
        ),
        Column(
            "executed_functions",
            NUMBER,
            title="EXECUTED",
            json_only=hidden,
            meaning="functions that were executed",
        ),
        _make_share_column("function", hidden=hidden),
        Column(
            "unknown_lines",
            NUMBER,
            title="UNKNOWN",
            json_only=hidden,
            meaning="lines of which it is unknown whether they ran",
        ),
    ]


def _count_by_blocks(
    table: LocationTable, trace: TraceRecords, points: Iterable[int]
) -> dict[int, int]:
    """Return how often executed addresses have the blocks of points, by PC; 1 where that follows
    from others.
    """
    finder = make_finder(table)
    blocks: dict[int, FunctionBlocks] = {}
    counts = {}
    for pc in points:
        # In the call.
        address = pc - 1
        function = finder.find_function(address)
        if function is None:
            continue
        if function not in blocks:
            blocks[function] = finder.find_blocks(trace, function)
        for block in blocks[function].blocks:
            if (
                block.address <= address < block.address + block.size
                and block.state is BlockState.EXECUTED
            ):
                counts[pc] = block.records or 1
    return counts


def _run_groups(context: Context, args: Namespace) -> Table:
    """Show the figures that export writes to lcov."""
    table = find_point_table(context, needs_points=False)
    _find_place(table, args.place)
    is_function = not is_file_name(args.place) and bool(
        table.find(function=args.place) or table.functions_named(args.place)
    )
    buffers = [find_buffer(context.inputs, what) for what in args.what or ()]
    for buffer in buffers:
        require_points(buffer, "points", takes_addresses=True)
    remarks = [*context.kernel.names.remarks]
    remarks += dict.fromkeys(
        f"{buffer.name}: {remark}" for buffer in buffers for remark in buffer.remarks
    )
    traces = [read_trace_records(context.inputs, buffer) for buffer in buffers]
    trace = merge_traces(traces) if traces else TraceRecords({}, SET, frozenset({PointKind.PC}))
    found = find_image_coverage(
        context,
        trace,
        partial(matches_source_function if is_function else matches_file, args.place),
    )
    remarks += found.remarks if traces else ()
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
    absence = f"'{args.place}' is not instrumented: its code has no coverage point"
    return Table(
        _make_group_columns(args.by, has_trace=bool(traces)), rows, remarks=remarks, empty=absence
    )


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
    own = () if is_file_name(args.place) else find_early_points(context, args.place)
    if own:
        found: Sequence[FunctionPoint] = own
        absence = ""
        remarks.append(
            f"the table of this build is still being built: points of '{args.place}' inlined "
            f"into other functions are missing"
        )
    else:
        found, absence, remark = _find_points(context, args.place)
        remarks += remark
    hits = None
    if args.what:
        hits = _count_hits(context, args.what, [point[0] for point in found])
        remarks += hits.remarks
    offset = context.target.kaslr_offset
    table = context.kernel.names.table
    rows: list[_Row] = []
    for pc, kind, frames in found:
        mangled = None if table is None else table.mangled_at(pc, frames)
        location = Location(pc, frames, mangled=mangled)
        count = None if hits is None else hits.of(pc, kind)
        rows.append(_Row(pc, kind, address_of(pc, offset), location, count))
    if hits is not None:
        remarks += _coverage(rows, hits.kinds, is_incomplete=hits.is_incomplete)
    if not rows:
        context.status = 1
        if context.format is not Format.TEXT:
            # Other formats show remarks only.
            remarks.append(absence)
    if hits is not None and args.uncovered and rows:
        rows = [row for row in rows if row.kind in hits.kinds and not row.hits]
        absence = f"no uncovered point in '{args.place}'"
    columns = _make_columns(offset, counted=hits is not None)
    return Table(columns, rows, remarks=remarks, empty=absence)


@dataclass(frozen=True, slots=True)
class _Hits:
    """How often points are in some buffers."""

    counts: Counter[int]
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
    :param points: that are wanted.
    """
    counts: Counter[int] = Counter()
    kinds: set[PointKind] = set()
    remarks: dict[str, None] = {}
    is_incomplete = False
    for what in whats:
        buffer = find_counts(context.inputs, what, takes_addresses=True)
        kinds |= buffer.kinds
        remarks.update(dict.fromkeys(buffer.remarks))
        is_incomplete = is_incomplete or buffer.is_incomplete
        trace = buffer.trace
        if trace is not None and trace.quality & Quality.EXACT:
            counts.update(_count_by_blocks(find_point_table(context), trace, points))
            is_incomplete = is_incomplete or not trace.quality & Quality.COMPLETE
        else:
            counts.update(buffer.counts)
    return _Hits(counts, kinds, is_incomplete, tuple(remarks))


COMMAND: Final = Command(
    name="points",
    summary="list the coverage points of a function, file or directory",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(
        RowType(
            _make_columns(0, counted=True),
            {"kind": Meaning("kind of the point: `pc`, `cmp`, `entry` or `exit`")},
        ),
        RowType(
            _make_group_columns(_BY_FUNCTION, has_trace=True),
            {
                "name": Meaning("the function, or the directory or file"),
                "file": Meaning("with `--by function`: file of the function"),
            },
            when="with `--by`",
        ),
    ),
    description=(
        "A coverage point is a call of the sanitizer's callback, placed by the compiler; KCOV "
        "never sees code without one. An inlined function has its points in its callers. KIND is "
        "pc for a basic block and cmp for a comparison; the mode of a buffer decides which of the "
        "two it has. With WHAT, shows how often the buffers together have each point, and which "
        "share of the points of their kinds is covered. Points of a function of a loaded module "
        "are read from its code in memory; name the module's debug info with -s. A function has "
        "the name that it has in the source, or that of a symbol, as in an oops (vfs_open.isra.0): "
        "then the points of its code alone. Functions of Rust have paths "
        "(kernel::error::to_result).\n\n"
        "With --by, shows for each directory, file or function how many lines and functions were "
        "executed, of those of which it is known: the figures that export writes to lcov.\n\n"
        "The exit status is 1 when the function, file or directory exists but has no point; a "
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
