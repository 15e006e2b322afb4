# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes tests/golden/two_kernels of the traces that test_two_kernels.py collects: python -m
tests.lab.trace_samples DIRECTORY.

The directory is the one that pytest was given as --basetemp. The last records of each trace are
kept, and of each kernel's location table the functions that they are in.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import zstandard

from kcovdbg.records.side_file import side_path
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import build_table_file
from tests.lab import kernel as kernels
from tests.lab.recipe import RECIPES
from tests.support.table_writer import TableWriter

GOLDEN = Path(__file__).parent.parent / "golden" / "two_kernels"
# Folders of boots, and the kernels that booted.
BOOTS = {"default0": "default", "default1": "default", "patched0": "patched"}
RECORDS = 11_000
# The line of the source that the patch adds and the program executes, and one that it does not.
LINES = ("WRITE_ONCE(kcovlab_asked, kcovlab_asked + 1);", "WRITE_ONCE(kcovlab_asked, 0);")


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    recorded: dict[str, set[int]] = {name: set() for name in BOOTS.values()}
    for boot, name in BOOTS.items():
        trace = Path(sys.argv[1]) / boot / "0.kcov"
        words = read_trace(trace).words[-RECORDS:]
        recorded[name].update(words)
        write(f"{boot}.kcov", len(words).to_bytes(8, "little") + words.tobytes())
        side = json.loads(side_path(trace).read_text())
        write(f"{boot}.kcov.json", json.dumps(side | {"count": len(words)}).encode())
    write("kcovlab_keep.ko", (Path(sys.argv[1]) / "default0" / "kcovlab_keep.ko").read_bytes())
    for name, pcs in recorded.items():
        kernel = kernels.find(RECIPES[name])
        assert kernel is not None
        path = build_table_file(kernel.vmlinux)
        assert path is not None
        write(f"{name}.table", cut_table(LocationTable(path), pcs))
        if name == "patched":
            text = (kernel.tree / "kernel" / "sys.c").read_text().splitlines()
            stripped = [line.strip() for line in text]
            write("lines.json", json.dumps([stripped.index(line) + 1 for line in LINES]).encode())


def cut_table(table: LocationTable, pcs: set[int]) -> bytes:
    """Return a table of the functions that some PCs are in."""
    functions = {symbol for pc in pcs if (symbol := table.function_at(pc - 1)) is not None}
    writer = TableWriter(table.build_id, table.text_ranges())
    for symbol in functions:
        writer.add_function(symbol)
    points = table.pcs(*PointKind)
    for pc, row in zip(points, table.get_rows(points), strict=True):
        if row is not None and table.function_at(pc - 1) in functions:
            writer.add_frames(pc, PointKind(row[0]), row[1])
    return writer.to_bytes()


def write(name: str, data: bytes) -> None:
    (GOLDEN / f"{name}.zst").write_bytes(zstandard.compress(data, 19))


if __name__ == "__main__":
    main()
