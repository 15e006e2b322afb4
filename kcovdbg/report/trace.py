# SPDX-License-Identifier: LGPL-2.1-or-later
"""One trace, or two side by side, as data that the page draws a screenful at a time; each point is put into words once."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count, islice
from typing import Final, NamedTuple, Protocol

from kcovdbg.abi import record
from kcovdbg.abi.address import address_of
from kcovdbg.console.html import json_text, packed_numbers, packed_text, text
from kcovdbg.console.text import escape, escape_all
from kcovdbg.console.wording import APPROXIMATE, UNREADABLE, inlined_text, place_text, record_text
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame
from kcovdbg.records.located_records import locate_record
from kcovdbg.records.native_loops import Numbering, flatten_chains
from kcovdbg.records.pc_names import UNKNOWN, LocationCache, low_halves
from kcovdbg.report.listing import chunk_lines
from kcovdbg.symbols.table_rows import INVERTED, gather


class RecordPoints:
    """The distinct points of records, in the order in which they appear, with a number for each."""

    def __init__(self) -> None:
        self._known: dict[Point, int] = {}

    def records(self, buffer: Buffer, names: LocationCache, limit: int) -> array[int]:
        """Return the number of each record's point.

        :param names: of the PCs.
        """
        encoding, width = buffer.encoding, buffer.encoding.record_words
        count = min(buffer.count, limit)
        known: dict[object, int] = {}
        missing = buffer.missing
        numbers = array("I", bytes(4 * count))
        words = buffer.words
        for index in range(count):
            key: object = words[index] if width == 1 else tuple(words[index * width : (index + 1) * width])
            if index in missing:
                key = None
            number = known.get(key)
            if number is None:
                point = (
                    Point(UNREADABLE.function)
                    if key is None
                    else make_point(names, buffer, record.decode_record(words, index, encoding))
                )
                number = known[key] = self._known.setdefault(point, len(self._known))
            numbers[index] = number
        return numbers

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Point]:
        return iter(self._known)

    def __contains__(self, point: object) -> bool:
        return point in self._known


class PlainPoints:
    """The points of distinct PCs, made in columns: a kernel has a million of them.

    :param names: of the PCs.
    :param buffer: any that has them.
    :param words: distinct address words, ascending. Type code Q.
    """

    def __init__(self, names: LocationCache, buffer: Buffer, words: array[int]) -> None:
        self._names = names
        self._buffer = buffer
        self._words = words

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._words)

    def chunks(self, size: int) -> Iterator[PointChunk]:
        """Iterate over chunks of a size, of which the last may be smaller."""
        buffer, words, frames = self._buffer, self._words, (columns := self._names.columns(self._words)).frames
        has_frames = columns.located
        if words and not words[0]:
            # A word without an address is no PC, even if something is there.
            has_frames = bytes(1) + has_frames[1:]
        self._names.prefetch(filter(None, compress(words, has_frames.translate(INVERTED))))
        numbering, naming = Numbering((0, len(frames.line))), Numbering((0, len(frames.strings)))
        for start in range(0, len(words), size):
            part, chains = (column[start : start + size] for column in (words, columns.chains))
            is_located, tails = (column[start : start + size] for column in (has_frames, columns.approximate))
            in_words = {
                index: make_point(self._names, buffer, record.decode_record(part, index, buffer.encoding))
                for index in compress(count(), is_located.translate(INVERTED))
            }
            if in_words:
                part, chains = (array("Q", compress(column, is_located)) for column in (part, chains))
                tails = bytes(compress(tails, is_located))
            lengths, numbers = flatten_chains(frames, chains)
            distinct = low_halves(numbering.number(numbers))
            functions, files, lines = (gather(distinct, column, 0) for column in (frames.function, frames.file, frames.line))
            strings = naming.number(functions, files)
            yield PointChunk(
                part,
                buffer.kaslr_offset,
                list(compress(count(), tails)),
                lengths,
                numbering.ids(numbers),
                [frames.strings[string] or "" for string in strings],
                naming.ids(functions),
                naming.ids(files),
                lines,
                in_words,
            )


def _frame_text(frame: Frame) -> str:
    return f"{frame.function or UNKNOWN} {place_text(frame)}"


def make_point(names: LocationCache, buffer: Buffer, found: record.Record) -> Point:
    """Return a record as the page shows it."""
    row = locate_record(buffer, names, found)
    text = record_text(row, big_endian=buffer.encoding.big_endian)
    function = f"{text.sign} {text.function}" if text.sign else text.function
    if not text.has_address:
        return Point(function, text.place)
    head = f"{found.pc:#x}"
    if buffer.kaslr_offset:
        head += f" at {row.address:#x}"
    if text.operands:
        head += f"  {text.operands}"
    frames = () if row.location is None else tuple(map(_frame_text, row.location.frames))
    return Point(function, "  ".join(filter(None, (text.operands, text.place))), frames, f"{head}  ")


def is_plain(buffers: Sequence[Buffer]) -> bool:
    """Return whether records are PCs and no more, which need not be decoded one by one."""
    codecs = {buffer.encoding.codec for buffer in buffers}
    return codecs == {record.PC} and not any(buffer.gaps for buffer in buffers) and len({b.kaslr_offset for b in buffers}) == 1


MAX_RECORDS: Final = 1 << 20
"""Limit for the records of a trace; further ones are left out."""
_IN_CHUNK: Final = 1 << 14
_ARROW: Final = " ← "
MAX_INLINE: Final = 1 << 14
"""Limit for the points that are in the page as they are; more are in chunks."""


class Point(NamedTuple):
    """A record in words; records with the same words share it."""

    function: str
    place: str = ""
    frames: tuple[str, ...] = ()
    """All frames, innermost first."""
    head: str = ""
    """The address and operands, shown before the frames."""


class PointChunk(NamedTuple):
    """Consecutive points as columns. The page's script puts them into words as :meth:`points` does: a kernel has a million."""

    pcs: Sequence[int] = ()
    """Of the points without words, ascending."""
    offset: int = 0
    """The KASLR offset."""
    tails: Sequence[int] = ()
    """The indexes of those whose location is approximate."""
    lengths: Sequence[int] = ()
    """Number of frames of each."""
    frames: Sequence[int] = ()
    """The numbers of their frames, innermost first."""
    strings: Sequence[str] = ()
    """Names of functions and files, empty for an unknown one."""
    functions: Sequence[int] = ()
    """Of each frame, an index of the strings, as for its file."""
    files: Sequence[int] = ()
    lines: Sequence[int] = ()
    """Of each frame; 0 for an unknown one."""
    words: Mapping[int, Point] = {}
    """Points in words, by their index in the chunk."""

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.pcs) + len(self.words)

    def points(self) -> Iterator[Point]:
        """Iterate over the points."""
        frames = iter(self.frames)
        tails = frozenset(self.tails)
        located = enumerate(zip(self.pcs, self.lengths, strict=True))
        for index in range(len(self)):
            if index in self.words:
                yield self.words[index]
                continue
            at, (pc, length) = next(located)
            chain = [self._frame(number) for number in islice(frames, length)]
            function = inlined_text(chain[0].function or UNKNOWN, chain[-1].function or UNKNOWN)
            head = f"{pc:#x} at {address_of(pc, self.offset):#x}  " if self.offset else f"{pc:#x}  "
            yield Point(
                f"{function} {APPROXIMATE}" if at in tails else function,
                place_text(chain[0]),
                tuple(map(_frame_text, chain)),
                head,
            )

    def _frame(self, number: int) -> Frame:
        function, file = (self.strings[column[number]] or None for column in (self.functions, self.files))
        return Frame(function, file, self.lines[number], None)

    def text(self) -> str:
        """Return the JSON that the page's script reads."""
        base = self.pcs[0] if self.pcs else 0
        numbers = self.tails, self.lengths, self.frames, self.functions, self.files, self.lines
        return packed_text(
            {
                "base": f"{base:#x}",
                "offset": f"{self.offset:#x}",
                "strings": escape_all(self.strings),
                "numbers": list(map(packed_numbers, ([pc - base for pc in self.pcs], *numbers))),
                "words": {index: _shown(point) for index, point in self.words.items()},
            }
        )


class ChunkedPoints(Protocol):
    """Points of which there are many."""

    def __len__(self) -> int:
        """Return their number."""

    def chunks(self, size: int) -> Iterator[PointChunk]:
        """Iterate over chunks of a size, of which the last may be smaller."""


def _shown(point: Point) -> list[str]:
    return [escape(point.function), escape(point.place), escape(point.head + _ARROW.join(point.frames))]


class RowSpan(NamedTuple):
    """Consecutive rows: records that both traces have, or records between those."""

    left: int
    """Index of the first record on the left."""
    left_length: int
    right: int
    right_length: int
    is_equal: bool


@dataclass(frozen=True, slots=True)
class TraceData:
    """The data of the panes."""

    names: Sequence[str]
    """Of the traces: one or two."""
    points: Collection[Point] | ChunkedPoints
    records: Sequence[array[int]]
    """Of each trace: the number of each record's point; typecode I."""
    segments: Sequence[RowSpan]


def trace_markup(data: TraceData) -> Iterator[str]:
    """Yield the panes and the data of the script that fills them."""
    pair = len(data.names) > 1
    differences = sum(not segment.is_equal for segment in data.segments) if pair else 0
    yield '<div class="viewer" id="viewer">'
    yield '<div class="tools">'
    if pair:
        disabled = "" if differences else " disabled"
        yield f'<button type="button" id="previous"{disabled}>Previous difference <kbd>p</kbd></button>'
        yield f'<button type="button" id="next"{disabled}>Next difference <kbd>n</kbd></button>'
    yield '<label>Find <input id="find" type="search" placeholder="function or file, then Enter" autocomplete="off"></label>'
    yield '<p id="position" role="status" aria-live="polite"></p></div>'
    yield '<div class="panes">'
    for number, name in enumerate(data.names):
        yield (
            f'<div class="pane"><h3 id="pane{number}-name">{text(name)}</h3>'
            f'<div class="rows" id="pane{number}" role="grid" tabindex="0" aria-labelledby="pane{number}-name" '
            'aria-describedby="keys"><div class="height"><div class="shown"></div></div></div></div>'
        )
    yield "</div>"
    yield '<p id="detail" class="detail"></p>'
    difference_keys = "<kbd>n</kbd> and <kbd>p</kbd> go to the next and the previous difference; " if pair else ""
    yield (
        f'<p id="keys" class="keys">{difference_keys}<kbd>j</kbd> <kbd>k</kbd> or arrows move, <kbd>Page Up</kbd> '
        "<kbd>Page Down</kbd> <kbd>Home</kbd> <kbd>End</kbd> move further; <kbd>/</kbd> finds.</p>"
    )
    yield "<noscript><p>Showing the records needs JavaScript; the rest of the page does not.</p></noscript>"
    yield "</div>"
    content: dict[str, object] = {
        "records": list(map(packed_numbers, data.records)),
        "segments": [[int(part) for part in segment] for segment in data.segments],
    }
    if len(data.points) <= MAX_INLINE:
        content["points"] = [_shown(point) for chunk in _parts(data.points) for point in chunk.points()]
    else:
        yield from chunk_lines("points", (part.text() for part in _parts(data.points)))
        content |= {"chunk": _IN_CHUNK, "arrow": _ARROW, "approximate": APPROXIMATE, "unknown": UNKNOWN}
    yield f'<script type="application/json" id="trace">{json_text(content)}'
    yield "</script>"


def _parts(points: Collection[Point] | ChunkedPoints) -> Iterator[PointChunk]:
    """Iterate over points in parts."""
    if not isinstance(points, Collection):
        yield from points.chunks(_IN_CHUNK)
        return
    left = iter(points)
    while part := list(islice(left, _IN_CHUNK)):
        yield PointChunk(words=dict(enumerate(part)))
