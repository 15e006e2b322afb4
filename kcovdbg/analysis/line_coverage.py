# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage by source line: which lines have points, and which of them a buffer covers."""

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
    """Return the coverage of source lines.

    A point counts for every line of its chain of inlined functions: executing an inlined body executes the call. Functions
    that were not executed at all are left out.

    :param counts: PC -> records.
    :param frames_of: returns the frames of a PC.
    :param points: the known points of the kernel, with their frames.
    :param wanted: returns whether lines of a frame are wanted.
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
        # Inlined elsewhere, a function is another copy, which may not have been executed.
        if pc not in counts and frames and (frames[-1].function, frames[-1].file) in executed:
            add(frames, 0)
    return [LineCoverage(file, line, *entry) for (file, line), entry in sorted(hits.items())]
