# SPDX-License-Identifier: LGPL-2.1-or-later
"""An immutable set of words that is searched by prefix at every keystroke."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

LIMIT: Final = 200
"""Limit for a menu: a longer one is not read, and slow to draw."""

# Limit for a range that is put in its own order; of a longer one the first words in alphabetical order are offered.
_SORTABLE: Final = 2000
_LAST: Final = "\U0010ffff"


class Candidate(NamedTuple):
    """A word with its description."""

    text: str
    meta: str = ""


class Choices:
    """Words in a given order, found by prefix; immutable.

    :param entries: in the order in which they are offered; of equal words the first one counts.
    """

    __slots__ = ("_entries", "_positions", "_texts")

    def __init__(self, entries: Iterable[Candidate] = ()) -> None:
        unique: dict[str, Candidate] = {}
        for entry in entries:
            unique.setdefault(entry.text, entry)
        self._entries = tuple(unique.values())
        ordered = sorted(enumerate(unique), key=itemgetter(1))
        self._texts = [text for _, text in ordered]
        self._positions = [position for position, _ in ordered]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def matching(self, prefix: str, limit: int = LIMIT) -> list[Candidate]:
        """Return the words with a prefix, up to a limit."""
        if not prefix:
            return list(self._entries[:limit])
        start = bisect.bisect_left(self._texts, prefix)
        end = bisect.bisect_right(self._texts, prefix + _LAST, lo=start)
        positions = self._positions[start : min(end, start + _SORTABLE)]
        return [self._entries[position] for position in sorted(positions)[:limit]]
