# SPDX-License-Identifier: LGPL-2.1-or-later
"""List the records of a buffer for ``buffer`` and ``collect``: one by one in JSON, CSV and with
``--raw``, and folded by function and loop in other text.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

from kcovdbg.console.buffer_arguments import TAIL, make_filters
from kcovdbg.console.column import NUMBER, PATH, SYMBOL, Column
from kcovdbg.console.context import Context
from kcovdbg.console.grid import table_lines
from kcovdbg.console.record_columns import record_columns, record_errors
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.console.wording import NO_ADDRESS, buffer_heading, buffer_title, span_text
from kcovdbg.console.writer import Format
from kcovdbg.inputs.buffer_sources import order_remarks, require_named_names
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.kcov import amount_text
from kcovdbg.records.function_trace import Fold, FunctionRun, find_runs, fold_runs, round_length
from kcovdbg.records.located_records import BATCH, FIRST_BATCH, find_indices, locate_records
from kcovdbg.records.pc_counts import pc_sequence, pick_words
from kcovdbg.records.pc_locations import LocationCache


class _Piece(NamedTuple):
    """One line: consecutive records of one function."""

    number: int
    records: int
    function: str
    place: str
    note: str


_COLUMNS: Final = (
    Column("index", NUMBER, value="number"),
    Column("records", NUMBER),
    Column("function", SYMBOL, elastic=16),
    Column("where", PATH, value=lambda piece: piece.place or None, elastic=16, priority=1),
    Column("note", title="", elastic=12, priority=2),
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
    second = buffer.second
    if second is not None and not wanted.passes_all:
        noun = second.encoding.codec.noun
        remarks.append(f"{second.count} {noun} are left out: their functions are unknown")
        second = None
    shown = _limit(indices, limit, tail=args.tail)
    rows = locate_records(buffer, names, shown)
    table = Table(record_columns(buffer), rows, remarks, "no records", record_errors)
    data = table
    shown_of_second: Sequence[int] = ()
    if second is not None:
        # JSON and CSV have one table, with the records of both buffers.
        shown_of_second = _limit(find_indices(second, wanted), limit, tail=args.tail)
        rows_of_second = locate_records(second, names, shown_of_second)
        data = replace(table, rows=chain(rows, rows_of_second))
    yield heading
    codec = buffer.encoding.codec
    can_fold = buffer.encoding.record_words == 1 and not codec.is_variable and codec.has_addresses
    if args.raw or not can_fold:
        remarks += _find_rest(len(indices) - len(shown), tail=args.tail)
    else:
        pcs = pc_sequence(buffer)
        if len(indices) < buffer.count:
            pcs = pick_words(pcs, indices)
        folded = _FoldedRecords(pcs, indices, names, limit, args.tail, codec.lead)
        empty = None if indices else "no records"
        table = Table(_COLUMNS, folded, chain(remarks, folded.remarks()), empty)
    yield Lines(table_lines(table, context.width), data=data)
    if second is not None:
        yield from _list_second(context, second, names, shown_of_second)


def _list_second(
    context: Context, second: Buffer, names: LocationCache, shown: Sequence[int]
) -> Iterator[Lines]:
    """Yield the text for the second buffer of an object.

    :param shown: indices of the records to show.
    """
    noun = second.encoding.codec.noun
    yield Lines(((("header", buffer_title(second)),),))
    remarks = [*second.remarks]
    if len(shown) < second.count:
        remarks.append(f"{second.count - len(shown)} more {noun}")
    rows = locate_records(second, names, shown)
    table = Table(record_columns(second), rows, remarks, f"no {noun}")
    yield Lines(table_lines(table, context.width))


def _find_rest(count: int, *, tail: bool) -> Iterator[str]:
    """Yield how many records are left out, if any are.

    :param tail: whether the last ones are shown.
    """
    if count:
        yield f"{count} {'earlier' if tail else 'more'} records"


def _limit(indices: Sequence[int], limit: int | None, *, tail: bool) -> Sequence[int]:
    """Return the first indices, or the last ones, up to a limit."""
    if tail and limit is not None:
        return indices[max(len(indices) - limit, 0) :]
    return indices[:limit]


@dataclass(eq=False)
class _FoldedRecords:
    """Records, folded to one line for each run of one function, and for each run in a loop."""

    sequence: Sequence[int]
    """The PC of each record, 0 where it has none."""
    indices: Sequence[int]
    """The indexes of these records in the buffer."""
    names: LocationCache
    limit: int | None
    """How many lines to show at most; None: all."""
    tail: bool
    """Whether to show the last ones."""
    lead: int
    """The difference of a PC and the address in its record."""
    shown: int = 0
    named: int = 0
    """Number of records, from the first on, whose PCs were looked up."""
    known: set[int] = field(default_factory=set)
    """The PCs that were looked up."""

    def __iter__(self) -> Iterator[_Piece]:
        folds = fold_runs(find_runs(self.sequence, self._group))
        if not self.tail:
            return chain.from_iterable(self._fitting(folds))
        last = list(self._fitting(reversed(deque(folds, self.limit))))
        return chain.from_iterable(reversed(last))

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
        """Yield how many records were left out; to be read after all pieces."""
        yield from _find_rest(len(self.sequence) - self.shown, tail=self.tail)

    def _group(self, pc: int) -> object:
        # Names are looked up in batches, so that the first line comes at once. PCs are asked for in
        # the order of their records: the next batch has this one.
        while pc and pc not in self.known:
            size = FIRST_BATCH if not self.known else BATCH
            batch = set(self.sequence[self.named : self.named + size])
            self.names.prefetch(batch)
            self.known |= batch
            self.named += size
        frame = self.names[pc].outermost if pc else None
        if frame is None or not frame.function:
            return pc
        return frame.function, frame.file

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
        location = self.names[pc]
        if not location.frames:
            address = f"{indent}{pc - self.lead:#x}"
            return _Piece(number, run.length, address, "", location.remark or "")
        distinct = set(part)
        place = span_text(self.names[other].outermost for other in distinct)
        notes: list[str] = []
        if len(distinct) < run.length:
            period = round_length(part)
            notes.append(amount_text(len(distinct), "point"))
            if period < run.length:
                notes.append(f"{-(-run.length // period)} rounds")
        function = indent + (location.outermost.function or "?")
        return _Piece(number, run.length, function, place, ", ".join(notes))
