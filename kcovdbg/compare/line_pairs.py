# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that a function has in two builds: by a diff of its sources, or else by the order of its lines with points."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kcovdbg.records.alignment import align
from kcovdbg.compare.function_pairs import BuildFunctions, number_lines
from kcovdbg.records.native_loops import Block

# Shorter runs agree by chance: between 6.1 and 6.12, 68 % of single distances and 42 % of two in a row were of other lines.
_RUN: Final = 4
# Where a function begins and ends, less is left to chance.
_EDGE_RUN: Final = 2


class LinePairs(NamedTuple):
    """The lines with points that two versions of a function have in common."""

    to_right: Mapping[int, int]
    """Line in the left build -> line in the right one."""
    is_by_source: bool
    """Whether the sources of both were compared."""


def pair_lines(left: BuildFunctions, left_place: int, right: BuildFunctions, right_place: int, *, by_source: bool) -> LinePairs:
    """Return the lines that a function has in two builds.

    :param by_source: whether to compare its text, where both have it.
    """
    lines = left.lines(left_place), right.lines(right_place)
    if not lines[0] or not lines[1]:
        return LinePairs({}, False)
    if by_source:
        texts = left.text(left_place), right.text(right_place)
        if texts[0] and texts[1]:
            return LinePairs(_pair_by_text(lines, texts), True)
    return LinePairs(_pair_by_order(*lines), False)


def _pair_by_text(lines: Sequence[Sequence[int]], texts: Sequence[Sequence[str]]) -> dict[int, int]:
    first, other = lines[0][0], lines[1][0]
    blocks: Sequence[Block] = (Block(0, 0, len(texts[0])),)
    if texts[0] != texts[1]:
        blocks = align(*number_lines(*texts)).blocks
    right = set(lines[1])
    of_text = {first + left + at: other + there + at for left, there, length in blocks for at in range(length)}
    return {line: of_text[line] for line in lines[0] if of_text.get(line) in right}


def _pair_by_order(left: Sequence[int], right: Sequence[int]) -> dict[int, int]:
    """Pair lines by their distances from those before: in functions where all agree, or in runs of several that do."""
    if len(left) == len(right) and all(there - here == right[0] - left[0] for here, there in zip(left, right, strict=True)):
        return dict(zip(left, right, strict=True))
    steps = [array("Q", [1, *(b - a + 1 for a, b in pairwise(side))]) for side in (left, right)]
    pairs: dict[int, int] = {}
    i = j = 0
    for start, other, length in align(*steps).blocks:
        is_at_edge = start == other == 0 or (start + length == len(left) and other + length == len(right))
        if length < (_EDGE_RUN if is_at_edge else _RUN):
            continue
        if i < start and j < other:
            # The first distance of a run is that from the lines before it.
            pairs[left[start - 1]] = right[other - 1]
        pairs.update(zip(left[start : start + length], right[other : other + length], strict=True))
        i, j = start + length, other + length
    return pairs
