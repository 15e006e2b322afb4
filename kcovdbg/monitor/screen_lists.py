# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lists of a monitor's screen and the totals above them, independent of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

from kcovdbg.console.column import ABSENT, ADDRESS, COMM, MODE, NUMBER, PID, Column
from kcovdbg.console.renderable import Fragment
from kcovdbg.monitor.activity import Activity, Rate, TaskActivity
from kcovdbg.monitor.samples import ObjectSample
from kcovdbg.monitor.summary import handle_text, handles_text, short_number

_BAR: Final = 12
# The style of a bar from this fill on.
_HIGH: Final = 0.8
_ROLES: Final = {"remote-section": "remote", "softirq-section": "softirq", "none": "-"}
# The columns by which the largest come first, unless the user inverts that.
_LARGEST_FIRST: Final = frozenset("fill records rate overflows lost in_flight begun words time".split())
# Limit for the handles whose sections are named above the lists.
_HANDLES: Final = 6


class MonitorList(NamedTuple):
    """One list; its rows are items of an activity."""

    title: str
    items: Callable[[Activity], Sequence[Any]]
    columns: tuple[Column, ...]
    sort: str
    """The key of the column by which it is sorted at first."""
    empty: str
    """Shown when it has no row."""
    identity: Callable[[Any], Hashable]
    """Returns what a row has from look to look."""
    buffer: Callable[[Any], str | None] = lambda _row: None
    """Returns the name of a row's buffer, None where it has none."""

    def rows(self, activity: Activity, text: str, sort: Sort) -> list[Any]:
        """Return the rows in whose columns a text occurs, in whichever case, in order; those without a value come last."""
        rows = self.items(activity)
        if text:
            formatters = [column.formatter() for column in self.columns]
            wanted = text.casefold()
            rows = [row for row in rows if wanted in " ".join(form(row) for form in formatters).casefold()]
        read = sort.column.reader()
        known = [row for row in rows if read(row) is not None]
        return sorted(known, key=read, reverse=sort.is_reversed) + [row for row in rows if read(row) is None]


class Sort(NamedTuple):
    """The order of a list."""

    column: Column
    is_reversed: bool
    """Whether the largest values come first."""


def sort_by(column: Column) -> Sort:
    """Return the order by a column, unless the user inverts it."""
    return Sort(column, column.key in _LARGEST_FIRST)


def rate_text(rate: Rate | None) -> str:
    """Return a rate of records: ``12.3k``, ``≥400`` where there may have been more."""
    return "" if rate is None else f"{'≥' if rate.is_least else ''}{short_number(rate.per_second)}"


def slow_rate_text(rate: Rate | None) -> str:
    """Return a rate of what is counted one by one: ``0.5``, ``≥3.2``."""
    return "" if rate is None else f"{'≥' if rate.is_least and rate.per_second else ''}{rate.per_second:.1f}"


def bar_text(fill: float | None, full: bool | None, width: int = _BAR) -> str:
    """Return a bar: ``[|||    34%]``, with the word FULL in a full one."""
    if fill is None:
        return ""
    room = width - 2
    if full:
        return f"[{'FULL'.center(room, '|')}]"
    label = f"{min(fill, 0.999) * 100:.0f}%"
    return f"[{('|' * round(fill * room)).ljust(room)[: room - len(label)]}{label}]"


def _bar_style(row: TaskActivity) -> str:
    if row.task.full:
        return "error"
    return "warning" if (row.task.fill or 0.0) >= _HIGH else "good"


def _role(row: TaskActivity) -> str:
    role = row.task.role
    if row.task.owns_remote and role in ("none", None):
        return "owner"
    return "?" if role is None else _ROLES.get(role, role)


def _per_second(row: Any) -> float | None:
    return None if row.rate is None else float(row.rate.per_second)


def _count_text(row: TaskActivity) -> str:
    count = row.task.count
    return f"{'' if count is None else count if count < 1e9 else 'overwr.':>7}"


def clock_text(seconds: float) -> str:
    """Return the local time of day."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")


def _task_buffer(row: TaskActivity) -> str | None:
    task = row.task
    # Others have nothing that could be viewed.
    if task.pid is None or task.count is None:
        return None
    return str(task.pid) if task.device is None else f"{task.device}:{task.pid}"


def _object_buffer(row: ObjectSample) -> str | None:
    return f"{row.device or 'kcov'}:{row.kcov:#x}" if row.area else None


# Texts of numbers have a least width, so that columns stay where they are.
TASKS: Final = MonitorList(
    "Tasks",
    lambda activity: activity.tasks,
    columns=(
        Column("pid", PID, value=attrgetter("task.pid"), text=lambda row: f"{row.task.pid or ABSENT:>6}"),
        Column("comm", COMM, value=attrgetter("task.comm"), elastic=8),
        Column(
            "mode",
            MODE,
            value=attrgetter("task.kcov_mode"),
            style=lambda row: "mode" if row.task.is_tracing else "idle",
        ),
        Column("role", value=_role),
        Column(
            "fill",
            value=attrgetter("task.fill"),
            text=lambda row: f"{bar_text(row.task.fill, row.task.full):<{_BAR}}",
            style=_bar_style,
        ),
        Column("records", NUMBER, value=attrgetter("task.count"), text=_count_text, priority=1),
        Column("rate", NUMBER, title="REC/S", value=_per_second, text=lambda row: f"{rate_text(row.rate):>6}"),
        Column(
            "overflows",
            NUMBER,
            title="FULL",
            text=lambda row: f"{row.overflows or '-':>5}",
            style=lambda row: "error" if row.overflows else "idle",
        ),
        Column("lost", NUMBER, text=lambda row: f"{f'≥{short_number(row.lost)}' if row.lost else '-':>6}", priority=2),
        Column(
            "syscall",
            value=attrgetter("task.syscall"),
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
        Column("rate", NUMBER, title="PER S", value=_per_second, text=lambda row: f"{slow_rate_text(row.rate):>6}"),
        Column("object", ADDRESS, value=attrgetter("kcov")),
    ),
    sort="begun",
    empty="no remote section was seen",
    identity=attrgetter("kcov"),
)
OBJECTS: Final = MonitorList(
    "Objects",
    lambda activity: tuple(activity.objects.values()),
    columns=(
        Column("object", ADDRESS, value=attrgetter("kcov")),
        Column("mode", MODE),
        Column("words", NUMBER, value=attrgetter("size")),
        Column("pid", PID),
        Column("comm", COMM, elastic=6),
        Column("handles", value=lambda row: handles_text(row.handles) or None, style="handle", elastic=8),
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
        Column("time", value=attrgetter("time"), text=lambda row: clock_text(row.time), style="gutter"),
        Column("event", value=attrgetter("text"), style=attrgetter("style"), elastic=8),
    ),
    sort="time",
    empty="nothing happened yet",
    identity=lambda row: row,
)
LISTS: Final = (TASKS, SECTIONS, OBJECTS, EVENTS)


def totals_line(activity: Activity) -> list[Fragment]:
    """Return the totals of tasks and objects."""
    every = list(activity.tasks)
    tasks = [found for found in every if found.task.device is None]
    line: list[Fragment] = [
        ("", "tasks "),
        ("key", str(len(tasks))),
        ("", f", {sum(found.task.is_tracing for found in tasks)} tracing, "),
        ("key", short_number(_total_rate(tasks).per_second)),
        ("", " records/s; "),
        ("error" if activity.overflows else "key", f"{activity.overflows} FULL"),
        ("", f" ({sum(bool(found.task.full) for found in every)} now); objects "),
        ("key", str(len(activity.objects))),
        ("good" if activity.came else "", f" +{activity.came}"),
        ("", f" -{activity.went}"),
    ]
    for device in dict.fromkeys(found.task.device for found in every if found.task.device is not None):
        mine = [found for found in every if found.task.device == device]
        words = short_number(_total_rate(mine).per_second)
        line += [("", f"; {device} {len(mine)} sessions, "), ("key", words), ("", " words/s")]
    return line


def _total_rate(rows: Iterable[Any]) -> Rate:
    rates = [row.rate for row in rows if row.rate is not None]
    return Rate(sum(rate.per_second for rate in rates), any(rate.is_least for rate in rates))


def sections_line(activity: Activity) -> list[Fragment]:
    """Return the sections in flight and a second by handle."""
    sections = activity.sections
    line: list[Fragment] = [
        ("", "sections "),
        ("key", str(sum(section.in_flight for section in sections))),
        ("", f" in flight, {slow_rate_text(_total_rate(sections))}/s"),
    ]
    for section in sections[:_HANDLES]:
        rate = slow_rate_text(section.rate) or "0.0"
        line += [("", "; "), ("handle", handle_text(section)), ("", f" {section.in_flight}, {rate}/s")]
    return line


def cost_line(activity: Activity, limit: float | None) -> list[Fragment]:
    """Return what looking costs.

    :param limit: of a core; None for a recording.
    """
    if activity.seconds <= 0:
        return [("remark", "cost: not yet known")]
    reads, looks = ((count or 0) / activity.seconds for count in (activity.reads, activity.looks))
    shown = "reads not counted" if activity.reads is None else f"{short_number(reads)} reads/s"
    bound = "" if limit is None else f"; limit {limit:.0%}"
    return [("remark", f"cost: {shown}, {looks:.1f} looks/s, {activity.cpu_share:.1%} of a core{bound}")]
