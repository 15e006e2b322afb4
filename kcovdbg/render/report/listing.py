# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source text with its coverage by one or two traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.model.coverage import LineCoverage
from kcovdbg.render.highlight import TAB, highlight
from kcovdbg.render.renderable import Fragment
from kcovdbg.render.report.markup import path_text, source_text, text
from kcovdbg.render.source_hunks import find_hunks

_WORDS: Final = {"both": "covered by both", "all": "covered", "part": "covered in part", "none": "not covered"}


class Listing(NamedTuple):
    """A file."""

    file: str
    lines: Mapping[int, Sequence[LineCoverage | None]]
    """Line -> its coverage by each trace; None where a trace executed nothing of the function."""
    text: Sequence[str]
    """Empty where the text is missing."""


def listing_markup(listing: Listing, names: Sequence[str], *, is_open: bool = False) -> Iterator[str]:
    """Yield a foldable file with the lines around those that have points.

    :param names: of the traces.
    """
    yield f'<details class="file"{" open" if is_open else ""}>'
    counted = [sum(_is_covered(found[number]) for found in listing.lines.values()) for number in range(len(names))]
    yield summary_markup(listing.file, counted, len(listing.lines), names)
    yield from lines_markup(listing, names)
    yield "</details>"


def folded_markup(number: int, file: str, counted: Sequence[int], total: int, names: Sequence[str]) -> str:
    """Return a foldable file without its lines, which the page's script takes from a chunk.

    :param number: of the chunk.
    :param counted: lines that each trace covers.
    :param total: lines with points.
    :param names: of the traces.
    """
    return f'<details class="file" data-chunk="source-{number}">{summary_markup(file, counted, total, names)}</details>'


def summary_markup(file: str, counted: Sequence[int], total: int, names: Sequence[str]) -> str:
    """Return the heading of a foldable file.

    :param counted: lines that each trace covers.
    :param total: lines with points.
    :param names: of the traces.
    """
    said = ", ".join(
        f"{count} of {total} lines covered" + (f" by {name}" if len(names) > 1 else "")
        for count, name in zip(counted, names, strict=True)
    )
    return f'<summary><span class="path">{path_text(file)}</span> {text(said)}</summary>'


def lines_markup(listing: Listing, names: Sequence[str], *, has_colors: bool = True) -> Iterator[str]:
    """Yield the lines around those that have points.

    :param names: of the traces.
    :param has_colors: whether the syntax is highlighted, which takes most of the time.
    """
    yield f'<div class="scroll" role="region" aria-label="{text(listing.file)}" tabindex="0">'
    yield f'<table class="source"><caption class="hidden">{text(listing.file)}</caption><thead class="hidden"><tr>'
    for name in names:
        yield f'<th scope="col">Records{text(f" in {name}" if len(names) > 1 else "")}</th>'
    yield '<th scope="col">Coverage</th><th scope="col">Line</th><th scope="col">Text</th></tr></thead>'
    for first, last in find_hunks(sorted(listing.lines), len(listing.text)):
        yield "<tbody>"
        part = listing.text[first - 1 : last]
        if has_colors and part:
            codes = [_code(fragments) for fragments in highlight(part, listing.file)]
        else:
            codes = [source_text(line.expandtabs(TAB)) for line in part]
        for number in range(first, last + 1):
            yield _row(number, listing.lines.get(number), codes[number - first] if part else "", names)
        yield "</tbody>"
    yield "</table></div>"


def _code(fragments: Sequence[Fragment]) -> str:
    return "".join(
        f'<span class="s-{style.replace(".", "-")}">{source_text(part)}</span>' if style else source_text(part)
        for style, part in fragments
    )


def _row(number: int, found: Sequence[LineCoverage | None] | None, code: str, names: Sequence[str]) -> str:
    if found is None:
        return f'<tr>{"<td></td>" * (len(names) + 1)}<td class="line">{number}</td><td class="code">{code}</td></tr>'
    covered = [_is_covered(coverage) for coverage in found]
    if len(names) > 1:
        state = "both" if all(covered) else "left" if covered[0] else "right" if covered[1] else "none"
        words = f"only {text(names[covered.index(True)])}" if state in ("left", "right") else _WORDS[state]
        sign = {"both": "=", "left": "<", "right": ">", "none": "!"}[state]
    else:
        whole = covered[0] and found[0] is not None and found[0].covered == found[0].points
        state = "all" if whole else "part" if covered[0] else "none"
        words = _WORDS[state]
        sign = {"all": "+", "part": "~", "none": "!"}[state]
    hits = "".join(f'<td class="hits">{coverage.hits if coverage and coverage.covered else ""}</td>' for coverage in found)
    return (
        f'<tr class="c-{state}">{hits}<td class="mark" title="{words}"><span aria-hidden="true">{text(sign)}</span>'
        f'<span class="hidden">{words}</span></td><td class="line">{number}</td><td class="code">{code}</td></tr>'
    )


def _is_covered(coverage: LineCoverage | None) -> bool:
    return coverage is not None and coverage.covered > 0
