# SPDX-License-Identifier: LGPL-2.1-or-later
"""syzkaller's CSV of points: what its manager has under ``/rawcoverfiles``, and ``syz-cover -exports rawcoverfiles`` writes.

A row per frame, the function itself before what was inlined there, ordered by PC. ``PC`` is the call's, ``Offset`` that from
``_stext`` or from the module's ``.text``, and the kernel's own ``Module`` has no name (pkg/cover/html.go).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Final

from kcovdbg.model.coverage import PointCoverage
from kcovdbg.render.escape import escape

HEADER: Final = ("PC", "Module", "Offset", "Filename", "Inline", "StartLine", "EndLine")


def rawcoverfiles_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Yield the table's lines."""
    yield csv_line(HEADER)
    for point in sorted(points, key=lambda point: point.call):
        offset = "" if point.offset is None else hex(point.offset)
        start = (hex(point.call), escape(point.module or ""), offset)
        for number, frame in enumerate(reversed(point.frames)):
            line = 0 if frame.line is None else frame.line
            yield csv_line((*start, escape(frame.file or ""), "true" if number else "false", line, line))
        if not point.frames:
            yield csv_line((*start, "", "false", 0, 0))


def csv_line(values: Iterable[object]) -> str:
    """Return one line of CSV."""
    stream = StringIO()
    csv.writer(stream, lineterminator="").writerow(values)
    return stream.getvalue()
