# SPDX-License-Identifier: LGPL-2.1-or-later
"""One trace, or two side by side, as data that the page draws a screenful at a time."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kcovdbg.render.escape import escape
from kcovdbg.render.report.markup import json_text, text

MAX_RECORDS: Final = 1 << 20
"""Limit for the records of a trace; further ones are left out."""
_SMALL: Final = 1 << 16


class Point(NamedTuple):
    """A record in words; records with the same words share it."""

    function: str
    place: str
    detail: str
    """All frames and operands, on one line."""


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
    points: Sequence[Point]
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
    yield '<script type="application/json" id="trace">' + json_text(
        {
            "points": [[escape(part) for part in point] for point in data.points],
            "records": [_encode(records, len(data.points)) for records in data.records],
            "segments": [[int(part) for part in segment] for segment in data.segments],
        }
    )
    yield "</script>"


def _encode(records: array[int], points: int) -> dict[str, object]:
    """Encode numbers in base64 as little-endian words, of 16 bits where they fit."""
    words = array("H", records) if points <= _SMALL else array("I", records)
    if sys.byteorder == "big":
        words.byteswap()
    return {"bits": 8 * words.itemsize, "words": b64encode(words.tobytes()).decode("ascii")}
