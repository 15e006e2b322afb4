# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state of a monitor's screen: list, order, filter, cursor, freeze and playback, independent of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from kcovdbg.console.full_screen import RowCursor, fit
from kcovdbg.console.grid import table_lines
from kcovdbg.console.renderable import Fragment, Line, Table
from kcovdbg.console.text import elide_start, pad, text_width
from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.monitor_source import MonitorSource, PlaybackSource
from kcovdbg.monitor.samples import Sample
from kcovdbg.monitor.screen_lists import (
    EVENTS,
    LISTS,
    MonitorList,
    Sort,
    clock_text,
    cost_line,
    sections_line,
    sort_by,
    totals_line,
)
from kcovdbg.monitor.summary import seconds_text

# Rows of a screen from which on the latest events are shown below the list, and how many at most.
_ROWS_FOR_EVENTS: Final = 16
_MOST_EVENTS: Final = 6


class ScreenLine(NamedTuple):
    """One line of the screen."""

    fragments: Line
    style: str = ""


class MonitorState(RowCursor):
    """The state of a monitor on the screen.

    :param source: of what it shows.
    """

    def __init__(self, source: MonitorSource) -> None:
        self.source = source
        self.filter = ""
        self.is_frozen = False
        self.message = ""
        self._key: Hashable = None
        self._number = 0
        self._sorts = [sort_by(column) for shown in LISTS for column in shown.columns if column.key == shown.sort]
        self.refresh()

    @property
    def playback(self) -> PlaybackSource | None:
        """The recording that is played back, None for a kernel."""
        return self.source if isinstance(self.source, PlaybackSource) else None

    @property
    def shown(self) -> MonitorList:
        """The list that is shown."""
        return LISTS[self._number]

    @property
    def sort(self) -> Sort:
        """The order of the list."""
        return self._sorts[self._number]

    @property
    def _sample(self) -> Sample:
        assert self.activity.sample is not None, "a screen begins with a look"
        return self.activity.sample

    @property
    def is_advancing(self) -> bool:
        """Whether there is a next sample to take now: a recorder goes on while the screen is frozen."""
        return self.source.pause is not None and (not self.is_frozen or self.source.is_recording)

    def advance(self) -> None:
        """Take the next sample."""
        self.source.advance()
        if not self.is_frozen:
            self.refresh()

    def refresh(self) -> None:
        """Show what the source has now."""
        self.activity: Activity = self.source.activity
        self._make_rows()

    def _make_rows(self) -> None:
        """Find the rows of the list, in order, and the columns that may be shown."""
        shown = self.shown
        self._columns = shown.columns
        self.rows: list[Any] = shown.rows(self.activity, self.filter, self.sort)
        if self._key is not None:
            # The cursor stays with its row.
            keys = map(shown.identity, self.rows)
            self.row = next((number for number, key in enumerate(keys) if key == self._key), self.row)
        self.clamp()

    # Moving.

    def go_to(self, row: int) -> None:
        """Put the cursor into a row."""
        super().go_to(row)
        # At the top, the cursor stays at the top.
        self._key = self.shown.identity(self.rows[self.row]) if self.rows and self.row else None

    @property
    def selected(self) -> str | None:
        """The name of the buffer of the row with the cursor."""
        return self.shown.buffer(self.rows[self.row]) if self.rows else None

    # Lists, order and filter.

    def turn_list(self, by: int) -> None:
        """Show another list."""
        self._number = (self._number + by) % len(LISTS)
        self.top = self.row = 0
        self._key = None
        self._make_rows()

    def turn_sort(self, by: int) -> None:
        """Sort by another column that is shown."""
        place = self._columns.index(self.sort.column) if self.sort.column in self._columns else 0
        self._sorts[self._number] = sort_by(self._columns[(place + by) % len(self._columns)])
        self.message = f"sorted by {self.sort.column.heading}"
        self._make_rows()

    def invert(self) -> None:
        """Invert the order."""
        self._sorts[self._number] = Sort(self.sort.column, not self.sort.is_reversed)
        self._make_rows()

    def set_filter(self, text: str) -> None:
        """Show only rows with this text."""
        self.filter = text
        self._make_rows()

    # Time.

    def toggle_freeze(self) -> None:
        """Freeze the screen or pause the playback, or go on."""
        self.is_frozen = not self.is_frozen
        if not self.is_frozen and self.playback is not None and self.source.pause is None:
            self.playback.go_to(0)
        self.refresh()

    def play(self, change: Callable[[PlaybackSource], object], *, pauses: bool = False) -> None:
        """Go elsewhere in a recording, or play it at another speed.

        :param pauses: whether to pause there.
        """
        if self.playback is not None:
            self.is_frozen = self.is_frozen or pauses
            change(self.playback)
            self.refresh()

    # Drawing.

    def lines(self, width: int, height: int) -> list[ScreenLine]:
        """Return the lines of a screen of this size, without the last one, which has the keys."""
        top = [
            (self._title(width), "bar"),
            (totals_line(self.activity), ""),
            (sections_line(self.activity), ""),
            (cost_line(self.activity, self.source.share), ""),
            (self._list_titles(), ""),
        ]
        bottom = [*((line, "") for line in self._event_lines(height)), (self._status(), "")]
        self.resize(height - len(top) - len(bottom) - 2)
        table = self._table(width)
        table += [((), "")] * (self.height + 1 - len(table))
        return [ScreenLine(fit(line, width), style) for line, style in (*top, *table, *bottom)][: max(height - 1, 0)]

    def _title(self, width: int) -> Line:
        sample = self._sample
        signs = " RECORDING " if self.playback is not None else " REC " if self.source.is_recording else ""
        signs += " FROZEN" if self.is_frozen and self.playback is None else ""
        right = f"{signs} {(sample.state or '').upper()}  {clock_text(sample.time)}  {seconds_text(self.activity.seconds)} "
        left = " kcovdbg monitor  "
        name = elide_start(sample.target or "unknown target", max(width - text_width(left) - text_width(right) - 1, 8))
        return (("", pad(left + name, width - text_width(right) - 1)), ("", f" {right}"))

    def _list_titles(self) -> Line:
        line: list[Fragment] = []
        for shown in LISTS:
            text = f" {shown.title} {len(shown.items(self.activity))} "
            line += [("bar" if shown is self.shown else "", text), ("", " ")]
        return line

    def _table(self, width: int) -> list[tuple[Line, str]]:
        """Return the heading of the list and the rows that are on the screen, with their styles."""
        sign = "▽" if self.sort.is_reversed else "△"
        titles = {column.key: column.heading + sign * (column is self.sort.column) for column in self.shown.columns}
        columns = [replace(column, is_chosen=True, title=titles[column.key]) for column in self.shown.columns]
        rows = self.rows[self.top : self.top + self.height]
        # Notes on columns that do not fit follow the rows.
        heading, *lines = islice(table_lines(Table(columns, rows), width), len(rows) + 1)
        fitting = {title.strip() for _, title in heading}
        self._columns = tuple(column for column in self.shown.columns if titles[column.key] in fitting)
        found: list[tuple[Line, str]] = [([("", title) for _, title in heading], "bar")]
        found += [(line, "cursor" if number == self.row else "") for number, line in enumerate(lines, self.top)]
        if not self.rows:
            text = f"nothing matches '{self.filter}'" if self.filter else self.shown.empty
            found.append(((("remark", text),), ""))
        return found

    def _event_lines(self, height: int) -> list[Line]:
        if height < _ROWS_FOR_EVENTS or self.shown is EVENTS:
            return []
        most = min(max(height // 6 - 1, 2), _MOST_EVENTS)
        lines: list[Line] = [
            (("gutter", f"{clock_text(event.time)} "), (event.style, event.text)) for event in self.activity.events[-most:]
        ]
        return [*lines, *[()] * (most - len(lines))]

    def _status(self) -> Line:
        line: list[Fragment] = []
        if self.source.problem is not None:
            line.append(("error", f"{self.source.problem}  "))
        elif self._sample.state == "stopped":
            line.append(("warning", "the machine is stopped: nothing changes  "))
        if self.filter:
            line.append(("key", f"filter '{self.filter}': {len(self.rows)} rows  "))
        if self.message:
            line.append(("", f"{self.message}  "))
        errors = self._sample.errors
        if errors and not line:
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            line.append(("remark", f"{errors[0]}{more}"))
        return line if self.playback is None else [("key", self._position(self.playback)), *line]

    def _position(self, source: PlaybackSource) -> str:
        at, end = (source.samples[index].time - source.samples[0].time for index in (source.index, -1))
        sign = "paused" if self.is_frozen else "end" if source.pause is None else "playing"
        look = f"look {source.index + 1}/{len(source.samples)}"
        return f"{sign} {seconds_text(at)} of {seconds_text(end)}, {look}, speed {source.speed:g}  "
