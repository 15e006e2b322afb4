# SPDX-License-Identifier: LGPL-2.1-or-later
"""The source lines that differ between two builds, and what traces of both executed of them."""

from __future__ import annotations

import filecmp
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.compare.trace_builds import TraceBuild
from kcovdbg.records.alignment import align, number_values
from kcovdbg.records.coverage import FileCoverage, LineCoverage, find_lines
from kcovdbg.records.pc_counts import PcCounts
from kcovdbg.symbols.coverage_points import PointKind

_CONTEXT: Final = 3


class ChangedLine(NamedTuple):
    """A line of a hunk; with both numbers it is in both versions."""

    left: int | None
    """Its number in the old version, None for an added line."""
    right: int | None
    """Its number in the new version, None for a removed line."""
    text: str


def find_changes(left: Sequence[str], right: Sequence[str]) -> Iterator[list[ChangedLine]]:
    """Yield the hunks of a diff of two files."""
    hunk: list[ChangedLine] = []
    quiet = 0
    for line in _diff(left, right):
        is_same = line.left is not None and line.right is not None
        quiet = quiet + 1 if is_same else 0
        hunk.append(line)
        if quiet > 2 * _CONTEXT and any(one.left is None or one.right is None for one in hunk):
            yield hunk[: len(hunk) - quiet + _CONTEXT]
            hunk = hunk[-_CONTEXT:]
            quiet = _CONTEXT
        elif quiet > _CONTEXT and quiet == len(hunk):
            del hunk[0]
            quiet = _CONTEXT
    if any(line.left is None or line.right is None for line in hunk):
        yield hunk[: len(hunk) - max(quiet - _CONTEXT, 0)]


def _diff(left: Sequence[str], right: Sequence[str]) -> Iterator[ChangedLine]:
    for part in align(*number_values(left, right)).parts():
        if part.is_common:
            yield from (ChangedLine(i + 1, j + 1, right[j]) for i, j in zip(part.left, part.right, strict=True))
        else:
            yield from (ChangedLine(i + 1, None, left[i]) for i in part.left)
            yield from (ChangedLine(None, j + 1, right[j]) for j in part.right)


# Beyond so many files it is not a patch but another release: those that were not executed are left out.
_MAX_FILES: Final = 200


class BuildTrace(NamedTuple):
    """The executed points of one build."""

    build: TraceBuild
    counts: PcCounts
    kinds: Collection[PointKind]
    """Of points that can be among them."""


class FileChanges(NamedTuple):
    """The differing lines of one file."""

    file: str
    hunks: Sequence[Sequence[ChangedLine]]
    before: Mapping[int, LineCoverage]
    """Line of the old version -> its coverage, of lines with points."""
    after: Mapping[int, LineCoverage]


class SourceChanges(NamedTuple):
    """The source lines that differ."""

    files: Sequence[FileChanges]
    compared: int
    """Files that have points and are at hand."""
    missing: int
    """Files that have points and are not at hand."""
    is_one_tree: bool
    """Whether all files of both builds are the same ones."""
    left_out: int
    """Files that differ but are left out, as neither trace executed anything of them."""


def find_source_changes(left: BuildTrace, right: BuildTrace) -> SourceChanges:
    """Return the lines that differ between the sources of two builds, by file.

    :raises CapabilityError: when the points of a build are unknown.
    """
    names = [_find_names(trace.build) for trace in (left, right)]
    paths = {
        file: (left.build.find_source(names[0].get(file, file)), right.build.find_source(names[1].get(file, file)))
        for file in sorted(names[0].keys() | names[1].keys())
    }
    has_tree = [any(found[side] is not None for found in paths.values()) for side in (0, 1)]
    if not all(has_tree):
        return SourceChanges((), 0, len(paths), False, 0)
    # A file that only one tree has was added or removed; one that neither has is elsewhere.
    missing = sum(found == (None, None) for found in paths.values())
    differing = [file for file, found in paths.items() if found != (None, None) and not _is_same(*found)]
    coverage = [_find_coverage(trace, frozenset(differing)) for trace in (left, right)]
    chosen = differing
    if len(differing) > _MAX_FILES:
        chosen = [file for file in differing if any(_is_executed(found.get(file)) for found in coverage)]
    files = tuple(_find_hunks(file, names, (left, right), coverage) for file in chosen)
    is_one_tree = all(found[0] == found[1] for found in paths.values())
    return SourceChanges(files, len(paths) - missing, missing, is_one_tree, len(differing) - len(chosen))


def _is_same(left: Path | None, right: Path | None) -> bool:
    return left is not None and right is not None and (left == right or filecmp.cmp(left, right, shallow=False))


def _find_names(build: TraceBuild) -> dict[str, str]:
    """Return the files that a build has points in: without ``./`` -> as in debug info."""
    return {posixpath.normpath(name): name for name in build.find_table().files()}


def _find_coverage(trace: BuildTrace, files: Collection[str]) -> dict[str, FileCoverage]:
    columns = trace.build.names.columns(trace.counts.pcs)
    found = find_lines(
        columns,
        trace.counts.records,
        trace.kinds,
        lambda frame: frame.file is not None and posixpath.normpath(frame.file) in files,
        has_unexecuted=True,
    )
    return {posixpath.normpath(coverage.file): coverage for coverage in found}


def _is_executed(coverage: FileCoverage | None) -> bool:
    return coverage is not None and any(coverage.covered)


def _find_hunks(
    file: str,
    names: Sequence[Mapping[str, str]],
    traces: Sequence[BuildTrace],
    coverage: Sequence[Mapping[str, FileCoverage]],
) -> FileChanges:
    texts = [
        () if trace.build.find_source(its.get(file, file)) is None else trace.build.source.read_once(its.get(file, file)).lines
        for trace, its in zip(traces, names, strict=True)
    ]
    before, after = ({line.line: line for line in _rows(found.get(file))} for found in coverage)
    return FileChanges(file, tuple(find_changes(*texts)), before, after)


def _rows(coverage: FileCoverage | None) -> Iterator[LineCoverage]:
    return iter(()) if coverage is None else coverage.rows()
