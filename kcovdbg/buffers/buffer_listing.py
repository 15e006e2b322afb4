# SPDX-License-Identifier: LGPL-2.1-or-later
"""The records of a buffer as ``buffer`` and ``collect`` list them: one by one, or folded by
function and loop.
"""

from __future__ import annotations

import math
from argparse import Namespace
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from kcovdbg.console.buffer_arguments import TAIL, make_filters
from kcovdbg.console.column import NUMBER, PATH, SYMBOL, TEXT, Column
from kcovdbg.console.context import Context
from kcovdbg.console.grid import table_lines
from kcovdbg.console.record_columns import record_columns, record_errors
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.console.wording import NO_ADDRESS, buffer_heading, buffer_title, span_text
from kcovdbg.console.writer import Format
from kcovdbg.inputs.buffer_sources import order_remarks, require_named_names
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import LocatedRecord
from kcovdbg.records.function_trace import Fold, FunctionRun, find_runs, fold_runs, round_length
from kcovdbg.records.located_records import BATCH, FIRST_BATCH, find_indices, locate_records
from kcovdbg.records.pc_counts import pc_sequence
from kcovdbg.records.pc_locations import LocationCache


class _Piece(NamedTuple):
    """One line: consecutive records of one function."""

    number: int
    records: int
    function: str
    place: str
    note: str


_COLUMNS: Final = (
    Column("index", NUMBER, value=lambda piece: piece.number),
    Column("records", NUMBER),
    Column("function", SYMBOL, elastic=16),
    Column("where", PATH, value=lambda piece: piece.place or None, elastic=16, priority=1),
    Column("note", TEXT, title="", elastic=12, priority=2),
)


def list_buffer(context: Context, buffer: Buffer, args: Namespace) -> Iterator[Renderable]:
    """Yield a buffer's records.

    :param args: with :data:`~kcovdbg.console.buffer_arguments.LISTING` and
        :data:`~kcovdbg.console.buffer_arguments.FILTERS`.
    """
    names = context.names.of(buffer)
    (wanted,) = make_filters(args, names)
    limit = args.n
    if limit is None and args.tail:
        limit = TAIL
    indices = find_indices(buffer, wanted)
    heading, its_remarks = buffer_heading(buffer, is_text=context.format is Format.TEXT)
    remarks = [*its_remarks, *context.kernel.names.remarks]
    if args.tail:
        remarks += order_remarks(buffer)
    require_named_names(context.inputs, names, pc_sequence(buffer), f"buffer {buffer.name}")
    if not wanted.passes_all:
        remarks.append(f"{len(indices)} of {buffer.count} records match")
    shown = _limit(indices, limit, tail=args.tail)
    rows = locate_records(buffer, names, shown)
    second = buffer.second
    if second is not None and not wanted.passes_all:
        noun = second.encoding.codec.noun
        remarks.append(f"{second.count} {noun} are left out: their functions are unknown")
        second = None
    both: Iterable[LocatedRecord] = rows
    of_second: Sequence[int] = ()
    if second is not None:
        of_second = _limit(find_indices(second, wanted), limit, tail=args.tail)
        both = chain(rows, locate_records(second, names, of_second))
    columns = record_columns(buffer)
    yield heading
    one_by_one = buffer.encoding.record_words > 1 or buffer.encoding.codec.is_variable
    if args.raw or one_by_one or not buffer.encoding.codec.has_addresses:
        if len(shown) < len(indices):
            remarks.append(
                f"{len(indices) - len(shown)} {'earlier' if args.tail else 'more'} records"
            )
        lines = table_lines(
            Table(columns, rows, remarks=remarks, empty="no records"), context.width
        )
    else:
        pcs = pc_sequence(buffer)
        if len(indices) < buffer.count:
            pcs = array("Q", map(pcs.__getitem__, indices))
        folded = _FoldedRecords(pcs, indices, names, limit, args.tail, buffer.encoding.codec.lead)
        empty = None if indices else "no records"
        table = Table(_COLUMNS, folded, remarks=chain(remarks, folded.remarks()), empty=empty)
        lines = table_lines(table, context.width)
    data = Table(columns, both, remarks=remarks, empty="no records", errors=record_errors)
    yield Lines(lines, data=data)
    if second is not None:
        noun = second.encoding.codec.noun
        yield Lines(((("header", buffer_title(second)),),))
        remarks = [*second.remarks]
        if len(of_second) < second.count:
            remarks.append(f"{second.count - len(of_second)} more {noun}")
        rows = locate_records(second, names, of_second)
        table = Table(record_columns(second), rows, remarks=remarks, empty=f"no {noun}")
        yield Lines(table_lines(table, context.width))


def _limit(indices: Sequence[int], limit: int | None, *, tail: bool) -> Sequence[int]:
    """Return the first or the last so many."""
    return (
        indices[max(len(indices) - limit, 0) :] if tail and limit is not None else indices[:limit]
    )


@dataclass(eq=False)
class _FoldedRecords:
    """Records with runs of one function, and loops over several, folded."""

    sequence: Sequence[int]
    """The PC of each record, 0 where it has none."""
    indices: Sequence[int]
    """Of these records in the buffer."""
    names: LocationCache
    limit: int | None
    """How many lines to show at most; None: all."""
    tail: bool
    """Whether to show the last ones."""
    lead: int
    """How far PCs are behind the addresses of the records."""
    shown: int = 0
    named: int = 0
    """Number of records whose PCs were looked up."""
    known: set[int] = field(default_factory=set)
    """Those PCs."""

    def __iter__(self) -> Iterator[_Piece]:
        folds: Iterator[Fold] = fold_runs(find_runs(self.sequence, self._group))
        fitting: Iterable[Sequence[_Piece]] = self._fitting(
            reversed(deque(folds, self.limit)) if self.tail else folds
        )
        return chain.from_iterable(reversed(list(fitting)) if self.tail else fitting)

    def _fitting(self, folds: Iterable[Fold]) -> Iterator[Sequence[_Piece]]:
        """Yield the lines of each fold, as long as there is room; of a loop that does not fit, only
        the first line.
        """
        room = math.inf if self.limit is None else self.limit
        for fold in folds:
            if not room:
                return
            pieces = list(self._pieces(fold))
            if len(pieces) > room:
                pieces = [pieces[0]._replace(note=f"{fold.rounds} rounds")]
            room -= len(pieces)
            self.shown += fold.length
            yield pieces

    def remarks(self) -> Iterator[str]:
        """Yield what was left out, after the pieces were."""
        left_out = len(self.sequence) - self.shown
        if left_out:
            yield f"{left_out} {'earlier' if self.tail else 'more'} records"

    def _group(self, pc: int) -> object:
        # In batches, so that the first line comes at once.
        while pc and pc not in self.known:
            size = FIRST_BATCH if not self.known else BATCH
            batch = set(self.sequence[self.named : self.named + size])
            self.names.prefetch(batch)
            self.known |= batch
            self.named += size
        frames = self.names[pc].frames if pc else ()
        return (frames[-1].function, frames[-1].file) if frames and frames[-1].function else pc

    def _pieces(self, fold: Fold) -> Iterator[_Piece]:
        indent = ""
        if fold.rounds > 1:
            functions = f"{len(fold.runs)} functions"
            note = f"{fold.rounds} rounds; the first:"
            yield _Piece(self.indices[fold.first], fold.length, f"loop over {functions}", "", note)
            indent = "  "
        for run in fold.runs:
            yield self._piece(run, indent)

    def _piece(self, run: FunctionRun, indent: str) -> _Piece:
        part = self.sequence[run.first : run.first + run.length]
        pc = part[0]
        number = self.indices[run.first]
        if not pc:
            return _Piece(number, run.length, indent + NO_ADDRESS, "", "")
        frames = self.names[pc].frames
        if not frames:
            return _Piece(
                number, run.length, f"{indent}{pc - self.lead:#x}", "", self.names[pc].remark or ""
            )
        distinct = set(part)
        outer = [self.names[other].frames[-1] for other in distinct]
        notes: list[str] = []
        if len(distinct) < run.length:
            period = round_length(part)
            notes.append(f"{len(distinct)} points" if len(distinct) > 1 else "1 point")
            if period < run.length:
                notes.append(f"{-(-run.length // period)} rounds")
        return _Piece(
            number,
            run.length,
            indent + (frames[-1].function or "?"),
            span_text(outer),
            ", ".join(notes),
        )
