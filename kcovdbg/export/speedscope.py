# SPDX-License-Identifier: LGPL-2.1-or-later
"""speedscope's own format, an evented profile (file-format-schema.json): calls open and close on an axis without unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kcovdbg.records.call import Edge
from kcovdbg.model.location import Frame
from kcovdbg.console.escape import escape

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def speedscope_lines(name: str, edges: Iterable[Edge], end: int, frame_of: Callable[[int], Frame]) -> Iterator[str]:
    """Iterate over the file's lines.

    :param name: of the profile.
    :param edges: where calls open and close: balanced, in order.
    :param end: the axis runs from 0 to here: the number of records.
    :param frame_of: from a call's PC to the frame that stands for its function.
    """
    encode = json.JSONEncoder(ensure_ascii=True).encode
    title = encode(escape(name))
    indices: dict[int, int] = {}
    frames: dict[tuple[str, str | None], int] = {}
    shown: list[dict[str, object]] = []

    def index_of(pc: int) -> int:
        """Return the frames by function and file; a function has several PCs."""
        found = indices.get(pc)
        if found is None:
            frame = frame_of(pc)
            function = frame.function or f"{pc:#x}"
            found = indices[pc] = frames.setdefault((function, frame.file), len(frames))
            if found == len(shown):
                shown.append({"name": escape(function)} | _place(frame))
        return found

    yield f'{{"$schema": {encode(SCHEMA)}, "exporter": "kcovdbg", "name": {title}, "activeProfileIndex": 0,'
    yield f'"profiles": [{{"type": "evented", "name": {title}, "unit": "none", "startValue": 0, "endValue": {end}, "events": ['
    comma = ""
    open_frames: list[int] = []
    for edge in edges:
        # A call closes the frame that it opened: its entry and exit may be told apart by their PCs, its frame may not.
        if edge.is_open:
            open_frames.append(index_of(edge.call.pc))
        number = open_frames[-1] if edge.is_open else open_frames.pop()
        yield f'{comma}{{"type": "{"O" if edge.is_open else "C"}", "frame": {number}, "at": {edge.at}}}'
        comma = ","
    yield "]}],"
    yield f'"shared": {{"frames": {encode(shown)}}}}}'


def _place(frame: Frame) -> dict[str, object]:
    place: dict[str, object] = {}
    if frame.file is not None:
        place["file"] = escape(frame.file)
        if frame.line is not None:
            place["line"] = frame.line
    return place
