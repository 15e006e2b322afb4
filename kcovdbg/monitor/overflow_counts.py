# SPDX-License-Identifier: LGPL-2.1-or-later
"""How often buffers became full, over several looks at a kernel that runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class BufferLook(NamedTuple):
    """One buffer in one look."""

    name: str
    full: bool | None
    """None where it is unknown."""


class _Overflow(NamedTuple):
    times: int
    full: bool


@dataclasses.dataclass(frozen=True)
class OverflowCounts:
    """The buffers that were seen full.

    A buffer that its user empties and the kernel fills again between two looks counts once: the numbers are lower bounds.
    """

    _seen: Mapping[str, _Overflow] = dataclasses.field(default_factory=dict)

    def after(self, looks: Iterable[BufferLook]) -> OverflowCounts:
        """Return the counts after another look.

        A buffer that is not in it, or whose state is unknown, stays as it was seen last.
        """
        seen = dict(self._seen)
        for name, full in looks:
            if full is None:
                continue
            times, was_full = seen.get(name, _Overflow(0, False))
            seen[name] = _Overflow(times + (full and not was_full), full)
        return OverflowCounts(seen)

    @property
    def times(self) -> Mapping[str, int]:
        """How often each buffer became full, at least; the most often first, without those that never did."""
        full = [(name, seen.times) for name, seen in self._seen.items() if seen.times]
        return dict(sorted(full, key=lambda item: -item[1]))
