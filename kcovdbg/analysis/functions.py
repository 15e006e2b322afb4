# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage by function: how many of the points that were compiled into a function were executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kcovdbg.model.coverage import FunctionCoverage
from kcovdbg.model.location import Frame


def find_functions(
    counts: Mapping[int, int],
    frames_of: Callable[[int], Sequence[Frame]],
    points: Iterable[tuple[int, Sequence[Frame]]],
    wanted: Callable[[Frame], bool],
) -> list[FunctionCoverage]:
    """Sum up points by the function that they were compiled into.

    :param counts: PC -> records.
    :param frames_of: from a PC to its frames.
    :param points: all points of the kernel with their frames.
    :param wanted: which functions are of interest.
    """
    found: dict[Frame, list[int]] = {}

    def add(frames: Sequence[Frame], covered: int) -> None:
        if not frames or not frames[-1].function:
            return
        place = frames[-1]._replace(line=None, column=None)
        entry = found.get(place)
        if entry is None:
            entry = found[place] = [0, 0]
        entry[0] += covered
        entry[1] += 1

    for pc in counts:
        add(frames_of(pc), 1)
    for pc, frames in points:
        if pc not in counts:
            add(frames, 0)
    return [
        FunctionCoverage(place.file or "", place.function or "", covered, total)
        for place, (covered, total) in found.items()
        if wanted(place)
    ]
