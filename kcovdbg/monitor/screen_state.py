# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state of a monitor's screen: list, order, filter, cursor, freeze and playback, independent of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from kcovdbg.console.column import Column
from kcovdbg.console.full_screen import fit
from kcovdbg.console.grid import table_lines
from kcovdbg.console.renderable import Fragment, Line, Table
from kcovdbg.console.text import elide_start, text_width
from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.monitor_source import MonitorSource, PlaybackSource
from kcovdbg.monitor.rows import (
    COLUMNS,
    MonitorRow,
    Tab,
    clock_text,
    cost_line,
    event_style,
    event_text,
    filter_rows,
    is_reversed,
    make_rows,
    sections_line,
    sort_rows,
    totals_line,
)
from kcovdbg.monitor.summary import seconds_text

_TABS: Final = tuple(Tab)
# The keys of the columns by which the lists are sorted at first: tasks by records a second.
_FIRST_SORT: Final = dict(zip(_TABS, ("rate", "begun", "object", "time"), strict=True))
_EMPTY: Final = {
    Tab.TASKS: "no task with KCOV state",
    Tab.SECTIONS: "no remote section was seen",
    Tab.OBJECTS: "no object",
    Tab.EVENTS: "nothing happened yet",
}
# Rows of a screen from which on the latest events are shown below the list, and how many at most.
_ROWS_FOR_EVENTS: Final = 16
_MOST_EVENTS: Final = 6


class ScreenLine(NamedTuple):
    """One line of the screen."""

    fragments: Line
    style: str = ""


class _Sort(NamedTuple):
    key: str
    """Of the column."""
    inverted: bool = False


class MonitorState:
    """The state of a monitor on the screen.

    :param source: of what it shows.
    """

    def __init__(self, source: MonitorSource) -> None:
        self.source = source
        self.tab = Tab.TASKS
        self.filter = ""
        self.is_frozen = False
        self.message = ""
        self.top = 0
        self.cursor = 0
        self._key: Hashable = None
        # The latest events come first.
        self._sorts = {tab: _Sort(key, tab is Tab.EVENTS) for tab, key in _FIRST_SORT.items()}
        self._height = 1
        self.refresh()

    @property
    def playback(self) -> PlaybackSource | None:
        """The recording that is played back, None for a kernel."""
        return self.source if isinstance(self.source, PlaybackSource) else None

    @property
    def sort(self) -> _Sort:
        """The order of the list."""
        return self._sorts[self.tab]

    @property
    def sort_column(self) -> Column:
        """The column by which the list is sorted."""
        return next(column for column in COLUMNS[self.tab] if column.key == self.sort.key)

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
        self._shown_keys = [column.key for column in COLUMNS[self.tab]]
        rows = filter_rows(make_rows(self.activity, self.tab), self.tab, self.filter)
        self.rows: list[MonitorRow] = sort_rows(rows, self.sort_column, inverted=self.sort.inverted)
        if self._key is not None:
            # The cursor stays with its row.
            self.cursor = next((number for number, row in enumerate(self.rows) if row.key == self._key), self.cursor)
        self._clamp()

    # Moving.

    def _clamp(self) -> None:
        last = max(len(self.rows) - 1, 0)
        self.cursor = min(max(self.cursor, 0), last)
        self.top = min(max(self.top, self.cursor - self._height + 1), self.cursor)
        self.top = max(min(self.top, last - self._height + 1), 0)

    def go_to(self, row: int) -> None:
        """Put the cursor into a row."""
        self.cursor = row
        self._clamp()
        # At the top, the cursor stays at the top.
        self._key = self.rows[self.cursor].key if self.rows and self.cursor else None

    def move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        self.go_to(self.cursor + rows)

    def page(self, pages: int) -> None:
        """Move by so many screens."""
        self.top += pages * self._height
        self.move(pages * self._height)

    @property
    def selected(self) -> MonitorRow | None:
        """The row with the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    # Lists, order and filter.

    def turn_tab(self, by: int) -> None:
        """Show another list."""
        self.tab = _TABS[(_TABS.index(self.tab) + by) % len(_TABS)]
        self.top = self.cursor = 0
        self._key = None
        self._make_rows()

    def turn_sort(self, by: int) -> None:
        """Sort by another column that is shown."""
        place = self._shown_keys.index(self.sort.key) if self.sort.key in self._shown_keys else 0
        self._sorts[self.tab] = _Sort(self._shown_keys[(place + by) % len(self._shown_keys)])
        self.message = f"sorted by {self.sort_column.heading}"
        self._make_rows()

    def invert(self) -> None:
        """Invert the order."""
        self._sorts[self.tab] = _Sort(self.sort.key, not self.sort.inverted)
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
        source = self.source
        events = self._event_lines(width, height)
        top = [
            self._title(width),
            ScreenLine(fit(totals_line(self.activity), width)),
            ScreenLine(fit(sections_line(self.activity), width)),
            ScreenLine(fit(cost_line(self.activity, source.share), width)),
            self._tabs(width),
        ]
        self._height = max(height - len(top) - len(events) - 3, 1)
        self._clamp()
        table = self._table(width)
        table += [ScreenLine((("", " " * width),))] * (self._height + 1 - len(table))
        return [*top, *table, *events, ScreenLine(fit(self._status(), width))][: max(height - 1, 0)]

    def _table(self, width: int) -> list[ScreenLine]:
        """Return the heading of the list and the rows that are on the screen."""
        sign = "▽" if is_reversed(self.sort_column, inverted=self.sort.inverted) else "△"
        columns = [
            replace(column, is_chosen=True, title=column.heading + sign * (column.key == self.sort.key))
            for column in COLUMNS[self.tab]
        ]
        shown = range(self.top, min(self.top + self._height, len(self.rows)))
        table = Table(columns, [self.rows[number].item for number in shown])
        # Notes on columns that do not fit follow the rows.
        heading, *lines = islice(table_lines(table, width), len(shown) + 1)
        by_title = {column.heading: column.key for column in columns}
        self._shown_keys = [by_title[title.strip()] for _, title in heading]

        found = [ScreenLine(fit([("", title) for _, title in heading], width), "bar")]
        for number, line in zip(shown, lines, strict=True):
            found.append(ScreenLine(fit(line, width), "cursor" if number == self.cursor else ""))
        if not self.rows:
            text = f"nothing matches '{self.filter}'" if self.filter else _EMPTY[self.tab]
            found.append(ScreenLine(fit((("remark", text),), width)))
        return found

    def _title(self, width: int) -> ScreenLine:
        name = "unknown target"
        state = clock = ""
        if (sample := self.activity.sample) is not None:
            name, state, clock = (
                sample.target or name,
                sample.state or "",
                f"{clock_text(sample.time)}  {seconds_text(self.activity.seconds)}",
            )
        signs = " RECORDING " if self.playback is not None else " REC " if self.source.is_recording else ""
        signs += " FROZEN" if self.is_frozen and self.playback is None else ""
        right = f"{signs} {state.upper()}  {clock} "
        left = " kcovdbg monitor  "
        text = left + elide_start(name, max(width - text_width(left) - text_width(right) - 1, 8))
        gap = " " * max(width - text_width(text) - text_width(right), 1)
        return ScreenLine(fit((("", text + gap + right),), width), "bar")

    def _tabs(self, width: int) -> ScreenLine:
        activity = self.activity
        tasks = () if activity.sample is None else activity.sample.tasks
        lists = (tasks, activity.sections, activity.objects, activity.events)
        line: list[Fragment] = []
        for tab, items in zip(_TABS, lists, strict=True):
            line += [("bar" if tab is self.tab else "", f" {tab.value} {len(items)} "), ("", " ")]
        return ScreenLine(fit(line, width))

    def _event_lines(self, width: int, height: int) -> list[ScreenLine]:
        if height < _ROWS_FOR_EVENTS or self.tab is Tab.EVENTS:
            return []
        most = min(max(height // 6 - 1, 2), _MOST_EVENTS)
        lines: list[Line] = [
            (("gutter", f"{clock_text(event.time)} "), (event_style(event), event_text(event)))
            for event in self.activity.events[-most:]
        ]
        return [ScreenLine(fit(line, width)) for line in (*lines, *[()] * (most - len(lines)))]

    def _status(self) -> list[Fragment]:
        line: list[Fragment] = []
        if self.playback is not None:
            line.append(("key", self._position(self.playback)))
        sample = self.activity.sample
        if self.source.problem is not None:
            line.append(("error", f"{self.source.problem}  "))
        elif sample is not None and sample.state == "stopped":
            line.append(("warning", "the machine is stopped: nothing changes  "))
        if self.filter:
            line.append(("key", f"filter '{self.filter}': {len(self.rows)} rows  "))
        if self.message:
            line.append(("", f"{self.message}  "))
        errors = () if sample is None else sample.errors
        if errors and len(line) <= (self.playback is not None):
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            line.append(("remark", f"{errors[0]}{more}"))
        return line

    def _position(self, source: PlaybackSource) -> str:
        at, end = (source.samples[index].time - source.samples[0].time for index in (source.index, -1))
        sign = "paused" if self.is_frozen else "end" if source.pause is None else "playing"
        look = f"look {source.index + 1}/{len(source.samples)}"
        return f"{sign} {seconds_text(at)} of {seconds_text(end)}, {look}, speed {source.speed:g}  "
