# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a reader of a view is looking at: cursor, scrolling, search, fold and filter. Knows no terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

from kcovdbg.analysis.rows import Row, Rows
from kcovdbg.commands.viewing import View
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.location import Location
from kcovdbg.render.renderable import Fragment
from kcovdbg.render.wording import frame_text

_SMALLEST = 1


class ViewState:
    """One reader's place in a view.

    :param view: what is shown.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.rows: Rows = view.rows
        self.row = 0
        """The cursor."""
        self.top = 0
        """The first row on the screen."""
        self.height = _SMALLEST
        """Rows on the screen."""
        self.message = ""
        self.shows_source = False
        self.shows_detail = False
        self.shows_help = False
        self.follows_mouse = True
        self.is_folded = False
        self.filter = ""
        self.looks = 1
        """How often the view was read."""
        self.ending = ""
        """Why it isn't read again."""
        self._pattern = ""
        self._matches: tuple[Callable[[int], bool], Callable[[int], bool]] | None = None

    # Moving.

    def resize(self, height: int) -> None:
        """Take the height that the screen has now."""
        self.height = max(height, _SMALLEST)
        self._clamp()

    def _clamp(self) -> None:
        last = max(len(self.rows) - 1, 0)
        self.row = min(max(self.row, 0), last)
        self.top = min(max(self.top, self.row - self.height + 1), self.row)
        self.top = max(min(self.top, last - self.height + 1), 0)

    def go_to(self, row: int) -> None:
        """Put the cursor into a row."""
        self.row = row
        self.message = ""
        self._clamp()

    def move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        self.go_to(self.row + rows)

    def scroll(self, rows: int) -> None:
        """Move the screen by so many rows, and the cursor with it where it would leave the screen."""
        last = max(len(self.rows) - self.height, 0)
        self.top = min(max(self.top + rows, 0), last)
        self.row = min(max(self.row, self.top), self.top + self.height - 1)
        self._clamp()

    def page(self, pages: float) -> None:
        """Move by so many screens."""
        rows = int(pages * self.height)
        self.top += rows
        self.move(rows)

    def go_to_record(self, text: str) -> None:
        """Go to a record by its index, or to a part of the view by its percentage."""
        try:
            if text.endswith("%"):
                self.go_to(int(float(text[:-1]) * max(len(self.rows) - 1, 0) / 100))
            else:
                self.go_to(self.rows.find(int(text, 0)))
        except (ValueError, OverflowError):
            self.message = f"{text} is no index and no percentage"

    def next_difference(self, *, backwards: bool = False) -> None:
        """Go to the nearest difference."""
        if self.view.right is None:
            self.message = "one buffer has nothing to differ from: view A B"
            return
        found = self.rows.next_difference(self.row, backwards=backwards) if len(self.rows) else None
        if found is None:
            self.message = "no difference before this" if backwards else "no further difference"
            return
        self.top = found - self.height // 3
        self.go_to(found)

    # Looking at one row.

    def current(self) -> Row | None:
        """Return the row under the cursor."""
        return self.rows.row(self.row) if self.row < len(self.rows) else None

    def line(self, number: int, width: int) -> list[Fragment]:
        """Show a row."""
        return self.view.line(self.rows.row(number), width, fill=number == self.row)

    def text_to_copy(self) -> str:
        """Return everything about the current row, as text."""
        row = self.current()
        lines = [] if row is None else self.view.detail(row)
        return "\n".join("".join(text for _, text in line) for line in lines)

    def position(self) -> str:
        """Say where the cursor is."""
        total = len(self.rows)
        text = f"{self.row + 1}/{total}  {100 * self.row // max(total - 1, 1)}%" if total else "nothing to show"
        if self.ending:
            text += f"  {self.ending}"
        elif self.view.renew is not None:
            text += f"  look {self.looks}"
        if not total:
            return text
        if self.is_folded:
            text += "  folded"
        if self.filter:
            text += f"  only {self.filter}"
        return text

    # Search, filter, fold.

    def search(self, text: str) -> None:
        """Go to the next record whose function, file or address matches a regular expression."""
        if not text:
            self._matches = None
            return
        wanted = self._make_test(text)
        if wanted is None:
            return
        self._pattern = text
        self._matches = self.view.matching(wanted)
        self.search_on()

    def search_on(self, *, backwards: bool = False) -> None:
        """Go to the next record that matches what was searched for last."""
        if self._matches is None:
            self.message = "nothing was searched for yet: /"
            return
        step = -1 if backwards else 1
        total = len(self.rows)
        # Around the end, back to where the cursor is.
        for distance in range(1, total + 1):
            number = (self.row + step * distance) % total
            if self._is_match(number):
                wrapped = number <= self.row if not backwards else number >= self.row
                if not self.top <= number < self.top + self.height:
                    self.top = number - self.height // 3
                self.go_to(number)
                self.message = f"/{self._pattern}" + (" (from the other end)" if wrapped else "")
                return
        self.message = f"no record matches {self._pattern}"

    def _is_match(self, number: int) -> bool:
        assert self._matches is not None
        row = self.rows.row(number)
        left, right = self._matches
        return (row.left is not None and left(row.left)) or (row.right is not None and right(row.right))

    def is_highlighted(self, number: int) -> bool:
        """Tell whether a row matches what was searched for."""
        return self._matches is not None and self._is_match(number)

    def set_filter(self, text: str) -> None:
        """Show only rows that match a regular expression; all rows again for an empty one."""
        wanted = self._make_test(text) if text else None
        if text and wanted is None:
            return
        self.filter = text
        self._rebuild()
        if text and not len(self.rows):
            self.message = f"no record matches {text}"

    def toggle_fold(self) -> None:
        """Fold what is alike, or unfold it."""
        self.is_folded = not self.is_folded
        self._rebuild()

    def _rebuild(self) -> None:
        row = self.current()
        self.rows = self._make_rows()
        rows = self.rows
        if row is not None and len(rows):
            is_right = row.left is None
            self.row = rows.find((row.right if is_right else row.left) or 0, right=is_right)
        self.top = self.row - self.height // 3
        self.go_to(self.row)

    def _make_rows(self) -> Rows:
        rows = self.view.folded() if self.is_folded else self.view.rows
        wanted = self._make_test(self.filter) if self.filter else None
        return rows if wanted is None else self.view.filtered(rows, wanted)

    def renew(self) -> None:
        """Take what is there now; a reader at the last row stays at the last row."""
        if self.view.renew is None or self.ending:
            return
        try:
            view = self.view.renew()
        except (KcovdbgError, OSError) as error:
            self.ending = f"not read again: {error}"
            return
        is_last = self.row >= len(self.rows) - 1
        self.view = view
        self.looks += 1
        self.rows = self._make_rows()
        if self._matches is not None:
            wanted = self._make_test(self._pattern)
            self._matches = None if wanted is None else view.matching(wanted)
        if is_last:
            self.row = len(self.rows) - 1
        self._clamp()

    def _make_test(self, text: str) -> Callable[[Location, int], bool] | None:
        """Make a test of a regular expression; one without capitals doesn't tell them apart."""
        try:
            pattern = re.compile(text, 0 if any(character.isupper() for character in text) else re.IGNORECASE)
        except re.error as error:
            self.message = f"{text} is no regular expression: {error}"
            return None

        def test(location: Location, pc: int) -> bool:
            if pattern.search(f"{pc:#x}"):
                return True
            return any(pattern.search(frame.function or "") or pattern.search(frame_text(frame)) for frame in location.frames)

        return test
