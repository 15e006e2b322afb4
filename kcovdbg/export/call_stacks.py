# SPDX-License-Identifier: LGPL-2.1-or-later
"""Call stacks with the number of records of each, as flame graphs need them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kcovdbg.records.call_tree import own_records
from kcovdbg.records.call import Call

DEEPEST: Final = 512
"""Records of deeper calls are counted for the caller at this depth. A kernel stack of 16 KiB has no room for so many frames; a
damaged trace that holds entries only would otherwise need space quadratic in its length."""


class Stacks:
    """Records of calls, summed up by call stack.

    :param calls: from :func:`~kcovdbg.records.call_tree.build_calls`.
    :param name_of: returns the function's name for a call's PC.
    """

    def __init__(self, calls: Iterable[Call], name_of: Callable[[int], str]) -> None:
        # A node is identified by its parent's number and its name; -1 is the root.
        self._nodes: dict[tuple[int, str], int] = {}
        self._keys: list[tuple[int, str]] = []
        self._records: list[int] = []
        self.records = 0
        """Number of records in all calls."""
        self.cut = 0
        """Number of calls deeper than :data:`DEEPEST`."""
        path: list[int] = []
        names: dict[int, str] = {}
        for call in calls:
            own = own_records(call)
            self.records += own
            if call.depth >= DEEPEST:
                self.cut += 1
                self._records[path[DEEPEST - 1]] += own
                continue
            del path[call.depth :]
            name = names.get(call.pc)
            if name is None:
                name = names[call.pc] = name_of(call.pc)
            key = (path[-1] if path else -1, name)
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = len(self._keys)
                self._keys.append(key)
                self._records.append(0)
            self._records[node] += own
            path.append(node)

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Iterate over stacks: names, outermost first, and the number of records of the innermost call itself."""
        for node, records in enumerate(self._records):
            names: list[str] = []
            while node >= 0:
                node, name = self._keys[node]
                names.append(name)
            yield tuple(reversed(names)), records
