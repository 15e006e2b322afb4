# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that a patch changes, with their coverage before and after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.console.html import path_text, source_text, text
from kcovdbg.console.terminal import TAB
from kcovdbg.records.coverage import LineCoverage

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
        yield from (_row(change, line) for line in hunk)
        yield "</tbody>"
    yield "</table></div></details>"


def _row(change: Change, line: ChangeLine) -> str:
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
