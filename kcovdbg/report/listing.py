# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make HTML of source text with its coverage by one or two traces, of findings, and of a chart with
the functions that fill a buffer.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, repeat, starmap
from operator import add, attrgetter, mul
from typing import Final, NamedTuple

from kcovdbg.check.finding_text import count_findings, word_finding
from kcovdbg.check.runner import Report
from kcovdbg.console.html import (
    json_text,
    notes_markup,
    packed_numbers,
    packed_text,
    path_text,
    scroll_start,
    source_text,
    text,
)
from kcovdbg.console.renderable import Fragment
from kcovdbg.console.text import TAB, escape, escape_all, find_hunks, highlight
from kcovdbg.model.kcov import amount_text
from kcovdbg.records.coverage import FileCoverage
from kcovdbg.records.line_states import LineState, flag_states
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.pc_shares import Share

MAX_LINES: Final = 6000
"""Limit for lines of source that are in the page as rows, because many rows make it slow to open.
"""


class _Mark(NamedTuple):
    """The appearance of lines of one kind."""

    style: str
    sign: str
    words: str


_UNKNOWN_WORDS: Final = "unknown whether executed"
# The marks for lines of one trace, by kind.
_KINDS: Final = (
    _Mark("all", "+", "executed"),
    _Mark("part", "~", "executed in part"),
    _Mark("none", "!", "not executed"),
    _Mark("x", "x", "without coverage points"),
    _Mark("unknown", "?", _UNKNOWN_WORDS),
)
_KIND_OF: Final = {
    LineState.EXECUTED: 0,
    LineState.PARTLY: 1,
    LineState.NOT_EXECUTED: 2,
    LineState.NOT_INSTRUMENTED: 3,
}
# Tables for bytes.translate(): a LineState -> the index of its mark, and whether it was executed.
_KIND_TABLE: Final = bytes(_KIND_OF.get(state, 4) for state in LineState).ljust(256, b"\0")
_EXECUTED_TABLE: Final = flag_states(lambda state: state.was_executed)
# For two traces, a kind becomes 0 for executed, 1 for not executed, or 2 for unknown. The index of
# a line's mark is three times the left number plus the right one.
_RIGHT_TABLE: Final = bytes((0, 0, 1, 2, 2)).ljust(256, b"\0")
_LEFT_TABLE: Final = bytes((0, 0, 3, 6, 6)).ljust(256, b"\0")


def _marks(names: Sequence[str]) -> Sequence[_Mark]:
    """Return the marks that lines can have, in the order of :attr:`SourceFile.kinds`.

    :param names: the names of one or two traces.
    """
    if len(names) == 1:
        return _KINDS
    left, right = names
    unknown = _Mark("unknown", "?", _UNKNOWN_WORDS)
    return (
        _Mark("both", "=", "executed by both"),
        _Mark("left", "<", f"executed by {left} only"),
        _Mark("unknown", "?", f"executed by {left}, unknown for {right}"),
        _Mark("right", ">", f"executed by {right} only"),
        _Mark("none", "!", "executed by neither"),
        unknown,
        _Mark("unknown", "?", f"executed by {right}, unknown for {left}"),
        unknown,
        unknown,
    )


# Indexes of marks of two traces.
_ONLY_LEFT: Final = 1
_ONLY_RIGHT: Final = 3


def legend_markup(names: Sequence[str]) -> str:
    """Return the meanings of the marks of lines.

    :param names: the names of the traces.
    """
    # Of several marks with one sign, the last has the most general meaning.
    words = {mark.sign: f"<b>{text(mark.sign)}</b> {text(mark.words)}" for mark in _marks(names)}
    return f'<p class="keys">{", ".join(words.values())}</p>'


class SourceFile(NamedTuple):
    """A file of source with its coverage by each trace."""

    file: str
    coverage: Sequence[FileCoverage]
    """All have the same lines."""

    @property
    def lines(self) -> Sequence[int]:
        """The lines with points or code, ascending."""
        return self.coverage[0].lines

    @property
    def kinds(self) -> bytes:
        """The index of the mark of each line."""
        kinds = [bytes(coverage.states).translate(_KIND_TABLE) for coverage in self.coverage]
        if len(kinds) == 1:
            return kinds[0]
        left, right = kinds
        return bytes(map(add, left.translate(_LEFT_TABLE), right.translate(_RIGHT_TABLE)))

    @property
    def hits(self) -> list[Sequence[int]]:
        """The records of each line by each trace, 0 unless it was executed."""
        found: list[Sequence[int]] = []
        for coverage in self.coverage:
            executed = bytes(coverage.states).translate(_EXECUTED_TABLE)
            found.append(array("Q", map(mul, coverage.hits, executed)))
        return found

    @property
    def order(self) -> tuple[int, int, str]:
        """A key that sorts files: more differing lines first, then more records."""
        differing = 0
        if len(self.coverage) > 1:
            kinds = self.kinds
            differing = kinds.count(_ONLY_LEFT) + kinds.count(_ONLY_RIGHT)
        records = sum(sum(coverage.hits) for coverage in self.coverage)
        return -differing, -records, self.file


def hunks_markup(
    file: str, summary: str, titles: Iterable[str], hunks: Iterable[Iterable[str]], *, is_open: bool
) -> Iterator[str]:
    """Yield a foldable file with the lines of its hunks.

    :param summary: the text beside the file's name.
    :param titles: the titles of the columns.
    :param hunks: rows of the table as HTML.
    """
    yield f'<details class="file"{" open" if is_open else ""}>'
    yield _summary_markup(file, summary)
    yield scroll_start(file)
    yield (
        f'<table class="source"><caption class="hidden">{text(file)}</caption><thead '
        f'class="hidden"><tr>'
    )
    for title in titles:
        yield f'<th scope="col">{text(title)}</th>'
    yield "</tr></thead>"
    for hunk in hunks:
        yield "<tbody>"
        yield from hunk
        yield "</tbody>"
    yield "</table></div></details>"


def listing_markup(
    file: SourceFile,
    source: Sequence[str],
    names: Sequence[str],
    *,
    is_open: bool = False,
    is_colored: bool = True,
) -> Iterator[str]:
    """Yield a foldable file with the lines around points.

    :param source: the file's text; empty if it is missing.
    :param names: the names of the traces.
    :param is_colored: whether the syntax has colors.
    """
    cells = {}
    marks, hits = _marks(names), zip(*file.hits, strict=True)
    for line, kind, counts in zip(file.lines, file.kinds, hits, strict=True):
        cells[line] = marks[kind].style, _mark_cells(marks[kind], counts)
    no_code = "", "<td></td>" * (len(names) + 1)

    def find_rows(first: int, last: int) -> Iterator[str]:
        part = source[first - 1 : last]
        codes = map(plain_code, part)
        if is_colored and part:
            codes = map(_code, highlight(part, file.file))
        # The text may be shorter, if it is of another version.
        shown = chain(codes, repeat(""))
        for number, code in zip(range(first, last + 1), shown, strict=False):
            style, its_cells = cells.get(number, no_code)
            yield row_markup(style, f'{its_cells}<td class="line">{number}</td>', code)

    hunks = starmap(find_rows, find_hunks(file.lines, len(source)))
    yield from hunks_markup(
        file.file, _summary(file, names), _headings(names), hunks, is_open=is_open
    )


def packed_words(names: Sequence[str]) -> str:
    """Return a script element with the texts that the files of :func:`packed_lines` share.

    :param names: the names of the traces.
    """
    marks = [[mark.style, mark.sign, escape(mark.words)] for mark in _marks(names)]
    content = json_text([list(map(escape, _headings(names))), marks])
    return f'<script type="application/json" id="sources">{content}</script>'


def packed_lines(file: SourceFile, source: Sequence[str]) -> str:
    """Return JSON from which the page's script makes the markup of :func:`listing_markup`, without
    colors.
    """
    hunks: list[tuple[int, int, str]] = []
    if source:
        shown = escape_all("\n".join(source).expandtabs(TAB).split("\n"))
        hunks = [
            (first, last, "\n".join(shown[first - 1 : last]))
            for first, last in find_hunks(file.lines, len(source))
        ]
    lines, kinds, *hits = map(packed_numbers, (file.lines, file.kinds, *file.hits))
    return packed_text([escape(file.file), hunks, lines, kinds, hits])


def folded_markup(number: int, file: SourceFile, names: Sequence[str]) -> str:
    """Return a foldable file without its lines, which the page's script takes from a chunk.

    :param number: the number of the chunk.
    """
    summary = _summary_markup(file.file, _summary(file, names))
    return f'<details class="file" data-chunk="source-{number}">{summary}</details>'


def _summary_markup(file: str, summary: str) -> str:
    return f'<summary><span class="path">{path_text(file)}</span> {text(summary)}</summary>'


def _summary(file: SourceFile, names: Sequence[str]) -> str:
    executed = [coverage.executed_lines for coverage in file.coverage]
    said = f"{executed[0]} of {len(file.lines)} lines executed"
    if len(names) > 1:
        said += f" by {names[0]}, {executed[1]} by {names[1]}"
    kinds = file.kinds
    unknown = 0
    for kind, mark in enumerate(_marks(names)):
        if mark.style == "unknown":
            unknown += kinds.count(kind)
    if unknown:
        said += f", {unknown} unknown"
    return said


def _headings(names: Sequence[str]) -> list[str]:
    records = ["Records"]
    if len(names) > 1:
        records = [f"Records in {name}" for name in names]
    return [*records, "Coverage", "Line", "Text"]


def plain_code(line: str) -> str:
    """Return a line of source as HTML, without colors."""
    return source_text(line.expandtabs(TAB))


def _code(fragments: Sequence[Fragment]) -> str:
    """Return a line of source as HTML, with colors."""
    code = ""
    for style, part in fragments:
        shown = source_text(part)
        if style:
            shown = f'<span class="s-{style.replace(".", "-")}">{shown}</span>'
        code += shown
    return code


def _mark_cells(mark: _Mark, hits: Sequence[int]) -> str:
    """Return the cells before a line: its number of records in each trace, and its mark."""
    cells = "".join(f'<td class="hits">{count or ""}</td>' for count in hits)
    return cells + _mark_cell(mark)


@cache
def _mark_cell(mark: _Mark) -> str:
    words = text(mark.words)
    return (
        f'<td class="mark" title="{words}"><span aria-hidden="true">{text(mark.sign)}</span>'
        f'<span class="hidden">{words}</span></td>'
    )


def row_markup(style: str, cells: str, code: str) -> str:
    """Return a row of a table of source lines.

    :param style: the row's style, or empty.
    :param cells: the cells before the line, as HTML.
    :param code: the line, as HTML.
    """
    opened = f'<tr class="c-{style}">' if style else "<tr>"
    return f'{opened}{cells}<td class="code">{code}</td></tr>'


def findings_markup(report: Report) -> Iterator[str]:
    """Yield the findings of check."""
    rules = amount_text(report.applied, "rule")
    yield f"<p>{rules}: {text(count_findings(report))}.</p>"
    for finding in report.findings:
        words = word_finding(finding)
        severity = text(finding.severity.value)
        yield f'<article class="finding {severity}">'
        yield (
            f'<p><strong class="s-{severity}">{severity}</strong> '
            f"<strong>{text(finding.rule)}</strong> {text(finding.object)}: "
            f"{text(finding.message)}</p>"
        )
        yield f'<p class="place">{text(words.rule)}</p>'
        values = f" <code>{text(words.values)}</code>" if words.values else ""
        yield f"<p>{text(words.certainty)}{values}</p>"
        for cause in words.causes:
            yield f"<p>{text(cause)}</p>"
        yield "</article>"
    yield from notes_markup(report.remarks)


def chart_markup(shares: Sequence[Share], names: LocationCache, caption: str) -> Iterator[str]:
    """Yield a table of functions with a bar for each; the longest bar has the full width."""
    longest = max(map(attrgetter("records"), shares), default=1)
    yield scroll_start(caption)
    yield f'<table class="chart"><caption>{text(caption)}</caption><thead><tr>'
    yield (
        '<th scope="col">Function</th><th scope="col" class="right">Records</th><th scope="col" '
        'class="right">Share</th>'
    )
    yield (
        '<th scope="col" class="right">Repeats</th><th scope="col" '
        'class="bar">&#8203;</th></tr></thead><tbody>'
    )
    for share in shares:
        frame = names.frame(share.pc)
        new = 100 * (share.records - share.repeats) / longest
        repeated = 100 * share.repeats / longest
        yield (
            f'<tr><th scope="row"><span '
            f'class="name">{text(frame.function or f"{share.pc:#x}")}</span> '
            f'<span class="place">{path_text(frame.file or "")}</span></th>'
            f'<td class="right">{share.records}</td><td class="right">{share.share:.1%}</td>'
            f'<td class="right">{share.repeats}</td>'
            '<td class="bar"><svg width="100%" height="12" aria-hidden="true" focusable="false">'
            f'<rect class="new" x="0" y="1" height="10" width="{new:.3f}%"/>'
            f'<rect class="repeated" x="{new:.3f}%" y="1" height="10" '
            f'width="{repeated:.3f}%"/></svg></td></tr>'
        )
    yield "</tbody></table></div>"


# zlib's level: five times as fast as the default, for a sixth more bytes.
_LEVEL: Final = 1


def chunk_lines(kind: str, contents: Iterable[str]) -> Iterator[str]:
    """Yield a script element for each chunk, which the browser does not run: its text is compressed
    by zlib, in base64.

    :param kind: the elements have the identifiers ``KIND-0``, ``KIND-1``, …
    """
    for number, content in enumerate(contents):
        packed = b64encode(zlib.compress(content.encode(), _LEVEL)).decode("ascii")
        yield f'<script type="application/zlib" id="{kind}-{number}">{packed}</script>'
