# SPDX-License-Identifier: LGPL-2.1-or-later
"""``buffer``: the records of a coverage buffer."""

from __future__ import annotations

from argparse import Namespace
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import Comparison, Kind, Record
from kcovdbg.analysis.folding import Fold, Run, find_runs, fold_runs, round_length
from kcovdbg.analysis.naming import Names
from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import Filter, find_buffer, matching_words, name_remarks
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.render.column import Column
from kcovdbg.render.grid import table_lines
from kcovdbg.render.kind import ADDRESS, BOOL, NUMBER, PATH, SYMBOL, TEXT, WORD
from kcovdbg.render.renderable import Lines, Renderable, Table
from kcovdbg.render.wording import frame_text, function_text, title

# Names are asked for this many records at a time, so that the first line waits for few of them.
_BATCH: Final = 4096
_FIRST_BATCH: Final = 64

FRAME_COLUMNS: Final = (
    Column("function", SYMBOL),
    Column("file", PATH),
    Column("line", NUMBER),
    Column("column", NUMBER),
)


class Row(NamedTuple):
    """A record with where it is."""

    record: Record
    address: int | None
    """PC plus KASLR offset."""
    location: Location | None
    """None where the record has no PC."""


def for_each_row(buffer: Buffer, names: Names, indices: Iterable[int]) -> Iterator[Row]:
    """Decode records and name them, as far as they are asked for.

    :param indices: of the records.
    """
    remaining = iter(indices)
    size = _FIRST_BATCH
    while batch := [record.decode_record(buffer.words, index, buffer.encoding) for index in islice(remaining, size)]:
        size = _BATCH
        names.learn(found.pc for found in batch if found.pc is not None and found.kind is not Kind.EDGE)
        for found in batch:
            if found.pc is None:
                yield Row(found, None, None)
                continue
            address = found.pc + buffer.kaslr_offset & (1 << 64) - 1
            yield Row(found, address, None if found.kind is Kind.EDGE else names[found.pc])


def present_indices(buffer: Buffer, wanted: Filter) -> Sequence[int]:
    """Return the indices of the records that were read and are wanted."""
    words = matching_words(buffer, wanted)
    if words is None and not buffer.gaps:
        return range(buffer.count)
    missing = {index for gap in buffer.gaps for index in range(gap.first, gap.first + gap.length)}
    every = record.pc_words(buffer.words, buffer.encoding)
    return array("Q", (i for i, word in enumerate(every) if (words is None or word in words) and i not in missing))


def symbol_of(row: Row) -> str | None:
    """Return the function that the code was compiled into."""
    return row.location.frames[-1].function if row.location is not None and row.location.frames else None


def _place_text(row: Row) -> str:
    return frame_text(row.location.frames[0]) if row.location is not None and row.location.frames else ""


def _function_text(row: Row) -> str:
    if row.record.kind is Kind.EDGE:
        page, mixed = record.split_edge(row.record.word)
        return f"somewhere in the page at {page:#x}, hash {mixed:#05x}"
    if row.location is None:
        return "no address" if row.record.word else "zero: never written, or not yet"
    return function_text(row.location)


def operand_text(value: int, comparison: Comparison, big_endian: bool) -> str:
    """Show an operand: in hexadecimal, as the signed number, and as characters where it consists of some."""
    text = hex(value)
    signed = record.signed_value(value, comparison.size)
    if not 0 <= signed < 10:
        text += f" ({signed})"
    characters = record.operand_text(value, comparison.size, big_endian)
    return text if characters is None else f'{text} "{characters}"'


def make_columns(buffer: Buffer) -> tuple[Column, ...]:
    """Return the columns of a table of records."""
    columns = [
        Column("index", NUMBER, value=lambda row: row.record.number),
        Column("pc", WORD, value=lambda row: row.record.word, priority=3 if buffer.kaslr_offset else 0),
        Column("address", ADDRESS, priority=2, json_only=not buffer.kaslr_offset),
        Column("kind", TEXT, value=lambda row: row.record.kind, json_only=buffer.encoding.format not in _KINDS),
    ]
    if buffer.encoding.record_words > 1:

        def operand(name: str) -> Column:
            return Column(
                name,
                WORD,
                value=lambda row: getattr(row.record.comparison, name),
                text=lambda row: operand_text(
                    getattr(row.record.comparison, name), row.record.comparison, buffer.encoding.big_endian
                ),
            )

        columns += [
            Column("type", WORD, value=lambda row: row.record.comparison.type, json_only=True),
            Column("size", NUMBER, value=lambda row: row.record.comparison.size),
            Column("const", BOOL, value=lambda row: row.record.comparison.const),
            operand("arg1"),
            operand("arg2"),
        ]
    return (
        *columns,
        Column("symbol", SYMBOL, value=symbol_of, title="FUNCTION", text=_function_text, elastic=16),
        Column("where", PATH, text=_place_text, text_only=True, elastic=16, elide_start=True, priority=1),
        Column(
            "frames",
            TEXT,
            value=lambda row: () if row.location is None else row.location.frames,
            items=FRAME_COLUMNS,
            json_only=True,
        ),
    )


_KINDS: Final = frozenset({record.RecordFormat.PC_EXT})


def _errors(row: Row) -> tuple[str, ...]:
    if row.location is None:
        return ("the low 12 bits are mixed with the previous address",) if row.record.kind is Kind.EDGE else ("no address",)
    if row.location.remark is not None:
        return (row.location.remark,)
    return () if row.location.frames else ("there is no kernel to look it up in",)


class _Piece(NamedTuple):
    """One line of the compact view."""

    number: int
    records: int
    function: str
    place: str
    note: str


_COMPACT_COLUMNS: Final = (
    Column("index", NUMBER, value=lambda piece: piece.number),
    Column("records", NUMBER),
    Column("function", SYMBOL, elastic=16),
    Column("where", PATH, value=lambda piece: piece.place or None, elastic=16, elide_start=True, priority=1),
    Column("note", TEXT, title="", elastic=12, priority=2),
)


class _Compact:
    """The compact view of a buffer: runs of one function, and loops over several, folded.

    :param sequence: the PC of each record that is shown, 0 where it has none.
    :param indices: of these records in the buffer.
    """

    def __init__(self, sequence: Sequence[int], indices: Sequence[int], names: Names) -> None:
        self._sequence = sequence
        self._indices = indices
        self._names = names

    def folds(self) -> Iterator[Fold]:
        return fold_runs(self._runs())

    def _runs(self) -> Iterator[Run]:
        position, size, end = 0, _FIRST_BATCH, len(self._sequence)
        pending: Run | None = None
        while position < end:
            batch_end = min(end, position + size)
            size = _BATCH
            self._names.learn(pc for pc in set(self._sequence[position:batch_end]) if pc)
            for run in find_runs(self._sequence, self._group, position, batch_end):
                if pending is None:
                    pending = run
                elif pending.group == run.group:
                    pending = pending._replace(length=pending.length + run.length)
                else:
                    yield pending
                    pending = run
            position = batch_end
        if pending is not None:
            yield pending

    def _group(self, pc: int) -> object:
        frames = self._names[pc].frames if pc else ()
        return (frames[-1].function, frames[-1].file) if frames and frames[-1].function else pc

    def pieces(self, fold: Fold) -> Iterator[_Piece]:
        indent = ""
        if fold.rounds > 1:
            functions = f"{len(fold.runs)} functions"
            note = f"{fold.rounds} rounds; the first:"
            yield _Piece(self._indices[fold.first], fold.length, f"loop over {functions}", "", note)
            indent = "  "
        for run in fold.runs:
            yield self._piece(run, indent)

    def _piece(self, run: Run, indent: str) -> _Piece:
        part = self._sequence[run.first : run.first + run.length]
        pc = part[0]
        number = self._indices[run.first]
        if not pc:
            return _Piece(number, run.length, indent + "no address", "", "zero: never written, or not yet")
        frames = self._names[pc].frames
        if not frames:
            return _Piece(number, run.length, f"{indent}{pc:#x}", "", self._names[pc].remark or "")
        distinct = set(part)
        outer = [self._names[other].frames[-1] for other in distinct]
        lines = sorted({frame.line for frame in outer if frame.line})
        place = outer[0].file or ""
        if place and lines:
            place += f":{lines[0]}" if len(lines) == 1 else f":{lines[0]}-{lines[-1]}"
        notes: list[str] = []
        if len(distinct) < run.length:
            period = round_length(part)
            notes.append(f"{len(distinct)} points" if len(distinct) > 1 else "1 point")
            if period < run.length:
                notes.append(f"{-(-run.length // period)} rounds")
        return _Piece(number, run.length, indent + (frames[-1].function or "?"), place, ", ".join(notes))


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    return show_buffer(context, find_buffer(context, args.what), args)


def show_buffer(context: Context, buffer: Buffer, args: Namespace) -> Iterator[Renderable]:
    """Show a buffer's records.

    :param args: with what :data:`SHOWING` and :data:`FILTERS` say.
    """
    names = context.session.names
    wanted = Filter(names, args.function or (), args.file or ())
    limit = args.n if args.n is not None else (_TAIL if args.tail else None)
    indices = present_indices(buffer, wanted)
    remarks = [*buffer.remarks, *name_remarks(context)]
    if not wanted.passes_all:
        remarks.append(f"{len(indices)} of {buffer.count} records match")
    shown = _limit_indices(indices, limit, args.tail)
    rows = for_each_row(buffer, names, shown)
    edges = buffer.edges
    if edges is not None and not wanted.passes_all:
        remarks.append(f"{edges.count} edges are left out: of which function one is can't be told")
        edges = None
    of_edges = () if edges is None else _limit_indices(present_indices(edges, wanted), limit, args.tail)
    both = rows if edges is None else chain(rows, for_each_row(edges, names, of_edges))
    data = Table(make_columns(buffer), both, remarks=remarks, empty="no records", errors=_errors, show=None)
    yield Lines(((("header", title(buffer)),),))
    folded = not args.raw and buffer.encoding.record_words == 1 and buffer.encoding.format is not record.RecordFormat.UNIQ_EDGE
    if not folded:
        if len(shown) < len(indices):
            remarks.append(f"{len(indices) - len(shown)} more records")
        yield Lines(table_lines(replace(data, rows=rows, errors=None), context.width), data=data)
    else:
        compact = _Compact(_sequence(buffer, indices), indices, names)
        pieces = _limited(compact, limit, args.tail, remarks)
        lines = table_lines(Table(_COMPACT_COLUMNS, pieces, remarks=remarks, empty="no records"), context.width)
        yield Lines(lines, data=data)
    if edges is not None:
        said = list(edges.remarks)
        if len(of_edges) < edges.count:
            said.append(f"{edges.count - len(of_edges)} more edges")
        part = Table(make_columns(edges), for_each_row(edges, names, of_edges), remarks=said, empty="no edges", show=None)
        yield Lines(((("header", title(edges)),),))
        yield Lines(table_lines(part, context.width))


def _limit_indices(indices: Sequence[int], limit: int | None, tail: bool) -> Sequence[int]:
    """Return the first so many, or the last."""
    if limit is None or len(indices) <= limit:
        return indices
    return indices[len(indices) - limit :] if tail else indices[:limit]


_TAIL: Final = 20


def _limited(compact: _Compact, limit: int | None, tail: bool, remarks: list[str]) -> Iterator[_Piece]:
    """Yield the lines of so many folds, from the start or the end."""
    folds = compact.folds()
    if limit is None:
        chosen: Iterable[Fold] = folds
    elif tail:
        chosen = deque(folds, limit)
    else:
        chosen = islice(folds, limit)
    for fold in chosen:
        yield from compact.pieces(fold)
    if limit is not None and not tail and next(folds, None) is not None:
        remarks.append("more follows: without -n all of it is shown")


def _sequence(buffer: Buffer, indices: Sequence[int]) -> Sequence[int]:
    """Return the PC of each of these records, 0 where it has none."""
    words = record.pc_words(buffer.words, buffer.encoding)
    pcs = record.pcs_of_words(set(words), buffer.encoding)
    if len(indices) < buffer.count:
        return array("Q", (pcs.get(words[index], 0) for index in indices))
    return array("Q", (pcs.get(word, 0) for word in words))


FILTERS: Final = (
    Argument(
        ("--function",),
        Value.FUNCTION,
        "only records in this function, inlined or not; may be a pattern: 'tcp_*'",
        count=Count.ANY,
        metavar="F",
    ),
    Argument(
        ("--file",),
        Value.FUNCTION,
        "only records in this file or directory; may be a pattern: 'net/*'",
        count=Count.ANY,
        metavar="P",
    ),
)

TEXT_PCS: Final = Argument(
    ("--pc",),
    Value.CHOICE,
    "what PCs in a text file are: as recorded (kcovtrace), or the call before that (syzkaller's rawcover)",
    choices=("auto", "raw", "call"),
    default="auto",
)

SHOWING: Final = (
    Argument(("--raw",), Value.FLAG, "one line per record"),
    Argument(("-n",), Value.NUMBER, "at most so many lines; of JSON: records", metavar="N"),
    Argument(("--tail",), Value.FLAG, f"the last ones, {_TAIL} unless -n says otherwise"),
)

BUFFER = Command(
    name="buffer",
    summary="records of a buffer",
    run=_run,
    description=(
        "Consecutive records of one function are one line, a loop over several functions is shown by its first round; --raw "
        "shows each record. Comparisons are always shown one by one, their operands in hexadecimal, as the signed number and "
        "as characters where they consist of some.\n\n"
        "PC is what the kernel recorded, a return address minus the KASLR offset; ADDRESS is where that was in memory. Lines "
        "of source are those of the call before it. In JSON each record is an object, folded or not.\n\n"
        "Where addresses and edges are recorded at once (a posted series) both are shown, addresses first; -n holds for each."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "which", metavar="WHAT"),
        *SHOWING,
        *FILTERS,
        TEXT_PCS,
    ),
    examples=(
        Example("buffer 41", "what has task 41 executed?"),
        Example("buffer 41 --tail", "and at last?"),
        Example("buffer kcov:0xffff888004a1e000 --raw -n 100", "the first records of an object's buffer, one by one"),
        Example("buffer file:before.kcov --file net/ipv4", "a part of a trace file"),
    ),
    needs=frozenset(),
)
