# SPDX-License-Identifier: LGPL-2.1-or-later
"""python -m tests.bench [--rounds N] [symbols|buffers|views|lists…]: ratios of one run; status 1 when one misses its goal."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import build_table_file
from tests.bench import buffers, pc_lists, symbols, views
from tests.bench.measure import Result, format_result
from tests.bench.traces import record
from tests.lab import kernel, recipe


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--rounds", type=int, default=5, help="each time is the best of so many")
    parser.add_argument("--recipe", default="default", choices=sorted(recipe.RECIPES))
    parser.add_argument("part", nargs="*", choices=["symbols", "buffers", "views", "lists", []], help="default: all")
    options = parser.parse_args()
    results: list[Result] = []

    def show(result: Result) -> None:
        results.append(result)
        print(format_result(result), flush=True)

    if not options.part or "lists" in options.part:
        for result in pc_lists.run(options.rounds):
            show(result)
    if options.part == ["lists"]:
        return 0 if all(result.good for result in results) else 1
    built = kernel.find(recipe.RECIPES[options.recipe])
    if built is None:
        parser.error("no kernel: python -m tests.lab build")
    traces = record(built)
    if not options.part or "symbols" in options.part:
        for result in symbols.run(built, traces, options.rounds):
            show(result)
    parts = [part for name, part in (("buffers", buffers), ("views", views)) if not options.part or name in options.part]
    if parts:
        with tempfile.TemporaryDirectory() as folder:
            path = build_table_file(built.vmlinux, folder=Path(folder))
            assert path is not None
            for part in parts:
                for result in part.run(LocationTable(path), traces, options.rounds):
                    show(result)
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
