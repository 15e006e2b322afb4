# SPDX-License-Identifier: LGPL-2.1-or-later
"""``report``: an HTML page about one or two traces and their kernel."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.buffers.trace_coverage import LineFinder
from kcovdbg.check.runner import check
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.compare.trace_builds import TraceSide, compare_builds, read_sides
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import FORCE, TRACE_OPTIONS
from kcovdbg.console.column import BOOL, NUMBER, PATH, TEXT, Column, RowType
from kcovdbg.console.command import Command, Example, Need, Topic, parse_arguments
from kcovdbg.console.context import Context
from kcovdbg.console.html import PageSection, notes_markup, page_lines, table_markup
from kcovdbg.console.output_files import open_text
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Lines, Renderable, Table, Text
from kcovdbg.console.writer import encode_rows
from kcovdbg.errors import GoneError, KcovdbgError, WordError
from kcovdbg.inputs.buffer_sources import (
    name_remarks,
    order_remarks,
    read_trace_records,
    require_comparable,
    require_fit,
    require_names,
    require_points,
)
from kcovdbg.inputs.trace_paths import FILE
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.kcov import name_task
from kcovdbg.records.coverage import fill_lines
from kcovdbg.records.line_states import LineState
from kcovdbg.records.pc_counts import PcCounts, as_counts, pc_sequence
from kcovdbg.records.pc_shares import count_repeats, rank
from kcovdbg.records.side_file import read_header
from kcovdbg.report.changes import changes_markup
from kcovdbg.report.listing import (
    MAX_LINES,
    SourceFile,
    chart_markup,
    chunk_lines,
    findings_markup,
    folded_markup,
    legend_markup,
    listing_markup,
    packed_lines,
    packed_words,
)
from kcovdbg.report.patch_lines import patch_markup
from kcovdbg.report.trace import CountedTrace, records_markup
from kcovdbg.symbols.symbolizer import without_collection

_BARS: Final = 25
_STATE: Final = (
    ("tasks", "Tasks with KCOV state"),
    ("objects", "Every struct kcov and the references to it"),
    ("remote", "Remote handles"),
    ("areas", "Remote areas"),
    ("saved", "Interrupted sessions"),
)
_TRACE_COLUMNS: Final = (
    Column("trace", title="Trace", value=lambda buffer: buffer.name),
    Column("mode", TEXT, title="Mode"),
    Column("pid", NUMBER, title="Task", hide_empty=True),
    Column("comm", TEXT, title="Name", hide_empty=True),
    Column("count", NUMBER, title="Records"),
    Column("capacity", NUMBER, title="Capacity", hide_empty=True),
    Column("full", BOOL, title="Full"),
)


def _summary(
    context: Context, traces: Sequence[CountedTrace], assumptions: Sequence[str]
) -> Iterator[str]:
    if context.kernel.memory.optional_target is not None:
        yield from _ask(context, "info", "Kernel")
    buffers: list[Buffer] = []
    notes: list[str] = []
    for buffer, _, _ in traces:
        buffers.append(buffer)
        notes += name_remarks(buffer.name, (*buffer.remarks, *order_remarks(buffer)))
    if buffers:
        table = Table(_TRACE_COLUMNS, buffers, remarks=(*notes, *assumptions))
        yield from table_markup(table, "Traces")


def _charts(traces: Sequence[CountedTrace]) -> Iterator[str]:
    yield (
        '<p><span class="key new"></span>records <span class="key repeated"></span>repeats '
        "among them: records of points that "
        "the same run of the function already had, as loops add them</p>"
    )
    yield '<div class="two">'
    for trace in traces:
        buffer, names = trace.buffer, trace.kernel.names.locations
        columns = names.columns(trace.counts.pcs)
        repeats = count_repeats(columns, pc_sequence(buffer))
        ranking = rank(columns, trace.counts.records, repeats, "function", limit=_BARS)
        caption = f"{buffer.name}: {ranking.groups} functions, {ranking.records} records"
        yield "<div>"
        yield from chart_markup(ranking.shares, names, caption)
        others, records = ranking.rest
        if others:
            more = f"{others} more functions with {records} records"
            yield from notes_markup([f"{more}; top {buffer.name} shows them"])
        yield "</div>"
    yield "</div>"


def _find_lines(
    context: Context, traces: Sequence[CountedTrace], comparison: BuildComparison
) -> tuple[list[SourceFile], Sequence[str]]:
    """Return the files of the last trace's build with their lines by each trace, and remarks."""
    kernel = traces[-1].kernel
    finder = LineFinder(kernel, partial(find_point_table, context, kernel))
    if comparison.match is None:
        found = finder.find([trace.records for trace in traces])
        remarks: list[str] = []
    else:
        # The left trace is of another build: of that, only points can be compared.
        counts = _count_on_right(comparison, traces[0].counts)
        left = finder.find_points(traces[0].records._replace(counts=counts))
        (right,) = finder.find([traces[1].records])
        unknown = LineState.UNDECIDED, LineState.UNDECIDED
        left_files, right_files = fill_lines((left.files, right.files), unknown)
        found = [left._replace(files=left_files), right._replace(files=right_files)]
        remarks = [
            "the source of the second build; of the first one's run, lines are known where both "
            "builds have the same point"
        ]
    for lines in found:
        remarks += lines.remarks
    columns = zip(*(lines.files for lines in found), strict=True)
    return [SourceFile(coverage[0].file, coverage) for coverage in columns], remarks


def _source(
    context: Context, traces: Sequence[CountedTrace], comparison: BuildComparison
) -> Iterator[str]:
    files, remarks = _find_lines(context, traces, comparison)
    notes = list(remarks)
    files.sort(key=lambda file: file.order)
    tree = traces[-1].kernel.sources.tree
    names = [trace.buffer.name for trace in traces]
    absent = sum(not tree.has_text(file.file) for file in files)
    if absent:
        notes.append(
            f"the text of {absent} of {len(files)} files is missing: name a source tree with "
            f"--source-dir"
        )
    yield from notes_markup(notes)
    if files:
        yield legend_markup(names)
    room = MAX_LINES
    # Packed lines have no colors: then none have. Finding them for so many lines takes a second.
    is_colored = sum(len(file.lines) for file in files) <= room
    folded: list[SourceFile] = []
    for file in files:
        # Smaller files may still fit after one that does not.
        if len(file.lines) <= room:
            room -= len(file.lines)
            lines = tree.read(file.file).lines
            yield from listing_markup(
                file, lines, names, is_open=len(files) == 1, is_colored=is_colored
            )
        else:
            folded.append(file)
    if folded:
        yield (
            "<noscript><p>Showing the lines of the following files needs JavaScript.</p></noscript>"
        )
        for number, file in enumerate(folded):
            yield folded_markup(number, file, names)
        yield packed_words(names)
        texts = (tree.read_once(file.file).lines for file in folded)
        yield from chunk_lines("source", map(packed_lines, folded, texts))
    if not files:
        yield '<p class="none">no source lines</p>'


def _count_on_right(comparison: BuildComparison, counts: PcCounts) -> PcCounts:
    """Return the records of points that the right build also has, by the right build's PCs."""
    found: dict[int, int] = {}
    for number, records in comparison.count(0, counts).items():
        pc = comparison.pc(number, 1)
        if pc is not None:
            found[pc] = found.get(pc, 0) + records
    return as_counts(found)


def _ask(context: Context, name: str, caption: str) -> Iterator[str]:
    """Yield another command's answer, or its error."""
    command = context.workspace.commands.find(name)
    try:
        answer = command.run(context, parse_arguments(command, []))
        for part in answer if isinstance(answer, Iterable) else (answer,):
            if isinstance(part, Table):
                yield from table_markup(part, caption)
    except GoneError:
        raise
    except KcovdbgError as error:
        yield from notes_markup([f"{caption}: {error}"])


def _state(context: Context) -> Iterator[str]:
    for name, caption in _STATE:
        yield from _ask(context, name, caption)


def _check(context: Context) -> Iterator[str]:
    try:
        yield from findings_markup(check(context.reader, advice=False, wanted=[]))
    except GoneError:
        raise
    except KcovdbgError as error:
        yield from notes_markup([f"check: {error}"])


class _Answer(NamedTuple):
    """The answer of another command about the traces."""

    rows: Sequence[Mapping[str, Any]]
    """Its rows as in JSON."""
    remarks: Sequence[str]


def _ask_of_traces(
    context: Context, option: str, words: Sequence[str], what: Sequence[str]
) -> _Answer:
    """Return the answer of another command about the traces.

    :param option: the option that asks for it.
    :param words: the command, with its arguments in front of the traces.
    :raises KcovdbgError: when there are no traces, or when the command fails.
    """
    if not what:
        raise WordError(
            f"report: {option} needs a trace",
            None,
            hint=f"report {option} {words[-1]} file:TRACE -o FILE",
        )
    name, *arguments = words
    command = context.workspace.commands.find(name)
    status = context.status
    answer = command.run(context, parse_arguments(command, [*arguments, *what]))
    # The status of patch says that a line was not executed, which is no failure of the page.
    context.status = status
    assert isinstance(answer, Lines)
    assert isinstance(answer.data, Table)
    return _Answer(list(encode_rows(answer.data)), list(answer.remarks))


def _sections(
    context: Context,
    traces: Sequence[CountedTrace],
    assumptions: Sequence[str],
    patch: _Answer | None,
    aims: _Answer | None,
) -> Iterator[PageSection]:
    if patch is not None:
        yield PageSection("patch", "Lines of the patch", patch_markup(patch.rows, patch.remarks))
    if aims is not None:
        yield PageSection("aims", "What to aim at next", _aims(aims))
    comparison = BuildComparison()
    if len(traces) > 1:
        kernels = [trace.kernel for trace in traces]
        comparison = compare_builds(context, kernels, map(attrgetter("counts"), traces))
        if comparison.match is not None:
            yield PageSection("changes", "Changed lines", changes_markup(*traces))
        yield PageSection(
            "records", "Differences, side by side", records_markup(traces, comparison)
        )
    yield PageSection("summary", "Summary", _summary(context, traces, assumptions))
    if traces:
        yield PageSection("fill", "What fills the buffer", _charts(traces))
        if len(traces) == 1:
            yield PageSection("records", "Records", records_markup(traces, comparison))
        yield PageSection("source", "Source", _source(context, traces, comparison))
    target = context.kernel.memory.optional_target
    if target is not None and target.memory_problem is None:
        yield PageSection("state", "State", _state(context))
        yield PageSection("check", "Check", _check(context))


_MOST_AIMS: Final = 200
_AIM_COLUMNS: Final = (
    Column("lines", NUMBER, value=lambda row: row["values"]["lines"]),
    Column("functions", NUMBER, value=lambda row: row["values"]["functions"]),
    Column("answer", title="WHAT STANDS BEFORE THEM"),
    Column("path", value=lambda row: " > ".join(row["path"] or ())),
)


def _aims(answer: _Answer) -> Iterator[str]:
    """Yield what stands before lines that no trace ran, as ``why --all`` ranks it."""
    rows = answer.rows[:_MOST_AIMS]
    yield from table_markup(Table(_AIM_COLUMNS, rows), "Lines that did not run")
    left = len(answer.rows) - len(rows)
    if left:
        yield from notes_markup([f"{left} more places are left out: why --all --json shows them"])


_COLUMNS: Final = (
    Column("file", PATH, meaning="path of the written file"),
    Column("traces", NUMBER, meaning="number of traces in it", unit="traces"),
    Column("bytes", NUMBER),
)


def _title(buffer: Buffer) -> str:
    """Return the name of a buffer with its task and command, if they are known."""
    parts = []
    if buffer.pid is not None:
        parts.append(name_task(buffer))
    if buffer.name.startswith(FILE):
        header = read_header(Path(buffer.name.removeprefix(FILE)))
        if header is not None and header.argv:
            parts.append(shlex.join(header.argv))
    described = ", ".join(parts)
    if buffer.name == str(buffer.pid):
        return described
    return f"{buffer.name} ({described})" if described else buffer.name


def _name_kernels(context: Context, sides: Sequence[TraceSide]) -> str:
    names: list[str | None] = []
    target = context.kernel.memory.optional_target
    if target is not None:
        names.append(f"{target.name}, {target.release} ({target.machine})")
    for _, kernel in sides:
        if kernel is not context.kernel:
            names.append(kernel.sources.image)
    return ", ".join(filter(None, names))


def _run(context: Context, args: Namespace) -> Renderable:
    if len(args.what) > 2:
        raise WordError(
            "report: more than two buffers given", args.what[2], hint="report A B -o FILE.html"
        )
    to_stdout = context.writes_stdout(args.output)
    if not args.what:
        context.require(Need.MEMORY)
    sides, assumptions = read_sides(context, args.what)
    for buffer, _ in sides:
        require_points(buffer, "report")
        require_fit(buffer, "report", is_forced=args.force)
    buffers = [side.buffer for side in sides]
    if buffers:
        require_comparable("report", buffers)
    traces = []
    for buffer, kernel in sides:
        trace = CountedTrace(buffer, read_trace_records(context.inputs, buffer), kernel)
        names = kernel.names.locations
        require_names(context.inputs, names, trace.counts, f"report {buffer.name}")
        traces.append(trace)
    patch = aims = None
    if args.change is not None:
        patch = _ask_of_traces(context, "--patch", ["patch", args.change], args.what)
    if args.aim is not None:
        aims = _ask_of_traces(context, "--aim", ["why", "--all", args.aim], args.what)
    heading = " beside ".join(map(_title, buffers)) or "KCOV's state"
    subtitle = _name_kernels(context, sides) or "no kernel: PCs have no names"
    sections = list(_sections(context, traces, assumptions, patch, aims))
    lines = page_lines(heading, subtitle, sections)
    if to_stdout:
        return Text(map("{}\n".format, lines))
    size = 0
    # A million short-lived objects, none of them in a cycle.
    with without_collection(), open_text(args.output, context.input_files) as stream:
        for line in lines:
            stream.write(line)
            stream.write("\n")
            # A page of a kernel has megabytes, which need not be encoded twice.
            length = len(line) if line.isascii() else len(line.encode())
            size += length + 1
    return Table(_COLUMNS, ({"file": args.output, "traces": len(traces), "bytes": size},))


COMMAND: Final = Command(
    name="report",
    summary="write an HTML page: what fills a buffer, source, records, state",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Writes one file that needs no other file and no network: a summary, what fills each "
        "buffer, two traces side by side, source with executed lines, and the kernel's state and "
        "findings of check. Without WHAT, it has only the state and the findings. It contains "
        "names, paths and source text: review it before you share it.\n\n"
        "Two traces of two builds are compared as by diff. The page then begins with the lines "
        "that differ between the sources of the builds: executed before, executed after, or "
        "never.\n\n"
        "In the page, n and p go to the next and the previous difference. Long files and long "
        "traces need JavaScript. For source text, name a tree with --source-dir."
    ),
    arguments=(
        Argument("what [WHAT…]", Value.BUFFER, "a buffer, or two to show side by side"),
        Argument(
            "-o, --output FILE",
            Value.FILE,
            "the file to write; - for standard output",
            is_output=True,
            is_required=True,
        ),
        Argument(
            "--patch RANGE|FILE.diff|-",
            Value.FILE,
            "begin with the state of each line that a change adds, as patch shows it",
            key="change",
        ),
        Argument(
            "--aim FILE|DIR",
            Value.FUNCTION,
            "begin with what kept its lines from running, as why --all shows it",
        ),
        FORCE,
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("report 41 -o 41.html", "what task 41 executed, for readers without kcovdbg"),
        Example("report file:good.kcov file:bad.kcov -o both.html", "two traces side by side"),
        Example(
            "report --patch fix.diff file:test.kcov -o fix.html",
            "which lines of the patch did the test run?",
        ),
        Example("report --aim fs/ext4 file:test.kcov -o aims.html", "what to aim at next?"),
        Example("report -o state.html", "the state in a dump, and findings"),
    ),
    needs=frozenset(),
)
