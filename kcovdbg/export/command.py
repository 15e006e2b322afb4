# SPDX-License-Identifier: LGPL-2.1-or-later
"""``export``: the command, its formats, and what each format needs of a trace."""

from __future__ import annotations

import contextlib
import platform
from argparse import Namespace
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress, count, islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.abi.address import WORD_MASK, address_of, pc_of
from kcovdbg.abi.record import CALL_LENGTHS
from kcovdbg.buffers.image_coverage import find_image_coverage
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import FILTERS, FORCE, TRACE_OPTIONS, make_filters
from kcovdbg.console.column import NUMBER, PATH, TEXT, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.output_files import STDOUT, open_text
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Renderable, Table, Text
from kcovdbg.console.terminal import write_remarks
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.export.function_points import FunctionPoints, PointRows, count_functions, find_touched
from kcovdbg.export.line_formats import cobertura_lines, lcov_lines
from kcovdbg.export.point_formats import (
    ModulePoint,
    PointColumns,
    drcov_lines,
    funccover_lines,
    jsonl_lines,
    modoff_lines,
    rawcoverfiles_lines,
)
from kcovdbg.inputs.buffer_sources import (
    find_buffer,
    read_trace_records,
    require_fit,
    require_names,
    require_points,
)
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame
from kcovdbg.records.native_loops import find_chains
from kcovdbg.records.pc_counts import PcCounts, count_pcs, pc_sequence
from kcovdbg.records.source_coverage import SourceCoverage
from kcovdbg.symbols.coverage_points import recorded_kinds
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.target.target import Target

# syzkaller reads the points of this section alone: pkg/cover/backend/elf.go.
_TEXT: Final = ".text"
# Points are looked up for so many functions at a time.
_FUNCTIONS_AT_A_TIME: Final = 4096
# Lines are written so many at a time.
_LINES_AT_A_TIME: Final = 1024


class ExportSource:
    """The trace that ``export`` writes; each part of it is read once, when a format needs it."""

    def __init__(self, context: Context, args: Namespace) -> None:
        self.context = context
        self.what: str = args.what
        self.format: str = args.format
        self.is_forced: bool = args.force
        self.names = context.names
        (self.filter,) = make_filters(args, self.names)

    @property
    def target(self) -> Target | None:
        """The kernel's memory, if a kernel is given."""
        return self.context.kernel.memory.optional_target

    @cached_property
    def buffer(self) -> Buffer:
        """The buffer; refused if the format cannot be made of it."""
        buffer = find_buffer(self.context.inputs, self.what)
        codec = buffer.encoding.codec
        if not codec.has_addresses:
            raise CapabilityError(
                f"cannot export {self.what}: its {codec.noun} are only parts of addresses",
                hint=f"buffer shows what the {codec.noun} hold",
            )
        require_points(
            buffer, f"export {self.format}", takes_addresses=EXPORTERS[self.format].takes_addresses
        )
        require_fit(buffer, "export", is_forced=self.is_forced)
        return buffer

    @cached_property
    def all_counts(self) -> PcCounts:
        """How often each PC was recorded, in ascending order of PCs, whatever the filter."""
        return count_pcs(self.buffer)

    @cached_property
    def counts(self) -> PcCounts:
        """How often each PC that passes the filter was recorded."""
        counts = self.all_counts
        if self.filter.passes_all:
            return counts
        names = self.names.of(self.buffer)
        return counts.select(self.filter.select(names.columns(counts.pcs)))

    @cached_property
    def call_length(self) -> int:
        """The length of the call before a recorded PC, in bytes; without a kernel, on this machine.

        :raises KcovdbgError: when it is unknown.
        """
        machine = platform.machine() if self.target is None else self.target.machine
        try:
            return CALL_LENGTHS[machine]
        except KeyError:
            raise KcovdbgError(
                f"the length of a call instruction on {machine} is unknown",
                hint="export hex writes the PCs as the kernel recorded them",
            ) from None

    @cached_property
    def points(self) -> PointRows:
        """The points that can be in the trace, among the rows of the table."""
        kinds = recorded_kinds(self.buffer.encoding.codec)
        return PointRows(find_point_table(self.context).columns, kinds)

    @cached_property
    def functions(self) -> list[FunctionPoints]:
        """The functions in the image's ``.text`` that have points, ascending: syzkaller lists
        these.

        :raises CapabilityError: when the points are unknown.
        """
        table = find_point_table(self.context)
        for text in table.text_ranges():
            if text.name != _TEXT:
                continue
            functions = (
                symbol
                for symbol in table.functions()
                if symbol.size and text.start <= symbol.address < text.end
            )
            return list(self.points.group(functions, text.start, text.end, self.call_length))
        raise CapabilityError("the kernel image has no .text section")

    @cached_property
    def modules(self) -> dict[int, ModulePoint]:
        """The points that were recorded in modules and pass the filter, by PC."""
        found: dict[int, ModulePoint] = {}
        for pc in self.counts.outside(self.text_spans):
            point = self.find_point(pc)
            if point.module is not None:
                found[pc] = point
        return found

    @cached_property
    def text_spans(self) -> Sequence[tuple[int, int]]:
        """Where the image's sections of code start and end; none if that is unknown."""
        table = self.context.kernel.names.table
        if table is None:
            return ()
        return tuple((text.start, text.end) for text in table.text_ranges())

    @cached_property
    def image_start(self) -> int | None:
        """Where a disassembler loads the image; None without a kernel, or without symbols."""
        if self.target is None:
            return None
        # On arm64 _stext comes after _text.
        for name in ("_text", "_stext"):
            with contextlib.suppress(KcovdbgError):
                return pc_of(self.target.symbol(name).address, self.target.kaslr_offset)
        return None

    def find_point(self, pc: int) -> ModulePoint:
        """Return where a recorded PC is in the kernel image or a module."""
        call = pc - self.call_length & WORD_MASK
        is_in_image = any(start <= call < end for start, end in self.text_spans)
        target = self.target
        if not is_in_image and target is not None and target.lines is not None:
            address = address_of(call, target.kaslr_offset)
            found = target.lines.code_at(address)
            if found is not None:
                name, start = found
                return ModulePoint(call, name, address - start & WORD_MASK)
        image_start = self.image_start
        if image_start is None:
            return ModulePoint(call, None, None)
        # Without a table, everything after the start is taken for the image.
        if is_in_image or (not self.text_spans and call >= image_start):
            return ModulePoint(call, None, call - image_start & WORD_MASK)
        return ModulePoint(call, None, None)

    def find_code_ends(self) -> dict[str | None, int]:
        """Return where the code of the image, under None, and of each loaded module ends, without
        the KASLR offset.
        """
        target = self.target
        ends: dict[str | None, int] = {None: 0}
        for _, end in self.text_spans:
            ends[None] = max(ends[None], end)
        if target is not None and target.lines is not None:
            for name, _, end in target.lines.code_ranges():
                ends[name] = max(ends.get(name, 0), pc_of(end, target.kaslr_offset))
        return ends

    def points_of(self, functions: Iterable[FunctionPoints]) -> Iterator[PointColumns]:
        """Yield the points of functions, then the points that were recorded in modules; only those
        that pass the filter.
        """
        table, points = find_point_table(self.context).columns, self.points
        length, groups = self.call_length, iter(functions)
        while some := list(islice(groups, _FUNCTIONS_AT_A_TIME)):
            pcs, chains = array("Q"), array("Q")
            symbols: list[str] = []
            for group in some:
                group_pcs, group_chains = points.select(group)
                pcs.extend(group_pcs)
                chains.extend(group_chains)
                name = demangle(group.function.alias or group.function.name)
                symbols += [name] * len(group_pcs)
            if not self.filter.passes_all:
                wanted = self.filter.select(self.names.columns(pcs))
                pcs, chains = (
                    array("Q", compress(pcs, wanted)),
                    array("Q", compress(chains, wanted)),
                )
                symbols = list(compress(symbols, wanted))
            yield PointColumns(
                [pc - length for pc in pcs],
                self.all_counts.records_of(pcs),
                chains,
                table.frames,
                symbols,
            )
        in_modules = self.names.columns(array("Q", self.modules))
        yield PointColumns(
            [point.call for point in self.modules.values()],
            self.all_counts.records_of(in_modules.pcs),
            in_modules.chains,
            in_modules.frames,
            [None] * len(in_modules),
        )

    def seen(self, counts: PcCounts) -> bytearray:
        """Return a 1 for each row of the table whose PC was counted, and a 0 for each other."""
        return find_chains(counts.pcs, find_point_table(self.context).columns).seen

    def unlisted(self) -> tuple[str, ...]:
        """Return remarks on the recorded PCs that syzkaller leaves out, and on those that are no
        points.
        """
        table = find_point_table(self.context)
        left_out = bytearray(self.points.only(self.seen(self.counts)))
        point_count = left_out.count(1)
        for group in self.functions:
            left_out[group.first : group.end] = bytes(group.end - group.first)
        places = Counter(self._name_place(table, row) for row in compress(count(), left_out))
        total = len(self.counts)
        remarks = [
            f"{found} of {total} PCs are {place}, which syzkaller leaves out"
            for place, found in places.items()
        ]
        others = total - point_count - len(self.modules)
        if others:
            remarks.append(f"{others} of {total} PCs are no coverage points, as after tail calls")
        return tuple(remarks)

    def _name_place(self, table: LocationTable, row: int) -> str:
        """Return in words where a point is that is in no function of ``.text``."""
        call = table.columns.base + table.columns.offset[row] - self.call_length
        for text in table.text_ranges():
            if text.start <= call < text.end and text.name != _TEXT:
                return f"in {text.name}"
        return "in code without a symbol"


_Export: TypeAlias = tuple[Iterable[str], Sequence[str]]
"""The lines of a trace in a format, and remarks on them."""


def _hex(source: ExportSource) -> _Export:
    pcs: Iterable[int | None] = pc_sequence(source.buffer)
    lead = source.buffer.encoding.codec.lead
    if not source.filter.passes_all:
        pcs = filter(source.counts.__contains__, pcs)
    return (hex(pc - lead) for pc in pcs if pc), ()


def _rawcover(source: ExportSource) -> _Export:
    length = source.call_length
    return (hex(pc - length & WORD_MASK) for pc in source.counts), ()


def _jsonl(source: ExportSource) -> _Export:
    return jsonl_lines(source.points_of(source.functions)), source.unlisted()


def _rawcoverfiles(source: ExportSource) -> _Export:
    length = source.call_length
    touched = find_touched(source.functions, (pc - length & WORD_MASK for pc in source.all_counts))
    modules = {point.call: point for point in source.modules.values()}
    return rawcoverfiles_lines(source.points_of(touched), modules), source.unlisted()


def _funccover(source: ExportSource) -> _Export:
    found = count_functions(source.functions, source.points, source.seen(source.all_counts))
    wanted = [row for row in found if source.filter.wants_frame(Frame(row[1], row[0], None, None))]
    return funccover_lines(wanted), source.unlisted()


def _find_offsets(source: ExportSource) -> tuple[list[ModulePoint], tuple[str, ...]]:
    """Return the recorded points with offsets in their files, as disassemblers load these, and
    a remark on points in no known file.
    """
    if source.target is None:
        problem = source.context.kernel.names.problem
        raise CapabilityError(
            f"{source.format} needs a kernel: {problem}", hint="export hex needs none"
        )
    points = list(map(source.find_point, source.counts))
    lost = sum(point.offset is None for point in points)
    if points and lost == len(points):
        raise CapabilityError(
            f"export {source.format} {source.what}: none of {lost:,} points is in a known file",
            hint="name the vmlinux: -s VMLINUX",
        )
    if not lost:
        return points, ()
    text = f"{lost} of {len(points)} points are left out"
    return points, (f"{text}: outside the kernel and the loaded modules",)


def _modoff(source: ExportSource) -> _Export:
    points, remarks = _find_offsets(source)
    return modoff_lines(points), remarks


def _drcov(source: ExportSource) -> _Export:
    points, remarks = _find_offsets(source)
    return drcov_lines(points, source.call_length, source.find_code_ends().get), remarks


def _find_coverage(source: ExportSource) -> tuple[Sequence[SourceCoverage], tuple[str, ...]]:
    """Return the coverage of all files, or of those that pass the filter, and remarks on what is
    missing.
    """
    tree = source.context.kernel.sources.tree
    wanted = None if source.filter.passes_all else source.filter.wants_frame
    records = read_trace_records(source.context.inputs, source.buffer)
    found = find_image_coverage(source.context, records, wanted)
    without_text = sum(not tree.has_text(file.path) for file in found.files)
    remarks = found.remarks
    if without_text:
        hint = "name a source tree with --source-dir"
        if source.format == "lcov":
            hint += ", or use genhtml --ignore-errors source"
        remarks = (*remarks, f"the text of {without_text} files is missing; {hint}")
    return found.files, remarks


def _lcov(source: ExportSource) -> _Export:
    tree = source.context.kernel.sources.tree

    def path_of(file: str) -> str:
        path = tree.find(file)
        return file if path is None else str(path)

    files, remarks = _find_coverage(source)
    return lcov_lines(source.what, files, path_of), remarks


def _cobertura(source: ExportSource) -> _Export:
    tree = source.context.kernel.sources.tree

    def path_of(file: str) -> tuple[str | None, str]:
        path = tree.find(file)
        if path is None:
            return None, file
        root = str(path).removesuffix(f"/{file}")
        if root == str(path):
            return None, root
        return root, file

    files, remarks = _find_coverage(source)
    return cobertura_lines(files, path_of, str(Path.cwd())), remarks


class _Exporter(NamedTuple):
    """A format."""

    purpose: str
    export: Callable[[ExportSource], _Export]
    has_names: bool = True
    """Whether the format has names of functions or files, without which it would be useless."""
    takes_addresses: bool = False
    """Whether the format can be made of executed addresses, which are no points."""


EXPORTERS: Final[Mapping[str, _Exporter]] = {
    "hex": _Exporter(
        "the PCs in order, one hexadecimal number per line, as kcovtrace prints them",
        _hex,
        has_names=False,
        takes_addresses=True,
    ),
    "rawcover": _Exporter(
        "the calls, each once, ascending, as syzkaller has them", _rawcover, has_names=False
    ),
    "rawcoverfiles": _Exporter(
        "syzkaller's CSV of points with module, offset, file and line", _rawcoverfiles
    ),
    "funccover": _Exporter(
        "syzkaller's CSV of functions with covered and total points", _funccover
    ),
    "jsonl": _Exporter("syzkaller's JSON Lines, an object per frame of a point", _jsonl),
    "modoff": _Exporter("Lighthouse's module+offset", _modoff),
    "drcov": _Exporter("DynamoRIO's log of blocks, for Lighthouse and Cartographer", _drcov),
    "lcov": _Exporter("lcov's .info, for genhtml and CI", _lcov, takes_addresses=True),
    "cobertura": _Exporter(
        "Cobertura's XML, for GitLab and editors", _cobertura, takes_addresses=True
    ),
}
"""Every format, in the order of help."""


_COLUMNS: Final = (
    Column("file", PATH, meaning="path of the written file"),
    Column("format", TEXT, meaning="name of the format"),
    Column(
        "lines", NUMBER, meaning="number of lines written", null="the format has none", unit="lines"
    ),
)


def _run(context: Context, args: Namespace) -> Renderable:
    to_stdout = context.writes_stdout(args.output or STDOUT)
    source = ExportSource(context, args)
    exporter = EXPORTERS[args.format]
    if exporter.has_names:
        require_names(
            context.inputs, source.names, source.all_counts, f"export {args.format} {args.what}"
        )
    lines, own_remarks = exporter.export(source)
    remarks = (*context.kernel.names.remarks, *source.buffer.remarks, *own_remarks)
    if to_stdout:
        return Text(_stdout_parts(context, lines, remarks))
    written = 0
    with open_text(args.output, context.input_files) as stream:
        for part in _join_lines(lines):
            stream.write(part)
            written += part.count("\n")
    row = {"file": args.output, "format": args.format, "lines": written}
    return Table(_COLUMNS, (row,), remarks=remarks)


def _join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield some lines at a time as text."""
    left = iter(lines)
    while part := list(islice(left, _LINES_AT_A_TIME)):
        yield "\n".join((*part, ""))


def _stdout_parts(context: Context, lines: Iterable[str], remarks: Iterable[str]) -> Iterator[str]:
    """Yield the text for standard output, and at the end write the remarks to standard error."""
    yield from _join_lines(lines)
    write_remarks(context.terminal, remarks)


COMMAND: Final = Command(
    name="export",
    summary="write a trace in another tool's format",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(RowType(_COLUMNS, when="with `-o FILE`"),),
    description=(
        "Formats:\n\n"
        + "\n\n".join(f"{name}: {exporter.purpose}." for name, exporter in EXPORTERS.items())
        + "\n\nA file gets its name when it is complete. Addresses do not include the KASLR "
        "offset: in the image they are those of the vmlinux."
    ),
    arguments=(
        Argument("format FORMAT", Value.CHOICE, "the format to write", choices=tuple(EXPORTERS)),
        Argument("what WHAT", Value.BUFFER, "the buffer"),
        Argument(
            "-o, --output FILE",
            Value.FILE,
            "the file to write; - or nothing for standard output",
            is_output=True,
        ),
        FORCE,
        *FILTERS,
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("export lcov 41 -o 41.info", "then, in the source tree: genhtml 41.info -o html"),
        Example(
            "export rawcover file:boot.kcov | sort -u > known",
            "for tools that read syzkaller's rawcover",
        ),
    ),
    needs=frozenset(),
)
