# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of full-screen views, cut to a width or two side by side, and a cursor in rows.

Cut text ends in an ellipsis.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Final

from kcovdbg.console.renderable import Fragment, Line
from kcovdbg.console.text import elide, elide_start, escape, pad, text_width

GUTTER: Final = 3
"""Columns between two sides."""
_STYLES: Final = {"<": "left", ">": "right", "|": "changed"}
# A part of a title with one of these words says how much the buffer holds.
_COUNTS: Final = ("record", " bits", "FULL", " shown")


class RowCursor:
    """A cursor in rows; the screen shows some of the rows."""

    rows: Sized
    row = 0
    """The cursor."""
    top = 0
    """The first row on the screen."""
    height = 1
    """Rows on the screen."""

    def resize(self, height: int) -> None:
        """Set the height of the screen."""
        self.height = max(height, 1)
        self.clamp()

    def clamp(self) -> None:
        """Keep the cursor in the rows, and on the screen."""
        last = max(len(self.rows) - 1, 0)
        self.row = min(max(self.row, 0), last)
        self.top = min(max(self.top, self.row - self.height + 1), self.row)
        self.top = max(min(self.top, last - self.height + 1), 0)

    def go_to(self, row: int) -> None:
        """Put the cursor into a row."""
        self.row = row
        self.clamp()

    def move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        self.go_to(self.row + rows)

    def page(self, pages: float) -> None:
        """Move by so many screens."""
        rows = int(pages * self.height)
        self.top += rows
        self.move(rows)


def panel_width(width: int) -> int:
    """Return the width of each side on a screen of this width."""
    return max((width - GUTTER) // 2, 1)


def fit(line: Line, width: int, *, fill: bool = True) -> list[Fragment]:
    """Cut or fill a line to a width.

    :param fill: False to leave a short line as it is, because drawing cells takes time.
    """
    fitted: list[Fragment] = []
    room = width
    for index, (style, text) in enumerate(line, 1):
        text = escape(text)
        taken = text_width(text)
        if taken < room or (taken == room and not any(part for _, part in line[index:])):
            fitted.append((style, text))
            room -= taken
        else:
            # A text that just fits is also cut, because the texts after it are missing.
            fitted.append((style, pad(elide(f"{text} ", room), room)))
            return fitted
    if room and fill:
        fitted.append(("", " " * room))
    return fitted


def join(left: Line, mark: str, right: Line) -> list[Fragment]:
    """Join two lines that already have their widths.

    :param mark: ``=`` for equal lines, ``<``, ``>`` or ``|`` for a difference, or another sign.
    """
    if mark == "=":
        # Without color: green functions and blue paths would look like differences.
        return [*_restyle(left, ""), ("gutter", " │ "), *_restyle(right, "")]
    if mark not in _STYLES:
        return [*left, ("gutter", " │ "), *right]
    style = _STYLES[mark]
    return [*_restyle(left, style), (style, f" {mark} "), *_restyle(right, style)]


def _restyle(line: Line, style: str) -> Line:
    """Return the line in one style."""
    return [(style, text) for _, text in line]


def fit_title(title: str, width: int) -> str:
    """Return a title, without its least important parts if it is too wide.

    :param title: parts that are separated by commas. The first one, which is the name, and the
        number of records stay.
    """
    parts = title.split(", ")
    droppable = [part for part in parts[1:] if not any(word in part for word in _COUNTS)]
    # The object's address goes first: the title also names the object's task.
    for part in sorted(droppable, key=lambda part: not part.startswith("kcov ")):
        if text_width(escape(", ".join(parts))) <= width:
            break
        parts.remove(part)
    return ", ".join(parts)


def columns(
    texts: Sequence[tuple[str, str, int]], width: int, *, fill: bool = False
) -> list[Fragment]:
    """Lay out the parts of one record in a width; the last part is cut at its start.

    :param texts: style, text and width of each; parts of width 0 share the remaining width.
    :param fill: whether to fill the line with blanks.
    """
    flexible = [index for index, (_, _, size) in enumerate(texts) if not size]
    fixed = sum(size for _, _, size in texts) + len(texts) - 1
    if fixed > width or not flexible:
        # Too narrow: show the first parts.
        return fit([(style, f"{text} ") for style, text, _ in texts], width, fill=fill)
    room = width - fixed
    parts: list[Fragment] = []
    last = len(texts) - 1
    taken = fixed
    for index, (style, text, size) in enumerate(texts):
        text = escape(text)
        if size:
            text = pad(elide(text, size), size, right=style == "number")
        else:
            wide = text_width(text)
            if index != flexible[-1]:
                # The function's name first; its place gets the rest.
                share = max(room * 3 // 5, room - text_width(escape(texts[flexible[-1]][1])))
                if wide > share:
                    text = elide(text, share)
                    wide = text_width(text)
                room -= wide
            elif wide > room:
                text = elide_start(text, room)
                wide = text_width(text)
            taken += wide
        # The blank after a part has its style: a change of style costs more than a cell.
        parts.append((style, text if index == last else f"{text} "))
    if fill and taken < width:
        parts.append(("", " " * (width - taken)))
    return parts
