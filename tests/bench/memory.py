# SPDX-License-Identifier: LGPL-2.1-or-later
"""What sets of PCs take, seen from outside: traces on standard input, JSON on standard output."""

import gc
import json
import random
import sys
from array import array
from pathlib import Path

from kcovdbg.analysis.hot import Numbering, Words
from kcovdbg.analysis.pcset import PcUniverse
from kcovdbg.symbols.points import PointKind
from kcovdbg.symbols.table import Table


def resident() -> int:
    """Resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    table = Table(sys.argv[1])
    wanted = int(sys.argv[2])
    traces = []
    while size := sys.stdin.buffer.read(8):
        traces.append(array("Q", sys.stdin.buffer.read(8 * int.from_bytes(size, "little"))))
    ranges = table.text_ranges()
    numbering = Numbering((min(part.start for part in ranges), max(part.end for part in ranges)))
    universe = PcUniverse(table.pcs(PointKind.PC))
    rng = random.Random(3)

    def make():
        # A program's trace: some stretches of what was really recorded.
        parts = []
        for _ in range(rng.randrange(1, 6)):
            trace = rng.choice(traces)
            length = rng.randrange(500, 20_000)
            start = rng.randrange(max(1, len(trace) - length))
            parts.append(Words(trace[start : start + length]))
        return universe.make_set(numbering.number(*parts))

    for _ in range(200):
        make()
    gc.collect()
    before = resident()
    kept = [make() for _ in range(wanted)]
    gc.collect()
    pcs = sum(len(one) for one in kept)
    print(json.dumps({"bytes_per_pc": (resident() - before) / pcs, "mean": pcs / len(kept)}))


if __name__ == "__main__":
    main()
