# SPDX-License-Identifier: LGPL-2.1-or-later
"""``export``: a trace for other tools."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.abi.record import RecordFormat
from kcovdbg.analysis.algebra import is_expression
from kcovdbg.analysis.calls import build_calls, find_edges, find_events
from kcovdbg.analysis.counting import count_pcs, pc_sequence
from kcovdbg.analysis.functions import find_functions
from kcovdbg.analysis.naming import UNKNOWN
from kcovdbg.analysis.stacks import DEEPEST, Stacks
from kcovdbg.commands.argument import Argument, Value
from kcovdbg.commands.buffer import FILTERS, TEXT_PCS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.covering import call_length, find_line_coverage, find_point_coverage, find_points
from kcovdbg.commands.destination import open_file
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import Filter, find_buffer, find_counts, matches_file, matches_function, name_remarks
from kcovdbg.errors import CapabilityError, UsageError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.call import Call
from kcovdbg.model.coverage import PointCoverage
from kcovdbg.model.location import Frame
from kcovdbg.render.column import Column
from kcovdbg.render.export.chrome import chrome_lines
from kcovdbg.render.export.folded import folded_lines
from kcovdbg.render.export.funccover import funccover_lines
from kcovdbg.render.export.hexadecimal import hexadecimal_lines
from kcovdbg.render.export.jsonl import jsonl_lines
from kcovdbg.render.export.lcov import lcov_lines
from kcovdbg.render.export.modoff import modoff_lines
from kcovdbg.render.export.rawcoverfiles import rawcoverfiles_lines
from kcovdbg.render.export.speedscope import speedscope_lines
from kcovdbg.render.kind import NUMBER, PATH, TEXT
from kcovdbg.render.renderable import Lines, Renderable, Table
from kcovdbg.render.writer import Format

STDOUT: Final = "-"
_MASK: Final = (1 << 64) - 1
_NOWHERE: Final = Frame(None, None, None, None)


@dataclass
class Source:
    """What is exported, read when a format asks for it."""

    context: Context
    args: Namespace
    remarks: list[str] = field(default_factory=list)

    @cached_property
    def buffer(self) -> Buffer | None:
        """The buffer; None for an expression, which has no order."""
        if is_expression(self.args.what):
            return None
        buffer = find_buffer(self.context, self.args.what)
        if buffer.encoding.format is RecordFormat.UNIQ_EDGE:
            raise CapabilityError(
                f"{self.args.what} holds edges, whose low 12 bits are no address: no other tool reads them",
                hint="buffer shows the pages that they lead to",
            )
        self.remarks += buffer.remarks
        return buffer

    @cached_property
    def filter(self) -> Filter:
        """Which PCs are wanted."""
        return Filter(self.context.session.names, self.args.function or (), self.args.file or ())

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """How often each PC was recorded, of those that are wanted, ascending."""
        buffer = self.buffer
        counts = find_counts(self.context, self.args.what, self.remarks) if buffer is None else count_pcs(buffer)
        if not self.filter.passes_all:
            self.context.session.names.learn(counts)
        return {pc: counts[pc] for pc in sorted(counts) if self.filter.passes_all or self.filter(pc)}

    @property
    def sequence(self) -> Iterable[int]:
        """The wanted PCs in the order of their records; of an expression, ascending."""
        if self.buffer is None:
            return self.counts
        if self.filter.passes_all:
            return (pc for pc in pc_sequence(self.buffer) if pc)
        wanted = self.counts
        return (pc for pc in pc_sequence(self.buffer) if pc in wanted)

    def points(self, *starts: str) -> Iterator[PointCoverage]:
        """Yield the points that were recorded.

        :param starts: symbols that offsets within the image count from: the first that there is.
        """
        return find_point_coverage(self.context, self.counts, call_length(self.context), starts)

    def wants(self, frame: Frame) -> bool:
        """Tell whether a frame's lines, or a function, are wanted."""
        functions, files = self.args.function or (), self.args.file or ()
        return (not functions or any(matches_function(pattern, frame) for pattern in functions)) and (
            not files or any(matches_file(pattern, frame) for pattern in files)
        )

    def all_counts(self) -> Mapping[int, int]:
        """Return how often each PC was recorded, wanted or not: a line belongs to more places than one."""
        buffer = self.buffer
        return find_counts(self.context, self.args.what, self.remarks) if buffer is None else count_pcs(buffer)

    def calls(self) -> list[Call]:
        """Return the calls.

        :raises CapabilityError: when there are no entry and exit records.
        :raises UsageError: when only some records are asked for.
        """
        buffer = self.buffer
        if buffer is None or buffer.encoding.format is not RecordFormat.PC_EXT:
            raise CapabilityError(
                f"{self.args.what} has no entry and exit records, and {self.args.format} is a tree of calls",
                hint="a kernel with KCOV_TRACE_PC_EXT records them; lcov, jsonl or modoff need none",
            )
        if not self.filter.passes_all:
            raise UsageError(f"{self.args.format} is a tree of calls: a part of its records is none")
        calls = build_calls(find_events(buffer))
        self.context.session.names.learn(call.pc for call in calls)
        return calls

    def function(self, pc: int) -> Frame:
        """Return the frame of the function that a PC was compiled into."""
        frames = self.context.session.names[pc].frames
        return frames[-1] if frames else _NOWHERE


def _hex(source: Source) -> Iterator[str]:
    if not source.args.calls:
        return hexadecimal_lines(source.sequence)
    length = call_length(source.context)
    return hexadecimal_lines(pc - length & _MASK for pc in source.sequence)


def _rawcover(source: Source) -> Iterator[str]:
    length = call_length(source.context)
    return hexadecimal_lines(pc - length & _MASK for pc in source.counts)


def _jsonl(source: Source) -> Iterator[str]:
    return jsonl_lines(source.points())


def _rawcoverfiles(source: Source) -> Iterator[str]:
    return rawcoverfiles_lines(source.points("_stext"))


def _funccover(source: Source) -> Iterator[str]:
    counts, names = source.all_counts(), source.context.session.names
    points = find_points(source.context)
    names.learn(counts)
    return funccover_lines(find_functions(counts, lambda pc: names[pc].frames, points, source.wants))


def _modoff(source: Source) -> Iterator[str]:
    if source.context.session.optional_target is None:
        raise CapabilityError(
            f"an offset needs the kernel that it is in: {source.context.session.target_problem}",
            hint="export hex needs no kernel",
        )
    # Where a disassembler puts the image: on arm64 _stext comes later.
    points = list(source.points("_text", "_stext"))
    lost = sum(point.offset is None for point in points)
    if lost:
        source.remarks.append(f"{lost} of {len(points)} points are left out: no code of the kernel or a loaded module is there")
    return modoff_lines(points)


def _lcov(source: Source) -> Iterator[str]:
    tree = source.context.session.source
    coverage = find_line_coverage(source.context, source.all_counts(), source.wants, source.remarks)
    covered = sum(line.covered > 0 for line in coverage)
    files = {line.file for line in coverage}
    source.remarks.append(f"{covered} of {len(coverage)} lines with points are covered, in {len(files)} files")
    absent = sum(not tree.read(file).lines for file in files)
    if absent:
        source.remarks.append(
            f"{absent} files have no text here: --source-dir names a tree, or genhtml takes --ignore-errors source"
        )

    def path_of(file: str) -> str:
        found = tree.find(file)
        return file.removeprefix("./") if found is None else str(found)

    return lcov_lines(source.args.what, coverage, path_of)


def _folded(source: Source) -> Iterator[str]:
    stacks = Stacks(source.calls(), lambda pc: source.function(pc).function or f"{pc:#x}")
    if stacks.cut:
        source.remarks.append(f"{stacks.cut} calls deeper than {DEEPEST} are counted to their callers there")
    assert source.buffer is not None
    outside = sum(1 for _ in find_events(source.buffer)) - stacks.records
    if outside:
        source.remarks.append(f"{outside} records are in no call: they are under {UNKNOWN}")

    def all_stacks() -> Iterator[tuple[tuple[str, ...], int]]:
        if outside:
            yield (UNKNOWN,), outside
        yield from stacks

    return folded_lines(all_stacks())


def _speedscope(source: Source) -> Iterator[str]:
    calls = source.calls()
    assert source.buffer is not None
    return speedscope_lines(source.args.what, find_edges(calls), source.buffer.count, source.function)


def _chrome(source: Source) -> Iterator[str]:
    calls = source.calls()
    buffer = source.buffer
    assert buffer is not None
    return chrome_lines(source.args.what, find_edges(calls), source.function, pid=buffer.pid or 0, comm=buffer.comm)


class _Exporter(NamedTuple):
    """A format."""

    purpose: str
    lines: Callable[[Source], Iterator[str]]


EXPORTERS: Final[Mapping[str, _Exporter]] = {
    "hex": _Exporter("the PCs in their order, one hexadecimal number per line, as kcovtrace prints them", _hex),
    "rawcover": _Exporter("the calls, each once, ascending, as syzkaller has them", _rawcover),
    "rawcoverfiles": _Exporter("syzkaller's CSV of points with module, offset, file and line", _rawcoverfiles),
    "funccover": _Exporter("syzkaller's CSV of functions with covered and total points", _funccover),
    "jsonl": _Exporter("syzkaller's JSON Lines, an object per frame of a point", _jsonl),
    "modoff": _Exporter("Lighthouse's module+offset", _modoff),
    "lcov": _Exporter("lcov's .info, for genhtml and CI", _lcov),
    "folded": _Exporter("folded stacks, for flamegraph.pl (needs entry and exit records)", _folded),
    "speedscope": _Exporter("speedscope's JSON (needs entry and exit records)", _speedscope),
    "chrome": _Exporter("Chrome's trace events, for Perfetto (needs entry and exit records)", _chrome),
}
"""Every format, in the order of help."""


class _Written(NamedTuple):
    file: str
    format: str
    lines: int


_COLUMNS: Final = (
    Column("file", PATH),
    Column("format", TEXT),
    Column("lines", NUMBER),
)


def _run(context: Context, args: Namespace) -> Renderable:
    if args.calls and args.format != "hex":
        raise UsageError(f"--calls is for hex: {args.format} has its own way", hint="rawcover always writes calls")
    if args.output in (None, STDOUT) and context.format is not Format.TEXT:
        raise UsageError("export writes its own format to standard output", hint="with -o FILE, --json tells what was written")
    source = Source(context, args)
    source.remarks += name_remarks(context)
    lines = EXPORTERS[args.format].lines(source)
    if args.output in (None, STDOUT):
        return Lines(_text_lines(context, source, lines))
    written = 0
    with open_file(args.output) as stream:
        for line in lines:
            stream.write(f"{line}\n")
            written += 1
    return Table(_COLUMNS, (_Written(args.output, args.format, written),), remarks=source.remarks)


def _text_lines(context: Context, source: Source, lines: Iterable[str]) -> Iterator[tuple[tuple[str, str]]]:
    """Yield the lines for standard output; what must be known besides goes to standard error."""
    for line in lines:
        yield (("", line),)
    for remark in source.remarks:
        context.terminal.stderr.write(f"kcovdbg: {context.terminal.error_painter.paint((('remark', f'note: {remark}'),))}\n")


EXPORT: Final = Command(
    name="export",
    summary="write a trace for another tool",
    run=_run,
    description=(
        "Formats: "
        + "; ".join(f"{name}: {exporter.purpose}" for name, exporter in EXPORTERS.items())
        + ".\n\nKCOV records no time: where a format has an axis, it counts records, and says so. A file gets its name when it "
        "is complete. Addresses are without the KASLR offset, as in vmlinux."
    ),
    arguments=(
        Argument(("format",), Value.CHOICE, "which", choices=tuple(EXPORTERS), metavar="FORMAT"),
        Argument(("what",), Value.BUFFER, "which buffer", metavar="WHAT"),
        Argument(("-o", "--output"), Value.FILE, "the file to write; - or without it standard output", metavar="FILE"),
        Argument(("--calls",), Value.FLAG, "of hex: addresses of the calls, not what they return to"),
        *FILTERS,
        TEXT_PCS,
    ),
    examples=(
        Example("export lcov 41 -o 41.info", "then, in the source tree, genhtml 41.info -o html"),
        Example("export rawcover file:boot.kcov | sort -u > known", "for tools that know syzkaller's text"),
        Example("export speedscope file:ext.kcov -o ext.json", "a flame chart of entry and exit records"),
    ),
    needs=frozenset(),
)
