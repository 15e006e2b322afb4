# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables and fields as HTML tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from kcovdbg.console.grid import find_shown
from kcovdbg.console.renderable import Fields, Table
from kcovdbg.console.html_markup import text

MAX_ROWS: Final = 2000
"""Limit for the rows of a table; further ones are counted."""


def table_markup(table: Table, caption: str, show: Sequence[str] | None = None) -> Iterator[str]:
    """Yield a table that scrolls if it is wider than the page.

    :param caption: of the table.
    :param show: the keys of the columns, in order; by default those in text.
    """
    if show is not None:
        table = replace(table, show=show)
    columns = table.text_columns
    rows = iter(table.rows)
    first = list(islice(rows, MAX_ROWS))
    more = sum(1 for _ in rows)
    if not first:
        yield f'<p class="none">{text(table.empty or "nothing")}</p>'
        yield from notes_markup(table.remarks)
        return
    formatters = [column.formatter() for column in columns]
    cells = [[formatter(row) for formatter in formatters] for row in first]
    shown = find_shown(columns, cells)
    yield f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0">'
    yield f"<table><caption>{text(caption)}</caption>"
    yield "<thead><tr>"
    for index in shown:
        kind = ' class="right"' if columns[index].is_right else ""
        yield f'<th scope="col"{kind}>{text(columns[index].heading)}</th>'
    yield "</tr></thead><tbody>"
    classes = [_classes(columns[index].cell_style, right=columns[index].is_right) for index in shown]
    notes: list[str] = []
    for row, texts in zip(first, cells, strict=True):
        shown_cells = "".join(
            f"<td{class_of(row)}>{text(texts[index])}</td>" for index, class_of in zip(shown, classes, strict=True)
        )
        yield f"<tr>{shown_cells}</tr>"
        if table.errors is not None:
            label = "" if table.label is None else f"{table.label(row)}: "
            notes += [f"{label}{error}" for error in table.errors(row)]
    yield "</tbody></table></div>"
    if more:
        notes.append(f"{more} more rows; the command shows all")
    yield from notes_markup([*table.remarks, *notes])


def fields_markup(fields: Fields, caption: str) -> Iterator[str]:
    """Yield a table with a name and a value per row."""
    yield f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0"><table class="record">'
    yield f"<caption>{text(caption)}</caption><tbody>"
    for column in fields.columns:
        if column.json_only:
            continue
        shown = column.formatter()(fields.row)
        if column.hide_empty and shown in ("", "-", "none"):
            continue
        yield f'<tr><th scope="row">{text(column.heading)}</th><td>{text(shown)}</td></tr>'
    yield "</tbody></table></div>"
    errors = fields.errors(fields.row) if fields.errors is not None else ()
    yield from notes_markup([*fields.remarks, *errors])


def notes_markup(remarks: Iterable[str]) -> Iterator[str]:
    """Yield notes."""
    told = list(dict.fromkeys(remarks))
    if told:
        yield '<ul class="notes">'
        for remark in told:
            yield f"<li>{text(remark)}</li>"
        yield "</ul>"


def _classes(style: str | Callable[[Any], str], *, right: bool) -> Callable[[Any], str]:
    def attribute(row: Any) -> str:
        name = style(row) if callable(style) else style
        classes = [*(["right"] if right else []), *([f"s-{name.replace('.', '-')}"] if name else [])]
        return f' class="{" ".join(classes)}"' if classes else ""

    return attribute
