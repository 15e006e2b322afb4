# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hold the state of a monitor's screen: its lists, their order, filter, cursor and freeze, without
a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from kcovdbg.console.column import ABSENT, ADDRESS, COMM, MODE, NUMBER, PID, Column
from kcovdbg.console.full_screen import RowCursor, fit
from kcovdbg.console.grid import table_lines
from kcovdbg.console.renderable import Fragment, Line, Table
from kcovdbg.console.text import elide_start, pad, text_width
from kcovdbg.monitor.activity import Activity, Rate, TaskActivity
from kcovdbg.monitor.monitor_source import LiveSource
from kcovdbg.monitor.samples import ObjectSample, Sample
from kcovdbg.monitor.summary import handle_text, handles_text, seconds_text, short_number

# A screen with so many rows also shows the latest events, but not more than so many.
_ROWS_FOR_EVENTS: Final = 16
_MOST_EVENTS: Final = 6
# Characters of a bar, and of a buffer's count.
_BAR: Final = 12
_COUNT: Final = 7
# From this fill on, a bar has another style.
_HIGH: Final = 0.8
_ROLES: Final = {"remote-section": "remote", "softirq-section": "softirq", "none": "-"}
# Columns that sort the largest value first, unless the user inverts the order.
_LARGEST_FIRST: Final = frozenset(
    "fill records rate overflows lost in_flight begun words time".split()
)
# Limit for the handles above the lists.
_HANDLES: Final = 6


class MonitorList(NamedTuple):
    """One list; its rows are items of an activity."""

    title: str
    items: Callable[[Activity], Sequence[Any]]
    columns: tuple[Column, ...]
    sort: str
    """The key of the column that sorts the list at first."""
    empty: str
    """The text of a list without rows."""
    identity: Callable[[Any], Hashable]
    """Returns a key by which a row is found again in the next look."""
    buffer: Callable[[Any], str | None] = lambda _row: None
    """Returns the name of a row's buffer, or None."""

    def rows(self, activity: Activity, text: str, sort: Sort) -> list[Any]:
        """Return the rows that have a text in a column, in any case, sorted. Rows without a value
        in the column that sorts them come last.
        """
        rows = self.items(activity)
        if text:
            formatters = [column.formatter() for column in self.columns]

            def is_wanted(row: Any) -> bool:
                shown = " ".join(form(row) for form in formatters)
                return text.casefold() in shown.casefold()

            rows = list(filter(is_wanted, rows))
        read = sort.column.reader()
        known = [row for row in rows if read(row) is not None]
        unknown = [row for row in rows if read(row) is None]
        return sorted(known, key=read, reverse=sort.is_reversed) + unknown


class Sort(NamedTuple):
    """The order of a list."""

    column: Column
    is_reversed: bool
    """Whether the largest values come first."""


def sort_by(column: Column) -> Sort:
    """Return the order by a column, unless the user inverts it."""
    return Sort(column, column.key in _LARGEST_FIRST)


_LEAST: Final = "≥"


def rate_text(rate: Rate | None, form: Callable[[float], str] = short_number) -> str:
    """Return a rate: ``12.3k``, ``≥400`` where there may have been more."""
    if rate is None:
        return ""
    text = form(rate.per_second)
    if rate.is_least:
        return _LEAST + text
    return text


def slow_rate_text(rate: Rate | None) -> str:
    """Return a rate of rare events as text: ``0.5``, ``≥3.2``."""
    return rate_text(rate, "{:.1f}".format)


def bar_text(fill: float | None, full: bool | None) -> str:
    """Return a bar: ``[|||    34%]``, with the word FULL in a full one."""
    if fill is None:
        return ""
    room = _BAR - 2
    if full:
        return f"[{'FULL'.center(room, '|')}]"
    label = f"{min(fill, 0.999) * 100:.0f}%"
    return f"[{('|' * round(fill * room)).ljust(room)[: room - len(label)]}{label}]"


def _bar_style(row: TaskActivity) -> str:
    if row.task.full:
        return "error"
    if (row.task.fill or 0.0) >= _HIGH:
        return "warning"
    return "good"


def _role(row: TaskActivity) -> str:
    role = row.task.role
    if row.task.owns_remote and role in ("none", None):
        return "owner"
    if role is None:
        return "?"
    return _ROLES.get(role, role)


def _per_second(row: Any) -> float | None:
    if row.rate is None:
        return None
    return float(row.rate.per_second)


def _records_text(row: TaskActivity) -> str:
    count = row.task.count
    if count is None:
        return " " * _COUNT
    if count >= 1e9:
        return "overwr."
    return f"{count:>{_COUNT}}"


def _lost_text(row: TaskActivity) -> str:
    text = "-"
    if row.lost:
        text = _LEAST + short_number(row.lost)
    return f"{text:>6}"


def clock_text(seconds: float) -> str:
    """Return the local time of day."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")


def _task_buffer(row: TaskActivity) -> str | None:
    task = row.task
    # Others have nothing that could be viewed.
    if task.pid is None or task.count is None:
        return None
    if task.device is not None:
        return f"{task.device}:{task.pid}"
    return str(task.pid)


def _object_buffer(row: ObjectSample) -> str | None:
    if not row.area:
        return None
    return f"{row.device or 'kcov'}:{row.kcov:#x}"


# Texts of numbers have a least width, so that columns stay where they are.
TASKS: Final = MonitorList(
    "Tasks",
    lambda activity: activity.tasks,
    columns=(
        Column(
            "pid",
            PID,
            value="task.pid",
            text=lambda row: f"{row.task.pid or ABSENT:>6}",
        ),
        Column("comm", COMM, value="task.comm", elastic=8),
        Column(
            "mode",
            MODE,
            value="task.kcov_mode",
            style=lambda row: "mode" if row.task.is_tracing else "idle",
        ),
        Column("role", value=_role),
        Column(
            "fill",
            value="task.fill",
            text=lambda row: f"{bar_text(row.task.fill, row.task.full):<{_BAR}}",
            style=_bar_style,
        ),
        Column("records", NUMBER, value="task.count", text=_records_text, priority=1),
        Column(
            "rate",
            NUMBER,
            title="REC/S",
            value=_per_second,
            text=lambda row: f"{rate_text(row.rate):>6}",
        ),
        Column(
            "overflows",
            NUMBER,
            title="FULL",
            text=lambda row: f"{row.overflows or '-':>5}",
            style=lambda row: "error" if row.overflows else "idle",
        ),
        Column("lost", NUMBER, text=_lost_text, priority=2),
        Column(
            "syscall",
            value="task.syscall",
            text=lambda row: f"{row.task.syscall or ABSENT:<12}",
            style="symbol",
            elastic=12,
        ),
    ),
    sort="rate",
    empty="no task with KCOV state",
    identity=lambda row: (row.task.task, row.task.device),
    buffer=_task_buffer,
)
SECTIONS: Final = MonitorList(
    "Sections",
    lambda activity: activity.sections,
    columns=(
        Column("handle", value=handle_text, style="handle", elastic=12),
        Column("in_flight", NUMBER, title="IN FLIGHT"),
        Column("begun", NUMBER, text=lambda row: f"{f'≥{row.begun}':>6}"),
        Column(
            "rate",
            NUMBER,
            title="PER S",
            value=_per_second,
            text=lambda row: f"{slow_rate_text(row.rate):>6}",
        ),
        Column("object", ADDRESS, value="kcov"),
    ),
    sort="begun",
    empty="no remote section was seen",
    identity=attrgetter("kcov"),
)
OBJECTS: Final = MonitorList(
    "Objects",
    lambda activity: tuple(activity.objects.values()),
    columns=(
        Column("object", ADDRESS, value="kcov"),
        Column("mode", MODE),
        Column("words", NUMBER, value="size"),
        Column("pid", PID),
        Column("comm", COMM, elastic=6),
        Column(
            "handles",
            value=lambda row: handles_text(row.handles) or None,
            style="handle",
            elastic=8,
        ),
    ),
    sort="object",
    empty="no object",
    identity=attrgetter("kcov"),
    buffer=_object_buffer,
)
EVENTS: Final = MonitorList(
    "Events",
    lambda activity: activity.events,
    columns=(
        Column("time", value="time", text=lambda row: clock_text(row.time), style="gutter"),
        Column("event", value="text", style=attrgetter("style"), elastic=8),
    ),
    sort="time",
    empty="nothing happened yet",
    identity=lambda row: row,
)
LISTS: Final = (TASKS, SECTIONS, OBJECTS, EVENTS)


def totals_line(activity: Activity) -> list[Fragment]:
    """Return the totals of tasks and objects."""
    # Rows by device; None for KCOV's own.
    rows: dict[str | None, list[TaskActivity]] = {None: []}
    for found in activity.tasks:
        rows.setdefault(found.task.device, []).append(found)
    tasks = rows.pop(None)
    full_style = "error" if activity.overflows else "key"
    came_style = "good" if activity.came else ""
    full = sum(bool(found.task.full) for found in activity.tasks)
    line: list[Fragment] = [
        ("", "tasks "),
        ("key", str(len(tasks))),
        ("", f", {sum(found.task.is_tracing for found in tasks)} tracing, "),
        ("key", short_number(_total_rate(tasks).per_second)),
        ("", " records/s; "),
        (full_style, f"{activity.overflows} FULL"),
        ("", f" ({full} now); objects "),
        ("key", str(len(activity.objects))),
        (came_style, f" +{activity.came}"),
        ("", f" -{activity.went}"),
    ]
    for device, sessions in rows.items():
        words = short_number(_total_rate(sessions).per_second)
        line += [("", f"; {device} {len(sessions)} sessions, "), ("key", words), ("", " words/s")]
    return line


def _total_rate(rows: Iterable[Any]) -> Rate:
    rates = [row.rate for row in rows if row.rate is not None]
    return Rate(sum(rate.per_second for rate in rates), any(rate.is_least for rate in rates))


def sections_line(activity: Activity) -> list[Fragment]:
    """Return the number of sections in flight and the sections per second, by handle."""
    sections = activity.sections
    line: list[Fragment] = [
        ("", "sections "),
        ("key", str(sum(section.in_flight for section in sections))),
        ("", f" in flight, {slow_rate_text(_total_rate(sections))}/s"),
    ]
    for section in sections[:_HANDLES]:
        rate = slow_rate_text(section.rate) or "0.0"
        line += [
            ("", "; "),
            ("handle", handle_text(section)),
            ("", f" {section.in_flight}, {rate}/s"),
        ]
    return line


def cost_line(activity: Activity, limit: float) -> list[Fragment]:
    """Return the cost of looks.

    :param limit: the share of a core that looks may take.
    """
    if activity.seconds <= 0:
        return [("remark", "cost: not yet known")]
    reads = "reads not counted"
    if activity.reads is not None:
        reads = f"{short_number(activity.reads / activity.seconds)} reads/s"
    looks = activity.looks / activity.seconds
    share = f"{activity.cpu_share:.1%} of a core; limit {limit:.0%}"
    return [("remark", f"cost: {reads}, {looks:.1f} looks/s, {share}")]


class MonitorState(RowCursor):
    """The state of a monitor on the screen.

    :param source: takes the looks.
    """

    def __init__(self, source: LiveSource) -> None:
        self.source = source
        self.filter = ""
        self.is_frozen = False
        self.message = ""
        self._key: Hashable = None
        self._number = 0
        self._sorts = [
            sort_by(column)
            for shown in LISTS
            for column in shown.columns
            if column.key == shown.sort
        ]
        self.refresh()

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
        """Whether to take the next sample: a recording goes on while the screen is frozen."""
        return self.source.pause is not None and (not self.is_frozen or self.source.is_recording)

    def advance(self) -> None:
        """Take the next sample."""
        self.source.advance()
        if not self.is_frozen:
            self.refresh()

    def refresh(self) -> None:
        """Show the source's current activity."""
        self.activity: Activity = self.source.activity
        self._make_rows()

    def _make_rows(self) -> None:
        """Find the rows of the list, in order, and its columns."""
        shown = self.shown
        self._columns = shown.columns
        self.rows: list[Any] = shown.rows(self.activity, self.filter, self.sort)
        if self._key is not None:
            # The cursor stays with its row.
            keys = list(map(shown.identity, self.rows))
            if self._key in keys:
                self.row = keys.index(self._key)
        self.clamp()

    # Moving.

    def go_to(self, row: int) -> None:
        """Put the cursor into a row."""
        super().go_to(row)
        # In the first row, the cursor stays there instead of with its row.
        self._key = None
        if self.rows and self.row:
            self._key = self.shown.identity(self.rows[self.row])

    @property
    def selected(self) -> str | None:
        """The name of the buffer of the row with the cursor."""
        if not self.rows:
            return None
        return self.shown.buffer(self.rows[self.row])

    # Lists, order and filter.

    def turn_list(self, by: int) -> None:
        """Show another list."""
        self._number = (self._number + by) % len(LISTS)
        self.top = self.row = 0
        self._key = None
        self._make_rows()

    def turn_sort(self, by: int) -> None:
        """Sort by another column on the screen."""
        index = 0
        if self.sort.column in self._columns:
            index = self._columns.index(self.sort.column)
        self._sorts[self._number] = sort_by(self._columns[(index + by) % len(self._columns)])
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
        """Freeze or unfreeze the screen."""
        self.is_frozen = not self.is_frozen
        self.refresh()

    # Drawing.

    def lines(self, width: int, height: int) -> Sequence[tuple[Line, str]]:
        """Return the lines of a screen with their styles, without the last line, which has the
        keys.
        """
        top = [
            (self._title(width), "bar"),
            (totals_line(self.activity), ""),
            (sections_line(self.activity), ""),
            (cost_line(self.activity, self.source.share), ""),
            (self._list_titles(), ""),
        ]
        bottom = [(line, "") for line in (*self._event_lines(height), self._status())]
        self.resize(height - len(top) - len(bottom) - 2)
        table = self._table(width)
        table += [((), "")] * (self.height + 1 - len(table))
        lines = (*top, *table, *bottom)[: max(height - 1, 0)]
        return [(fit(line, width), style) for line, style in lines]

    def _title(self, width: int) -> Line:
        sample = self._sample
        signs = ""
        if self.source.is_recording:
            signs += " REC "
        if self.is_frozen:
            signs += " FROZEN"
        right = (
            f"{signs} {(sample.state or '').upper()}  {clock_text(sample.time)}  "
            f"{seconds_text(self.activity.seconds)} "
        )
        left = " kcovdbg monitor  "
        name = elide_start(
            sample.target or "unknown target",
            max(width - text_width(left) - text_width(right) - 1, 8),
        )
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
        titles = {
            column.key: column.heading + sign * (column is self.sort.column)
            for column in self.shown.columns
        }
        columns = [
            replace(column, is_chosen=True, title=titles[column.key])
            for column in self.shown.columns
        ]
        rows = self.rows[self.top : self.top + self.height]
        # Notes on columns that do not fit follow the rows.
        heading, *lines = islice(table_lines(Table(columns, rows), width), len(rows) + 1)
        fitting = {title.strip() for _, title in heading}
        self._columns = tuple(
            column for column in self.shown.columns if titles[column.key] in fitting
        )
        found: list[tuple[Line, str]] = [([("", title) for _, title in heading], "bar")]
        found += [
            (line, "cursor" if number == self.row else "")
            for number, line in enumerate(lines, self.top)
        ]
        if not self.rows:
            text = f"nothing matches '{self.filter}'" if self.filter else self.shown.empty
            found.append(((("remark", text),), ""))
        return found

    def _event_lines(self, height: int) -> list[Line]:
        if height < _ROWS_FOR_EVENTS or self.shown is EVENTS:
            return []
        most = min(max(height // 6 - 1, 2), _MOST_EVENTS)
        lines: list[Line] = [
            (("gutter", f"{clock_text(event.time)} "), (event.style, event.text))
            for event in self.activity.events[-most:]
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
        return line
