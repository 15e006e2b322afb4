# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page of a recording's summary, with plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

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

# Of the drawing, in its own units; the page scales it.
_WIDTH: Final = 760
_HEIGHT: Final = 180
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 26
TICKS: Final = 4
"""Parts of the scale of values."""


class Plot(NamedTuple):
    """One value over time."""

    title: str
    times: Sequence[float]
    """Seconds, ascending."""
    values: Sequence[float]
    format: Callable[[float], str]
    top: float | None = None
    """The upper end of the scale; None: the largest value."""
    is_stepped: bool = False
    """Whether a value stays until the next one."""
    marks: Sequence[float] = ()
    """Times of events, drawn as vertical lines."""
    marks_title: str = ""


def plot_markup(plot: Plot) -> Iterator[str]:
    """Yield a figure with the drawing."""
    last = plot.times[-1] if plot.times else 0.0
    span = last or 1.0
    top = plot.top if plot.top is not None else nice_ceiling(max(plot.values, default=0.0))

    def x(seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / span

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(value / top, 1.0)

    peak = max(plot.values, default=0.0)
    label = f"{plot.title}: at most {plot.format(peak)}, at last {plot.format(plot.values[-1] if plot.values else 0)}"
    if plot.marks:
        label += f"; {len(plot.marks)} {plot.marks_title}"
    yield f"<figure><figcaption>{text(label)}</figcaption>"
    yield f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(label)}">'
    for tick in range(TICKS + 1):
        value = top * tick / TICKS
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{text(plot.format(value))}</text>'
    step = nice_ceiling(span / 6)
    for number in range(math.floor(span / step) + 1):
        seconds = number * step
        yield f'<text x="{x(seconds):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{text(f"{seconds:g} s")}</text>'
    for seconds in plot.marks:
        yield f'<line class="mark" x1="{x(seconds):.1f}" x2="{x(seconds):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
    points: list[str] = []
    before = None
    for seconds, value in zip(plot.times, plot.values, strict=True):
        if plot.is_stepped and before is not None:
            points.append(f"{x(seconds):.1f},{y(before):.1f}")
        points.append(f"{x(seconds):.1f},{y(value):.1f}")
        before = value
    yield f'<polyline class="value" points="{" ".join(points)}"/>'
    yield "</svg></figure>"


def nice_ceiling(value: float) -> float:
    """Return the next of 1, 2 or 5 times a power of ten that is not below a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9)), 10 * power)


_SHARES = 25
_FOOTER = "Made by kcovdbg. KCOV records no time: rates come from looks at a kernel that runs, and counts are lower bounds."


def recording_page(summary: Summary) -> Iterator[str]:
    """Yield the page."""
    kernel = ", ".join(filter(None, (summary.last.target, summary.last.release))) or "unknown kernel"
    sections = [
        PageSection("summary", "Summary", _overview(summary)),
        PageSection("time", "Over time", _plots(summary.points)),
        PageSection("buffers", "Buffers", table_markup(buffer_table(summary), "Buffers and areas")),
        PageSection("where", "Where records went", _share_tables(summary)),
        PageSection(
            "sections", "Remote sections", table_markup(section_table(summary.activity.sections), "Sections by handle")
        ),
    ]
    return page_lines("KCOV over time", kernel, sections, footer=_FOOTER)


def _overview(summary: Summary) -> Iterator[str]:
    for line in (*heading_lines(summary), *advice_lines(summary)):
        yield f"<p>{''.join(f'<strong>{text(part)}</strong>' if style == 'header' else text(part) for style, part in line)}</p>"
    yield from notes_markup(summary.errors)


def _plots(points: tuple[PlotPoint, ...]) -> Iterator[str]:
    times = [point.seconds for point in points]
    before = [0, *(point.overflows for point in points)]
    full = [point.seconds for point, known in zip(points, before, strict=False) if point.overflows > known]
    plots = (
        Plot("Records a second, all tasks", times, [point.rate for point in points], short_number),
        Plot(
            "Fill of the fullest buffer",
            times,
            [point.fill for point in points],
            lambda value: f"{value:.0%}",
            1.0,
            marks=full,
            marks_title="moments at which a buffer became full",
        ),
        _count_plot("Sections in flight", times, [point.sections for point in points]),
        _count_plot("Objects", times, [point.objects for point in points]),
    )
    yield '<div class="two">'
    for plot in plots:
        yield from plot_markup(plot)
    yield "</div>"


def _count_plot(title: str, times: list[float], counts: list[int]) -> Plot:
    # A scale whose marks are whole numbers.
    top = max(-(-max(counts, default=0) // TICKS), 1) * TICKS
    return Plot(title, times, [float(count) for count in counts], lambda value: f"{value:g}", float(top), is_stepped=True)


def _share_tables(summary: Summary) -> Iterator[str]:
    yield "<p>Estimated from some of the records in each look. A line in the named Makefile excludes it from KCOV.</p>"
    for by, shares in (("function", summary.functions), ("file", summary.files), ("directory", summary.directories)):
        yield from table_markup(share_table(shares, by=by, limit=_SHARES), f"By {by}")
