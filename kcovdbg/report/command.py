# SPDX-License-Identifier: LGPL-2.1-or-later
"""``report``: an HTML page about one or two traces and their kernel."""

from __future__ import annotations

import shlex
from argparse import Namespace
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_coverage import find_line_coverage
from kcovdbg.check.runner import check, find_rule
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.compare.trace_builds import BuildTrace, TraceBuild, build_remarks, compare_builds, find_builds, find_source_changes
from kcovdbg.console.argument import Argument, Count, Value, WordError
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.buffer_sources import find_buffer, require_names, require_points
from kcovdbg.console.column import BOOL, NUMBER, PATH, TEXT, Column, RowType
from kcovdbg.console.command import Command, Example, Need, Topic, parse_arguments
from kcovdbg.console.context import Context
from kcovdbg.console.html import PageSection, fields_markup, notes_markup, page_lines, table_markup
from kcovdbg.console.output_files import STDOUT, open_text
from kcovdbg.console.renderable import Fields, Renderable, Table, Text
from kcovdbg.console.trace_paths import FILE
from kcovdbg.console.wording import COARSE, buffer_title
from kcovdbg.console.writer import Format
from kcovdbg.errors import GoneError, KcovdbgError, UsageError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.kcov import name_task
from kcovdbg.records.alignment import align
from kcovdbg.records.coverage import FileCoverage, LineCoverage
from kcovdbg.records.pc_counts import PcCounts, as_counts, count_pcs, count_repeats, make_numbering, pc_sequence, rank
from kcovdbg.records.trace_file import read_header
from kcovdbg.report.listing import (
    Bar,
    Change,
    ChangeLine,
    Listing,
    add_counts,
    change_markup,
    chart_markup,
    chunk_lines,
    counts_text,
    findings_markup,
    folded_markup,
    listing_markup,
    packed_lines,
    packed_words,
)
from kcovdbg.report.trace import (
    MAX_RECORDS,
    ChunkedPoints,
    PlainPoints,
    Point,
    RecordPoints,
    RowSpan,
    TraceData,
    is_plain,
    trace_markup,
)
from kcovdbg.symbols.coverage_points import recorded_kinds
from kcovdbg.symbols.symbolizer import without_collection

_BARS: Final = 25
# Limit for lines of source with points that are in the page as they are: more rows make it slow to open.
MAX_LINES: Final = 6000
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


class _Trace(NamedTuple):
    """A trace with its counts."""

    buffer: Buffer
    counts: PcCounts
    build: TraceBuild


def _summary(context: Context, traces: Sequence[_Trace]) -> Iterator[str]:
    if context.kernel.optional_target is not None:
        yield from _ask(context, "info", "Kernel")
    if traces:
        buffers = [trace.buffer for trace in traces]
        notes = [f"{buffer.name}: {remark}" for buffer in buffers for remark in buffer.remarks]
        notes += build_remarks([trace.build for trace in traces])
        table = Table(_TRACE_COLUMNS, buffers, remarks=notes)
        yield from table_markup(table, "Traces")


def _charts(traces: Sequence[_Trace]) -> Iterator[str]:
    yield (
        '<p><span class="key new"></span>records <span class="key repeated"></span>repeats among them: records of points that '
        "the same run of the function already had, as loops add them</p>"
    )
    yield '<div class="two">'
    for buffer, counts, build in traces:
        names = build.names
        columns = names.columns(counts.pcs)
        ranking = rank(columns, counts.records, count_repeats(columns, pc_sequence(buffer)), "function", limit=_BARS)
        bars = []
        for share in ranking.shares:
            frame = names.frame(share.pc)
            bars.append(Bar(frame.function or f"{share.pc:#x}", frame.file or "", share.records, share.repeats, share.share))
        yield "<div>"
        yield from chart_markup(bars, f"{buffer.name}: {ranking.groups} functions, {ranking.records} records")
        if ranking.groups > _BARS:
            rest = ranking.records - sum(share.records for share in ranking.shares)
            more = f"{ranking.groups - _BARS} more functions with {rest} records"
            yield from notes_markup([f"{more}; top {buffer.name} shows them"])
        yield "</div>"
    yield "</div>"


class _File(NamedTuple):
    """A file of source with its coverage by each trace."""

    file: str
    coverage: Sequence[FileCoverage | None]
    """None where a trace executed nothing of it."""

    @property
    def lines(self) -> dict[int, list[LineCoverage | None]]:
        """Line -> its coverage by each trace."""
        lines: dict[int, list[LineCoverage | None]] = {}
        for number, coverage in enumerate(self.coverage):
            for line in () if coverage is None else coverage.rows():
                lines.setdefault(line.line, [None] * len(self.coverage))[number] = line
        return lines

    @property
    def total(self) -> int:
        """Number of lines with points."""
        return len(set().union(*(coverage.lines for coverage in self.coverage if coverage is not None)))

    @property
    def covered(self) -> list[int]:
        """Number of lines that each trace covers."""
        return [0 if coverage is None else coverage.covered_lines for coverage in self.coverage]

    @property
    def order(self) -> tuple[int, int, str]:
        """The sort key of files: differing lines and records, most first."""
        differing = sum(map(_differs, self.lines.values())) if len(self.coverage) > 1 else 0
        return -differing, -sum(sum(coverage.hits) for coverage in self.coverage if coverage is not None), self.file


def _source(context: Context, traces: Sequence[_Trace], comparison: BuildComparison | None) -> Iterator[str]:
    remarks: dict[str, None] = {}
    build = traces[-1].build
    tree = build.source
    counts = [trace.counts for trace in traces]
    if comparison is not None and comparison.match is not None:
        counts[0] = _count_on_right(comparison, counts[0])
        remarks["the source of the second build; records of the first one where it has the same point"] = None
    by_name: dict[str, list[FileCoverage | None]] = {}
    for number, (trace, recorded) in enumerate(zip(traces, counts, strict=True)):
        found = find_line_coverage(context, recorded, recorded_kinds(trace.buffer.encoding.codec), build=build)
        remarks.update(dict.fromkeys(found.remarks))
        for coverage in found.files:
            by_name.setdefault(coverage.file, [None] * len(traces))[number] = coverage
    files = sorted(map(_File, by_name, by_name.values()), key=lambda file: file.order)
    names = [trace.buffer.name for trace in traces]
    absent = {file.file for file in files if not tree.has_text(file.file)}
    if absent:
        remarks[f"the text of {len(absent)} of {len(files)} files is missing: name a source tree with --source-dir"] = None
    yield from notes_markup(remarks)
    totals = [file.total for file in files]
    room = MAX_LINES
    # Packed lines have no colors: then none have. Finding them for so many lines takes a second.
    is_colored = sum(totals) <= room
    folded: list[_File] = []
    for file, total in zip(files, totals, strict=True):
        # A file that does not fit leaves the room to smaller ones.
        if total <= room:
            room -= total
            listing = Listing(file.file, file.lines, tree.read(file.file).lines)
            yield from listing_markup(listing, names, is_open=len(files) == 1, is_colored=is_colored)
        else:
            folded.append(file)
    if folded:
        yield "<noscript><p>Showing the lines of the following files needs JavaScript.</p></noscript>"
        for number, file in enumerate(folded):
            yield folded_markup(number, file.file, file.covered, file.total, names)
        yield packed_words(names)
        texts = (() if file.file in absent else tree.read_once(file.file).lines for file in folded)
        parts = (packed_lines(file.file, file.coverage, lines) for file, lines in zip(folded, texts, strict=True))
        yield from chunk_lines("source", parts)
    if not files:
        yield '<p class="none">no source lines</p>'


def _differs(coverage: Sequence[LineCoverage | None]) -> bool:
    """Return whether some traces cover a line and others do not."""
    return len({found is not None and found.covered > 0 for found in coverage}) > 1


def _count_on_right(comparison: BuildComparison, counts: PcCounts) -> PcCounts:
    """Return the records of points that the right build has as well, by its PCs."""
    found: dict[int, int] = {}
    for number, records in comparison.count(0, counts).items():
        pc = comparison.pc(number, 1)
        if pc is not None:
            found[pc] = found.get(pc, 0) + records
    return as_counts(found)


def _number_records(traces: Sequence[_Trace]) -> tuple[list[array[int]], Collection[Point] | ChunkedPoints]:
    """Return the number of each record's point, and the points."""
    buffers = [trace.buffer for trace in traces]
    names = traces[0].build.names
    if not is_plain(buffers) or any(trace.build is not traces[0].build for trace in traces):
        points = RecordPoints()
        for trace in traces:
            trace.build.names.prefetch(trace.counts)
        return [points.records(trace.buffer, trace.build.names, MAX_RECORDS) for trace in traces], points
    words = [pc_sequence(buffer)[: min(buffer.count, MAX_RECORDS)] for buffer in buffers]
    numbering = make_numbering(words[0])
    distinct = numbering.number(*words)
    return [numbering.ids(part) for part in words], PlainPoints(names, buffers[0], distinct)


def _records(traces: Sequence[_Trace], comparison: BuildComparison | None) -> Iterator[str]:
    buffers = [trace.buffer for trace in traces]
    notes = [
        f"{buffer.name}: the first {MAX_RECORDS} of {buffer.count} records; view shows all"
        for buffer in buffers
        if buffer.count > MAX_RECORDS
    ]
    numbered, points = _number_records(traces)
    segments: list[RowSpan] = []
    if comparison is not None:
        left, right = (
            comparison.number_records(side, pc_sequence(buffer)[:MAX_RECORDS]) for side, buffer in enumerate(buffers)
        )
        notes += comparison.remarks()
        alignment = align(left, right)
        if alignment.is_coarse:
            notes.append(COARSE)
        segments = [
            RowSpan(part.left.start, len(part.left), part.right.start, len(part.right), part.is_common)
            for part in alignment.parts()
        ]
    yield from notes_markup(notes)
    yield from trace_markup(TraceData([buffer_title(buffer) for buffer in buffers], points, numbered, segments))


def _ask(context: Context, name: str, caption: str) -> Iterator[str]:
    """Yield another command's answer, or its error."""
    command = context.workspace.commands.find(name)
    try:
        answer = command.run(context, parse_arguments(command, []))
        for part in answer if isinstance(answer, Iterable) else (answer,):
            if isinstance(part, Table):
                yield from table_markup(part, caption)
            elif isinstance(part, Fields):
                yield from fields_markup(part, caption)
    except GoneError:
        raise
    except KcovdbgError as error:
        yield from notes_markup([f"{caption}: {error}"])


def _state(context: Context) -> Iterator[str]:
    for name, caption in _STATE:
        yield from _ask(context, name, caption)


def _check(context: Context) -> Iterator[str]:
    try:
        report = check(context.reader, advice=False, wanted=[])
    except GoneError:
        raise
    except KcovdbgError as error:
        yield from notes_markup([f"check: {error}"])
        return

    def sentence(name: str) -> str:
        rule = find_rule(name)
        return "" if rule is None else rule.sentence

    yield from findings_markup(report.findings, report.applied, sentence)
    yield from notes_markup(report.remarks)


def _changes(traces: Sequence[_Trace]) -> Iterator[str]:
    """Yield the lines that differ between the sources of two builds."""
    found = find_source_changes(
        *(BuildTrace(trace.build, trace.counts, recorded_kinds(trace.buffer.encoding.codec)) for trace in traces)
    )
    if not found.compared:
        yield from notes_markup(
            ["the sources of both builds are needed: --other-source names the tree of the build that --other-vmlinux names"]
        )
        return
    changes = [
        Change(change.file, [[ChangeLine(*line) for line in hunk] for hunk in change.hunks], change.before, change.after)
        for change in found.files
    ]
    total = add_counts(change.counts for change in changes)
    differing = "1 file differs" if len(changes) == 1 else f"{len(changes)} files differ"
    yield f"<p>{differing}: {counts_text(total)}.</p>"
    notes = []
    if found.is_one_tree:
        notes.append("both builds have one source tree; if their sources differ, --other-source and --source-dir name them")
    if found.missing:
        notes.append(f"the text of {found.missing} of {found.missing + found.compared} files is missing")
    if found.left_out:
        notes.append(f"{found.left_out} more files differ, of which neither trace executed anything")
    room = MAX_LINES
    # Executed files first.
    changes.sort(key=lambda change: (-change.counts.covered_before - change.counts.covered_after, change.file))
    for number, change in enumerate(changes):
        room -= sum(map(len, change.hunks))
        if room < 0 and number:
            notes.append(f"the lines of {len(changes) - number} more files are left out")
            break
        yield from change_markup(change, is_open=number == 0)
    yield from notes_markup(notes)


def _sections(context: Context, traces: Sequence[_Trace]) -> Iterator[PageSection]:
    comparison: BuildComparison | None = None
    if len(traces) > 1:
        comparison = compare_builds([trace.build for trace in traces], [trace.counts for trace in traces])
        if comparison.match is not None:
            yield PageSection("changes", "Changed lines", _changes(traces))
        yield PageSection("records", "Differences, side by side", _records(traces, comparison))
    yield PageSection("summary", "Summary", _summary(context, traces))
    if traces:
        yield PageSection("fill", "What fills the buffer", _charts(traces))
        if len(traces) == 1:
            yield PageSection("records", "Records", _records(traces, None))
        yield PageSection("source", "Source", _source(context, traces, comparison))
    target = context.kernel.optional_target
    if target is not None and target.memory_problem is None:
        yield PageSection("state", "State", _state(context))
        yield PageSection("check", "Check", _check(context))


class _Written(NamedTuple):
    file: str
    traces: int
    bytes: int


_COLUMNS: Final = (
    Column("file", PATH, meaning="path of the written file"),
    Column("traces", NUMBER, meaning="number of traces in it", unit="traces"),
    Column("bytes", NUMBER),
)


def _title(buffer: Buffer) -> str:
    """Return the name of a buffer with its task and command, as far as they are known."""
    parts = [] if buffer.pid is None else [name_task(buffer)]
    if buffer.name.startswith(FILE):
        header = read_header(Path(buffer.name.removeprefix(FILE)))
        parts += [shlex.join(header.argv)] if header is not None and header.argv else []
    if buffer.name == str(buffer.pid):
        return ", ".join(parts)
    return f"{buffer.name} ({', '.join(parts)})" if parts else buffer.name


def _run(context: Context, args: Namespace) -> Renderable:
    if args.output is None:
        raise WordError("report: missing output file", None, hint="report 41 -o report.html")
    if len(args.what) > 2:
        raise WordError("report: more than two buffers given", args.what[2])
    if args.output == STDOUT and context.format is not Format.TEXT:
        raise UsageError(
            "report: cannot write JSON or CSV to standard output", hint="add -o FILE; then --json describes the file"
        )
    if not args.what:
        context.require(Need.MEMORY)
    builds = find_builds(context, [[what] for what in args.what])
    buffers = [find_buffer(context, what, build.kernel) for what, build in zip(args.what, builds, strict=True)]
    for buffer in buffers:
        require_points(buffer, "report")
    traces = [_Trace(buffer, count_pcs(buffer), build) for buffer, build in zip(buffers, builds, strict=True)]
    for trace in traces:
        require_names(context, trace.build.names, trace.counts, f"report {trace.buffer.name}")
    target = context.kernel.optional_target
    kernel = "" if target is None else f"{target.name}, {target.release} ({target.machine})"
    heading = " beside ".join(_title(trace.buffer) for trace in traces) or "KCOV's state"
    images = [build.image for build in builds if build.kernel is not None and build.image is not None]
    subtitle = ", ".join(filter(None, (kernel, *images))) or "no kernel: PCs have no names"
    lines = page_lines(heading, subtitle, list(_sections(context, traces)))
    if args.output == STDOUT:
        return Text(f"{line}\n" for line in lines)
    size = 0
    # A million short-lived objects, none of them in a cycle.
    with without_collection(), open_text(args.output, context.inputs) as stream:
        for line in lines:
            stream.write(f"{line}\n")
            size += len(line.encode()) + 1
    return Table(_COLUMNS, (_Written(args.output, len(traces), size),))


COMMAND: Final = Command(
    name="report",
    summary="write an HTML page: what fills a buffer, source, records, state",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Writes one file that needs no other file and no network: a summary, what fills each buffer, two traces side by side, "
        "source with covered lines, and the kernel's state and findings of check; without WHAT, only the latter. It contains "
        "names, paths and source text: review it before you share it.\n\n"
        "The lines of source files beyond those with the most differences or records, and the records of long traces, are "
        "packed in the page, whose script unpacks what is opened.\n\n"
        "Of traces of two builds, which are compared as by diff, the page begins with the lines that differ between their "
        "sources: covered before, covered after, or never.\n\n"
        "In the page, n and p go to the next and the previous difference. For source text, name a tree with --source-dir."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "a buffer, or two to show side by side", count=Count.ANY, metavar="WHAT"),
        Argument(
            ("-o", "--output"),
            Value.FILE,
            "the file to write; - for standard output",
            metavar="FILE",
            count=Count.ONE,
            is_output=True,
        ),
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("report 41 -o 41.html", "what task 41 executed, for readers without kcovdbg"),
        Example("report file:good.kcov file:bad.kcov -o both.html", "two traces side by side"),
        Example("report -o state.html", "the state in a dump, and findings"),
    ),
    needs=frozenset(),
)
