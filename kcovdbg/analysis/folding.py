# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs of records of one function, rounds of a loop within a run, and loops over several functions.

A plain PC trace says nothing about calls: what is folded here is what follows upon one another, no call tree.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

# Longer bodies of loops are rare, and finding them costs as much again per function.
_LONGEST_BODY: Final = 16
# Of rounds within one function.
_LONGEST_ROUND: Final = 256


class Run(NamedTuple):
    """Consecutive records of one group."""

    first: int
    """Index of its first record."""
    length: int
    group: object
    """What its records have in common: a function."""


class Fold(NamedTuple):
    """One or more runs, once or several times in a row."""

    runs: tuple[Run, ...]
    """Of the first round."""
    rounds: int
    first: int
    """Index of the first record."""
    length: int
    """Records of all rounds."""


def find_runs(
    sequence: Sequence[int], group_of: Callable[[int], object], start: int = 0, end: int | None = None
) -> Iterator[Run]:
    """Yield the runs of a sequence, in order, as far as they are asked for.

    :param sequence: PCs, or words that stand for them.
    :param group_of: from an element to its group; asked once for each element that differs from the one before.
    """
    end = len(sequence) if end is None else end
    if start >= end:
        return
    first, previous = start, sequence[start]
    group = group_of(previous)
    for index in range(start + 1, end):
        element = sequence[index]
        if element == previous:
            continue
        previous = element
        other = group_of(element)
        if other != group:
            yield Run(first, index - first, group)
            first, group = index, other
    yield Run(first, end - first, group)


def fold_runs(runs: Iterator[Run]) -> Iterator[Fold]:
    """Fold loops over several functions: the same functions in the same order, whatever each run's length.

    Of several ways to fold, the one that covers most runs from here on is taken; looks ahead as far as a loop goes.
    """
    ahead: list[Run] = []

    def look(count: int) -> bool:
        """Make sure that so many runs are known; tell whether there are."""
        while len(ahead) < count:
            run = next(runs, None)
            if run is None:
                return False
            ahead.append(run)
        return True

    position = 0
    while look(position + 1):
        best, rounds = 1, 1
        covered = 1
        for body in range(2, _LONGEST_BODY + 1):
            if not look(position + 2 * body):
                break
            if ahead[position + body].group != ahead[position].group:
                continue
            count = 1
            while look(position + (count + 1) * body) and all(
                ahead[position + count * body + at].group == ahead[position + at].group for at in range(body)
            ):
                count += 1
            if count > 1 and count * body > covered:
                best, rounds, covered = body, count, count * body
        used = ahead[position : position + best * rounds]
        length = used[-1].first + used[-1].length - used[0].first
        yield Fold(tuple(used[:best]), rounds, used[0].first, length)
        position += best * rounds
        if position > 4096:
            del ahead[:position]
            position = 0


def round_length(part: Sequence[int]) -> int:
    """Return the length of a run's first round: its own length unless it repeats what it began with; the last round may be cut.

    :param part: the records of one run.
    """
    words = part if isinstance(part, array) else array("Q", part)
    data, width = words.tobytes(), words.itemsize
    first = words[0] if words else 0
    for period in range(1, min(len(words) // 2, _LONGEST_ROUND) + 1):
        if words[period] == first and data[period * width :] == data[: -period * width]:
            return period
    return len(words)
