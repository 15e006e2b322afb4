# SPDX-License-Identifier: LGPL-2.1-or-later
"""The answer of ``patch`` as HTML: the lines that a change adds, with their states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from kcovdbg.console.html import notes_markup, text
from kcovdbg.report.listing import MAX_LINES, hunks_markup, plain_code, row_markup

_TITLES: Final = ("Records", "Mark", "State", "Line", "Text")
# The style of a row and its mark, by state.
_STYLES: Final[Mapping[str, tuple[str, str]]] = {
    "executed": ("all", "+"),
    "partly": ("part", "~"),
    "not-executed": ("none", "!"),
    "unknown": ("", "?"),
    "not-instrumented": ("", "x"),
    "not-built": ("", "#"),
    "no-code": ("", ""),
}


def patch_markup(rows: Sequence[Mapping[str, Any]], remarks: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a patch by file; files with lines that were not executed are open.

    :param rows: the rows of ``patch --json``.
    """
    notes = list(remarks)
    room = MAX_LINES
    for file, group in groupby(rows, key=lambda row: row["file"]):
        lines = list(group)
        room -= len(lines)
        if room < 0:
            notes.append(f"{file} and the files behind it are left out: patch shows them")
            break
        counts = Counter(row["state"] for row in lines)
        summary = ", ".join(f"{count} {state}" for state, count in counts.most_common())
        is_open = counts["not-executed"] > 0
        yield from hunks_markup(file, summary, _TITLES, _hunks(lines), is_open=is_open)
    yield from notes_markup(notes)


def _hunks(lines: Sequence[Mapping[str, Any]]) -> Iterator[Iterator[str]]:
    """Yield the rows of lines that follow each other."""
    start = 0
    for index in range(1, len(lines) + 1):
        if index == len(lines) or lines[index]["line"] != lines[index - 1]["line"] + 1:
            yield map(_row_markup, lines[start:index])
            start = index


def _row_markup(row: Mapping[str, Any]) -> str:
    style, mark = _STYLES[row["state"]]
    words = "" if row["state"] == "no-code" else row["state"]
    details = [row["reason"], row["option"], *(trace["trace"] for trace in row["traces"])]
    title = text(", ".join(filter(None, details)))
    cells = (
        f'<td class="hits">{row["hits"] or ""}</td><td class="mark">{mark}</td>'
        f'<td class="covered" title="{title}">{words}</td><td class="line">{row["line"]}</td>'
    )
    return row_markup(style, cells, plain_code(row["text"]))
