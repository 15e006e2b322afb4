# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make HTML of the source lines that differ between two builds, and of their coverage."""

from __future__ import annotations

import filecmp
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_coverage import LineFinder
from kcovdbg.console.html import notes_markup
from kcovdbg.records.alignment import align_records, number_values
from kcovdbg.records.coverage import FileCoverage, LineCoverage
from kcovdbg.report.listing import MAX_LINES, hunks_markup, plain_code, row_markup
from kcovdbg.report.trace import CountedTrace

_CONTEXT: Final = 3
# Builds that differ in more files are two releases. Then only executed files are shown.
_MAX_FILES: Final = 200


class ChangedLine(NamedTuple):
    """A line of a hunk."""

    before: int | None
    """Its number before the change; None for an added line."""
    after: int | None
    """Its number after the change; None for a removed line."""
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
        lines = []
        for i, j in zip(part.left, part.right, strict=True):
            lines.append(ChangedLine(i + 1, j + 1, after[j]))
        if has_change and (len(lines) > 2 * _CONTEXT or number == len(parts)):
            yield hunk + lines[:_CONTEXT]
            has_change = False
        hunk = hunk + lines if has_change else lines[-_CONTEXT:]
    if has_change:
        yield hunk


class ChangeCounts(NamedTuple):
    """Numbers of changed lines that have code."""

    removed: int = 0
    executed_before: int = 0
    """Removed lines that were executed."""
    added: int = 0
    executed_after: int = 0
    """Added lines that were executed."""
    unknown: int = 0
    """Lines with an unknown state."""

    @property
    def executed(self) -> int:
        """Changed lines that were executed in their build."""
        return self.executed_before + self.executed_after

    @property
    def never(self) -> int:
        """Changed lines that were not executed in their build."""
        return self.removed + self.added - self.executed - self.unknown

    @property
    def text(self) -> str:
        """The numbers in words."""
        said = (
            f"{self.executed_before} of {self.removed} removed lines with code executed before, "
            f"{self.executed_after} of {self.added} added ones after, {self.never} never"
        )
        if self.unknown:
            said += f", {self.unknown} unknown"
        return said


class Change(NamedTuple):
    """The differences in one file."""

    file: str
    hunks: Sequence[Sequence[ChangedLine]]
    before: Mapping[int, LineCoverage]
    """Number before the change -> coverage, for lines with code."""
    after: Mapping[int, LineCoverage]

    def find(self, line: ChangedLine) -> tuple[LineCoverage | None, LineCoverage | None]:
        """Return the coverage of a line before and after; None if it has no code."""
        return self.before.get(line.before or 0), self.after.get(line.after or 0)

    @property
    def counts(self) -> ChangeCounts:
        """The changed lines with code."""
        counts: Counter[str] = Counter()
        for line in chain.from_iterable(self.hunks):
            before, after = self.find(line)
            if line.after is None and before is not None:
                counts["removed"] += 1
                counts["executed_before"] += before.state.was_executed
                counts["unknown"] += not before.state.is_decided
            elif line.before is None and after is not None:
                counts["added"] += 1
                counts["executed_after"] += after.state.was_executed
                counts["unknown"] += not after.state.is_decided
        return ChangeCounts(**counts)


class _Build:
    """One of the two builds, with its source files by their path without ``./``."""

    def __init__(self, trace: CountedTrace) -> None:
        self._trace = trace
        self._table = trace.kernel.points.require_table(needs_points=False)
        # Path -> name in debug info.
        self.names = {posixpath.normpath(name): name for name in self._table.files()}
        self.coverage: dict[str, FileCoverage] = {}

    def find(self, file: str) -> Path | None:
        """Return the path of a file; None if the text that was built is missing."""
        return self._trace.kernel.sources.find_as_built(self.names.get(file, file))

    def read(self, file: str) -> Sequence[str]:
        """Return the lines of a file; none if the text that was built is missing."""
        return self._trace.kernel.sources.read_as_built(self.names.get(file, file))

    def cover(self, files: Collection[str]) -> None:
        """Find the lines of files that have code."""
        names = set(self._table.files())
        if self._table.blocks is not None:
            names.update(self._table.blocks.files)
        wanted = {name for name in names if posixpath.normpath(name) in files}
        finder = LineFinder(self._trace.kernel, lambda: self._table)
        (found,) = finder.find([self._trace.records], files=wanted, has_unexecuted=True)
        for coverage in found.files:
            self.coverage[posixpath.normpath(coverage.file)] = coverage

    def lines(self, file: str) -> dict[int, LineCoverage]:
        """Return the lines of a file that have code, by number."""
        if file not in self.coverage:
            return {}
        return {line.line: line for line in self.coverage[file].rows()}

    def has_executed(self, file: str) -> bool:
        """Return whether lines of a file were executed."""
        return file in self.coverage and self.coverage[file].executed_lines > 0


def changes_markup(before: CountedTrace, after: CountedTrace) -> Iterator[str]:
    """Yield the lines that differ between the sources of two builds, by file.

    :raises CapabilityError: when the points of a build are unknown.
    """
    old, new = _Build(before), _Build(after)
    paths: dict[str, tuple[Path | None, Path | None]] = {}
    differing: list[str] = []
    for file in sorted({*old.names, *new.names}):
        found = paths[file] = old.find(file), new.find(file)
        if any(found) and not _is_same(*found):
            differing.append(file)
    if not paths or not all(map(any, zip(*paths.values(), strict=True))):
        yield from notes_markup(
            [
                "the sources of both builds are needed: --other-source names the tree of the "
                "build that --other-vmlinux names"
            ]
        )
        return
    for build in (old, new):
        build.cover(frozenset(differing))
    chosen = differing
    if len(differing) > _MAX_FILES:
        chosen = [file for file in differing if old.has_executed(file) or new.has_executed(file)]
    changes = []
    for file in chosen:
        # A file that only one tree has was added or removed.
        hunks = list(diff_hunks(old.read(file), new.read(file)))
        changes.append(Change(file, hunks, old.lines(file), new.lines(file)))
    total = ChangeCounts(*map(sum, zip(*(change.counts for change in changes), strict=True)))
    differ = "1 file differs" if len(changes) == 1 else f"{len(changes)} files differ"
    yield f"<p>{differ}: {total.text}.</p>"
    notes = list(_find_notes(paths.values(), len(differing) - len(chosen)))
    room = MAX_LINES
    # Show files with many executed lines first.
    changes.sort(key=lambda change: change.counts.executed, reverse=True)
    for number, change in enumerate(changes):
        room -= sum(map(len, change.hunks))
        if room < 0 and number:
            notes.append(f"the lines of {len(changes) - number} more files are left out")
            break
        yield from change_markup(change, is_open=number == 0)
    yield from notes_markup(notes)


def _find_notes(paths: Collection[tuple[Path | None, Path | None]], others: int) -> Iterator[str]:
    """Yield notes on files that could not be compared and on files that are left out.

    :param paths: where each file is, before and after.
    :param others: the number of files that are left out.
    """
    has_one_tree = True
    missing = 0
    for before, after in paths:
        has_one_tree = has_one_tree and before == after
        missing += before is None and after is None
    if has_one_tree:
        yield (
            "both builds have one source tree; if their sources differ, --other-source and "
            "--source-dir name them"
        )
    if missing:
        yield f"the text of {missing} of {len(paths)} files is missing"
    if others:
        yield f"{others} more files differ, of which neither trace executed anything"


def _is_same(before: Path | None, after: Path | None) -> bool:
    if before is None or after is None:
        return False
    return before == after or filecmp.cmp(before, after, shallow=False)


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
    hunks = (map(partial(_changed_row, change), hunk) for hunk in change.hunks)
    yield from hunks_markup(change.file, change.counts.text, _TITLES, hunks, is_open=is_open)


def _changed_row(change: Change, line: ChangedLine) -> str:
    before, after = change.find(line)
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
    return row_markup(style, cells, plain_code(line.text))


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
    if coverage.state.is_decided:
        return _MISSED
    return _UNKNOWN


def _judge(line: ChangedLine, before: str, after: str) -> tuple[str, str]:
    """Return the style of a line and its coverage in words; empty for a line without code."""
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
    if _UNKNOWN in (before, after):
        return "unknown", words
    return "none", words


def _judge_one(answer: str, style: str, words: str) -> tuple[str, str]:
    """Return the style and the coverage in words of a line that only one build has.

    :param style: the style of an executed line.
    :param words: the words for an executed line.
    """
    if answer == _EXECUTED:
        return style, words
    if answer == _NO_CODE:
        return "", ""
    if answer == _MISSED:
        return "none", "never executed"
    return "unknown", _UNKNOWN
