# SPDX-License-Identifier: LGPL-2.1-or-later
"""syzkaller's JSON Lines: ``/cover?jsonl=1``, and ``syz-cover -exports jsonl`` (CoverageInfo in pkg/cover/html.go).

An object per frame of a point, innermost first. ``sl``, ``sc``, ``el`` and ``ec`` are line and column of start and end:
whole lines, as syzkaller takes them from debug info, and -1 stands for a line's end. ``pc`` is the call's, a decimal number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kcovdbg.model.coverage import PointCoverage
from kcovdbg.render.escape import escape


def jsonl_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Yield the objects; ``hit_count``, which counts programs there, counts records."""
    encode = json.JSONEncoder(ensure_ascii=True).encode
    for point in points:
        last = len(point.frames) - 1
        for number, frame in enumerate(point.frames):
            line = 0 if frame.line is None else frame.line
            yield encode(
                {
                    "file_path": escape(frame.file or ""),
                    "func_name": escape(frame.function or ""),
                    "sl": line,
                    "sc": 0,
                    "el": line,
                    "ec": -1,
                    "hit_count": point.hits,
                    "inline": number != last,
                    "pc": point.call,
                }
            )
