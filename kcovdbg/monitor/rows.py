# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines above the lists of a monitor's screen: the kernel, totals, sections, and what looking costs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from kcovdbg.console.renderable import Fragment
from kcovdbg.console.text import elide, escape, pad, text_width
from kcovdbg.model.object_names import name_kcov, name_task
from kcovdbg.monitor.activity import Activity, EventKind, MonitorEvent, TaskActivity
from kcovdbg.monitor.sample_summary_rows import handle_text, handles_text, seconds_text, short_number
from kcovdbg.monitor.samples import FindingSample, ObjectSample, TaskSample
from kcovdbg.monitor.summary import Rate, SectionActivity

_BAR: Final = 12
# Styles of a bar from these fills on.
_HIGH: Final = 0.8
_ROLES: Final = {"remote-section": "remote", "softirq-section": "softirq", "none": "-"}


class Tab(str, Enum):
    """The lists."""

    TASKS = "Tasks"
    SECTIONS = "Sections"
    OBJECTS = "Objects"
    EVENTS = "Events"
    FINDINGS = "Findings"


@dataclass(frozen=True, slots=True)
class MonitorColumn:
    """One column of a list."""

    title: str
    width: int
    """0: what the others leave."""
    text: Callable[[Any], str]
    order: Callable[[Any], Any]
    """The key by which rows are sorted; None comes last."""
    style: Callable[[Any], str] | str = ""
    is_right: bool = False
    is_descending: bool = False
    """Whether the largest come first, unless the user inverts that."""
    least_width: int = 0
    """The width of a screen from which on it is shown."""


class MonitorRow(NamedTuple):
    """One row."""

    key: Hashable
    """What it is known by from look to look."""
    item: Any
    search: str
    """The text that a filter looks at."""
    buffer: str | None
    """The name of its buffer; None where it has none."""


class PlacedColumn(NamedTuple):
    """A column on the screen."""

    number: int
    column: MonitorColumn
    start: int
    width: int


def rate_text(rate: Rate | None) -> str:
    """Return a rate of records: ``12.3k``, ``≥400`` where there may have been more."""
    if rate is None:
        return ""
    return f"{'≥' if rate.is_least else ''}{short_number(rate.per_second)}"


def slow_rate_text(rate: Rate | None) -> str:
    """Return a rate of what is counted one by one: ``0.5``, ``≥3.2``."""
    if rate is None:
        return ""
    return f"{'≥' if rate.is_least and rate.per_second else ''}{rate.per_second:.1f}"


def bar_text(fill: float | None, full: bool | None, width: int = _BAR) -> str:
    """Return a bar: ``[|||    34%]``, with the word FULL in a full one."""
    if fill is None:
        return ""
    room = width - 2
    label = "FULL" if full else f"{min(fill, 0.999) * 100:.0f}%"
    filled = "|" * (room if full else round(fill * room))
    text = filled.ljust(room)
    if full:
        left = (room - len(label)) // 2
        return f"[{text[:left]}{label}{text[left + len(label) :]}]"
    return f"[{text[: room - len(label)]}{label}]"


def _bar_style(found: TaskActivity) -> str:
    if found.task.full:
        return "error"
    return "warning" if (found.task.fill or 0.0) >= _HIGH else "good"


def _role(found: TaskActivity) -> str:
    role = found.task.role
    if found.task.owns_remote and role in ("none", None):
        return "owner"
    return "?" if role is None else _ROLES.get(role, role)


def _mode_style(found: TaskActivity) -> str:
    return "mode" if found.task.is_tracing else "idle"


_TASK_COLUMNS: Final = (
    MonitorColumn("PID", 7, lambda row: _text(row.task.pid), lambda row: row.task.pid, is_right=True),
    MonitorColumn("COMM", 15, lambda row: _text(row.task.comm), lambda row: row.task.comm, "comm"),
    MonitorColumn("MODE", 10, lambda row: _text(row.task.kcov_mode), lambda row: row.task.kcov_mode, _mode_style),
    MonitorColumn("ROLE", 7, _role, _role),
    MonitorColumn(
        "FILL",
        _BAR,
        lambda row: bar_text(row.task.fill, row.task.full),
        lambda row: row.task.fill,
        _bar_style,
        is_descending=True,
    ),
    MonitorColumn(
        "RECORDS",
        9,
        lambda row: "" if row.task.count is None else str(row.task.count) if row.task.count < 1e9 else "overwr.",
        lambda row: row.task.count,
        is_right=True,
        is_descending=True,
        least_width=96,
    ),
    MonitorColumn(
        "REC/S",
        7,
        lambda row: rate_text(row.rate),
        lambda row: None if row.rate is None else row.rate.per_second,
        is_right=True,
        is_descending=True,
    ),
    MonitorColumn(
        "FULL",
        5,
        lambda row: str(row.overflows) if row.overflows else "-",
        lambda row: row.overflows,
        lambda row: "error" if row.overflows else "idle",
        is_right=True,
        is_descending=True,
    ),
    MonitorColumn(
        "LOST",
        6,
        lambda row: f"≥{short_number(row.lost)}" if row.lost else "-",
        lambda row: row.lost,
        is_right=True,
        is_descending=True,
        least_width=110,
    ),
    MonitorColumn("SYSCALL", 0, lambda row: _text(row.task.syscall), lambda row: row.task.syscall, "symbol"),
)
_SECTION_COLUMNS: Final = (
    MonitorColumn("HANDLE", 34, lambda row: handle_text(row.key), lambda row: handle_text(row.key), "handle"),
    MonitorColumn("IN FLIGHT", 9, lambda row: str(row.in_flight), lambda row: row.in_flight, "", True, True),
    MonitorColumn("BEGUN", 8, lambda row: f"≥{row.begun}", lambda row: row.begun, "", True, True),
    MonitorColumn(
        "PER S",
        7,
        lambda row: slow_rate_text(row.rate),
        lambda row: None if row.rate is None else row.rate.per_second,
        "",
        True,
        True,
    ),
    MonitorColumn("OBJECT", 0, lambda row: f"{row.key.kcov or 0:#x}", lambda row: row.key.kcov, "address"),
)
_OBJECT_COLUMNS: Final = (
    MonitorColumn("OBJECT", 18, lambda row: f"{row.kcov:#x}", lambda row: row.kcov, "address"),
    MonitorColumn("MODE", 10, lambda row: _text(row.mode), lambda row: row.mode, "mode"),
    MonitorColumn("WORDS", 9, lambda row: _text(row.size), lambda row: row.size, "", True, True),
    MonitorColumn("PID", 7, lambda row: _text(row.pid), lambda row: row.pid, "", True),
    MonitorColumn("COMM", 15, lambda row: _text(row.comm), lambda row: row.comm, "comm"),
    MonitorColumn("HANDLES", 0, lambda row: handles_text(row.handles), lambda row: len(row.handles), "handle"),
)
_EVENT_COLUMNS: Final = (
    MonitorColumn("TIME", 8, lambda row: clock_text(row.time), lambda row: row.time, "gutter"),
    MonitorColumn("EVENT", 0, lambda row: event_text(row), lambda row: event_text(row), lambda row: event_style(row)),
)
_FINDING_COLUMNS: Final = (
    MonitorColumn("RULE", 5, lambda row: row.rule, lambda row: row.rule, "key"),
    MonitorColumn("SEVERITY", 9, lambda row: row.severity, lambda row: row.severity, lambda row: _severity_style(row)),
    MonitorColumn("FINDING", 0, lambda row: f"{row.object}: {row.message}", lambda row: row.object),
)
COLUMNS: Final = {
    Tab.TASKS: _TASK_COLUMNS,
    Tab.SECTIONS: _SECTION_COLUMNS,
    Tab.OBJECTS: _OBJECT_COLUMNS,
    Tab.EVENTS: _EVENT_COLUMNS,
    Tab.FINDINGS: _FINDING_COLUMNS,
}


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _severity_style(finding: FindingSample) -> str:
    return finding.severity if finding.severity in ("error", "warning") else "remark"


def clock_text(seconds: float) -> str:
    """Return the local time of day."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")


def event_text(event: MonitorEvent) -> str:
    """Return an event in words."""
    subject = event.subject
    if isinstance(subject, TaskSample):
        where = "area of a section" if subject.is_section else "buffer"
        unit = "records" if subject.device is None else "words"
        return f"FULL: {where} of {name_task(subject)}, {subject.capacity} {unit}"
    if isinstance(subject, ObjectSample):
        whose = "" if subject.pid is None else f" of {name_task(subject)}"
        size = f", {subject.size} words" if subject.size else ""
        return f"{event.kind.value} {name_kcov(subject.kcov, subject.device or 'kcov')}{whose}{size}"
    if isinstance(subject, FindingSample):
        settled = "settled: " if event.kind is EventKind.GONE else ""
        return f"{settled}{subject.severity} {subject.rule} {subject.object}: {subject.message}"
    return f"the machine is {subject}"


def event_style(event: MonitorEvent) -> str:
    """Return the style of an event."""
    if event.kind is EventKind.FULL:
        return "error"
    if event.kind is EventKind.FINDING and isinstance(event.subject, FindingSample):
        return _severity_style(event.subject)
    return {EventKind.CAME: "good", EventKind.STATE: "warning"}.get(event.kind, "")


def make_rows(activity: Activity, tab: Tab) -> Iterator[MonitorRow]:
    """Yield the rows of a list, in no order."""
    if tab is Tab.TASKS:
        for found in activity.tasks:
            task = found.task
            parts = (task.pid, task.comm, task.kcov_mode, _role(found), task.syscall, f"{task.kcov or 0:#x}")
            # Others have nothing that could be viewed.
            buffer = _buffer_name(task) if task.count is not None else None
            yield MonitorRow((task.task, task.device), found, " ".join(map(str, parts)), buffer)
    elif tab is Tab.SECTIONS:
        for section in activity.sections:
            buffer = _section_buffer(activity, section)
            yield MonitorRow(section.key, section, f"{handle_text(section.key)} {section.key.kcov or 0:#x}", buffer)
    elif tab is Tab.OBJECTS:
        for kcov in activity.objects.values():
            known = (f"{kcov.kcov:#x}", kcov.mode, kcov.pid, kcov.comm, handles_text(kcov.handles))
            buffer = f"{kcov.device or 'kcov'}:{kcov.kcov:#x}" if kcov.area else None
            yield MonitorRow(kcov.kcov, kcov, " ".join(map(str, known)), buffer)
    elif tab is Tab.EVENTS:
        for number, event in enumerate(activity.events):
            yield MonitorRow((event.time, number), event, event_text(event), None)
    else:
        for finding in activity.findings:
            yield MonitorRow(finding, finding, " ".join(finding), None)


def _section_buffer(activity: Activity, section: SectionActivity) -> str | None:
    """Return the buffer of a section in flight, or the object's."""
    for task in () if activity.sample is None else activity.sample.tasks:
        if task.is_section and task.kcov == section.key.kcov and task.pid is not None:
            return _buffer_name(task)
    found = activity.objects.get(section.key.kcov or 0)
    prefix = "kcov" if found is None or found.device is None else found.device
    return None if section.key.kcov is None else f"{prefix}:{section.key.kcov:#x}"


def _buffer_name(task: TaskSample) -> str | None:
    """Return the name of what collects into a task."""
    if task.pid is None:
        return None
    return str(task.pid) if task.device is None else f"{task.device}:{task.pid}"


def sort_rows(rows: Sequence[MonitorRow], column: MonitorColumn, *, inverted: bool) -> list[MonitorRow]:
    """Return the rows in the order of a column; rows without a value there come last."""
    known = [row for row in rows if column.order(row.item) is not None]
    unknown = [row for row in rows if column.order(row.item) is None]
    return [*sorted(known, key=lambda row: column.order(row.item), reverse=column.is_descending is not inverted), *unknown]


def place_columns(columns: Sequence[MonitorColumn], width: int) -> list[PlacedColumn]:
    """Return the columns that fit a width, each with a blank after it."""
    shown = [(index, column) for index, column in enumerate(columns) if width >= column.least_width]
    rest = width - sum(column.width + 1 for _, column in shown if column.width)
    placed: list[PlacedColumn] = []
    start = 0
    for index, column in shown:
        room = min(column.width or max(rest, 0), width - start)
        if room <= 0:
            break
        placed.append(PlacedColumn(index, column, start, room))
        start += room + 1
    return placed


def row_line(row: MonitorRow, columns: Sequence[PlacedColumn], width: int) -> list[Fragment]:
    """Return a row in so many columns of the terminal."""
    line: list[Fragment] = []
    taken = 0
    for placed in columns:
        column = placed.column
        text = pad(elide(escape(column.text(row.item)), placed.width), placed.width, right=column.is_right)
        blank = " " if placed.start + placed.width < width else ""
        line.append((column.style if isinstance(column.style, str) else column.style(row.item), text + blank))
        taken += text_width(text) + len(blank)
    line.append(("", " " * max(width - taken, 0)))
    return line


def heading_text(columns: Sequence[PlacedColumn], width: int, sorted_by: int, *, inverted: bool) -> str:
    """Return the line above the rows; a sign marks the column by which they are sorted."""
    parts = []
    for placed in columns:
        column, title = placed.column, placed.column.title
        if placed.number == sorted_by:
            sign = "▽" if column.is_descending is not inverted else "△"
            title = title[: max(placed.width - 1, 0)] + sign
        parts.append(pad(elide(title, placed.width), placed.width, right=column.is_right))
    return pad(elide(" ".join(parts), width), width)


_STATE_STYLES = {"running": "good", "stopped": "warning", "gone": "error"}
# Limit for the handles whose sections are named.
_HANDLES = 6


def totals_line(activity: Activity) -> list[Fragment]:
    """Return the totals of tasks, objects and areas."""
    every = list(activity.tasks)
    tasks = [found for found in every if found.task.device is None]
    tracing = sum(found.task.is_tracing for found in tasks)
    per_second = sum(found.rate.per_second for found in tasks if found.rate is not None)
    full = sum(bool(found.task.full) for found in every)
    line: list[Fragment] = [
        ("", "tasks "),
        ("key", str(len(tasks))),
        ("", f", {tracing} tracing, "),
        ("key", short_number(per_second)),
        ("", " records/s; "),
        ("error" if activity.overflows else "key", f"{activity.overflows} FULL"),
        ("", f" ({full} now); objects "),
        ("key", str(len(activity.objects))),
        ("good" if activity.came else "", f" +{activity.came}"),
        ("", f" -{activity.went}"),
    ]
    for device in dict.fromkeys(found.task.device for found in every if found.task.device is not None):
        mine = [found for found in every if found.task.device == device]
        words = sum(found.rate.per_second for found in mine if found.rate is not None)
        sessions = "1 session" if len(mine) == 1 else f"{len(mine)} sessions"
        line += [("", f"; {device} {sessions}, "), ("key", short_number(words)), ("", " words/s")]
    if activity.findings:
        line += [("", "; "), ("error", _count_findings(len(activity.findings)))]
    return line


def _count_findings(number: int) -> str:
    return "1 finding" if number == 1 else f"{number} findings"


def sections_line(activity: Activity) -> list[Fragment]:
    """Return the sections in flight and a second by handle, and the areas."""
    sections = activity.sections
    in_flight = sum(section.in_flight for section in sections)
    rates = [section.rate for section in sections if section.rate is not None]
    total = Rate(sum(rate.per_second for rate in rates), any(rate.is_least for rate in rates))
    uses: dict[str, int] = {}
    for area in activity.areas:
        uses[area.state] = uses.get(area.state, 0) + area.areas
    line: list[Fragment] = [
        ("", "areas "),
        ("key", str(uses.get("in-use", 0) + uses.get("saved", 0))),
        ("", f" in use, {uses.get('cached', 0)} cached; sections "),
        ("key", str(in_flight)),
        ("", f" in flight, {slow_rate_text(total) or '0.0'}/s"),
    ]
    for section in sections[:_HANDLES]:
        line += [
            ("", "; "),
            ("handle", handle_text(section.key)),
            ("", f" {section.in_flight}, {slow_rate_text(section.rate) or '0.0'}/s"),
        ]
    return line


def cost_line(activity: Activity, own_share: float | None, limit: float | None) -> list[Fragment]:
    """Return what looking costs.

    :param own_share: of a core that the whole process took, drawing included; None where it is unknown.
    :param limit: of a core; None for a recording.
    """
    cost = activity.cost
    if cost is None:
        return [("remark", "cost: not yet known")]
    reads = "reads not counted" if cost.reads is None else f"{short_number(cost.reads)} reads/s"
    parts = [reads, f"{cost.looks:.1f} looks/s", f"{cost.share:.1%} of a core"]
    if own_share is not None:
        parts.append(f"{own_share:.1%} with drawing")
    bound = "" if limit is None else f"; limit {limit:.0%}"
    return [("remark", f"cost: {', '.join(parts)}{bound}")]


def title_parts(activity: Activity, facts: Mapping[str, str | None]) -> tuple[str, str, str]:
    """Return the target, the machine's state and the time."""
    sample = activity.sample
    name = facts.get("target") or "unknown target"
    if sample is None:
        return name, "", ""
    return name, sample.state or "", f"{clock_text(sample.time)}  {seconds_text(sample.time - activity.started)}"


def state_style(state: str) -> str:
    """Return the style of the machine's state."""
    return _STATE_STYLES.get(state, "")
