# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page around its sections."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from kcovdbg.console.html_markup import text


class PageSection(NamedTuple):
    """A part of the page."""

    anchor: str
    title: str
    markup: Iterable[str]


_FOOTER: Final = "Made by kcovdbg. KCOV records no time; numbers count records."


def page_lines(title: str, subtitle: str, sections: Sequence[PageSection], footer: str = _FOOTER) -> Iterator[str]:
    """Yield the page.

    Its content security policy allows only its own style and script, by their hashes: no network, and no code in text.
    """
    style, script = _read("html_page.css"), _read("html_page.js")
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
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
