# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source text with its coverage by one or two traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.model.coverage import LineCoverage
from kcovdbg.render.highlight import highlight
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
    counted = [sum(_is_covered(found[number]) for found in listing.lines.values()) for number in range(len(names))]
    total = len(listing.lines)
    said = ", ".join(
        f"{count} of {total} lines covered" + (f" by {name}" if len(names) > 1 else "")
        for count, name in zip(counted, names, strict=True)
    )
    yield f'<details class="file"{" open" if is_open else ""}>'
    yield f'<summary><span class="path">{path_text(listing.file)}</span> {text(said)}</summary>'
    yield f'<div class="scroll" role="region" aria-label="{text(listing.file)}" tabindex="0">'
    yield f'<table class="source"><caption class="hidden">{text(listing.file)}</caption><thead class="hidden"><tr>'
    for name in names:
        yield f'<th scope="col">Records{text(f" in {name}" if len(names) > 1 else "")}</th>'
    yield '<th scope="col">Coverage</th><th scope="col">Line</th><th scope="col">Text</th></tr></thead>'
    for first, last in find_hunks(sorted(listing.lines), len(listing.text)):
        yield "<tbody>"
        shown = highlight(listing.text[first - 1 : last], listing.file) if listing.text else ()
        for number in range(first, last + 1):
            fragments = shown[number - first] if shown else ()
            code = "".join(
                f'<span class="s-{style.replace(".", "-")}">{source_text(part)}</span>' if style else source_text(part)
                for style, part in fragments
            )
            yield _row(number, listing.lines.get(number), code, names)
        yield "</tbody>"
    yield "</table></div></details>"


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
