# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pieces of HTML pages: markup, tables, the page itself."""

from __future__ import annotations

import html
import json
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from typing import Any, Final, NamedTuple

from kcovdbg.console.column import Column
from kcovdbg.console.grid import find_shown, is_hidden
from kcovdbg.console.renderable import Table
from kcovdbg.console.text import escape, escape_surrogates
from kcovdbg.records.native_loops import narrow

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
# In a script element only end tags and comments are markup, and all of them begin with "<".
_IN_SCRIPT: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def text(value: object) -> str:
    """Return text for elements and quoted attributes: escaped as for a terminal, then for HTML."""
    return html.escape(escape(str(value)), quote=True)


def path_text(value: object) -> str:
    """Return a path that breaks only after slashes."""
    return text(value).replace("/", "/<wbr>")


def source_text(value: str) -> str:
    """Return a line of source with expanded tabs."""
    return html.escape(escape(value), quote=False)


def json_text(value: object) -> str:
    """Return JSON for a script element."""
    encoded = packed_text(value)
    for character, replacement in _IN_SCRIPT.items():
        encoded = encoded.replace(character, replacement)
    return escape_surrogates(encoded)


def packed_text(value: object) -> str:
    """Return JSON for a chunk."""
    return _ENCODER.encode(value)


def packed_numbers(numbers: Sequence[int]) -> dict[str, object]:
    """Return natural numbers for JSON as base64 of little-endian words, of as few bits as hold
    them: 8, 16, 32 or 64.
    """
    if isinstance(numbers, bytes):
        words = array("B", numbers)
    else:
        words = narrow(numbers if isinstance(numbers, array) else array("Q", numbers))
        if sys.byteorder == "big":
            words.byteswap()
    return {"bits": 8 * words.itemsize, "words": b64encode(words.tobytes()).decode("ascii")}


class PageSection(NamedTuple):
    """A part of the page."""

    anchor: str
    title: str
    markup: Iterable[str]


_FOOTER: Final = "Made by kcovdbg. KCOV records no time; numbers count records."


def page_lines(
    title: str, subtitle: str, sections: Sequence[PageSection], footer: str = _FOOTER
) -> Iterator[str]:
    """Yield the page.

    Its content security policy allows only its own style and script, by their hashes: no network,
    and no code in text.
    """
    style, script = _read("html_page.css"), _read("html_page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src "
        f"'{_hash(script)}'; base-uri 'none'"
    )
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield (
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta '
        'name="color-scheme" content="light dark">'
    )
    yield f'<link rel="icon" href="data:,"><title>{text(title)}</title>'
    yield f"<style>{style}</style></head><body>"
    yield '<a class="skip" href="#main">Skip to the content</a>'
    yield f"<header><h1>{text(title)}</h1><p>{text(subtitle)}</p>"
    yield '<nav aria-label="Sections"><ul>'
    for section in sections:
        yield f'<li><a href="#{section.anchor}">{text(section.title)}</a></li>'
    yield '</ul></nav></header><main id="main">'
    for section in sections:
        yield f'<section id="{section.anchor}" aria-labelledby="{section.anchor}-title">'
        yield f'<h2 id="{section.anchor}-title">{text(section.title)}</h2>'
        yield from section.markup
        yield "</section>"
    yield f"</main><footer><p>{text(footer)}</p></footer>"
    yield f"<script>{script}</script></body></html>"


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    return f"sha256-{b64encode(sha256(content.encode()).digest()).decode('ascii')}"


def scroll_start(label: str) -> str:
    """Return the start of an element that scrolls if it is wider than the page."""
    return f'<div class="scroll" role="region" aria-label="{text(label)}" tabindex="0">'


MAX_ROWS: Final = 2000
"""Limit for the rows of a table; further rows are counted."""


def table_markup(table: Table, caption: str) -> Iterator[str]:
    """Yield a table that scrolls if it is wider than the page."""
    if table.is_record:
        yield from _record_markup(table, caption)
        return
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
    yield scroll_start(caption)
    yield f"<table><caption>{text(caption)}</caption>"
    yield "<thead><tr>"
    for index in shown:
        kind = ' class="right"' if columns[index].kind.align_right else ""
        yield f'<th scope="col"{kind}>{text(columns[index].heading)}</th>'
    yield "</tr></thead><tbody>"
    notes: list[str] = []
    for row, texts in zip(first, cells, strict=True):
        shown_cells = ""
        for index in shown:
            shown_cells += f"<td{_find_classes(columns[index], row)}>{text(texts[index])}</td>"
        yield f"<tr>{shown_cells}</tr>"
        if table.errors is not None:
            label = "" if table.label is None else f"{table.label(row)}: "
            notes += [f"{label}{error}" for error in table.errors(row)]
    yield "</tbody></table></div>"
    if more:
        notes.append(f"{more} more rows; the command shows all")
    yield from notes_markup([*table.remarks, *notes])


def _record_markup(table: Table, caption: str) -> Iterator[str]:
    """Yield a table with a name and a value per row."""
    yield scroll_start(caption)
    yield f'<table class="record"><caption>{text(caption)}</caption><tbody>'
    notes = [*table.remarks]
    for row in table.rows:
        for column in table.text_columns:
            if not is_hidden(column, row):
                shown = text(column.formatter()(row))
                yield f'<tr><th scope="row">{text(column.heading)}</th><td>{shown}</td></tr>'
        if table.errors is not None:
            notes += table.errors(row)
    yield "</tbody></table></div>"
    yield from notes_markup(notes)


def notes_markup(remarks: Iterable[str]) -> Iterator[str]:
    """Yield notes."""
    distinct = list(dict.fromkeys(remarks))
    if distinct:
        yield '<ul class="notes">'
        for remark in distinct:
            yield f"<li>{text(remark)}</li>"
        yield "</ul>"


def _find_classes(column: Column, row: Any) -> str:
    """Return the attribute with a cell's classes, empty for none."""
    style = column.cell_style
    name = style(row) if callable(style) else style
    classes = []
    if column.kind.align_right:
        classes.append("right")
    if name:
        classes.append(f"s-{name.replace('.', '-')}")
    return f' class="{" ".join(classes)}"' if classes else ""
