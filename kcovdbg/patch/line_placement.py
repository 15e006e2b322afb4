# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the lines of a diff by their text in the source that the kernel was built from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Final

from kcovdbg.patch.change import TargetLine

# A line that occurs more often says nothing about where it is.
_MOST: Final = 64
# So many added lines are found by their text even without context.
_LEAST_ALONE: Final = 3


class TextIndex:
    """The lines of a source file, by their text."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    @cached_property
    def _places(self) -> Mapping[str, Sequence[int]]:
        """The indexes of lines, by their text."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        for index, line in enumerate(self._lines):
            places[line].append(index)
        return places

    def is_at(self, wanted: Sequence[str], index: int) -> bool:
        """Return whether lines begin at an index."""
        return index >= 0 and list(self._lines[index : index + len(wanted)]) == list(wanted)

    def find(self, wanted: Sequence[str]) -> int | None:
        """Return the index of the only place that has these lines, None where there is none or
        another one.
        """
        rarest = min(range(len(wanted)), key=lambda at: len(self._places.get(wanted[at], ())))
        places = self._places.get(wanted[rarest], ())
        if len(places) > _MOST:
            return None
        found = [place - rarest for place in places if self.is_at(wanted, place - rarest)]
        return found[0] if len(found) == 1 else None


def place_lines(hunks: Iterable[Sequence[TargetLine]], lines: Sequence[str]) -> dict[int, int]:
    """Return the places of added lines, without lines that cannot be placed: number in the diff ->
    number in the source.

    A hunk is where its lines and the lines around it are: at its own number, or at the only other
    place. If a hunk is nowhere as a whole, because the source has further changes, each of its runs
    of added lines is placed with its neighbors.

    :param lines: the lines of the source.
    """
    index = TextIndex(lines)
    placed: dict[int, int] = {}
    for hunk in hunks:
        start = _find_place(index, hunk, is_sure=not _is_alone(hunk))
        if start is not None:
            placed.update(_number_lines(hunk, start))
            continue
        for run in _runs(hunk):
            start = _find_place(index, run, is_sure=False)
            if start is not None:
                placed.update(_number_lines(run, start))
    return placed


class Damage(str, Enum):
    """What a mail program did to a hunk, so that lines of it cannot be placed."""

    BLANKS = "blanks"
    """The source has its lines with other blanks."""
    WRAPPED = "wrapped"
    """The source has two of its lines as one."""


def find_damage(
    hunks: Iterable[Sequence[TargetLine]], lines: Sequence[str], placed: Collection[int]
) -> dict[int, Damage]:
    """Return what was done to added lines that have no place, by their numbers in the diff: with
    that undone, they have one.

    :param lines: the lines of the source.
    :param placed: the numbers of the lines that have a place.
    """
    found: dict[int, Damage] = {}
    source: Sequence[str] = ()
    for hunk in hunks:
        if all(line.number in placed for line in hunk if line.is_added):
            continue
        source = source or list(map(_squeeze, lines))
        repaired = _join_wrapped(hunk, frozenset(source))
        damage = Damage.WRAPPED if len(repaired) < len(hunk) else Damage.BLANKS
        for number in place_lines([repaired], source):
            if number not in placed:
                found[number] = damage
    return found


def _join_wrapped(hunk: Iterable[TargetLine], known: Collection[str]) -> Sequence[TargetLine]:
    """Return a hunk with one blank for each run of them, and with two lines as one where the source
    has that.

    :param known: the lines of the source, in the same form.
    """
    joined: list[TargetLine] = []
    for line in hunk:
        text = _squeeze(line.text)
        if joined and f"{joined[-1].text} {text}" in known:
            joined[-1] = joined[-1]._replace(text=f"{joined[-1].text} {text}")
        else:
            joined.append(line._replace(text=text))
    return joined


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _number_lines(piece: Sequence[TargetLine], start: int) -> Iterator[tuple[int, int]]:
    """Yield the number of each added line of a piece, and its number in the source.

    :param start: index in the source where the piece begins.
    """
    for number, line in enumerate(piece, start + 1):
        if line.is_added:
            yield line.number, number


def _is_alone(piece: Sequence[TargetLine]) -> bool:
    """Return whether a piece has added lines only, and none around them."""
    return all(line.is_added for line in piece)


def _find_place(index: TextIndex, piece: Sequence[TargetLine], *, is_sure: bool) -> int | None:
    """Return the index in the source where a piece begins; None if unknown.

    :param is_sure: whether the piece's own number is enough, because it includes lines around the
        added ones.
    """
    texts = [line.text for line in piece]
    own = piece[0].number - 1
    is_long = len(texts) >= _LEAST_ALONE
    if index.is_at(texts, own) and (is_sure or is_long or index.find(texts) == own):
        return own
    return index.find(texts) if is_long or not _is_alone(piece) else None


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
