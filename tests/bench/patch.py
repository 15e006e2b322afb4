# SPDX-License-Identifier: LGPL-2.1-or-later
"""``patch`` of ten files, beside what one would run instead, in processor time of processes.

python -m tests.bench.patch VMLINUX TREE [--rounds N]

TREE is the source that the image was built from. The trace has every tenth point of the image. The
location table must have been built, as any command on the kernel does. Instead one would export
every line to lcov and run diff-cover, which is measured where it is installed, or name the points
of the files by llvm-symbolizer.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import find_table_key, open_table
from tests.bench.measure import Result, at_most, bounded, processor_time, show
from tests.lab.test_patch import write_diff

_FILES: Final = 10
_HUNKS: Final = 3
_EVERY: Final = 10
"""Of the points, one of so many is in the trace."""
_SECONDS: Final = 1.0
"""Of a processor, that an answer may take on a kernel of 1.4 million points."""


def _find_lines(table: LocationTable, tree: Path) -> dict[str, list[int]]:
    """Return where hunks are: in the files with the most points, at lines from all over them."""
    pcs = table.pcs()
    lines: dict[str, set[int]] = {}
    counts: Counter[str] = Counter()
    for row in table.get_rows(pcs):
        frame = row[1][0] if row is not None and row[1] else None
        if frame is not None and frame.file is not None and frame.line:
            counts[frame.file] += 1
            lines.setdefault(frame.file, set()).add(frame.line)
    places: dict[str, list[int]] = {}
    for file, _ in counts.most_common():
        if file.endswith(".c") and (tree / file).is_file() and len(places) < _FILES:
            chosen = sorted(lines[file])
            places[file] = chosen[len(chosen) // 8 :: len(chosen) // _HUNKS][:_HUNKS]
    return places


# Of both, 1 says that a line was not executed.
_measure = partial(processor_time, statuses=(0, 1))


def run(image: str, tree: Path, rounds: int) -> Iterator[Result]:
    key = find_table_key(image)
    table = None if key is None else open_table(key)
    if table is None:
        sys.exit(f"{image}: no location table; build it: kcovdbg symbols build {image}")
    places = _find_lines(table, tree)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        diff, trace, lcov = scratch / "ten.diff", scratch / "trace.txt", scratch / "lcov.info"
        write_diff(diff, tree, places)
        pcs = table.pcs()
        trace.write_text("".join(f"{pc:#x}\n" for pc in pcs[::_EVERY]))
        kcovdbg = [sys.executable, "-m", "kcovdbg", "-s", image, "--source-dir", str(tree)]
        words = [f"file:{trace}", "--pc", "raw"]
        export = [*kcovdbg, "export", "lcov", *words, "-o", str(lcov)]

        def export_lcov() -> float:
            lcov.unlink(missing_ok=True)
            return _measure(export)

        ways: dict[str, Callable[[], float]] = {
            "patch": partial(_measure, [*kcovdbg, "patch", str(diff), *words]),
            "export lcov": export_lcov,
        }
        cover = shutil.which("diff-cover")
        if cover is not None:
            subprocess.run(["git", "init", "-q", folder], check=True)
            command = [cover, str(lcov), "--diff-file", str(diff)]
            ways["diff-cover"] = partial(_measure, command, cwd=scratch)
        symbolizer = shutil.which("llvm-symbolizer")
        if symbolizer is not None:
            addresses = scratch / "addresses"
            of_files = [
                pc - 1
                for pc, row in zip(pcs, table.get_rows(pcs), strict=True)
                if row is not None and row[1] and row[1][0].file in places
            ]
            addresses.write_text("".join(f"{address:#x}\n" for address in of_files))
            command = [symbolizer, f"--obj={image}", "--inlines", "--functions=short"]
            ways["llvm-symbolizer"] = partial(_measure, command, stdin=addresses)
        seconds: dict[str, float] = {}
        for _ in range(rounds):
            for name, way in ways.items():
                seconds[name] = min(way(), seconds.get(name, math.inf))
    what = f"patch of {len(places)} files, {len(pcs)} points"
    mine = seconds["patch"]
    yield bounded(what, mine, _SECONDS, "seconds")
    if cover is not None:
        other = seconds["export lcov"] + seconds["diff-cover"]
        yield at_most(what, mine, other, "lcov and diff-cover", 0.5)
    if symbolizer is not None:
        yield at_most(what, mine, seconds["llvm-symbolizer"], "llvm-symbolizer", 2.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.patch")
    parser.add_argument("image", metavar="VMLINUX")
    parser.add_argument("tree", metavar="TREE", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="each time is the best of so many")
    options = parser.parse_args()
    return show(run(options.image, options.tree, options.rounds))


if __name__ == "__main__":
    sys.exit(main())
