# SPDX-License-Identifier: LGPL-2.1-or-later
"""The source lines that differ between two builds, and what was executed of them in each."""

from __future__ import annotations

import filecmp
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_coverage import LineFinder
from kcovdbg.console.html import notes_markup, path_text, source_text, text
from kcovdbg.console.text import TAB
from kcovdbg.records.alignment import align_records, number_values
from kcovdbg.records.coverage import FileCoverage, LineCoverage
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
    """Changed lines that have code: numbers of lines."""

    removed: int = 0
    executed_before: int = 0
    """Of the removed ones."""
    added: int = 0
    executed_after: int = 0
    """Of the added ones."""
    unknown: int = 0
    """Of both, those of which it is unknown whether they were executed."""

    @property
    def never(self) -> int:
        """Changed lines that were not executed in their build."""
        executed = self.executed_before + self.executed_after
        return self.removed + self.added - executed - self.unknown

    @property
    def text(self) -> str:
        """The numbers in words."""
        said = (
            f"{self.executed_before} of {self.removed} removed lines with code executed before, "
            f"{self.executed_after} of {self.added} added ones after, {self.never} never"
        )
        return f"{said}, {self.unknown} unknown" if self.unknown else said


class Change(NamedTuple):
    """The differences in one file."""

    file: str
    hunks: Sequence[Sequence[ChangedLine]]
    before: Mapping[int, LineCoverage]
    """Line before -> its coverage, of lines with code."""
    after: Mapping[int, LineCoverage]

    @property
    def counts(self) -> ChangeCounts:
        """The changed lines with code."""
        before: list[LineCoverage] = []
        after: list[LineCoverage] = []
        for hunk in self.hunks:
            for line in hunk:
                old, new = self.before.get(line.before or 0), self.after.get(line.after or 0)
                if line.after is None and old is not None:
                    before.append(old)
                elif line.before is None and new is not None:
                    after.append(new)
        return ChangeCounts(
            len(before),
            sum(line.state.was_executed for line in before),
            len(after),
            sum(line.state.was_executed for line in after),
            sum(not line.state.is_decided for line in (*before, *after)),
        )


def changes_markup(before: CountedTrace, after: CountedTrace) -> Iterator[str]:
    """Yield the lines that differ between the sources of two builds, by file.

    :raises CapabilityError: when the points of a build are unknown.
    """
    traces = before, after
    # The files that a build has points in: without "./" -> as in debug info.
    names = [
        {
            posixpath.normpath(name): name
            for name in trace.kernel.points.require_table(needs_points=False).files()
        }
        for trace in traces
    ]
    paths = {
        file: [
            trace.kernel.sources.find_as_built(its.get(file, file))
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
        chosen = []
        for file in differing:
            found = [its[file] for its in coverage if file in its]
            if any(of_file.executed_lines for of_file in found):
                chosen.append(file)
    changes = []
    for file in chosen:
        texts = []
        lines = []
        for trace, its, path, covered in zip(traces, names, paths[file], coverage, strict=True):
            tree = trace.kernel.sources.tree
            texts.append(() if path is None else tree.read_once(its.get(file, file)).lines)
            rows = covered[file].rows() if file in covered else ()
            lines.append({line.line: line for line in rows})
        changes.append(Change(file, list(diff_hunks(*texts)), *lines))
    total = ChangeCounts(*map(sum, zip(*(change.counts for change in changes), strict=True)))
    differ = "1 file differs" if len(changes) == 1 else f"{len(changes)} files differ"
    yield f"<p>{differ}: {total.text}.</p>"
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
    changes.sort(key=_count_executed, reverse=True)
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


def _count_executed(change: Change) -> int:
    counts = change.counts
    return counts.executed_before + counts.executed_after


def _find_coverage(trace: CountedTrace, files: frozenset[str]) -> dict[str, FileCoverage]:
    """Return the lines of files, without ``./``, that have code."""
    table = trace.kernel.points.require_table(needs_points=False)
    names = set(table.files())
    if table.blocks is not None:
        names.update(table.blocks.files)
    wanted = {name for name in names if posixpath.normpath(name) in files}
    finder = LineFinder(trace.kernel.names.locations, lambda: table)
    (found,) = finder.find([trace.records], files=wanted, has_unexecuted=True)
    return {posixpath.normpath(coverage.file): coverage for coverage in found.files}


_TITLES: Final = (
    "Records before",
    "Records after",
    "Change",
    "Executed",
    "Line before",
    "Line after",
    "Text",
)


def change_markup(change: Change, *, is_open: bool) -> Iterator[str]:
    """Yield a foldable file with its hunks."""
    hunks = ((_changed_row(change, line) for line in hunk) for hunk in change.hunks)
    yield from hunks_markup(change.file, change.counts.text, _TITLES, hunks, is_open=is_open)


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
    style, words = _judge(line, _answer(before), _answer(after))
    sign = ""
    if line.after is None:
        sign = "\N{MINUS SIGN}"
    elif line.before is None:
        sign = "+"
    cells = ""
    for one in (before, after):
        hits = one.hits if one is not None and one.state.was_executed else ""
        cells += f'<td class="hits">{hits}</td>'
    cells += f'<td class="mark">{sign}</td><td class="covered">{words}</td>'
    for number in (line.before, line.after):
        cells += f'<td class="line">{number or ""}</td>'
    opened = f'<tr class="c-{style}">' if style else "<tr>"
    code = source_text(line.text.expandtabs(TAB))
    return f'{opened}{cells}<td class="code">{code}</td></tr>'


_NO_CODE: Final = "no code"
_EXECUTED: Final = "executed"
_MISSED: Final = "not executed"
_UNKNOWN: Final = "unknown"


def _answer(coverage: LineCoverage | None) -> str:
    """Return whether a line was executed, in words."""
    if coverage is None:
        return _NO_CODE
    if coverage.state.was_executed:
        return _EXECUTED
    return _MISSED if coverage.state.is_decided else _UNKNOWN


def _judge(line: ChangedLine, before: str, after: str) -> tuple[str, str]:
    """Return the style of a line and its coverage in words; empty for one without code."""
    if line.after is None:
        return _judge_one(before, "left", "executed before")
    if line.before is None:
        return _judge_one(after, "right", "executed after")
    if before == after:
        return _judge_one(before, "both", "executed before and after")
    words = f"{before} before, {after} after"
    if before == _EXECUTED:
        return "left", words
    if after == _EXECUTED:
        return "right", words
    return ("unknown" if _UNKNOWN in (before, after) else "none"), words


def _judge_one(answer: str, style: str, words: str) -> tuple[str, str]:
    """Return the style of a line of one build and its coverage in words.

    :param style: of a line that was executed.
    :param words: about such a line.
    """
    if answer == _EXECUTED:
        return style, words
    if answer == _NO_CODE:
        return "", ""
    return ("none", "never executed") if answer == _MISSED else ("unknown", _UNKNOWN)
