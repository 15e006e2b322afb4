# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two texts side by side, in one line of a given width. Nothing is dropped without a sign: what is cut ends in an ellipsis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcovdbg.render.escape import escape
from kcovdbg.render.renderable import Fragment, Line
from kcovdbg.render.width import elide, elide_start, pad, text_width

_GUTTER: Final = 3
_STYLES: Final = {"<": "left", ">": "right", "|": "changed", "=": "", " ": ""}


def panel_width(width: int) -> int:
    """Return how wide each side is on a screen of this width."""
    return max((width - _GUTTER) // 2, 1)


def fit(line: Line, width: int, *, fill: bool = True) -> list[Fragment]:
    """Cut or fill a line so that it takes exactly so many columns.

    :param fill: False to leave a short line short: each cell that is drawn costs time.
    """
    fitted: list[Fragment] = []
    room = width
    last = len(line) - 1
    for index, (style, text) in enumerate(line):
        text = escape(text)
        taken = text_width(text)
        if taken < room or (taken == room and (index == last or not any(part for _, part in line[index + 1 :]))):
            fitted.append((style, text))
            room -= taken
        else:
            text = elide(text, room) if taken > room else elide(text + " ", room)
            fitted.append((style, pad(text, room)))
            return fitted
    if room and fill:
        fitted.append(("", " " * room))
    return fitted


def pair(left: Line | None, mark: str, right: Line | None, width: int, *, fill: bool = True) -> list[Fragment]:
    """Put two lines beside each other.

    :param left: None for a gap.
    :param mark: ``=``, ``<``, ``>``, ``|`` or a blank, between them.
    :param right: None for a gap.
    :param width: of the whole line, in columns.
    :param fill: as in :func:`fit`, of the right side.
    """
    side = panel_width(width)
    rest = max(width - side - _GUTTER, 0)
    style = _STYLES.get(mark, "")
    shown = "│" if mark in ("=", " ") else mark
    return [
        *fit(_restyle(left or (), style), side),
        (style or "gutter", f" {shown} "),
        *fit(_restyle(right or (), style), rest, fill=fill),
    ]


def _restyle(line: Line, style: str) -> Line:
    """Let what differs stand out as a whole, instead of by what it is."""
    return [(style, text) for _, text in line] if style else line


def columns(texts: Sequence[tuple[str, str, int]], width: int) -> list[Fragment]:
    """Lay out the parts of one record: each has a width, the last but one gives way, and the last is cut at its start.

    :param texts: style, text and width of each; a width of 0 is what is left over, shared by those that have it.
    """
    fixed = sum(size + 1 for _, _, size in texts if size)
    flexible = [index for index, (_, _, size) in enumerate(texts) if not size]
    room = max(width - fixed - max(len(flexible) - 1, 0), 0)
    parts: list[Fragment] = []
    last = len(texts) - 1
    for index, (style, text, size) in enumerate(texts):
        text = escape(text)
        if size:
            text = pad(elide(text, size), size, right=style == "number")
        elif index == flexible[-1]:
            text = elide_start(text, room)
        else:
            # A function's name first; its place takes what remains.
            share = min(text_width(text), max(room * 3 // 5, room - text_width(escape(texts[flexible[-1]][1]))))
            text = elide(text, share)
            room -= share
        # The blank after a part has its style: a change of style costs more than a cell.
        parts.append((style, text if index == last else f"{text} "))
    return parts
