# SPDX-License-Identifier: LGPL-2.1-or-later
"""Function runs (consecutive records of one function), rounds of a loop within a run, and loops over several functions.

A plain PC trace does not record calls: runs follow the order of records and are not a call tree.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

# Longest loop body in functions: longer ones are rare, and each further function adds the same cost again.
_LONGEST_BODY: Final = 16
# Longest round of a loop within one function, in records.
_LONGEST_ROUND: Final = 256


class FunctionRun(NamedTuple):
    """Consecutive records of one function, or of another group."""

    first: int
    """Index of its first record."""
    length: int
    group: object
    """The function, or whatever else the records have in common."""


class Fold(NamedTuple):
    """One or more runs, and how often they are repeated."""

    runs: tuple[FunctionRun, ...]
    """The runs of the first round."""
    rounds: int
    first: int
    """Index of the first record."""
    length: int
    """Number of records in all rounds."""


def find_runs(
    sequence: Sequence[int], group_of: Callable[[int], object], start: int = 0, end: int | None = None
) -> Iterator[FunctionRun]:
    """Iterate over the runs of a sequence, in order.

    :param sequence: PCs, or words that stand for them.
    :param group_of: returns the group of an element; called only where an element differs from the one before.
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
            yield FunctionRun(first, index - first, group)
            first, group = index, other
    yield FunctionRun(first, end - first, group)


def fold_runs(runs: Iterator[FunctionRun]) -> Iterator[Fold]:
    """Fold loops over several functions: the same functions in the same order, whatever the length of each run.

    Of the possible folds at a run, the one that covers the most runs is chosen. Runs are read ahead to the end of a loop.
    """
    ahead: list[FunctionRun] = []

    def look(count: int) -> bool:
        """Read ahead up to a number of runs; return whether there are so many."""
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
    """Return the length of the first round of a loop within a run; the run's length if it is not a loop.

    The last round may be incomplete.

    :param part: the records of the run.
    """
    words = part if isinstance(part, array) else array("Q", part)
    data, width = words.tobytes(), words.itemsize
    first = words[0] if words else 0
    for period in range(1, min(len(words) // 2, _LONGEST_ROUND) + 1):
        if words[period] == first and data[period * width :] == data[: -period * width]:
            return period
    return len(words)
