# SPDX-License-Identifier: LGPL-2.1-or-later
"""syzkaller's CSV of points: ``/rawcoverfiles`` of its manager, and ``syz-cover -exports rawcoverfiles`` (pkg/cover/html.go).

A row per frame of each point, the function itself before what was inlined there, ordered by PC. ``PC`` is the call's.
``Offset`` counts from the start of the module's code; for the kernel itself, whose ``Module`` has no name, syz-cover counts
from 0.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Final

from kcovdbg.records.coverage import PointCoverage
from kcovdbg.console.escape import escape
from kcovdbg.export.syzkaller_frames import SyzkallerFrames

HEADER: Final = ("PC", "Module", "Offset", "Filename", "Inline", "StartLine", "EndLine")


def rawcoverfiles_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield csv_line(HEADER)
    frames_of = SyzkallerFrames().of
    ends: dict[tuple[str, int, bool], str] = {}
    for point in sorted(points, key=lambda point: point.call):
        offset = point.call if point.module is None else point.offset
        start = csv_line((hex(point.call), escape(point.module or ""), "" if offset is None else hex(offset)))
        for number, frame in enumerate(reversed(frames_of(point))):
            key = frame.file or "", frame.line or 0, number > 0
            end = ends.get(key)
            if end is None:
                end = ends[key] = csv_line((escape(key[0]), "true" if key[2] else "false", key[1], key[1]))
            yield f"{start},{end}"


def csv_line(values: Iterable[object]) -> str:
    """Return one line of CSV."""
    stream = StringIO()
    csv.writer(stream, lineterminator="").writerow(values)
    return stream.getvalue()
