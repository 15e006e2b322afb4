# SPDX-License-Identifier: LGPL-2.1-or-later
"""Comparisons of records of two builds."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from kcovdbg.compare.build_match import BuildMatch, BuildPoints, Unmatched
from kcovdbg.compare.function_pairs import PairKind
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.location import Frame
from kcovdbg.records.pc_names import LocationCache

# Limit for functions in a remark.
_NAMED: Final = 4


class BuildComparison:
    """Records of two builds as numbers of points that both share; within one build, PCs are the numbers.

    :param names: the left build's and the right one's.
    :param match: None where they are one build.
    """

    def __init__(self, names: tuple[LocationCache, LocationCache], match: BuildMatch | None = None) -> None:
        self.names = names
        self.match = match

    def count(self, side: int, counts: Mapping[int, int]) -> Mapping[int, int]:
        """Return how often each point was recorded.

        :param side: 0 for the left one.
        :param counts: PC -> records.
        """
        return counts if self.match is None else self._points(side).count(counts)

    def translate(self, side: int, pcs: array[int]) -> array[int]:
        """Return the points of records."""
        return pcs if self.match is None else self._points(side).translate(pcs)

    def pc(self, number: int, side: int) -> int | None:
        """Return the PC of a point in a build, None where that has none."""
        return number if self.match is None else self.match.pcs[number][side] or None

    def counterpart(self, pc: int, side: int) -> int | None:
        """Return the PC of the same point in the other build, None where that has none."""
        return None if self.match is None or not pc else self.pc(self._points(side).numbers[pc], 1 - side)

    def missing(self, pc: int, side: int) -> str | None:
        """Return what the other build lacks of a PC, None where it has a counterpart."""
        if self.match is None:
            return None
        reason = self._points(side).unmatched.get(pc)
        return None if reason is None else reason.value

    def function(self, frame: Frame, side: int) -> tuple[str, str]:
        """Return name and file of a frame's function, the left build's where both have it."""
        function = strip_clone_suffix(frame.function or ""), frame.file or ""
        return (
            function if self.match is None or side == 0 else self.match.to_left.get(function, ("\0" + function[0], function[1]))
        )

    def _points(self, side: int) -> BuildPoints:
        assert self.match is not None
        return self.match.left if side == 0 else self.match.right

    def remarks(self) -> tuple[str, ...]:
        """Return what was matched how, and what was not."""
        return () if self.match is None else tuple(_match_remarks(self.match))


_REASONS: Final = {
    Unmatched.FUNCTION: "in functions that it lacks",
    Unmatched.LINE: "on lines where it has no point",
    Unmatched.LINES: "in functions that one build has no debug info of",
    Unmatched.LOCATION: "without a known location",
}


def _match_remarks(match: BuildMatch) -> Iterator[str]:
    counts = match.functions
    parts = [f"{counts.get(PairKind.SAME, 0)} functions in both"]
    names = [f"{name} ({old} → {new})" for name, old, new in match.moved]
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        parts.append(f"{len(names)} moved: {', '.join(names[:_NAMED])}{more}")
    yield f"two builds: {'; '.join(parts)}"
    if match.by_source and match.by_order:
        yield f"lines are paired by the sources of {match.by_source} functions, by their order in {match.by_order}"
    elif match.by_order:
        yield "lines are paired by their order: no sources of both builds; --other-source and --source-dir name them"
    for side, points in (("left", match.left), ("right", match.right)):
        if points.unmatched:
            reasons = list(points.unmatched.values())
            why = ", ".join(f"{reasons.count(reason)} {text}" for reason, text in _REASONS.items() if reason in reasons)
            yield f"{len(reasons)} of {len(points.numbers)} points on the {side} have no counterpart in the other build: {why}"
