# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source text with its coverage by one or two traces; findings, and the chart of what fills a
buffer.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.check.runner import Report, find_rule
from kcovdbg.console.html import (
    json_text,
    notes_markup,
    packed_numbers,
    packed_text,
    path_text,
    source_text,
    text,
)
from kcovdbg.console.renderable import Fragment
from kcovdbg.console.text import TAB, escape, escape_all, find_hunks, highlight
from kcovdbg.records.coverage import FileCoverage, LineCoverage
from kcovdbg.records.pc_counts import Share
from kcovdbg.records.pc_names import LocationCache

MAX_LINES: Final = 6000
"""Limit for lines of source with points that are in the page as they are: more rows make it slow to
open.
"""


class _State(NamedTuple):
    """The coverage of a line in words, with its sign."""

    name: str
    sign: str
    words: str


_NONE: Final = _State("none", "!", "not covered")


def _states(names: Sequence[str]) -> Sequence[_State]:
    """Return the states that lines can have.

    :param names: of the traces. Of one, lines are covered whole, in part, or not; of two, by both,
        by one of them, or by none.
    """
    if len(names) == 1:
        return _State("all", "+", "covered"), _State("part", "~", "covered in part"), _NONE
    left, right = names
    both = _State("both", "=", "covered by both")
    return both, _State("left", "<", f"only {left}"), _State("right", ">", f"only {right}"), _NONE


def _state_of_one(covered: int, points: int) -> int:
    """Return the index of the state of a line of one trace."""
    return 2 - (covered > 0) * (1 + (covered == points))


def _state_of_two(left: int, right: int) -> int:
    """Return the index of the state of a line of two traces, of whose points each covers some."""
    return 3 - 2 * (left > 0) - (right > 0)


class SourceFile(NamedTuple):
    """A file of source with its coverage by each trace."""

    file: str
    coverage: Sequence[FileCoverage | None]
    """None where a trace executed nothing of it."""

    @property
    def lines(self) -> dict[int, list[LineCoverage | None]]:
        """Line -> its coverage by each trace; None where a trace executed nothing of the
        function.
        """
        lines: dict[int, list[LineCoverage | None]] = {}
        for number, coverage in enumerate(self.coverage):
            for line in () if coverage is None else coverage.rows():
                lines.setdefault(line.line, [None] * len(self.coverage))[number] = line
        return lines

    @property
    def total(self) -> int:
        """Number of lines with points."""
        return len(
            set().union(*(coverage.lines for coverage in self.coverage if coverage is not None))
        )

    @property
    def order(self) -> tuple[int, int, str]:
        """The sort key of files: differing lines and records, most first."""
        differing = 0
        if len(self.coverage) > 1:
            # Some traces cover the line and others do not.
            covered = (
                {line is not None and line.covered > 0 for line in found}
                for found in self.lines.values()
            )
            differing = sum(len(one) > 1 for one in covered)
        return (
            -differing,
            -sum(sum(coverage.hits) for coverage in self.coverage if coverage is not None),
            self.file,
        )


def listing_markup(
    file: SourceFile,
    source: Sequence[str],
    names: Sequence[str],
    *,
    is_open: bool = False,
    is_colored: bool = True,
) -> Iterator[str]:
    """Yield a foldable file with the lines around those that have points.

    :param source: the file's text, empty where it is missing.
    :param names: of the traces.
    :param is_colored: whether the syntax has colors.
    """
    yield f'<details class="file"{" open" if is_open else ""}>'
    yield _summary_markup(file, names)
    yield f'<div class="scroll" role="region" aria-label="{text(file.file)}" tabindex="0">'
    yield (
        f'<table class="source"><caption class="hidden">{text(file.file)}</caption><thead '
        f'class="hidden"><tr>'
    )
    yield "".join(f'<th scope="col">{text(heading)}</th>' for heading in _headings(names))
    yield "</tr></thead>"
    lines, states = file.lines, _states(names)
    for first, last in find_hunks(sorted(lines), len(source)):
        yield "<tbody>"
        part = source[first - 1 : last]
        if is_colored and part:
            codes = list(map(_code, highlight(part, file.file)))
        else:
            codes = [source_text(line.expandtabs(TAB)) for line in part]
        # The text may be of another version, and shorter.
        codes += [""] * (last + 1 - first - len(codes))
        for number, code in enumerate(codes, first):
            yield _row(number, lines.get(number, [None] * len(names)), code, states)
        yield "</tbody>"
    yield "</table></div>"
    yield "</details>"


def packed_words(names: Sequence[str]) -> str:
    """Return a script element with what the files of :func:`packed_lines` share.

    :param names: of the traces.
    """
    states = [[state.name, state.sign, escape(state.words)] for state in _states(names)]
    return (
        f'<script type="application/json" '
        f'id="sources">{json_text([list(map(escape, _headings(names))), states])}</script>'
    )


def packed_lines(file: SourceFile, source: Sequence[str]) -> str:
    """Return JSON of which the page's script makes what :func:`listing_markup` returns, but for
    colors.
    """
    one = file.coverage[0]
    if len(file.coverage) == 1 and one is not None:
        lines, hits = one.lines, [one.hits]
        states = list(map(_state_of_one, one.covered, one.points))
    else:
        lines = sorted(
            {line for found in file.coverage if found is not None for line in found.lines}
        )
        known = [
            {} if found is None else dict(zip(found.lines, found.hits, strict=True))
            for found in file.coverage
        ]
        hits = [[hits_of.get(line, 0) for line in lines] for hits_of in known]
        states = list(map(_state_of_two, *hits))
    hunks: list[tuple[int, int, str]] = []
    if source:
        shown = escape_all("\n".join(source).expandtabs(TAB).split("\n"))
        hunks = [
            (first, last, "\n".join(shown[first - 1 : last]))
            for first, last in find_hunks(lines, len(source))
        ]
    return packed_text(
        [
            escape(file.file),
            hunks,
            *map(packed_numbers, (lines, states)),
            list(map(packed_numbers, hits)),
        ]
    )


def folded_markup(number: int, file: SourceFile, names: Sequence[str]) -> str:
    """Return a foldable file without its lines, which the page's script takes from a chunk.

    :param number: of the chunk.
    """
    return (
        f'<details class="file" '
        f'data-chunk="source-{number}">{_summary_markup(file, names)}</details>'
    )


def _summary_markup(file: SourceFile, names: Sequence[str]) -> str:
    total = file.total
    said = ", ".join(
        f"{0 if coverage is None else coverage.covered_lines} of {total} lines covered"
        + (f" by {name}" if len(names) > 1 else "")
        for coverage, name in zip(file.coverage, names, strict=True)
    )
    return f'<summary><span class="path">{path_text(file.file)}</span> {text(said)}</summary>'


def _headings(names: Sequence[str]) -> list[str]:
    return [
        *(f"Records in {name}" if len(names) > 1 else "Records" for name in names),
        "Coverage",
        "Line",
        "Text",
    ]


def _code(fragments: Sequence[Fragment]) -> str:
    return "".join(
        f'<span class="s-{style.replace(".", "-")}">{source_text(part)}</span>'
        if style
        else source_text(part)
        for style, part in fragments
    )


def _row(
    number: int, found: Sequence[LineCoverage | None], code: str, states: Sequence[_State]
) -> str:
    if not any(found):
        return (
            f'<tr>{"<td></td>" * (len(found) + 1)}<td class="line">{number}</td><td '
            f'class="code">{code}</td></tr>'
        )
    covered = [0 if coverage is None else coverage.covered for coverage in found]
    one = found[0]
    state = states[
        _state_of_two(*covered)
        if len(found) > 1
        else _state_of_one(covered[0], one.points if one else 0)
    ]
    hits = "".join(
        f'<td class="hits">{coverage.hits if coverage and coverage.covered else ""}</td>'
        for coverage in found
    )
    return (
        f'<tr class="c-{state.name}">{hits}<td class="mark" title="{text(state.words)}">'
        f'<span aria-hidden="true">{text(state.sign)}</span><span '
        f'class="hidden">{text(state.words)}</span></td>'
        f'<td class="line">{number}</td><td class="code">{code}</td></tr>'
    )


def findings_markup(report: Report) -> Iterator[str]:
    """Yield the findings of check."""
    findings, violations = report.findings, report.violations
    said = (
        "none violated"
        if not violations
        else "1 violation"
        if violations == 1
        else f"{violations} violations"
    )
    said = f"at least {said}" if any(finding.is_least for finding in findings) else said
    rules = "1 rule" if report.applied == 1 else f"{report.applied} rules"
    unjudged = f"; {text(report.unjudged_text)}" if report.unjudged else ""
    yield f"<p>{rules}: {said}{unjudged}.</p>"
    for finding in findings:
        rule = find_rule(finding.rule)
        yield f'<article class="finding {text(finding.severity.value)}">'
        yield (
            f"<p><strong "
            f'class="s-{text(finding.severity.value)}">{text(finding.severity.value)}</strong> '
            f"<strong>{text(finding.rule)}</strong> {text(finding.object)}: "
            f"{text(finding.message)}</p>"
        )
        yield (
            f'<p class="place">{text(finding.rule)}: '
            f"{text('' if rule is None else rule.sentence)}</p>"
        )
        sure = finding.certainty.value + (f": {finding.reason}" if finding.reason else "")
        values = "  ".join(f"{name}={value}" for name, value in finding.values)
        yield f"<p>{text(sure)}{f' <code>{text(values)}</code>' if values else ''}</p>"
        for cause in finding.causes:
            yield f"<p>Known bug, {text(f'{cause.certainty.value} ({cause.reason}): {cause}')}</p>"
        yield "</article>"
    yield from notes_markup(report.remarks)


def chart_markup(shares: Sequence[Share], names: LocationCache, caption: str) -> Iterator[str]:
    """Yield a table of functions with a bar for each; the longest has the full width."""
    longest = max((share.records for share in shares), default=0) or 1
    yield f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0">'
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


# Five times as fast as the default, for a sixth more bytes.
_LEVEL: Final = 1


def chunk_lines(kind: str, contents: Iterable[str]) -> Iterator[str]:
    """Yield a script element for each chunk, in zlib's format and base64; the browser takes it for
    data.

    :param kind: its identifiers are ``KIND-0``, ``KIND-1``, …
    """
    for number, content in enumerate(contents):
        packed = b64encode(zlib.compress(content.encode(), _LEVEL)).decode("ascii")
        yield f'<script type="application/zlib" id="{kind}-{number}">{packed}</script>'
