# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the lines of a diff are in the source that the kernel was built from, by their text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kcovdbg.patch.change import TargetLine

# A line that occurs more often says nothing about where it is.
_MOST: Final = 64
# Without context, so many lines say where they are.
_LEAST_ALONE: Final = 3


class TextIndex:
    """The lines of a source file, by their text."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        for index, line in enumerate(lines):
            self._places[line].append(index)

    def is_at(self, wanted: Sequence[str], index: int) -> bool:
        """Return whether lines begin at an index."""
        return index >= 0 and list(self._lines[index : index + len(wanted)]) == list(wanted)

    def find(self, wanted: Sequence[str]) -> int | None:
        """Return the index of the only place that has these lines, None where there is none or
        another one.
        """
        rarest = min(range(len(wanted)), key=lambda at: len(self._places.get(wanted[at], ())))
        places = self._places.get(wanted[rarest], [])
        if len(places) > _MOST:
            return None
        found = [place - rarest for place in places if self.is_at(wanted, place - rarest)]
        return found[0] if len(found) == 1 else None


def place_lines(hunks: Iterable[Sequence[TargetLine]], lines: Sequence[str]) -> dict[int, int]:
    """Return where added lines are: number in the diff -> number in the source, of those that can
    be placed.

    A hunk is where its lines are, with those around it: at its own number, or at the only other
    place. Of one that is nowhere as a whole, because the source has further changes, each run of
    added lines is placed with its neighbors.

    :param lines: of the source.
    """
    index = TextIndex(lines)
    placed: dict[int, int] = {}
    for hunk in hunks:
        at = _find_place(index, hunk, is_sure=not all(line.is_added for line in hunk))
        pieces = (
            [(hunk, at)]
            if at is not None
            else [(run, _find_place(index, run, is_sure=False)) for run in _runs(hunk)]
        )
        for piece, start in pieces:
            if start is not None:
                placed.update(
                    (line.number, start + offset + 1)
                    for offset, line in enumerate(piece)
                    if line.is_added
                )
    return placed


def _find_place(index: TextIndex, piece: Sequence[TargetLine], *, is_sure: bool) -> int | None:
    """Return the index where a piece begins; None where that is unknown.

    :param is_sure: whether its own number is enough, because the lines around it are there as well.
    """
    texts = [line.text for line in piece]
    own = piece[0].number - 1
    found = index.find(texts)
    if index.is_at(texts, own) and (is_sure or found == own or len(texts) >= _LEAST_ALONE):
        return own
    is_alone = all(line.is_added for line in piece)
    return None if is_alone and len(texts) < _LEAST_ALONE else found


def _runs(hunk: Sequence[TargetLine]) -> Iterator[Sequence[TargetLine]]:
    """Yield each run of added lines with the line before it and the line after it."""
    start = 0
    while start < len(hunk):
        end = start
        while end < len(hunk) and hunk[end].is_added:
            end += 1
        if end > start:
            yield hunk[max(start - 1, 0) : end + 1]
        start = end + 1
