# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trace that ``export`` writes, in the parts that formats need."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice, repeat
from typing import Final

from kcovdbg.abi.record import RecordKind
from kcovdbg.buffers.trace_coverage import find_call_length, find_module_points
from kcovdbg.console.buffer_arguments import make_filters
from kcovdbg.console.buffer_sources import find_buffer, name_remarks, require_points
from kcovdbg.console.context import Context
from kcovdbg.console.coverage_points import FunctionTable, find_function_points, find_point_table
from kcovdbg.errors import CapabilityError, UsageError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame
from kcovdbg.records.call_tree import Call, build_calls, find_events
from kcovdbg.records.chain_loops import find_chains
from kcovdbg.records.coverage import FunctionPoints, PointCoverage
from kcovdbg.records.pc_counts import PcCounts, as_counts, count_pcs, pc_sequence
from kcovdbg.series.table import call_mode_hint
from kcovdbg.symbols.coverage_points import PointKind, recorded_kinds
from kcovdbg.symbols.symbolizer import without_collection

# Functions whose points are looked up together: a search for each takes longer than for some hundred.
_LOOKED_UP: Final = 256
_NOWHERE: Final = Frame(None, None, None, None)


class ExportSource:
    """The trace that ``export`` writes; each part of it is read when a format needs it.

    :param context: of the command.
    :param args: its arguments.
    """

    def __init__(self, context: Context, args: Namespace) -> None:
        self.context = context
        self.what: str = args.what
        self.format: str = args.format
        self.names = context.workspace.names
        (self.filter,) = make_filters(args, self.names)

    @cached_property
    def buffer(self) -> Buffer:
        """The buffer."""
        buffer = find_buffer(self.context, self.what)
        if buffer.encoding.codec.kind is RecordKind.EDGE:
            raise CapabilityError(
                f"cannot export {self.what}: the low 12 bits of its edges are no address",
                hint="buffer shows the pages of the edges",
            )
        require_points(buffer, "export")
        return buffer

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the buffer."""
        return (*name_remarks(self.context), *self.buffer.remarks)

    @property
    def kinds(self) -> frozenset[PointKind]:
        """The kinds of points that can be in the trace."""
        return recorded_kinds(self.buffer.encoding.codec)

    @cached_property
    def all_counts(self) -> PcCounts:
        """How often each PC was recorded, filtered out or not: a line belongs to more places than one."""
        return as_counts(count_pcs(self.buffer))

    @cached_property
    def counts(self) -> PcCounts:
        """How often each PC that passes the filter was recorded, ascending."""
        counts = self.all_counts
        return counts if self.filter.passes_all else counts.select(self.filter.select(self.names.columns(counts.pcs)))

    @property
    def sequence(self) -> Iterable[int]:
        """The PCs that pass the filter in the order of their records."""
        if self.filter.passes_all:
            return (pc for pc in pc_sequence(self.buffer) if pc)
        wanted = self.counts
        return (pc for pc in pc_sequence(self.buffer) if pc in wanted)

    @property
    def call_length(self) -> int:
        """How many bytes before a PC its call begins."""
        return find_call_length(self.context)

    @cached_property
    def functions(self) -> FunctionTable:
        """The functions of the image with their points, in order."""
        return find_function_points(self.context, self.kinds, self.call_length)

    @cached_property
    def modules(self) -> list[PointCoverage]:
        """The points that were recorded in modules and pass the filter."""
        return find_module_points(self.context, self.counts, self.call_length)

    def points_of(self, functions: Iterable[FunctionPoints]) -> Iterator[PointCoverage]:
        """Iterate over the points of functions that pass the filter, then over those that were recorded in modules."""
        table, points = find_point_table(self.context), self.functions.points
        length, counts = self.call_length, self.all_counts
        groups = iter(functions)
        # For the writer of the file as well: what both make lives to the end, and collecting it takes a third of their time.
        with without_collection():
            while some := list(islice(groups, _LOOKED_UP)):
                wanted: list[tuple[int, int, str]] = []
                for group in some:
                    symbol = group.function.alias or group.function.name
                    rows = zip(points.pcs(group), points.chains(group), repeat(symbol))
                    if self.filter.passes_all:
                        wanted += rows
                    else:
                        self.names.prefetch(points.pcs(group))
                        wanted += [row for row in rows if self.filter(row[0])]
                found = table.get_frames([chain for _, chain, _ in wanted])
                for (pc, _, symbol), frames in zip(wanted, found, strict=True):
                    yield PointCoverage(pc, pc - length, None, None, counts.get(pc, 0), frames, symbol)
        yield from self.modules

    def seen(self, counts: PcCounts) -> bytearray:
        """Return of each row of the table whether its PC was counted: 0 or 1."""
        return find_chains(counts.pcs, find_point_table(self.context).columns).seen

    def unlisted(self) -> tuple[str, ...]:
        """Return how many of the recorded PCs are no points."""
        recorded = self.functions.points.only(self.seen(self.counts))
        listed = sum(recorded.count(1, group.first, group.end) for group in self.functions.functions)
        rest = len(self.counts) - listed - len(self.modules)
        return (f"{rest} of {len(self.counts)} PCs are no coverage points of .text, as after tail calls",) if rest else ()

    def calls(self) -> tuple[Buffer, list[Call]]:
        """Return the buffer and its calls.

        :raises CapabilityError: when there are no entry and exit records.
        :raises UsageError: when only some records are asked for.
        """
        buffer = self.buffer
        if not buffer.encoding.codec.has_calls:
            raise CapabilityError(
                f"{self.what} has no entry and exit records, which {self.format} needs",
                hint=f"{call_mode_hint()}; lcov, jsonl and modoff need none",
            )
        if not self.filter.passes_all:
            raise UsageError(f"export: {self.format} takes no filters, because calls span records")
        calls = build_calls(find_events(buffer))
        self.names.prefetch(call.pc for call in calls)
        return buffer, calls

    def function(self, pc: int) -> Frame:
        """Return the frame of the function that a PC was compiled into."""
        frames = self.names[pc].frames
        return frames[-1] if frames else _NOWHERE
