# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source text with its coverage by one or two traces, and the lines that a patch changes with theirs."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.console.html import json_text, packed_numbers, packed_text, path_text, source_text, text
from kcovdbg.console.renderable import Fragment
from kcovdbg.console.text import TAB, escape, escape_all, find_hunks, highlight
from kcovdbg.model.finding import Finding
from kcovdbg.records.coverage import FileCoverage, LineCoverage


class _State(NamedTuple):
    """The coverage of a line in words, with its sign."""

    name: str
    sign: str
    words: str


_NONE: Final = _State("none", "!", "not covered")


def _states(names: Sequence[str]) -> Sequence[_State]:
    """Return the states that lines can have.

    :param names: of the traces. Of one, lines are covered whole, in part, or not; of two, by both, by one of them, or by none.
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


class Listing(NamedTuple):
    """A file."""

    file: str
    lines: Mapping[int, Sequence[LineCoverage | None]]
    """Line -> its coverage by each trace; None where a trace executed nothing of the function."""
    text: Sequence[str]
    """Empty where the text is missing."""


def listing_markup(listing: Listing, names: Sequence[str], *, is_open: bool = False, is_colored: bool = True) -> Iterator[str]:
    """Yield a foldable file with the lines around those that have points.

    :param names: of the traces.
    :param is_colored: whether the syntax has colors.
    """
    yield f'<details class="file"{" open" if is_open else ""}>'
    counted = [sum(_is_covered(found[number]) for found in listing.lines.values()) for number in range(len(names))]
    yield summary_markup(listing.file, counted, len(listing.lines), names)
    yield from lines_markup(listing, names, is_colored=is_colored)
    yield "</details>"


def packed_words(names: Sequence[str]) -> str:
    """Return a script element with what the files of :func:`packed_lines` share.

    :param names: of the traces.
    """
    states = [[state.name, state.sign, escape(state.words)] for state in _states(names)]
    return f'<script type="application/json" id="sources">{json_text([list(map(escape, _headings(names))), states])}</script>'


def packed_lines(file: str, coverage: Sequence[FileCoverage | None], source: Sequence[str]) -> str:
    """Return JSON of which the page's script makes what :func:`lines_markup` returns, but for colors.

    :param coverage: of the file's lines by each trace; None where a trace executed nothing of the file.
    :param source: the file's text, empty where it is missing.
    """
    one = coverage[0]
    if len(coverage) == 1 and one is not None:
        lines, hits = one.lines, [one.hits]
        states = [
            2 - (covered > 0) * (1 + (covered == points)) for covered, points in zip(one.covered, one.points, strict=True)
        ]
    else:
        lines = sorted({line for found in coverage if found is not None for line in found.lines})
        known = [{} if found is None else dict(zip(found.lines, found.hits, strict=True)) for found in coverage]
        hits = [[hits_of.get(line, 0) for line in lines] for hits_of in known]
        states = list(map(_state_of_two, *hits))
    hunks: list[tuple[int, int, str]] = []
    if source:
        shown = escape_all("\n".join(source).expandtabs(TAB).split("\n"))
        hunks = [(first, last, "\n".join(shown[first - 1 : last])) for first, last in find_hunks(lines, len(source))]
    return packed_text([escape(file), hunks, *map(packed_numbers, (lines, states)), list(map(packed_numbers, hits))])


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


def _headings(names: Sequence[str]) -> list[str]:
    return [*(f"Records in {name}" if len(names) > 1 else "Records" for name in names), "Coverage", "Line", "Text"]


def lines_markup(listing: Listing, names: Sequence[str], *, is_colored: bool = True) -> Iterator[str]:
    """Yield the lines around those that have points.

    :param names: of the traces.
    """
    yield f'<div class="scroll" role="region" aria-label="{text(listing.file)}" tabindex="0">'
    yield f'<table class="source"><caption class="hidden">{text(listing.file)}</caption><thead class="hidden"><tr>'
    yield "".join(f'<th scope="col">{text(heading)}</th>' for heading in _headings(names))
    yield "</tr></thead>"
    for first, last in find_hunks(sorted(listing.lines), len(listing.text)):
        yield "<tbody>"
        part = listing.text[first - 1 : last]
        codes = []
        if is_colored and part:
            codes = list(map(_code, highlight(part, listing.file)))
        elif part:
            codes = [source_text(line.expandtabs(TAB)) for line in part]
        # The text may be of another version, and shorter.
        codes += [""] * (last + 1 - first - len(codes))
        for number, code in enumerate(codes, first):
            yield _row(number, listing.lines.get(number), code, names)
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
    covered = [0 if coverage is None else coverage.covered for coverage in found]
    one = found[0]
    number_of_state = _state_of_two(*covered) if len(found) > 1 else _state_of_one(covered[0], one.points if one else 0)
    state = _states(names)[number_of_state]
    hits = "".join(f'<td class="hits">{coverage.hits if coverage and coverage.covered else ""}</td>' for coverage in found)
    return (
        f'<tr class="c-{state.name}">{hits}<td class="mark" title="{text(state.words)}">'
        f'<span aria-hidden="true">{text(state.sign)}</span><span class="hidden">{text(state.words)}</span></td>'
        f'<td class="line">{number}</td><td class="code">{code}</td></tr>'
    )


def _is_covered(coverage: LineCoverage | None) -> bool:
    return coverage is not None and coverage.covered > 0


def findings_markup(findings: Sequence[Finding], applied: int, sentence_of: Callable[[str], str]) -> Iterator[str]:
    """Yield the findings.

    :param applied: the number of rules that were applied.
    :param sentence_of: from a rule's name to its sentence.
    """
    violations = sum(finding.more or 1 for finding in findings if finding.severity.is_violation)
    said = "none violated" if not violations else "1 violation" if violations == 1 else f"{violations} violations"
    said = f"at least {said}" if any(finding.is_least for finding in findings) else said
    yield f"<p>{applied} {'rule' if applied == 1 else 'rules'}: {said}.</p>"
    for finding in findings:
        yield f'<article class="finding {text(finding.severity.value)}">'
        yield (
            f'<p><strong class="s-{text(finding.severity.value)}">{text(finding.severity.value)}</strong> '
            f"<strong>{text(finding.rule)}</strong> {text(finding.object)}: {text(finding.message)}</p>"
        )
        yield f'<p class="place">{text(finding.rule)}: {text(sentence_of(finding.rule))}</p>'
        sure = finding.certainty.value + (f": {finding.reason}" if finding.reason else "")
        values = "  ".join(f"{name}={value}" for name, value in finding.values)
        yield f"<p>{text(sure)}{f' <code>{text(values)}</code>' if values else ''}</p>"
        for cause in finding.causes:
            yield f"<p>Known bug, {text(f'{cause.certainty.value} ({cause.reason}): {cause}')}</p>"
        yield "</article>"


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


# Five times as fast as the default, for a sixth more bytes.
_LEVEL: Final = 1


def chunk_lines(kind: str, contents: Iterable[str]) -> Iterator[str]:
    """Yield a script element for each chunk, in zlib's format and base64; the browser takes it for data.

    :param kind: its identifiers are ``KIND-0``, ``KIND-1``, …
    """
    for number, content in enumerate(contents):
        packed = b64encode(zlib.compress(content.encode(), _LEVEL)).decode("ascii")
        yield f'<script type="application/zlib" id="{kind}-{number}">{packed}</script>'


_COMMON: Final[dict[tuple[bool | None, bool | None], tuple[str, str]]] = {
    (True, True): ("both", "covered before and after"),
    (True, False): ("left", "covered before, not after"),
    (False, True): ("right", "covered after, not before"),
    (False, False): ("none", "never covered"),
    # A build without a point on the line does not count.
    (True, None): ("left", "covered before, no point after"),
    (False, None): ("none", "not covered before, no point after"),
    (None, True): ("right", "covered after, no point before"),
    (None, False): ("none", "not covered after, no point before"),
}


class ChangeLine(NamedTuple):
    """A line of a diff."""

    before: int | None
    """Its number before, None for an added line."""
    after: int | None
    text: str


class ChangeCounts(NamedTuple):
    """Changed lines that have coverage points."""

    removed: int
    covered_before: int
    """Of the removed ones."""
    added: int
    covered_after: int
    """Of the added ones."""

    @property
    def never(self) -> int:
        """Changed lines that were not covered in their build."""
        return self.removed + self.added - self.covered_before - self.covered_after


class Change(NamedTuple):
    """The differences in one file."""

    file: str
    hunks: Sequence[Sequence[ChangeLine]]
    before: Mapping[int, LineCoverage]
    """Line before -> its coverage, of lines with points."""
    after: Mapping[int, LineCoverage]

    @property
    def counts(self) -> ChangeCounts:
        """The changed lines with points."""
        lines = [line for hunk in self.hunks for line in hunk]
        removed = [found for line in lines if line.after is None and (found := _find(self.before, line.before))]
        added = [found for line in lines if line.before is None and (found := _find(self.after, line.after))]
        return ChangeCounts(
            len(removed), sum(line.covered > 0 for line in removed), len(added), sum(line.covered > 0 for line in added)
        )


def add_counts(counts: Iterable[ChangeCounts]) -> ChangeCounts:
    """Return the sums of several files."""
    every = list(counts)
    return ChangeCounts(*map(sum, zip(*every, strict=True))) if every else ChangeCounts(0, 0, 0, 0)


def counts_text(counts: ChangeCounts) -> str:
    """Return in words what was covered of changed lines."""
    return (
        f"{counts.covered_before} of {counts.removed} removed lines with points covered before, "
        f"{counts.covered_after} of {counts.added} added ones after, {counts.never} never"
    )


def change_markup(change: Change, *, is_open: bool) -> Iterator[str]:
    """Yield a foldable file with its hunks."""
    yield f'<details class="file"{" open" if is_open else ""}><summary><span class="path">{path_text(change.file)}</span> '
    yield f"{text(counts_text(change.counts))}</summary>"
    yield f'<div class="scroll" role="region" aria-label="{text(change.file)}" tabindex="0">'
    yield f'<table class="source"><caption class="hidden">{text(change.file)}</caption><thead class="hidden"><tr>'
    for title in ("Records before", "Records after", "Change", "Coverage", "Line before", "Line after", "Text"):
        yield f'<th scope="col">{title}</th>'
    yield "</tr></thead>"
    for hunk in change.hunks:
        yield "<tbody>"
        yield from (_changed_row(change, line) for line in hunk)
        yield "</tbody>"
    yield "</table></div></details>"


def _changed_row(change: Change, line: ChangeLine) -> str:
    before, after = _find(change.before, line.before), _find(change.after, line.after)
    style, words = _state(line, before, after)
    sign = "\N{MINUS SIGN}" if line.after is None else "+" if line.before is None else ""
    hits = "".join(f'<td class="hits">{one.hits if one is not None and one.covered else ""}</td>' for one in (before, after))
    numbers = "".join(f'<td class="line">{number or ""}</td>' for number in (line.before, line.after))
    opened = f'<tr class="c-{style}">' if style else "<tr>"
    code = source_text(line.text.expandtabs(TAB))
    return (
        f'{opened}{hits}<td class="mark">{sign}</td><td class="covered">{words}</td>{numbers}<td class="code">{code}</td></tr>'
    )


def _find(lines: Mapping[int, LineCoverage], number: int | None) -> LineCoverage | None:
    return None if number is None else lines.get(number)


def _state(line: ChangeLine, before: LineCoverage | None, after: LineCoverage | None) -> tuple[str, str]:
    """Return the style of a line and its coverage in words; empty for one without points."""
    if before is None and after is None:
        return "", ""
    covered = tuple(None if found is None else found.covered > 0 for found in (before, after))
    if line.after is None:
        return ("left", "covered before") if covered[0] else ("none", "never covered")
    if line.before is None:
        return ("right", "covered after") if covered[1] else ("none", "never covered")
    return _COMMON[covered[0], covered[1]]
