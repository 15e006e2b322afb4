# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make an HTML page with plots from the summary of a recording."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kcovdbg.console.html import PageSection, notes_markup, page_lines, table_markup, text
from kcovdbg.monitor.summary import (
    PlotPoint,
    Summary,
    advice_lines,
    buffer_table,
    heading_lines,
    section_table,
    share_table,
    short_number,
)

# Size and margins of a plot, in units of its own; the page scales it.
_WIDTH: Final = 760
_HEIGHT: Final = 180
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 26
# Parts of the scale of values.
_TICKS: Final = 4
# Limit for the rows of a table of shares.
_SHARES: Final = 25
_FOOTER: Final = (
    "Made by kcovdbg. KCOV records no time: rates come from looks at a kernel that runs, and "
    "counts are lower bounds."
)


def _plot_markup(
    title: str,
    times: Sequence[float],
    values: Sequence[float],
    format_value: Callable[[float], str],
    *,
    top: float | None = None,
    is_stepped: bool = False,
    marks: Sequence[float] = (),
    marks_title: str = "",
) -> Iterator[str]:
    """Yield a figure with the plot of a value over time.

    :param times: seconds, ascending.
    :param top: the upper end of the scale; None for a round number above the largest value.
    :param is_stepped: whether a value stays the same until the next one.
    :param marks: times of events, drawn as vertical lines.
    """
    # A recording has at least one look. If it has no more, the time is 0.
    span = times[-1] or 1.0
    peak = max(values)
    if top is None:
        top = _nice_ceiling(peak)

    def x(seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / span

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(value / top, 1.0)

    label = f"{title}: at most {format_value(peak)}, at last {format_value(values[-1])}"
    if marks:
        label += f"; {len(marks)} {marks_title}"
    yield f"<figure><figcaption>{text(label)}</figcaption>"
    yield (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(label)}">'
    )
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        height = y(value)
        yield _line("grid", _LEFT, height, _WIDTH - _RIGHT, height)
        yield _label(_LEFT - 6, height + 4, "end", format_value(value))
    step = _nice_ceiling(span / 6)
    for number in range(math.floor(span / step) + 1):
        seconds = number * step
        yield _label(x(seconds), _HEIGHT - 8, "middle", f"{seconds:g} s")
    for seconds in marks:
        yield _line("mark", x(seconds), _TOP, x(seconds), _HEIGHT - _BOTTOM)
    corners = []
    held: float | None = None
    for seconds, value in zip(times, values, strict=True):
        if is_stepped and held is not None:
            corners.append(f"{x(seconds):.1f},{y(held):.1f}")
        corners.append(f"{x(seconds):.1f},{y(value):.1f}")
        held = value
    yield f'<polyline class="value" points="{" ".join(corners)}"/>'
    yield "</svg></figure>"


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, anchor: str, label: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(label)}</text>'


def _nice_ceiling(value: float) -> float:
    """Round a value up to 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for factor in (1, 2, 5):
        if factor * power >= value * (1 - 1e-9):
            return factor * power
    return 10 * power


def recording_page(summary: Summary) -> Iterator[str]:
    """Yield the lines of the page."""
    named = filter(None, (summary.last.target, summary.last.release))
    kernel = ", ".join(named) or "unknown kernel"
    sections = [
        PageSection("summary", "Summary", _overview(summary)),
        PageSection("time", "Over time", _plots(summary.points)),
        PageSection("buffers", "Buffers", table_markup(buffer_table(summary), "Buffers and areas")),
        PageSection("where", "Where records went", _share_tables(summary)),
        PageSection(
            "sections",
            "Remote sections",
            table_markup(section_table(summary.activity.sections), "Sections by handle"),
        ),
    ]
    return page_lines("KCOV over time", kernel, sections, footer=_FOOTER)


def _overview(summary: Summary) -> Iterator[str]:
    for line in (*heading_lines(summary), *advice_lines(summary)):
        markup = ""
        for style, part in line:
            escaped = text(part)
            if style == "header":
                escaped = f"<strong>{escaped}</strong>"
            markup += escaped
        yield f"<p>{markup}</p>"
    yield from notes_markup(summary.errors)


def _plots(points: tuple[PlotPoint, ...]) -> Iterator[str]:
    times = [point.seconds for point in points]
    full = []
    known = 0
    for point in points:
        if point.overflows > known:
            full.append(point.seconds)
        known = point.overflows
    yield '<div class="two">'
    yield from _plot_markup(
        "Records a second, all tasks", times, [point.rate for point in points], short_number
    )
    yield from _plot_markup(
        "Fill of the fullest buffer",
        times,
        [point.fill for point in points],
        lambda value: f"{value:.0%}",
        top=1.0,
        marks=full,
        marks_title="moments at which a buffer became full",
    )
    for title, counts in (
        ("Sections in flight", [point.sections for point in points]),
        ("Objects", [point.objects for point in points]),
    ):
        # The marks of the scale are whole numbers.
        top = max(math.ceil(max(counts) / _TICKS), 1) * _TICKS
        yield from _plot_markup(
            title, times, counts, lambda value: f"{value:g}", top=top, is_stepped=True
        )
    yield "</div>"


def _share_tables(summary: Summary) -> Iterator[str]:
    yield (
        "<p>Estimated from some of the records in each look. A line in the named Makefile excludes "
        "it from KCOV.</p>"
    )
    for by, shares in summary.shares.items():
        yield from table_markup(share_table(shares, by=by, limit=_SHARES), f"By {by}")
