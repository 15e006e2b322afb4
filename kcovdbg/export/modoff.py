# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lighthouse's ``module+offset``: one line per record or point; the module's file name ends at the last plus sign.

Its reader (reader/parsers/modoff.py) takes comments after ``;`` or ``#``, and counts lines that occur more than once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcovdbg.records.coverage import PointCoverage
from kcovdbg.export.module_files import module_file


def modoff_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Iterate over ``vmlinux+1a2b3c`` and ``name.ko+40``; points without a known offset are left out."""
    for point in points:
        if point.offset is not None:
            yield f"{module_file(point.module)}+{point.offset:x}"
