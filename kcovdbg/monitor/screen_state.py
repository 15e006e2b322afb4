# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state of a monitor's screen: list, order, filter, cursor, freeze and playback, independent of a terminal; its keys."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from kcovdbg.console.column import Column
from kcovdbg.console.grid import table_lines
from kcovdbg.console.renderable import Fragment, Line, Table
from kcovdbg.console.side_by_side import fit
from kcovdbg.console.text import elide_start, text_width
from kcovdbg.console.view_keys import ViewKey
from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.monitor_source import LiveSource, MonitorSource, PlaybackSource
from kcovdbg.monitor.rows import (
    COLUMNS,
    MonitorRow,
    Tab,
    clock_text,
    cost_line,
    event_style,
    event_text,
    is_reversed,
    make_rows,
    sections_line,
    sort_rows,
    totals_line,
)
from kcovdbg.monitor.summary import seconds_text

_TABS: Final = tuple(Tab)
# The keys of the columns by which the lists are sorted at first: tasks by records a second.
_FIRST_SORT: Final = dict(zip(_TABS, ("rate", "begun", "object", "time", "rule"), strict=True))
_SPEEDS: Final = (0.125, 64.0)
# Rows of a screen from which on the latest events are shown below the list, and how many at most.
_ROWS_FOR_EVENTS: Final = 16
_MOST_EVENTS: Final = 6

_MOVING: Final = "↑ ↓ PgUp PgDn g G"

KEYS: Final = (
    ViewKey(("f1", "?", "h"), "F1 ?", "help", "show this help", "Help"),
    ViewKey(("f4", "/", "\\"), "F4 / \\", "filter", "show only rows with a text; Esc shows all again", "Filter"),
    ViewKey(("f6", ">", "."), "F6 > <", "sort-next", "sort by the next column or the one before, or click", "Sort"),
    ViewKey(("<", ","), "<", "sort-previous", ""),
    ViewKey(("I",), "I", "invert", "invert the order"),
    ViewKey(("P",), "P", "sort-rate", "sort tasks by records a second"),
    ViewKey(("M",), "M", "sort-fill", "sort tasks by how full their buffers are"),
    ViewKey(("N",), "N", "sort-pid", "sort tasks by thread id"),
    ViewKey(("tab",), "Tab S-Tab", "next-tab", "the next list or the one before, or click", "List"),
    ViewKey(("s-tab",), "S-Tab", "previous-tab", ""),
    ViewKey((" ", "z", "Z"), "Space z", "freeze", "freeze the screen, or pause the playback; go on", "Freeze"),
    ViewKey(("enter",), "Enter", "view", "view the buffer of this row; q comes back", "View"),
    ViewKey(("up", "k"), _MOVING, "up", "move, as the wheel and a click do"),
    ViewKey(("down", "j"), _MOVING, "down", ""),
    ViewKey(("pageup", "c-b"), _MOVING, "page-up", ""),
    ViewKey(("pagedown", "c-f"), _MOVING, "page-down", ""),
    ViewKey(("home", "g"), _MOVING, "first", ""),
    ViewKey(("end", "G"), _MOVING, "last", ""),
    ViewKey(("c-l",), "C-l", "redraw", "redraw the screen"),
    ViewKey(("q", "f10", "c-c", "c-q"), "q F10", "leave", "leave", "Quit"),
)
PLAYBACK_KEYS: Final = (
    ViewKey(("left",), "←", "back", "playback: 5 s back", "Back"),
    ViewKey(("right",), "→", "forward", "playback: 5 s on", "On"),
    ViewKey(("[",), "[", "look-back", "playback: one look back"),
    ViewKey(("]",), "]", "look-forward", "playback: one look on"),
    ViewKey(("0",), "0", "start", "playback: the start"),
    ViewKey(("$",), "$", "end", "playback: the end"),
    ViewKey(("+",), "+", "faster", "playback: twice as fast"),
    ViewKey(("-",), "-", "slower", "playback: half as fast"),
)


def footer_parts(*, is_playback: bool) -> list[tuple[str, str, str]]:
    """Return of each key in the footer its label, its word and its action."""
    keys = [*KEYS[:-1], *(PLAYBACK_KEYS if is_playback else ()), KEYS[-1]]
    return [(key.label.split()[0], key.footer, key.action) for key in keys if key.footer]


def help_lines(*, is_playback: bool) -> list[tuple[str, str]]:
    """Return the names and actions of the keys."""
    keys = (*KEYS, *(PLAYBACK_KEYS if is_playback else ()))
    return [(key.label, key.help) for key in keys if key.help]


class Region(Enum):
    """The kinds of lines on the screen."""

    TITLE = "title"
    TOTALS = "totals"
    TABS = "tabs"
    HEADING = "heading"
    ROW = "row"
    EVENT = "event"
    STATUS = "status"


class ScreenLine(NamedTuple):
    """One line of the screen."""

    region: Region
    fragments: Line
    style: str = ""
    row: int | None = None
    """The row of the list."""


class _Sort(NamedTuple):
    key: str
    """Of the column."""
    inverted: bool = False


class HeadingSpan(NamedTuple):
    """The place of a column on the screen."""

    key: str
    start: int
    end: int


class MonitorState:
    """The state of a monitor on the screen.

    :param source: of what it shows.
    :param share: of a core that looking and drawing may take; None for a recording.
    """

    def __init__(self, source: MonitorSource, share: float | None = None) -> None:
        self.source = source
        self.tab = Tab.TASKS
        self.filter = ""
        self.is_asking = False
        """Whether keys go to the filter."""
        self.is_frozen = False
        self.shows_help = False
        self.message = ""
        self.top = 0
        self.cursor = 0
        self._key: Hashable = None
        self._share = share
        # The latest events come first.
        self._sorts = {tab: _Sort(key, tab is Tab.EVENTS) for tab, key in _FIRST_SORT.items()}
        self.headings: list[HeadingSpan] = []
        self.activity: Activity = source.activity
        """What is shown."""
        self._rows: list[MonitorRow] = []
        self._height = 1
        self._used: list[tuple[float, float]] = []
        self.refresh()

    @property
    def playback(self) -> PlaybackSource | None:
        """The recording that is played back, None for a kernel."""
        return self.source if isinstance(self.source, PlaybackSource) else None

    @property
    def rows(self) -> list[MonitorRow]:
        """The rows of the list, in order."""
        return self._rows

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
        is_recording = isinstance(self.source, LiveSource) and self.source.is_recording
        return self.source.pause is not None and (not self.is_frozen or is_recording)

    def advance(self) -> None:
        """Take the next sample."""
        self.source.advance()
        self.note_use()
        if not self.is_frozen:
            self.refresh()

    def note_use(self) -> None:
        """Remember how much processor time was used until now."""
        now = time.monotonic()
        self._used = [*(used for used in self._used if now - used[0] < 3.0), (now, time.process_time())]

    def refresh(self) -> None:
        """Show what the source has now."""
        self.activity = self.source.activity
        self._make_rows()

    def _make_rows(self) -> None:
        wanted = self.filter.casefold()
        rows = [row for row in make_rows(self.activity, self.tab) if wanted in row.search.casefold()]
        self._rows = sort_rows(rows, self.sort_column, inverted=self.sort.inverted)
        if self._key is not None:
            # The cursor stays with its row.
            self.cursor = next((number for number, row in enumerate(self._rows) if row.key == self._key), self.cursor)
        self._clamp()

    # Moving.

    def _clamp(self) -> None:
        last = max(len(self._rows) - 1, 0)
        self.cursor = min(max(self.cursor, 0), last)
        self.top = min(max(self.top, self.cursor - self._height + 1), self.cursor)
        self.top = max(min(self.top, last - self._height + 1), 0)

    def go_to(self, row: int) -> None:
        """Put the cursor into a row."""
        self.cursor = row
        self._clamp()
        # At the top, the cursor stays at the top.
        self._key = self._rows[self.cursor].key if self._rows and self.cursor else None

    def move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        self.go_to(self.cursor + rows)

    def page(self, pages: int) -> None:
        """Move by so many screens."""
        self.top += pages * self._height
        self.move(pages * self._height)

    def scroll(self, rows: int) -> None:
        """Scroll by so many rows, and keep the cursor on the screen."""
        self.top = min(max(self.top + rows, 0), max(len(self._rows) - self._height, 0))
        self.go_to(min(max(self.cursor, self.top), self.top + self._height - 1))

    @property
    def selected(self) -> MonitorRow | None:
        """The row with the cursor."""
        return self._rows[self.cursor] if self.cursor < len(self._rows) else None

    # Lists, order and filter.

    def show_tab(self, tab: Tab) -> None:
        """Show a list."""
        self.tab = tab
        self.top = self.cursor = 0
        self._key = None
        self._make_rows()

    def turn_tab(self, by: int) -> None:
        """Show another list."""
        self.show_tab(_TABS[(_TABS.index(self.tab) + by) % len(_TABS)])

    def sort_by(self, key: str) -> None:
        """Sort by a column; by the same one once more, invert the order."""
        self._sorts[self.tab] = _Sort(key, key == self.sort.key and not self.sort.inverted)
        self._make_rows()

    def turn_sort(self, by: int) -> None:
        """Sort by another column that is shown."""
        shown = [span.key for span in self.headings] or [column.key for column in COLUMNS[self.tab]]
        place = shown.index(self.sort.key) if self.sort.key in shown else 0
        self._sorts[self.tab] = _Sort(shown[(place + by) % len(shown)])
        self.message = f"sorted by {self.sort_column.heading}"
        self._make_rows()

    def sort_tasks(self, key: str) -> None:
        """Show the tasks, sorted by a column."""
        if self.tab is not Tab.TASKS:
            self.show_tab(Tab.TASKS)
        self._sorts[Tab.TASKS] = _Sort(key)
        self._make_rows()

    def invert(self) -> None:
        """Invert the order."""
        self.sort_by(self.sort.key)

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

    def seek(self, seconds: float) -> None:
        """Go on or back in a recording."""
        if self.playback is not None:
            self.playback.seek(seconds)
            self.refresh()

    def step(self, looks: int) -> None:
        """Go on or back by so many looks, and pause."""
        if self.playback is not None:
            self.is_frozen = True
            self.playback.go_to(self.playback.index + looks)
            self.refresh()

    def change_speed(self, factor: float) -> None:
        """Play faster or slower."""
        if self.playback is not None:
            least, most = _SPEEDS
            self.playback.speed = min(max(self.playback.speed * factor, least), most)

    def go_to_end(self, *, last: bool) -> None:
        """Go to the first look of a recording or to the last one."""
        if self.playback is not None:
            self.playback.go_to(len(self.playback.samples) - 1 if last else 0)
            self.refresh()

    # Drawing.

    def lines(self, width: int, height: int) -> list[ScreenLine]:
        """Return the lines of a screen of this size, without the last one, which has the keys."""
        top = [
            self._title(width),
            ScreenLine(Region.TOTALS, fit(totals_line(self.activity), width)),
            ScreenLine(Region.TOTALS, fit(sections_line(self.activity), width)),
            ScreenLine(Region.TOTALS, fit(cost_line(self.activity, self._own_share(), self._share), width)),
            ScreenLine(Region.TABS, fit(self._tabs(), width)),
        ]
        events = self._event_lines(width, height)
        self._height = max(height - len(top) - len(events) - 3, 1)
        self._clamp()
        heading, *rows = self._table(width)
        if not self._rows:
            rows = [ScreenLine(Region.ROW, fit((("remark", self._empty_text()),), width))]
        blank = ScreenLine(Region.ROW, (("", " " * width),))
        rows += [blank] * (self._height - len(rows))
        status = ScreenLine(Region.STATUS, fit(self._status(), width))
        return [*top, heading, *rows, *events, status][: max(height - 1, 0)]

    def _table(self, width: int) -> list[ScreenLine]:
        """Return the heading of the list and the rows that are on the screen."""
        sign = "▽" if is_reversed(self.sort_column, inverted=self.sort.inverted) else "△"
        columns = [
            replace(column, is_chosen=True, title=column.heading + sign * (column.key == self.sort.key))
            for column in COLUMNS[self.tab]
        ]
        shown = range(self.top, min(self.top + self._height, len(self._rows)))
        table = Table(columns, [self._rows[number].item for number in shown])
        # Notes on columns that do not fit follow the rows.
        heading, *lines = islice(table_lines(table, width), len(shown) + 1)
        self.headings = []
        by_title = {column.heading: column.key for column in columns}
        start = 0
        for _, title in heading:
            self.headings.append(HeadingSpan(by_title[title.strip()], start, start + text_width(title)))
            start = self.headings[-1].end
        return [
            ScreenLine(Region.HEADING, fit([("", title) for _, title in heading], width), "bar"),
            *(
                ScreenLine(Region.ROW, fit(line, width), "cursor" if number == self.cursor else "", number)
                for number, line in zip(shown, lines, strict=True)
            ),
        ]

    def _title(self, width: int) -> ScreenLine:
        name = self.source.facts.get("target") or "unknown target"
        state = clock = ""
        if (sample := self.activity.sample) is not None:
            state, clock = sample.state or "", f"{clock_text(sample.time)}  {seconds_text(sample.time - self.activity.started)}"
        if self.playback is not None:
            signs = " RECORDING "
        else:
            signs = " REC " if isinstance(self.source, LiveSource) and self.source.is_recording else ""
        signs += " FROZEN" if self.is_frozen and self.playback is None else ""
        right = f"{signs} {state.upper()}  {clock} "
        left = " kcovdbg monitor  "
        room = max(width - text_width(left) - text_width(right) - 1, 8)
        text = left + elide_start(name, room)
        gap = " " * max(width - text_width(text) - text_width(right), 1)
        return ScreenLine(Region.TITLE, fit((("", text + gap + right),), width), "bar")

    def _tabs(self) -> list[Fragment]:
        line: list[Fragment] = []
        for tab, label in self.tab_labels().items():
            line += [("bar" if tab is self.tab else "", label), ("", " ")]
        return line

    def tab_labels(self) -> Mapping[Tab, str]:
        """Return the labels of the lists."""
        activity = self.activity
        counts = {
            Tab.TASKS: 0 if activity.sample is None else len(activity.sample.tasks),
            Tab.SECTIONS: len(activity.sections),
            Tab.OBJECTS: len(activity.objects),
            Tab.EVENTS: len(activity.events),
            Tab.FINDINGS: len(activity.findings),
        }
        return {tab: f" {tab.value} {counts[tab]} " for tab in _TABS}

    def _event_lines(self, width: int, height: int) -> list[ScreenLine]:
        if height < _ROWS_FOR_EVENTS or self.tab is Tab.EVENTS:
            return []
        most = min(max(height // 6 - 1, 2), _MOST_EVENTS)
        shown = self.activity.events[-most:]
        lines = [
            ScreenLine(
                Region.EVENT, fit((("gutter", f"{clock_text(event.time)} "), (event_style(event), event_text(event))), width)
            )
            for event in shown
        ]
        blank = ScreenLine(Region.EVENT, (("", " " * width),))
        return [*lines, *[blank] * (most - len(lines))]

    def _empty_text(self) -> str:
        if self.filter:
            return f"nothing matches '{self.filter}'"
        return {
            Tab.TASKS: "no task with KCOV state",
            Tab.SECTIONS: "no remote section was seen",
            Tab.OBJECTS: "no object",
            Tab.EVENTS: "nothing happened yet",
            Tab.FINDINGS: "no rule is violated, of those that need little reading",
        }[self.tab]

    def _status(self) -> list[Fragment]:
        line: list[Fragment] = []
        if self.playback is not None:
            line.append(("key", self._position()))
        if self.source.problem is not None:
            line.append(("error", f"{self.source.problem}  "))
        elif self.activity.sample is not None and self.activity.sample.state == "stopped":
            line.append(("warning", "the machine is stopped: nothing changes  "))
        if self.filter and not self.is_asking:
            line.append(("key", f"filter '{self.filter}': {len(self._rows)} rows  "))
        if self.message:
            line.append(("", f"{self.message}  "))
        errors = () if self.activity.sample is None else self.activity.sample.errors
        if errors and len(line) <= (self.playback is not None):
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            line.append(("remark", f"{errors[0]}{more}"))
        return line

    def _position(self) -> str:
        source = self.playback
        assert source is not None
        at, end = (source.samples[index].time - source.samples[0].time for index in (source.index, -1))
        sign = "paused" if self.is_frozen else "end" if source.pause is None else "playing"
        look = f"look {source.index + 1}/{len(source.samples)}"
        return f"{sign} {seconds_text(at)} of {seconds_text(end)}, {look}, speed {source.speed:g}  "

    def _own_share(self) -> float | None:
        if self.playback is not None or len(self._used) < 2:
            return None
        (start, before), (end, after) = self._used[0], self._used[-1]
        return (after - before) / (end - start) if end > start else None

    def footer(self, width: int) -> list[tuple[str, str, str]]:
        """Return of each key in the footer that fits its label, its word and its action."""
        found = []
        taken = 0
        for label, word, action in footer_parts(is_playback=self.playback is not None):
            taken += len(label) + len(word) + 1
            if taken <= width + 1:
                found.append((label, word, action))
        return found
