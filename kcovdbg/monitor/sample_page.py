# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page about a recording of ``monitor``."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.monitor.summary import PlotPoint, Summary
from kcovdbg.console.renderable import Table
from kcovdbg.console.html_markup import text
from kcovdbg.console.html_page import PageSection, page_lines
from kcovdbg.monitor.plot import TICKS, Plot, plot_markup
from kcovdbg.console.html_table import notes_markup, table_markup
from kcovdbg.monitor.sample_rows import FINDING_COLUMNS
from kcovdbg.monitor.sample_summary_rows import (
    advice_lines,
    buffer_table,
    heading_lines,
    place_table,
    section_table,
    short_number,
)

_PLACES = 25
_FOOTER = "Made by kcovdbg. KCOV records no time: rates come from looks at a kernel that runs, and counts are lower bounds."


def recording_page(summary: Summary) -> Iterator[str]:
    """Yield the page."""
    facts = summary.facts
    kernel = ", ".join(filter(None, (facts.get("target"), facts.get("release")))) or "unknown kernel"
    sections = [
        PageSection("summary", "Summary", _overview(summary)),
        PageSection("time", "Over time", _plots(summary.points)),
        PageSection("buffers", "Buffers", table_markup(buffer_table(summary), "Buffers and areas")),
        PageSection("where", "Where records went", _places(summary)),
        PageSection("sections", "Remote sections", table_markup(section_table(summary.sections), "Sections by handle")),
        PageSection("findings", "Findings", _findings(summary)),
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


def _places(summary: Summary) -> Iterator[str]:
    yield "<p>Estimated from some of the records in each look. A line in the named Makefile excludes the place from KCOV.</p>"
    for by, places in (("function", summary.functions), ("file", summary.files), ("directory", summary.directories)):
        yield from table_markup(place_table(places, by=by, limit=_PLACES), f"By {by}")


def _findings(summary: Summary) -> Iterator[str]:
    table = Table(FINDING_COLUMNS, summary.findings, empty="no rule was violated in two looks in a row")
    yield from table_markup(table, "Findings")
