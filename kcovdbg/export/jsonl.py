# SPDX-License-Identifier: LGPL-2.1-or-later
"""syzkaller's JSON Lines: ``/cover?jsonl=1``, and ``syz-cover -exports jsonl`` (CoverageInfo in pkg/cover/html.go).

An object per frame of a point, innermost first. ``sl``, ``sc``, ``el`` and ``ec`` are line and column of start and end:
whole lines, as syzkaller takes them from debug info, and -1 stands for a line's end. ``pc`` is the call's, a decimal number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from kcovdbg.records.coverage import PointCoverage
from kcovdbg.model.location import Frame
from kcovdbg.console.escape import escape
from kcovdbg.export.syzkaller_frames import SyzkallerFrames


def jsonl_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Yield the objects; ``hit_count``, which counts programs there, counts records."""
    frames_of = SyzkallerFrames().of
    # Names recur, and quoting one takes longer than all else here.
    quote = cache(lambda text: json.dumps(escape(text)))
    starts: dict[Frame, str] = {}
    for point in points:
        frames = frames_of(point)
        last = len(frames) - 1
        for number, frame in enumerate(frames):
            start = starts.get(frame)
            if start is None:
                start = starts[frame] = _start(frame, quote)
            inline = "false" if number == last else "true"
            yield f'{start},"hit_count":{point.hits},"inline":{inline},"pc":{point.call}}}'


def _start(frame: Frame, quote: Callable[[str], str]) -> str:
    """Return the members that a frame decides, without the closing brace."""
    names = f'"file_path":{quote(frame.file or "")},"func_name":{quote(frame.function or "")}'
    return f'{{{names},"sl":{frame.line},"sc":0,"el":{frame.line},"ec":-1'
