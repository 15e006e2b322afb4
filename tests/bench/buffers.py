# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers: distinct PCs, counts of many runs, kept traces, ordered comparison."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kcovdbg.records.alignment import Alignment, find_blocks
from kcovdbg.records.native_loops import Numbering
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Symbolizer
from tests.bench.measure import Result, at_most, best, bounded, faster

RUNS = 2000


def _text(table: LocationTable) -> tuple[int, int]:
    ranges = table.text_ranges()
    return min(part.start for part in ranges), max(part.end for part in ranges)


def run(table: LocationTable, traces: dict[str, array[int]], rounds: int) -> Iterator[Result]:
    text = _text(table)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from _dedup(text, traces, folder, rounds)
        yield from _runs(traces)
        yield from _diff(table, traces, folder, rounds)


def _dedup(
    text: tuple[int, int], traces: dict[str, array[int]], folder: Path, rounds: int
) -> Iterator[Result]:
    program = folder / "sort_unique"
    source = Path(__file__).with_name("sort_unique.cc")
    subprocess.run(["g++", "-O2", "-o", str(program), str(source)], check=True)
    numbering = Numbering(text)
    for name in ("tcp-a", "mixed-a", "vfs-a"):
        trace = traces[name]
        path = folder / name
        path.write_bytes(trace.tobytes())
        output = subprocess.run(
            [str(program), str(path), str(2 * rounds)], capture_output=True, check=True
        ).stdout
        time, count = (int(number) for number in output.split())
        assert len(numbering.number(trace)) == count
        mine = best(partial(numbering.number, trace), 4 * rounds)
        goal = 10 if len(trace) < 1 << 17 else 8
        yield faster(
            f"distinct PCs of {name}, {len(trace)} records",
            mine,
            time / 1e9,
            "std::sort+unique",
            goal,
        )


def _runs(traces: dict[str, array[int]]) -> Iterator[Result]:
    measured = subprocess.run(
        [sys.executable, "-m", "tests.bench.memory", str(RUNS)],
        input=b"".join(
            len(trace).to_bytes(8, "little") + trace.tobytes() for trace in traces.values()
        ),
        capture_output=True,
        check=True,
    )
    facts = json.loads(measured.stdout)
    yield bounded(
        f"memory of the counts of {RUNS} runs, {facts['distinct']} distinct PCs",
        facts["mib"],
        16,
        "MiB",
    )


def _diff(
    table: LocationTable, traces: dict[str, array[int]], folder: Path, rounds: int
) -> Iterator[Result]:
    text = _text(table)
    files = {}
    for name, trace in traces.items():
        files[name] = folder / f"{name}.txt"
        files[name].write_text("".join(f"{pc:#x}\n" for pc in trace))

    def compare(left: str, right: str) -> Alignment:
        numbering = Numbering(text)
        words = [traces[left], traces[right]]
        pcs = numbering.number(*words)
        functions: dict[str | None, int] = {}
        groups = array("I")
        for location in Symbolizer(table=AwaitedTable(table)).locate_all(pcs):
            name = location.frames[-1].function if location.frames else None
            groups.append(functions.setdefault(name, len(functions)))
        return find_blocks(numbering.ids(words[0]), numbering.ids(words[1]), groups)

    def by_diff(left: str, right: str) -> None:
        subprocess.run(["diff", str(files[left]), str(files[right])], stdout=subprocess.DEVNULL)

    def describe(left: str, right: str) -> str:
        found = compare(left, right)
        return (
            f"{left} and {right} in order: {found.common} "
            f"equal{', coarse' if found.is_coarse else ''}"
        )

    half = max(1, rounds // 2)
    near = 0.0
    for pair in (("vfs-a", "vfs-b"), ("tcp-a", "tcp-b")):
        mine, theirs = best(partial(compare, *pair), rounds), best(partial(by_diff, *pair), half)
        near = near or theirs
        yield at_most(describe(*pair), mine, theirs, "diff", 2)
    for pair in (("vfs-a", "proc"), ("mixed-a", "mixed-b"), ("vfs-a", "mixed-a")):
        mine = best(partial(compare, *pair), half)
        yield at_most(describe(*pair), mine, near, "diff, near-equal", 20)
