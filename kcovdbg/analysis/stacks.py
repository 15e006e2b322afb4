# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of calls with how many records are each one's own: what a flame graph is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kcovdbg.analysis.calls import own_records
from kcovdbg.model.call import Call

DEEPEST: Final = 512
"""Calls below this are counted to the caller there: a kernel's stack of 16 KiB has no room for so many frames, and a damaged
trace of entries alone would need a line for each that is as long as its depth."""


class Stacks:
    """Sums up calls by the stack that leads to them.

    :param calls: as :func:`~kcovdbg.analysis.calls.build_calls` returns them.
    :param name_of: from a call's PC to the name of its function.
    """

    def __init__(self, calls: Iterable[Call], name_of: Callable[[int], str]) -> None:
        # A node is known by its parent's number and its name; -1 is the root.
        self._nodes: dict[tuple[int, str], int] = {}
        self._keys: list[tuple[int, str]] = []
        self._records: list[int] = []
        self.records = 0
        """In calls altogether."""
        self.cut = 0
        """Calls that are deeper than :data:`DEEPEST`."""
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
        """Yield each stack, outermost first, and its own records."""
        for node, records in enumerate(self._records):
            names: list[str] = []
            while node >= 0:
                node, name = self._keys[node]
                names.append(name)
            yield tuple(reversed(names)), records
