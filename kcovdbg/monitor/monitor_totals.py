# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines above the lists of a monitor's screen: the kernel, totals, sections, and what looking costs."""

from __future__ import annotations

from collections.abc import Mapping

from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.monitor_rows import clock_text, slow_rate_text
from kcovdbg.monitor.summary import Rate
from kcovdbg.console.renderable import Fragment
from kcovdbg.monitor.sample_summary_rows import handle_text, seconds_text, short_number

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
