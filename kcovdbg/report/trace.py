# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the records of one trace, or of two side by side, into a page.

The page has a number for each record and the text of each distinct record once, as JSON. Its script
draws a screenful at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, count, islice
from operator import sub
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.console.html import json_text, notes_markup, packed_numbers, packed_text, text
from kcovdbg.console.text import escape, escape_all
from kcovdbg.console.wording import (
    APPROXIMATE,
    COARSE,
    UNREADABLE,
    buffer_title,
    place_text,
    record_text,
)
from kcovdbg.inputs.buffer_sources import name_remarks, order_remarks
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame
from kcovdbg.records.alignment import AlignedPart, align_records
from kcovdbg.records.line_states import TraceRecords
from kcovdbg.records.located_records import locate_record
from kcovdbg.records.native_loops import Numbering, flatten_chains
from kcovdbg.records.pc_counts import PcCounts, as_counts, make_numbering, pc_sequence
from kcovdbg.records.pc_locations import UNKNOWN, LocationCache, low_halves
from kcovdbg.report.listing import chunk_lines
from kcovdbg.symbols.table_rows import INVERTED, gather

_MAX_RECORDS: Final = 1 << 20
"""Limit for the records of a trace; further records are left out."""
_IN_CHUNK: Final = 1 << 14
"""Number of points in a chunk; fewer are in the page as text."""
_ARROW: Final = " ← "


class CountedTrace(NamedTuple):
    """A trace with its counts."""

    buffer: Buffer
    records: TraceRecords
    kernel: Kernel

    @property
    def counts(self) -> PcCounts:
        """Records of each PC."""
        return as_counts(self.records.counts)


def records_markup(traces: Sequence[CountedTrace], comparison: BuildComparison) -> Iterator[str]:
    """Yield the markup of one trace, or of two beside each other.

    :param comparison: the comparison of the builds of two traces.
    """
    titles: list[str] = []
    notes: list[str] = []
    for trace in traces:
        buffer = trace.buffer
        titles.append(buffer_title(buffer))
        if buffer.count > _MAX_RECORDS:
            cut = f"the first {_MAX_RECORDS} of {buffer.count} records; view shows all"
            notes.append(f"{buffer.name}: {cut}")
        notes += name_remarks(buffer.name, order_remarks(buffer))
    numbered, chunks = _number_records(traces)
    parts: Sequence[AlignedPart] = ()
    if len(traces) > 1:
        sides = []
        for side, trace in enumerate(traces):
            pcs = pc_sequence(trace.buffer)[:_MAX_RECORDS]
            sides.append(comparison.number_records(side, pcs))
        alignment = align_records(*sides)
        notes += comparison.remarks()
        if alignment.is_coarse:
            notes.append(COARSE)
        parts = list(alignment.parts())
    yield from notes_markup(notes)
    yield from trace_markup(titles, chunks, numbered, parts)


def _number_records(
    traces: Sequence[CountedTrace],
) -> tuple[list[array[int]], Iterator[PointChunk]]:
    """Return the number of each record's point, and the points in chunks."""
    kernels = set()
    are_pcs = True
    for buffer, _, kernel in traces:
        kernels.add((kernel, buffer.kaslr_offset))
        are_pcs = are_pcs and buffer.encoding.codec == record.PC and not buffer.gaps
    if are_pcs and len(kernels) == 1:
        return _number_pcs(traces)
    points: dict[Point, int] = {}
    numbered = []
    for buffer, records, kernel in traces:
        names = kernel.names.locations
        names.prefetch(records.counts)
        words, width, missing = buffer.words, buffer.encoding.record_words, buffer.missing
        # The bytes of a record -> the number of its point; None for an unreadable record.
        known: dict[bytes | None, int] = {}
        numbers = array("I", bytes(4 * min(buffer.count, _MAX_RECORDS)))
        for index in range(len(numbers)):
            key = None
            if index not in missing:
                key = words[index * width : (index + 1) * width].tobytes()
            if key not in known:
                point = Point(UNREADABLE.function)
                if key is not None:
                    point = make_point(names, buffer, buffer.decode(index))
                known[key] = points.setdefault(point, len(points))
            numbers[index] = known[key]
        numbered.append(numbers)
    return numbered, text_chunks(points)


def _number_pcs(
    traces: Sequence[CountedTrace],
) -> tuple[list[array[int]], Iterator[PointChunk]]:
    """Return the same as :func:`_number_records`, for traces that have only PCs: these are counted
    in columns, without decoding each record.
    """
    sequences = [pc_sequence(trace.buffer)[:_MAX_RECORDS] for trace in traces]
    numbering = make_numbering(sequences[0])
    distinct = numbering.number(*sequences)
    names, buffer = traces[0].kernel.names.locations, traces[0].buffer
    if len(distinct) > _IN_CHUNK:
        chunks = column_chunks(names, buffer, distinct, _IN_CHUNK)
    else:
        names.prefetch(distinct)
        chunks = text_chunks(_make_points(names, buffer, distinct, range(len(distinct))))
    return list(map(numbering.ids, sequences)), chunks


def _make_points(
    names: LocationCache, buffer: Buffer, words: array[int], indexes: Iterable[int]
) -> Iterator[Point]:
    for index in indexes:
        yield make_point(names, buffer, record.decode_record(words, index, buffer.encoding))


def text_chunks(points: Iterable[Point]) -> Iterator[PointChunk]:
    """Yield points in chunks, all as text."""
    left = iter(points)
    while part := list(islice(left, _IN_CHUNK)):
        yield PointChunk(texts=dict(enumerate(part)))


def column_chunks(
    names: LocationCache, buffer: Buffer, pcs: array[int], size: int
) -> Iterator[PointChunk]:
    """Yield the points of PCs in chunks of columns: a kernel has a million points.

    :param buffer: a buffer with the PCs.
    :param pcs: distinct words of the buffer, ascending, which may begin with 0 for no address. Type
        code Q.
    :param size: number of points in a chunk; the last may have fewer.
    """
    columns = names.columns(pcs)
    frames = columns.frames
    has_frames = columns.located
    if pcs and not pcs[0]:
        # A record without an address has no location, even if something is at address 0.
        has_frames = bytes(1) + has_frames[1:]
    names.prefetch(compress(pcs, has_frames.translate(INVERTED)))
    numbering, naming = Numbering((0, len(frames.line))), Numbering((0, len(frames.strings)))
    for start in range(0, len(pcs), size):
        span = slice(start, start + size)
        part, chains = pcs[span], columns.chains[span]
        is_located, is_approximate = has_frames[span], columns.approximate[span]
        unlocated = list(compress(count(), is_located.translate(INVERTED)))
        texts = dict(zip(unlocated, _make_points(names, buffer, part, unlocated), strict=True))
        if texts:
            part = array("Q", compress(part, is_located))
            chains = array("Q", compress(chains, is_located))
            is_approximate = bytes(compress(is_approximate, is_located))
        lengths, numbers = flatten_chains(frames, chains)
        distinct = low_halves(numbering.number(numbers))
        functions = gather(distinct, frames.function, 0)
        files = gather(distinct, frames.file, 0)
        strings = naming.number(functions, files)
        yield PointChunk(
            part,
            buffer.kaslr_offset,
            list(compress(count(), is_approximate)),
            lengths,
            numbering.ids(numbers),
            [frames.strings[string] or "" for string in strings],
            naming.ids(functions),
            naming.ids(files),
            gather(distinct, frames.line, 0),
            texts,
        )


def _frame_text(frame: Frame) -> str:
    return f"{frame.function or UNKNOWN} {place_text(frame)}"


def make_point(names: LocationCache, buffer: Buffer, found: record.Record) -> Point:
    """Return a record as the page shows it."""
    row = locate_record(buffer, names, found)
    text = record_text(row, big_endian=buffer.encoding.big_endian)
    function = f"{text.sign} {text.function}".lstrip()
    if not text.has_address:
        return Point(function, text.place)
    head = f"{found.pc:#x}"
    if buffer.kaslr_offset:
        head += f" at {row.address:#x}"
    if text.operands:
        head += f"  {text.operands}"
    frames: tuple[str, ...] = ()
    if row.location is not None:
        frames = tuple(map(_frame_text, row.location.frames))
    place = "  ".join(filter(None, (text.operands, text.place)))
    return Point(function, place, frames, f"{head}  ")


class Point(NamedTuple):
    """A record as text; records with the same text share it."""

    function: str
    place: str = ""
    frames: tuple[str, ...] = ()
    """All frames, innermost first."""
    head: str = ""
    """The address and operands, shown before the frames."""


class PointChunk(NamedTuple):
    """Consecutive points: as columns, of which the page's script makes the text that
    :func:`make_point` would make, or as text.
    """

    pcs: Sequence[int] = ()
    """The PCs of the points in columns, ascending."""
    offset: int = 0
    """The KASLR offset."""
    approximate: Sequence[int] = ()
    """Indexes of the PCs whose location is approximate."""
    lengths: Sequence[int] = ()
    """The number of frames of each PC."""
    frames: Sequence[int] = ()
    """The numbers of the frames of all PCs, innermost first."""
    strings: Sequence[str] = ()
    """Names of functions and files, empty for an unknown one."""
    functions: Sequence[int] = ()
    """The function of each frame, as an index of the strings."""
    files: Sequence[int] = ()
    """The file of each frame, in the same way."""
    lines: Sequence[int] = ()
    """The line of each frame, 0 for an unknown one."""
    texts: Mapping[int, Point] = {}
    """The points as text, by their index in the chunk."""

    def text(self) -> str:
        """Return the JSON that the page's script reads."""
        base = self.pcs[0] if self.pcs else 0
        steps = array("Q", map(sub, self.pcs, chain((base,), self.pcs)))
        columns = (
            steps,
            self.approximate,
            self.lengths,
            self.frames,
            self.functions,
            self.files,
            self.lines,
        )
        return packed_text(
            {
                "base": f"{base:#x}",
                "offset": f"{self.offset:#x}",
                "strings": escape_all(self.strings),
                "numbers": list(map(packed_numbers, columns)),
                "words": {index: _shown(point) for index, point in self.texts.items()},
            }
        )


def _shown(point: Point) -> list[str]:
    return [
        escape(point.function),
        escape(point.place),
        escape(point.head + _ARROW.join(point.frames)),
    ]


_KEYS: Final = (
    "<kbd>j</kbd> <kbd>k</kbd> or arrows move, <kbd>Page Up</kbd> <kbd>Page Down</kbd> "
    "<kbd>Home</kbd> <kbd>End</kbd> move further; <kbd>/</kbd> finds.</p><noscript><p>Showing the "
    "records needs JavaScript; the rest of the page does not.</p></noscript></div>"
)
"""The end of the element that the script fills."""


def _segment(part: AlignedPart) -> Sequence[int]:
    left, right = part.left, part.right
    return left.start, len(left), right.start, len(right), int(part.is_common)


def trace_markup(
    names: Sequence[str],
    points: Iterable[PointChunk],
    records: Sequence[array[int]],
    parts: Sequence[AlignedPart],
) -> Iterator[str]:
    """Yield the panes, and the data for the script that fills them.

    :param names: the names of one or two traces.
    :param records: for each trace, the number of each record's point. Type code I.
    :param parts: the alignment of two traces.
    """
    pair = len(names) > 1
    yield '<div class="viewer" id="viewer"><div class="tools">'
    if pair:
        disabled = " disabled" if all(part.is_common for part in parts) else ""
        yield (
            f'<button type="button" id="previous"{disabled}>Previous difference '
            f"<kbd>p</kbd></button>"
        )
        yield f'<button type="button" id="next"{disabled}>Next difference <kbd>n</kbd></button>'
    yield (
        '<label>Find <input id="find" type="search" placeholder="function or file, then Enter" '
        'autocomplete="off"></label>'
    )
    yield '<p id="position" role="status" aria-live="polite"></p></div><div class="panes">'
    for number, name in enumerate(names):
        yield (
            f'<div class="pane"><h3 id="pane{number}-name">{text(name)}</h3>'
            f'<div class="rows" id="pane{number}" role="grid" tabindex="0" '
            f'aria-labelledby="pane{number}-name" aria-describedby="keys"><div class="height"><div '
            'class="shown"></div></div></div></div>'
        )
    yield '</div><p id="detail" class="detail"></p><p id="keys" class="keys">'
    if pair:
        yield "<kbd>n</kbd> and <kbd>p</kbd> go to the next and the previous difference; "
    yield _KEYS
    content: dict[str, object] = {
        "records": list(map(packed_numbers, records)),
        "segments": list(map(_segment, parts)),
    }
    chunks = iter(points)
    first = list(islice(chunks, 2))
    # A single chunk has all points as text.
    if len(first) < 2:
        content["points"] = [_shown(point) for chunk in first for point in chunk.texts.values()]
    else:
        yield from chunk_lines("points", (chunk.text() for chunk in chain(first, chunks)))
        content |= {
            "chunk": _IN_CHUNK,
            "arrow": _ARROW,
            "approximate": APPROXIMATE,
            "unknown": UNKNOWN,
        }
    yield f'<script type="application/json" id="trace">{json_text(content)}'
    yield "</script>"
