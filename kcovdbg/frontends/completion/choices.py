# SPDX-License-Identifier: LGPL-2.1-or-later
"""A set of words, made once and searched at every keystroke."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

LIMIT: Final = 200
"""Nobody reads a longer menu, and a terminal takes its time to draw one."""

# So many of a range are put into their own order; of longer ranges the alphabetical beginning is offered.
_SORTABLE: Final = 2000
_LAST: Final = "\U0010ffff"


class Entry(NamedTuple):
    """A word with what it stands for."""

    text: str
    meta: str = ""


class Choices:
    """Words in an order of their own, found by how they begin. It never changes.

    :param entries: in the order in which they are offered; of equal words the first one counts.
    """

    __slots__ = ("_entries", "_positions", "_texts")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        unique: dict[str, Entry] = {}
        for entry in entries:
            unique.setdefault(entry.text, entry)
        self._entries = tuple(unique.values())
        ordered = sorted(enumerate(unique), key=itemgetter(1))
        self._texts = [text for _, text in ordered]
        self._positions = [position for position, _ in ordered]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def matching(self, prefix: str, limit: int = LIMIT) -> list[Entry]:
        """Return the words that begin so, at most so many."""
        if not prefix:
            return list(self._entries[:limit])
        start = bisect.bisect_left(self._texts, prefix)
        end = bisect.bisect_right(self._texts, prefix + _LAST, lo=start)
        positions = self._positions[start : min(end, start + _SORTABLE)]
        return [self._entries[position] for position in sorted(positions)[:limit]]
