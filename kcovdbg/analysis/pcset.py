# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sets of PCs, kept as bitmaps over the coverage points of a build: about one byte for each PC of a trace.

A point's ordinal is its place among all points of the build; PCs that are no points get the next ordinals as they come. Without
pyroaring (inside GDB, for instance) sets are sorted arrays, and everything works, slower.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from kcovdbg.analysis.hot import NO_ID, find_ordinals

try:
    import pyroaring
except ImportError:
    HAS_ROARING = False
else:
    HAS_ROARING = True


class PcUniverse:
    """The ordinals of one build. Sets can be compared when they are of one universe.

    :param points: all coverage points of the build, ascending, as recorded; empty where they aren't known.
    :param roaring: whether to use pyroaring; None for: when it is there.
    """

    def __init__(self, points: array[int], *, roaring: bool | None = None) -> None:
        self._points = points
        self._others: dict[int, int] = {}
        self._other_pcs = array("Q")
        self._roaring = HAS_ROARING if roaring is None else roaring

    def make_set(self, pcs: array[int]) -> PcSet:
        """Make a set.

        :param pcs: distinct PCs, ascending.
        """
        ordinals = find_ordinals(pcs, self._points)
        if NO_ID in ordinals:
            for index, ordinal in enumerate(ordinals):
                if ordinal == NO_ID:
                    ordinals[index] = self._ordinal_of_other(pcs[index])
        if self._roaring:
            bits = pyroaring.BitMap(ordinals)
            # Runs of points in a row, which is how code is executed, take less than half the memory.
            bits.run_optimize()
            bits.shrink_to_fit()
            return PcSet(self, bits)
        return PcSet(self, _SortedOrdinals(array("I", sorted(ordinals))))

    def _ordinal_of_other(self, pc: int) -> int:
        ordinal = self._others.get(pc)
        if ordinal is None:
            ordinal = self._others[pc] = len(self._points) + len(self._other_pcs)
            self._other_pcs.append(pc)
        return ordinal

    def pc(self, ordinal: int) -> int:
        """Return the PC of an ordinal."""
        count = len(self._points)
        return self._points[ordinal] if ordinal < count else self._other_pcs[ordinal - count]


class _SortedOrdinals:
    """What a set needs of pyroaring's BitMap, on a sorted array: 4 bytes for each PC."""

    __slots__ = ("_values",)

    def __init__(self, values: array[int]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __contains__(self, value: int) -> bool:
        return value in self._values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SortedOrdinals) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: _SortedOrdinals) -> _SortedOrdinals:
        return _SortedOrdinals(array("I", sorted(set(self._values).intersection(other._values))))

    def __or__(self, other: _SortedOrdinals) -> _SortedOrdinals:
        return _SortedOrdinals(array("I", sorted(set(self._values).union(other._values))))

    def __sub__(self, other: _SortedOrdinals) -> _SortedOrdinals:
        return _SortedOrdinals(array("I", sorted(set(self._values).difference(other._values))))

    def __xor__(self, other: _SortedOrdinals) -> _SortedOrdinals:
        return _SortedOrdinals(array("I", sorted(set(self._values).symmetric_difference(other._values))))


class PcSet:
    """A set of PCs of one build, immutable; ``&``, ``|``, ``-`` and ``^`` as Python's sets have them."""

    __slots__ = ("_ordinals", "_universe")

    def __init__(self, universe: PcUniverse, ordinals: Any) -> None:
        self._universe = universe
        self._ordinals = ordinals

    def __len__(self) -> int:
        """Count the PCs."""
        return len(self._ordinals)

    def __iter__(self) -> Iterator[int]:
        """Yield the PCs: points by address, then the others."""
        return map(self._universe.pc, self._ordinals)

    def pcs(self) -> array[int]:
        """Return the PCs, ascending."""
        return array("Q", sorted(self))

    def __eq__(self, other: object) -> bool:
        """Compare the PCs of two sets of one build."""
        if not isinstance(other, PcSet):
            return NotImplemented
        return self._universe is other._universe and bool(self._ordinals == other._ordinals)

    __hash__ = None  # type: ignore[assignment]

    def _operand(self, other: PcSet) -> Any:
        if self._universe is not other._universe:
            raise ValueError("sets of different builds")
        return other._ordinals

    def __and__(self, other: PcSet) -> PcSet:
        """Return what both have."""
        return PcSet(self._universe, self._ordinals & self._operand(other))

    def __or__(self, other: PcSet) -> PcSet:
        """Return what any of them has."""
        return PcSet(self._universe, self._ordinals | self._operand(other))

    def __sub__(self, other: PcSet) -> PcSet:
        """Return what only the first one has."""
        return PcSet(self._universe, self._ordinals - self._operand(other))

    def __xor__(self, other: PcSet) -> PcSet:
        """Return what only one of them has."""
        return PcSet(self._universe, self._ordinals ^ self._operand(other))


def find_stable(sets: Iterable[PcSet]) -> tuple[PcSet, PcSet]:
    """Split what repeated runs cover.

    :param sets: one for each run, at least one.
    :return: what all runs cover, and what some but not all do.
    :raises ValueError: when there is none, or sets are of different builds.
    """
    rest = iter(sets)
    first = next(rest, None)
    if first is None:
        raise ValueError("no sets")
    union = intersection = first
    for other in rest:
        union, intersection = union | other, intersection & other
    return intersection, union - intersection
