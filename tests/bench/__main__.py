# SPDX-License-Identifier: LGPL-2.1-or-later
"""python -m tests.bench [--rounds N] [symbols|buffers|views|lists…]: ratios of one run; status 1
when one misses its goal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import build_table_file
from tests.bench import buffers, pc_lists, symbols, views
from tests.bench.measure import Result, show
from tests.bench.traces import record
from tests.lab import kernel, recipe


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--rounds", type=int, default=5, help="each time is the best of so many")
    parser.add_argument("--recipe", default="default", choices=sorted(recipe.RECIPES))
    parser.add_argument(
        "part", nargs="*", choices=["symbols", "buffers", "views", "lists", []], help="default: all"
    )
    options = parser.parse_args()
    parts = set(options.part or ("symbols", "buffers", "views", "lists"))

    def measure() -> Iterator[Result]:
        if "lists" in parts:
            yield from pc_lists.run(options.rounds)
        if parts == {"lists"}:
            return
        built = kernel.find(recipe.RECIPES[options.recipe])
        if built is None:
            parser.error("no kernel: python -m tests.lab build")
        traces = record(built)
        if "symbols" in parts:
            yield from symbols.run(built, traces, options.rounds)
        with tempfile.TemporaryDirectory() as folder:
            path = (
                build_table_file(built.vmlinux, folder=Path(folder))
                if parts & {"buffers", "views"}
                else None
            )
            for name, run in (("buffers", buffers.run), ("views", views.run)):
                if path is not None and name in parts:
                    yield from run(LocationTable(path), traces, options.rounds)

    return show(measure())


if __name__ == "__main__":
    sys.exit(main())
