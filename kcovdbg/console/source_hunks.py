# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parts of a source file to show: lines with coverage points and some lines around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

_CONTEXT: Final = 3


def find_hunks(lines: Iterable[int], length: int) -> Iterator[tuple[int, int]]:
    """Iterate over the first and last line of each part to show.

    :param lines: those with points, ascending.
    :param length: of the file, in lines; 0 where its text is missing, and then nothing surrounds the lines.
    """
    around = _CONTEXT if length else 0
    start = end = 0
    for line in lines:
        first, last = max(1, line - around), max(line, min(length, line + around))
        if start and first > end + 1:
            yield start, end
            start = 0
        start = start or first
        end = max(end, last)
    if start:
        yield start, end
