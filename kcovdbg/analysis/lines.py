# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage by source line: which lines have points, and which of these a buffer covers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kcovdbg.model.coverage import LineCoverage
from kcovdbg.model.location import Frame

Frames = Sequence[Frame]


def find_lines(
    counts: Mapping[int, int],
    frames_of: Callable[[int], Frames],
    points: Iterable[tuple[int, Frames]],
    wanted: Callable[[Frame], bool],
) -> list[LineCoverage]:
    """Sum up coverage by line.

    A point counts for every line of its chain of inlined functions: executing the inlined body is executing the call. Of
    functions that were not executed at all nothing is said.

    :param counts: PC -> records.
    :param frames_of: from a PC to its frames.
    :param points: all points of the kernel with their frames, as far as they are known.
    :param wanted: which frames' lines are of interest.
    """
    hits: dict[tuple[str, int], list[int]] = {}
    executed: set[tuple[str | None, str | None]] = set()

    def add(frames: Frames, count: int) -> None:
        for place in {(frame.file, frame.line) for frame in frames if frame.file and frame.line and wanted(frame)}:
            entry = hits.setdefault((place[0] or "", place[1] or 0), [0, 0, 0])
            entry[0] += count
            entry[1] += 1
            entry[2] += count > 0

    for pc, count in counts.items():
        frames = frames_of(pc)
        executed.update((frame.function, frame.file) for frame in frames[-1:])
        add(frames, count)
    for pc, frames in points:
        # Elsewhere inlined, a function's code is another copy of it, which nobody may have executed.
        if pc not in counts and frames and (frames[-1].function, frames[-1].file) in executed:
            add(frames, 0)
    return [LineCoverage(file, line, *entry) for (file, line), entry in sorted(hits.items())]
