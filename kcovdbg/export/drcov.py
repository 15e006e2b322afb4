# SPDX-License-Identifier: LGPL-2.1-or-later
"""DynamoRIO's drcov log, version 2 with its table of blocks as text. Read by Lighthouse and Cartographer.

A block is the call of a coverage callback: that much of the code was executed for certain, and what a reader paints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kcovdbg.records.coverage import PointCoverage
from kcovdbg.export.module_files import module_file


def drcov_lines(points: Iterable[PointCoverage], call_length: int, end_of: Callable[[str | None], int | None]) -> Iterator[str]:
    """Iterate over the log's lines; points without a known offset are left out.

    :param points: each once.
    :param call_length: bytes of a call of a callback.
    :param end_of: from the name of a module, None for the image, to the end of its code; None where that is unknown.
    """
    numbers: dict[str | None, int] = {}
    starts: list[int] = []
    ends: list[int] = []
    blocks: list[tuple[int, int]] = []
    for point in points:
        if point.offset is None:
            continue
        number = numbers.setdefault(point.module, len(numbers))
        if number == len(starts):
            starts.append(point.call - point.offset)
            ends.append(end_of(point.module) or 0)
        ends[number] = max(ends[number], point.call + call_length)
        blocks.append((number, point.offset))
    yield "DRCOV VERSION: 2"
    yield "DRCOV FLAVOR: kcov"
    yield f"Module Table: version 2, count {len(numbers)}"
    yield "Columns: id, base, end, entry, path"
    for name, number in numbers.items():
        # Readers split at commas.
        file = module_file(name).replace(",", "\\x2c")
        yield f"{number:3}, 0x{starts[number]:016x}, 0x{ends[number]:016x}, 0x{0:016x}, {file}"
    yield f"BB Table: {len(blocks)} bbs"
    yield "module id, start, size:"
    for number, offset in blocks:
        yield f"module[{number:3}]: 0x{offset:016x}, {call_length:3}"
