# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frames as syzkaller's exports have them (pkg/cover/backend/dwarf.go and pkg/symbolizer of January 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import normpath

from kcovdbg.records.coverage import PointCoverage
from kcovdbg.model.location import Frame

_Key = tuple[str | None, tuple[Frame, ...]]


class SyzkallerFrames:
    """Frames of points, put into syzkaller's form, each chain once.

    It leaves out what has no function, file or line, writes paths without ``./``, and calls the function that the code was
    compiled into by its symbol, as llvm-addr2line does.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[Frame, ...]] = {}

    def of(self, point: PointCoverage) -> tuple[Frame, ...]:
        """Return a point's frames, innermost first."""
        key = point.symbol, point.frames
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(_frames(*key))
        return found


def _frames(symbol: str | None, frames: tuple[Frame, ...]) -> Iterator[Frame]:
    for number, frame in enumerate(frames, 1):
        function = symbol if symbol and number == len(frames) else frame.function
        if function and frame.file and frame.line:
            yield Frame(function, normpath(frame.file).lstrip("/"), frame.line, None)
