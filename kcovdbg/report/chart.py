# SPDX-License-Identifier: LGPL-2.1-or-later
"""A table of what fills a buffer, with a bar per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kcovdbg.console.html_markup import path_text, text


class Bar(NamedTuple):
    """One function's share of a buffer."""

    name: str
    place: str
    records: int
    repeats: int
    """Records of points that the same run of the function already had."""
    share: float
    """Share of all records: 0 to 1."""


def chart_markup(bars: Sequence[Bar], caption: str) -> Iterator[str]:
    """Yield the table; the longest bar has the full width."""
    longest = max((bar.records for bar in bars), default=0) or 1
    yield f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0">'
    yield f'<table class="chart"><caption>{text(caption)}</caption><thead><tr>'
    yield '<th scope="col">Function</th><th scope="col" class="right">Records</th><th scope="col" class="right">Share</th>'
    yield '<th scope="col" class="right">Repeats</th><th scope="col" class="bar">&#8203;</th></tr></thead><tbody>'
    for bar in bars:
        new = 100 * (bar.records - bar.repeats) / longest
        repeated = 100 * bar.repeats / longest
        yield (
            f'<tr><th scope="row"><span class="name">{text(bar.name)}</span> '
            f'<span class="place">{path_text(bar.place)}</span></th>'
            f'<td class="right">{bar.records}</td><td class="right">{bar.share:.1%}</td><td class="right">{bar.repeats}</td>'
            '<td class="bar"><svg width="100%" height="12" aria-hidden="true" focusable="false">'
            f'<rect class="new" x="0" y="1" height="10" width="{new:.3f}%"/>'
            f'<rect class="repeated" x="{new:.3f}%" y="1" height="10" width="{repeated:.3f}%"/></svg></td></tr>'
        )
    yield "</tbody></table></div>"
