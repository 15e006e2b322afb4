# SPDX-License-Identifier: LGPL-2.1-or-later
"""What matching two builds costs beside naming their PCs, in processor time of one run.

python -m tests.bench.build_match VMLINUX VMLINUX

Every point of a block of one build is in one trace, and every one of the other build in the other
one. Both location tables must have been built, as any command on the kernels does.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kcovdbg.compare.build_match import BuildFunctions, match_builds
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Symbolizer
from kcovdbg.symbols.table_cache import find_table_key, open_table
from tests.bench.measure import Result, at_most, show

_Side: TypeAlias = tuple[LocationTable, "array[int]"]
"""The table of a build and the PCs that were recorded in it."""


def _open_table(image: str) -> LocationTable:
    key = find_table_key(image)
    table = None if key is None else open_table(key)
    if table is None:
        sys.exit(f"{image}: no location table; build it: kcovdbg symbols build {image}")
    return table


def _names(table: LocationTable) -> LocationCache:
    return LocationCache(Symbolizer(table=AwaitedTable(table)).locate_all, lambda: table)


def _match(sides: Sequence[_Side]) -> None:
    match_builds(
        *(BuildFunctions(_names(table).columns(pcs), lambda _: ()) for table, pcs in sides)
    )


def _name(sides: Sequence[_Side]) -> None:
    for table, pcs in sides:
        _names(table).prefetch(pcs)


def _processor_time(run: Callable[[Sequence[_Side]], None], sides: Sequence[_Side]) -> float:
    gc.collect()
    start = time.process_time()
    run(sides)
    return time.process_time() - start


def run(images: Sequence[str], rounds: int) -> Result:
    """Measure with two images."""
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        # Tables keep what was named.
        tables = [_open_table(image) for image in images]
        sides = [(table, table.pcs(PointKind.PC)) for table in tables]
        times.append((_processor_time(_match, sides), _processor_time(_name, sides)))
        counts = [len(pcs) for _, pcs in sides]
    what = f"match {counts[0]} and {counts[1]} points"
    return at_most(
        what, min(match for match, _ in times), min(naming for _, naming in times), "name them", 6
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.build_match")
    parser.add_argument("image", nargs=2, metavar="VMLINUX")
    parser.add_argument("--rounds", type=int, default=3, help="each time is the best of so many")
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    return show([run(options.image, options.rounds)])


if __name__ == "__main__":
    sys.exit(main())
