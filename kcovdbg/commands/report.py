# SPDX-License-Identifier: LGPL-2.1-or-later
"""``report``: a page of HTML about a trace, or two, and the kernel that they are of."""

from __future__ import annotations

from argparse import Namespace
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.analysis.aligning import align
from kcovdbg.analysis.check.looking import check, find_rule
from kcovdbg.analysis.counting import count_pcs, pc_sequence
from kcovdbg.analysis.folding import find_runs
from kcovdbg.analysis.ranking import count_repeats, group_key, rank
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.buffer import TEXT_PCS, operand_text
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.covering import find_line_coverage
from kcovdbg.commands.destination import open_file
from kcovdbg.commands.parse import parse_arguments
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import find_buffer, name_remarks
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.coverage import LineCoverage
from kcovdbg.render.column import Column
from kcovdbg.render.kind import BOOL, NUMBER, PATH, TEXT
from kcovdbg.render.renderable import Lines, Record, Renderable, Table
from kcovdbg.render.report.chart import Bar, chart_markup
from kcovdbg.render.report.findings import findings_markup
from kcovdbg.render.report.listing import Listing, listing_markup
from kcovdbg.render.report.page import Section, page_lines
from kcovdbg.render.report.table import notes_markup, record_markup, table_markup
from kcovdbg.render.report.trace import MOST_RECORDS, Point, Segment, TraceData, trace_markup
from kcovdbg.render.wording import frame_text, function_text, title
from kcovdbg.render.writer import Format

STDOUT: Final = "-"
_BARS: Final = 25
# Of source with points: more rows make a page slow to open.
MOST_LINES: Final = 6000
_MASK: Final = (1 << 64) - 1
_STATE: Final = (
    ("tasks", "Tasks with KCOV state"),
    ("objects", "Every struct kcov, and who refers to it"),
    ("remote", "Remote handles"),
    ("areas", "Remote areas"),
    ("percpu", "Interrupted sessions"),
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
    """A trace, and how often each PC is in it."""

    buffer: Buffer
    counts: dict[int, int]


def _summary(context: Context, traces: Sequence[_Trace]) -> Iterator[str]:
    if context.session.optional_target is not None:
        yield from _ask(context, "info", "Kernel")
    if traces:
        buffers = [trace.buffer for trace in traces]
        notes = [f"{buffer.name}: {remark}" for buffer in buffers for remark in buffer.remarks]
        table = Table(_TRACE_COLUMNS, buffers, remarks=[*notes, *name_remarks(context)])
        yield from table_markup(table, "Traces")


def _charts(context: Context, traces: Sequence[_Trace]) -> Iterator[str]:
    names = context.session.names
    yield (
        '<p><span class="key new"></span>records <span class="key repeated"></span>of these, repeats: points that the same run '
        "of the function already had, as loops add them</p>"
    )
    yield '<div class="two">'
    for buffer, counts in traces:
        names.learn(counts)
        sequence = pc_sequence(buffer)
        repeats = count_repeats(sequence, find_runs(sequence, lambda pc: names.symbol(pc) if pc else ""))
        shares = rank(counts, group_key("function", names), repeats)
        bars = []
        for share in shares[:_BARS]:
            frame = names.frame(share.pc)
            bars.append(Bar(frame.function or f"{share.pc:#x}", frame.file or "", share.records, share.repeats, share.share))
        yield "<div>"
        yield from chart_markup(bars, f"{buffer.name}: {len(shares)} functions, {sum(counts.values())} records")
        if len(shares) > _BARS:
            rest = sum(share.records for share in shares[_BARS:])
            yield from notes_markup([f"{len(shares) - _BARS} more functions: {rest} records; top {buffer.name} shows them"])
        yield "</div>"
    yield "</div>"


def _source(context: Context, traces: Sequence[_Trace]) -> Iterator[str]:
    remarks: list[str] = []
    tree = context.session.source
    files: dict[str, dict[int, list[LineCoverage | None]]] = {}
    hits: dict[str, int] = {}
    for number, trace in enumerate(traces):
        for line in find_line_coverage(context, trace.counts, lambda _frame: True, remarks):
            lines = files.setdefault(line.file, {})
            lines.setdefault(line.line, [None] * len(traces))[number] = line
            hits[line.file] = hits.get(line.file, 0) + line.hits
    chosen: set[str] = set()
    room = MOST_LINES
    # What has most records first; a file that doesn't fit leaves the room to smaller ones.
    for file in sorted(files, key=lambda file: (-hits[file], file)):
        if len(files[file]) <= room:
            chosen.add(file)
            room -= len(files[file])
    names = [trace.buffer.name for trace in traces]
    absent = sum(not tree.read(file).lines for file in chosen)
    if absent:
        remarks.append(f"{absent} of {len(chosen)} files have no text here: --source-dir names a source tree")
    if len(chosen) < len(files):
        remarks.append(f"{len(files) - len(chosen)} files with fewer records are left out here; source shows them")
    yield from notes_markup(remarks)
    for file in sorted(chosen):
        listing = Listing(file, files[file], tree.read(file).lines)
        yield from listing_markup(listing, names, is_open=len(chosen) == 1)
    if not files:
        yield '<p class="none">no record has a source line</p>'


class _Points:
    """Numbers what records are shown as."""

    def __init__(self, context: Context) -> None:
        self._names = context.session.names
        self._known: dict[Point, int] = {}

    def records(self, buffer: Buffer, limit: int) -> array[int]:
        """Return the number of each record's point."""
        encoding, width = buffer.encoding, buffer.encoding.record_words
        count = min(buffer.count, limit)
        known: dict[object, int] = {}
        missing = {index for gap in buffer.gaps for index in range(gap.first, min(gap.first + gap.length, count))}
        numbers = array("I", bytes(4 * count))
        words = buffer.words
        for index in range(count):
            key: object = words[index] if width == 1 else tuple(words[index * width : (index + 1) * width])
            if index in missing:
                key = None
            number = known.get(key)
            if number is None:
                point = (
                    Point("can't be read", "", "its page is missing")
                    if key is None
                    else self._point(buffer, record.decode_record(words, index, encoding))
                )
                number = known[key] = self._known.setdefault(point, len(self._known))
            numbers[index] = number
        return numbers

    def _point(self, buffer: Buffer, found: record.Record) -> Point:
        if found.pc is None:
            return Point("no address", "", f"{found.word:#x}: zero is never written, or not yet" if not found.word else "")
        sign = {record.Kind.ENTRY: "→ ", record.Kind.EXIT: "← "}.get(found.kind, "")
        if found.kind is record.Kind.EDGE:
            page, mixed = record.split_edge(found.word)
            return Point(
                f"page {page:#x}", f"hash {mixed:#05x}", "an edge: the low 12 bits are mixed with the previous address"
            )
        location = self._names[found.pc]
        detail = f"{found.pc:#x}"
        if buffer.kaslr_offset:
            detail += f" at {found.pc + buffer.kaslr_offset & _MASK:#x}"
        place = frame_text(location.frames[0]) if location.frames else location.remark or ""
        if found.comparison is not None:
            compared = found.comparison
            first, second = (
                operand_text(value, compared, buffer.encoding.big_endian) for value in (compared.arg1, compared.arg2)
            )
            operands = f"{8 * compared.size} bits{', constant' if compared.const else ''}: {first}, {second}"
            place = f"{operands}  {place}"
            detail += f"  {operands}"
        detail += "  " + " ← ".join(f"{frame.function or '?'} {frame_text(frame)}" for frame in location.frames)
        function = function_text(location) if location.frames else f"{found.pc:#x}"
        return Point(sign + function, place, detail)

    def __iter__(self) -> Iterator[Point]:
        return iter(self._known)


def _records(context: Context, traces: Sequence[_Trace]) -> Iterator[str]:
    points = _Points(context)
    buffers = [trace.buffer for trace in traces]
    notes = [
        f"{buffer.name}: the first {MOST_RECORDS} of {buffer.count} records are here; view shows all"
        for buffer in buffers
        if buffer.count > MOST_RECORDS
    ]
    numbered = [points.records(buffer, MOST_RECORDS) for buffer in buffers]
    segments: list[Segment] = []
    if len(buffers) > 1:
        left, right = (pc_sequence(buffer)[:MOST_RECORDS] for buffer in buffers)
        alignment = align(left, right)
        if alignment.coarse:
            notes.append("the traces are too unlike to be aligned throughout")
        i = j = 0
        for block in (*alignment.blocks, (len(left), len(right), 0)):
            start, other, length = block
            if i < start or j < other:
                segments.append(Segment(i, start - i, j, other - j, False))
            if length:
                segments.append(Segment(start, length, other, length, True))
            i, j = start + length, other + length
    yield from notes_markup(notes)
    yield from trace_markup(TraceData([title(buffer) for buffer in buffers], tuple(points), numbered, segments))


def _ask(context: Context, name: str, caption: str) -> Iterator[str]:
    """Yield what another command answers, or why it doesn't."""
    command = context.session.commands.find(name)
    try:
        answer = command.run(context, parse_arguments(command, []))
        if isinstance(answer, Table):
            yield from table_markup(answer, caption)
        elif isinstance(answer, Record):
            yield from record_markup(answer, caption)
    except KcovdbgError as error:
        yield from notes_markup([f"{caption}: {error}"])


def _state(context: Context) -> Iterator[str]:
    for name, caption in _STATE:
        yield from _ask(context, name, caption)


def _check(context: Context) -> Iterator[str]:
    try:
        report = check(context.target, context.layout, context.census, advice=False, wanted=[])
    except KcovdbgError as error:
        yield from notes_markup([f"check: {error}"])
        return

    def sentence(name: str) -> str:
        rule = find_rule(name)
        return "" if rule is None else rule.sentence

    yield from findings_markup(report.findings, report.applied, sentence)
    yield from notes_markup(report.notes)


def _sections(context: Context, traces: Sequence[_Trace]) -> Iterator[Section]:
    yield Section("summary", "Summary", _summary(context, traces))
    if traces:
        yield Section("fill", "Who fills the buffer", _charts(context, traces))
        beside = "Side by side" if len(traces) > 1 else "Records"
        yield Section("records", beside, _records(context, traces))
        yield Section("source", "Source", _source(context, traces))
    if context.session.optional_target is not None:
        yield Section("state", "State", _state(context))
        yield Section("check", "Check", _check(context))


class _Written(NamedTuple):
    file: str
    traces: int
    bytes: int


_COLUMNS: Final = (Column("file", PATH), Column("traces", NUMBER), Column("bytes", NUMBER))


def _run(context: Context, args: Namespace) -> Renderable:
    if args.output is None:
        raise WordError("report needs the name of a file", None, hint="report 41 -o report.html")
    if len(args.what) > 2:
        raise WordError("two traces fit side by side, no more", args.what[2], hint="keep @name sums up several")
    if args.output == STDOUT and context.format is not Format.TEXT:
        raise UsageError("report writes HTML to standard output", hint="with -o FILE, --json tells what was written")
    if not args.what and context.session.optional_target is None:
        raise KcovdbgError(
            f"there is nothing to report on: {context.session.target_problem}", hint="report file:NAME.kcov -o FILE.html"
        )
    traces = [_Trace(buffer, count_pcs(buffer)) for buffer in (find_buffer(context, what) for what in args.what)]
    context.session.names.learn(pc for trace in traces for pc in trace.counts)
    target = context.session.optional_target
    kernel = "" if target is None else f"{target.name}, {target.release} ({target.machine})"
    heading = " beside ".join(trace.buffer.name for trace in traces) or "KCOV's state"
    lines = page_lines(heading, kernel or "without a kernel: PCs have no names", list(_sections(context, traces)))
    if args.output == STDOUT:
        return Lines((("", line),) for part in lines for line in part.splitlines())
    size = 0
    with open_file(args.output) as stream:
        for line in lines:
            stream.write(f"{line}\n")
            size += len(line.encode()) + 1
    return Table(_COLUMNS, (_Written(args.output, len(traces), size),))


REPORT: Final = Command(
    name="report",
    summary="a page of HTML: who fills a buffer, source, records, state",
    run=_run,
    description=(
        "One file that needs no other and no network: a summary, who fills each buffer, two traces side by side, source with "
        "covered lines, and of a kernel the state tables and what check finds. Without WHAT only these. It holds names, paths "
        "and source text: look at it before you give it away.\n\n"
        "In the page n and p go to the next and the previous difference. Source text is there where the tree is: --source-dir."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "a buffer, or two to be put side by side", count=Count.ANY, metavar="WHAT"),
        Argument(("-o", "--output"), Value.FILE, "the file to write; - for standard output", metavar="FILE", count=Count.ONE),
        TEXT_PCS,
    ),
    examples=(
        Example("report 41 -o 41.html", "what task 41 executed, for somebody who has no kcovdbg"),
        Example("report file:good.kcov file:bad.kcov -o both.html", "where do they part?"),
        Example("report -o state.html", "a dump's state and findings"),
    ),
    needs=frozenset(),
)
