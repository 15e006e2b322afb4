# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of traces as the points of an HTML page: each record is the number of a point, which is put into words once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress, count

from kcovdbg.abi import record
from kcovdbg.console.wording import UNREADABLE, place_text, record_text
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame
from kcovdbg.records.located_records import locate_record
from kcovdbg.records.pc_names import UNKNOWN, LocationCache
from kcovdbg.report.trace import Point, PointChunk


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
        buffer, words = self._buffer, self._words
        columns = self._names.columns(words)
        # A word without an address is no PC, even if something is there.
        exact = bytes(1) + columns.exact[1:] if words and not words[0] else columns.exact
        self._names.prefetch(pc for pc, located in zip(words, exact, strict=True) if pc and not located)
        for start in range(0, len(words), size):
            part, is_located = words[start : start + size], exact[start : start + size]
            in_words = {
                index: make_point(self._names, buffer, record.decode_record(part, index, buffer.encoding))
                for index, located in enumerate(is_located)
                if not located
            }
            chains = columns.chains[start : start + size]
            if in_words:
                part, chains = (array("Q", compress(column, is_located)) for column in (part, chains))
            lengths, numbers = columns.flatten(chains)
            distinct = dict.fromkeys(numbers)
            number_of = dict(zip(distinct, count()))
            frames = list(map(columns.frame, distinct))
            yield PointChunk(
                part,
                buffer.kaslr_offset,
                lengths,
                list(map(number_of.__getitem__, numbers)),
                [frame.function or UNKNOWN for frame in frames],
                list(map(place_text, frames)),
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
