# SPDX-License-Identifier: LGPL-2.1-or-later
"""One trace, or two side by side, as data that the page draws a screenful at a time."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Final, NamedTuple

from kcovdbg.render.escape import escape
from kcovdbg.render.report.chunks import chunk_lines
from kcovdbg.render.report.markup import json_text, text

MAX_RECORDS: Final = 1 << 20
"""Limit for the records of a trace; further ones are left out."""
_SMALL: Final = 1 << 16
_IN_CHUNK: Final = 1 << 12
_NARROWEST: Final = 22
_ARROW: Final = " ← "
MAX_INLINE: Final = 4 * _IN_CHUNK
"""Limit for the points that are in the page as they are; more are in chunks."""


class Point(NamedTuple):
    """A record in words; records with the same words share it."""

    function: str
    place: str = ""
    frames: tuple[str, ...] = ()
    """All frames, innermost first."""
    head: str = ""
    """The address and operands, shown before the frames."""


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
    points: Collection[Point]
    """Made while they are iterated over, where there are many."""
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
        "records": [_encode(records, len(data.points)) for records in data.records],
        "segments": [[int(part) for part in segment] for segment in data.segments],
    }
    if len(data.points) <= MAX_INLINE:
        content["points"] = [
            [escape(point.function), escape(point.place), escape(point.head + _ARROW.join(point.frames))]
            for point in data.points
        ]
    else:
        chunks = _Chunks(data.points)
        yield from chunk_lines("points", chunks)
        content |= {"chunk": _IN_CHUNK, "arrow": _ARROW, "widest": chunks.widest}
    yield f'<script type="application/json" id="trace">{json_text(content)}'
    yield "</script>"


class _Chunks:
    """Points in parts, in each of which equal texts are shared."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._points = iter(points)
        self.widest = 0
        """Characters of the widest row, known after iterating."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the parts as JSON: texts, and the numbers of the texts of each point, its head before the frames."""
        while part := list(islice(self._points, _IN_CHUNK)):
            numbers: defaultdict[str, int] = defaultdict(count().__next__)
            number = numbers.__getitem__
            points = [[*map(number, (function, place, head, *frames))] for function, place, frames, head in part]
            self.widest = max(self.widest, max(max(len(point.function), _NARROWEST) + len(point.place) for point in part))
            yield json_text([list(map(escape, numbers)), points])


def _encode(records: array[int], points: int) -> dict[str, object]:
    """Encode numbers in base64 as little-endian words, of 16 bits where they fit."""
    words = array("H", records) if points <= _SMALL else array("I", records)
    if sys.byteorder == "big":
        words.byteswap()
    return {"bits": 8 * words.itemsize, "words": b64encode(words.tobytes()).decode("ascii")}
