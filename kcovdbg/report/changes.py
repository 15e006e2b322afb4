# SPDX-License-Identifier: LGPL-2.1-or-later
"""The source lines that differ between two builds, and what was executed of them in each."""

from __future__ import annotations

import filecmp
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.console.html import notes_markup, path_text, source_text, text
from kcovdbg.console.text import TAB
from kcovdbg.records.alignment import align_records, number_values
from kcovdbg.records.coverage import FileCoverage, LineCoverage, find_lines
from kcovdbg.report.listing import MAX_LINES
from kcovdbg.report.trace import CountedTrace

_CONTEXT: Final = 3
# Beyond so many files it is not a patch but another release: those that were not executed are left
# out.
_MAX_FILES: Final = 200


class ChangedLine(NamedTuple):
    """A line of a hunk; with both numbers it is in both builds."""

    before: int | None
    """Its number before, None for an added line."""
    after: int | None
    """None for a removed line."""
    text: str


def diff_hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[list[ChangedLine]]:
    """Yield the hunks of a diff of two files."""
    hunk: list[ChangedLine] = []
    has_change = False
    parts = list(align_records(*number_values(before, after)).parts())
    for number, part in enumerate(parts, 1):
        if not part.is_common:
            has_change = True
            hunk += [ChangedLine(i + 1, None, before[i]) for i in part.left]
            hunk += [ChangedLine(None, j + 1, after[j]) for j in part.right]
            continue
        lines = [
            ChangedLine(i + 1, j + 1, after[j]) for i, j in zip(part.left, part.right, strict=True)
        ]
        if has_change and (len(lines) > 2 * _CONTEXT or number == len(parts)):
            yield hunk + lines[:_CONTEXT]
            has_change = False
        hunk = hunk + lines if has_change else lines[-_CONTEXT:]
    if has_change:
        yield hunk


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
    hunks: Sequence[Sequence[ChangedLine]]
    before: Mapping[int, LineCoverage]
    """Line before -> its coverage, of lines with points."""
    after: Mapping[int, LineCoverage]

    @property
    def counts(self) -> ChangeCounts:
        """The changed lines with points."""
        lines = [line for hunk in self.hunks for line in hunk]
        removed = [
            found
            for line in lines
            if line.after is None and (found := self.before.get(line.before or 0))
        ]
        added = [
            found
            for line in lines
            if line.before is None and (found := self.after.get(line.after or 0))
        ]
        return ChangeCounts(
            len(removed),
            sum(line.covered > 0 for line in removed),
            len(added),
            sum(line.covered > 0 for line in added),
        )


def changes_markup(before: CountedTrace, after: CountedTrace) -> Iterator[str]:
    """Yield the lines that differ between the sources of two builds, by file.

    :raises CapabilityError: when the points of a build are unknown.
    """
    traces = before, after
    # The files that a build has points in: without "./" -> as in debug info.
    names = [
        {posixpath.normpath(name): name for name in trace.build.find_table().files()}
        for trace in traces
    ]
    paths = {
        file: [
            trace.build.find_source(its.get(file, file))
            for trace, its in zip(traces, names, strict=True)
        ]
        for file in sorted(names[0].keys() | names[1].keys())
    }
    if not all(any(found[side] is not None for found in paths.values()) for side in (0, 1)):
        yield from notes_markup(
            [
                "the sources of both builds are needed: --other-source names the tree of the "
                "build that --other-vmlinux names"
            ]
        )
        return
    # A file that only one tree has was added or removed; one that neither has is elsewhere.
    missing = sum(not any(found) for found in paths.values())
    differing = [file for file, found in paths.items() if any(found) and not _is_same(*found)]
    coverage = [_find_coverage(trace, frozenset(differing)) for trace in traces]
    chosen = differing
    if len(differing) > _MAX_FILES:
        chosen = [
            file
            for file in differing
            if any(file in its and any(its[file].covered) for its in coverage)
        ]
    changes = []
    for file in chosen:
        texts = [
            () if path is None else trace.build.find_tree().read_once(its.get(file, file)).lines
            for trace, its, path in zip(traces, names, paths[file], strict=True)
        ]
        lines = (
            {line.line: line for line in its[file].rows()} if file in its else {}
            for its in coverage
        )
        changes.append(Change(file, list(diff_hunks(*texts)), *lines))
    total = ChangeCounts(
        *map(sum, zip((0, 0, 0, 0), *(change.counts for change in changes), strict=True))
    )
    differ = "1 file differs" if len(changes) == 1 else f"{len(changes)} files differ"
    yield f"<p>{differ}: {counts_text(total)}.</p>"
    notes = []
    if all(found[0] == found[1] for found in paths.values()):
        notes.append(
            "both builds have one source tree; if their sources differ, --other-source and "
            "--source-dir name them"
        )
    if missing:
        notes.append(f"the text of {missing} of {len(paths)} files is missing")
    if len(differing) > len(chosen):
        notes.append(
            f"{len(differing) - len(chosen)} more files differ, of which neither trace "
            f"executed anything"
        )
    room = MAX_LINES
    # Executed files first.
    changes.sort(
        key=lambda change: (
            -change.counts.covered_before - change.counts.covered_after,
            change.file,
        )
    )
    for number, change in enumerate(changes):
        room -= sum(map(len, change.hunks))
        if room < 0 and number:
            notes.append(f"the lines of {len(changes) - number} more files are left out")
            break
        yield from change_markup(change, is_open=number == 0)
    yield from notes_markup(notes)


def _is_same(before: Path | None, after: Path | None) -> bool:
    return (
        before is not None
        and after is not None
        and (before == after or filecmp.cmp(before, after, shallow=False))
    )


def _find_coverage(trace: CountedTrace, files: frozenset[str]) -> dict[str, FileCoverage]:
    """Return the coverage of files, without ``./``, by each of their lines with points."""
    found = find_lines(
        trace.build.names.columns(trace.counts.pcs),
        trace.counts.records,
        trace.kinds,
        lambda frame: frame.file is not None and posixpath.normpath(frame.file) in files,
        has_unexecuted=True,
    )
    return {posixpath.normpath(coverage.file): coverage for coverage in found}


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


def counts_text(counts: ChangeCounts) -> str:
    """Return in words what was covered of changed lines."""
    return (
        f"{counts.covered_before} of {counts.removed} removed lines with points covered before, "
        f"{counts.covered_after} of {counts.added} added ones after, {counts.never} never"
    )


_TITLES: Final = (
    "Records before",
    "Records after",
    "Change",
    "Coverage",
    "Line before",
    "Line after",
    "Text",
)


def change_markup(change: Change, *, is_open: bool) -> Iterator[str]:
    """Yield a foldable file with its hunks."""
    hunks = ((_changed_row(change, line) for line in hunk) for hunk in change.hunks)
    yield from hunks_markup(
        change.file, counts_text(change.counts), _TITLES, hunks, is_open=is_open
    )


def hunks_markup(
    file: str, summary: str, titles: Iterable[str], hunks: Iterable[Iterable[str]], *, is_open: bool
) -> Iterator[str]:
    """Yield a foldable file with hunks.

    :param summary: of it, in words.
    :param titles: of the columns.
    :param hunks: rows of the table as HTML.
    """
    yield (
        f'<details class="file"{" open" if is_open else ""}><summary><span '
        f'class="path">{path_text(file)}</span> '
    )
    yield f"{text(summary)}</summary>"
    yield f'<div class="scroll" role="region" aria-label="{text(file)}" tabindex="0">'
    yield (
        f'<table class="source"><caption class="hidden">{text(file)}</caption><thead '
        f'class="hidden"><tr>'
    )
    for title in titles:
        yield f'<th scope="col">{title}</th>'
    yield "</tr></thead>"
    for hunk in hunks:
        yield "<tbody>"
        yield from hunk
        yield "</tbody>"
    yield "</table></div></details>"


def _changed_row(change: Change, line: ChangedLine) -> str:
    before, after = change.before.get(line.before or 0), change.after.get(line.after or 0)
    style, words = _state(line, before, after)
    sign = "\N{MINUS SIGN}" if line.after is None else "+" if line.before is None else ""
    hits = "".join(
        f'<td class="hits">{one.hits if one is not None and one.covered else ""}</td>'
        for one in (before, after)
    )
    numbers = "".join(
        f'<td class="line">{number or ""}</td>' for number in (line.before, line.after)
    )
    opened = f'<tr class="c-{style}">' if style else "<tr>"
    code = source_text(line.text.expandtabs(TAB))
    return (
        f'{opened}{hits}<td class="mark">{sign}</td><td class="covered">{words}</td>{numbers}<td '
        f'class="code">{code}</td></tr>'
    )


def _state(
    line: ChangedLine, before: LineCoverage | None, after: LineCoverage | None
) -> tuple[str, str]:
    """Return the style of a line and its coverage in words; empty for one without points."""
    if before is None and after is None:
        return "", ""
    covered = tuple(None if found is None else found.covered > 0 for found in (before, after))
    if line.after is None:
        return ("left", "covered before") if covered[0] else ("none", "never covered")
    if line.before is None:
        return ("right", "covered after") if covered[1] else ("none", "never covered")
    return _COMMON[covered[0], covered[1]]
