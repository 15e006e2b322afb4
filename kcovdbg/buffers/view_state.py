# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state of a view: cursor, scrolling, search, fold and filter, independent of a terminal."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from kcovdbg.buffers.trace_view import TraceView
from kcovdbg.console.full_screen import RowCursor
from kcovdbg.console.renderable import Fragment
from kcovdbg.console.wording import place_text
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.location import Location
from kcovdbg.records.alignment import ViewRow, ViewRows


class ViewState(RowCursor):
    """The state of a view on the screen.

    :param view: the view.
    """

    def __init__(self, view: TraceView) -> None:
        self.view = view
        self.rows: ViewRows = view.rows
        self.message = ""
        self.shows_source = False
        self.shows_detail = False
        self.is_folded = False
        self.filter = ""
        self.looks = 1
        """Number of times the buffers were read."""
        self.ending = ""
        """Why they are not read again; empty while they are."""
        self._pattern = ""
        self._matches: Callable[[ViewRow], bool] | None = None
        self._wanted: Callable[[ViewRow], bool] | None = None

    # Moving.

    def go_to_record(self, text: str) -> None:
        """Go to a record by its index, or to a percentage of the view."""
        try:
            if text.endswith("%"):
                self.go_to(int(float(text[:-1]) * max(len(self.rows) - 1, 0) / 100))
            else:
                self.go_to(self.rows.find(int(text, 0)))
        except (ValueError, OverflowError):
            self.message = f"'{text}' is not an index or percentage"

    def next_difference(self, *, backwards: bool = False) -> None:
        """Go to the nearest difference."""
        if self.view.right is None:
            self.message = "only one buffer is shown; use view A B for differences"
            return
        starts = self.rows.find_differences()
        number = bisect_left(starts, self.row) - 1 if backwards else bisect_right(starts, self.row)
        if not 0 <= number < len(starts):
            self.message = "no previous difference" if backwards else "no further difference"
            return
        self.top = starts[number] - self.height // 3
        self.go_to(starts[number])
        self.message = f"difference {number + 1} of {len(starts)}"

    # Looking at one row.

    def toggle_source(self) -> None:
        """Show the source of the current record, or hide it."""
        self.shows_source = not self.shows_source

    def toggle_detail(self) -> None:
        """Show all of the current record, or hide it."""
        self.shows_detail = not self.shows_detail

    def current(self) -> ViewRow | None:
        """Return the row under the cursor."""
        return self.rows.row(self.row) if self.row < len(self.rows) else None

    def line(self, number: int, width: int) -> list[Fragment]:
        """Return a row of the screen."""
        return self.view.line(self.rows.row(number), width, fill=number == self.row)

    def position(self) -> str:
        """Return the position of the cursor, in words."""
        total = len(self.rows)
        text = "no records"
        if total:
            text = f"{self.row + 1}/{total}  {100 * self.row // max(total - 1, 1)}%"
        if self.ending:
            text += f"  {self.ending}"
        elif self.view.renew is not None:
            text += "  read once" if self.looks == 1 else f"  read {self.looks} times"
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
        matches = self._find_matches(text)
        if matches is not None:
            self._pattern, self._matches = text, matches
            self.search_on()

    def search_on(self, *, backwards: bool = False) -> None:
        """Go to the next match of the last search."""
        if self._matches is None:
            self.message = "no search yet; use /"
            return
        step = -1 if backwards else 1
        total = len(self.rows)
        # Search beyond the end from the other end, back to the cursor.
        for distance in range(1, total + 1):
            number = (self.row + step * distance) % total
            if self._matches(self.rows.row(number)):
                has_wrapped = (number - self.row) * step <= 0
                if not self.top <= number < self.top + self.height:
                    self.top = number - self.height // 3
                self.go_to(number)
                wrapped = " (wrapped)" if has_wrapped else ""
                self.message = f"/{self._pattern}{wrapped}{self._found_address()}"
                return
        self.message = f"no match for '{self._pattern}'"

    def _found_address(self) -> str:
        """Return the addresses of the current record, if the search found it by one of them."""
        row = self.current()
        if row is None:
            return ""
        pattern = re.compile(self._pattern, re.IGNORECASE)
        for pc in self.view.row_pcs(row):
            spellings = self.view.addresses(pc)
            if any(map(pattern.search, spellings)):
                return f"  PC {' at '.join(spellings)}"
        return ""

    def is_highlighted(self, number: int) -> bool:
        """Return whether a row matches the search."""
        return self._matches is not None and self._matches(self.rows.row(number))

    def set_filter(self, text: str) -> None:
        """Show only rows that match a regular expression; all rows again for an empty one."""
        wanted = self._find_matches(text) if text else None
        if text and wanted is None:
            return
        self.filter, self._wanted = text, wanted
        self._rebuild()
        if text and not len(self.rows):
            self.message = f"no match for '{text}'"

    def toggle_fold(self) -> None:
        """Fold or unfold the rows."""
        self.is_folded = not self.is_folded
        self._rebuild()

    def _rebuild(self) -> None:
        row = self.current()
        self.rows = self._make_rows()
        if row is not None and len(self.rows):
            # A row of a gap on the left has a record on the right.
            if row.left is not None:
                self.row = self.rows.find(row.left)
            else:
                self.row = self.rows.find(row.right or 0, right=True)
        self.top = self.row - self.height // 3
        self.go_to(self.row)

    def _make_rows(self) -> ViewRows:
        rows = self.view.folded() if self.is_folded else self.view.rows
        if self._wanted is None:
            return rows
        return rows.filter(self._wanted)

    def renew(self) -> None:
        """Read the buffers again; a cursor on the last row stays on the last row."""
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
        # The tests of rows are bound to the view.
        if self._matches is not None:
            self._matches = self._find_matches(self._pattern)
        if self._wanted is not None:
            self._wanted = self._find_matches(self.filter)
        self.rows = self._make_rows()
        if is_last:
            self.row = len(self.rows) - 1
        self.clamp()

    def _find_matches(self, text: str) -> Callable[[ViewRow], bool] | None:
        """Return a test of rows by a regular expression, which ignores case unless it has capitals.

        :return: None for invalid text, with a message about it.
        """
        try:
            has_capitals = any(map(str.isupper, text))
            pattern = re.compile(text, 0 if has_capitals else re.IGNORECASE)
            address_pattern = re.compile(text, re.IGNORECASE)
        except re.error as error:
            self.message = f"'{text}' is not a regular expression: {error}"
            return None

        def test(location: Location, pc: int) -> bool:
            if any(address_pattern.search(address) for address in self.view.addresses(pc)):
                return True
            return any(
                pattern.search(frame.function or "") or pattern.search(place_text(frame))
                for frame in location.frames
            )

        return self.view.matching(test)
