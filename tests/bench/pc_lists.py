# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of PCs: reading them beside the reader of commit 0ebfcde, which knew two conventions and
one format of text.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from kcovdbg.records.pc_convention import CodeAddresses, find_convention
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.pc_options import ReadingOptions
from kcovdbg.records.trace_reader import read_trace
from tests.bench.measure import Result, at_most, best, bounded

ROOT: Final = Path(__file__).parents[2]
BEFORE: Final = "0ebfcde"
# As syzbot's kernels have.
POINTS: Final = 1_900_000
LINES: Final = 1_800_000
_BASE: Final = 0xFFFFFFFF81000000
# A set is looked up faster than the table that a user of it had.
_READ_BEFORE: Final = """
import sys, time
from array import array
from pathlib import Path
import kcovdbg
from kcovdbg.collect.trace_file import read_trace
assert Path(kcovdbg.__file__).is_relative_to(sys.argv[1])
points = set(array("Q", Path(sys.argv[2]).read_bytes()))
times = []
for _ in range(int(sys.argv[4])):
    start = time.perf_counter()
    read_trace(sys.argv[3], call_length=5, find_points=lambda: points)
    times.append(time.perf_counter() - start)
print(min(times))
"""


def run(rounds: int) -> Iterator[Result]:
    """Yield the results; none beside the older reader where the repository lacks its commit."""
    source = random.Random(1)
    points, at = array("Q"), _BASE
    for _ in range(POINTS):
        at += source.randint(6, 82)
        points.append(at)
    image = CodeAddresses(_BASE, array("I", (pc - _BASE for pc in points)), (_BASE, at + 1))
    kernel = TraceKernel("aa", 0x22600000, "x86_64", lambda: (image,))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "points").write_bytes(points.tobytes())
        trace = folder / "rawcover"
        trace.write_text("".join(f"{pc - 5:#x}\n" for pc in source.sample(points, LINES)))
        archive = subprocess.run(
            ["git", "archive", BEFORE, "kcovdbg"], cwd=ROOT, capture_output=True, check=False
        )
        if archive.returncode == 0:
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            command = [
                sys.executable,
                "-c",
                _READ_BEFORE,
                name,
                str(folder / "points"),
                str(trace),
                str(rounds),
            ]
            done = subprocess.run(
                command,
                cwd=folder,
                env={"PYTHONPATH": name},
                capture_output=True,
                text=True,
                check=True,
            )
            mine = best(partial(read_trace, trace, kernel), rounds)
            yield at_most(
                "read 1.8 million lines of rawcover",
                mine,
                float(done.stdout),
                f"commit {BEFORE}",
                1.1,
            )
        words = read_trace(trace, options=ReadingOptions(pc="raw")).words
        for what, known in (
            ("calls", words),
            ("return addresses - 1", array("Q", (word + 4 for word in words))),
        ):
            times = []
            for _ in range(rounds):
                # Of the processor: an absolute bound must not depend on what else runs.
                start = time.process_time()
                find_convention(known, (image,), 5, kaslr_offset=kernel.kaslr_offset)
                times.append(time.process_time() - start)
            yield bounded(f"convention of 1.8 million {what}", min(times), 0.2, "seconds")
