# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that two versions of a source file do not have in common, with those around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.records.alignment import align
from kcovdbg.compare.function_pairs import number_lines

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
    i = j = 0
    for start, other, length in (*align(*number_lines(left, right)).blocks, (len(left), len(right), 0)):
        yield from (ChangedLine(at + 1, None, left[at]) for at in range(i, start))
        yield from (ChangedLine(None, at + 1, right[at]) for at in range(j, other))
        yield from (ChangedLine(start + at + 1, other + at + 1, right[other + at]) for at in range(length))
        i, j = start + length, other + length
