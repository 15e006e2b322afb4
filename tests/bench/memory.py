# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory of the counts of many runs, measured in a process of its own: traces on standard input,
JSON on standard output.
"""

import json
import random
import sys
from array import array
from collections import Counter
from pathlib import Path

from kcovdbg.records.run_counts import RunCounts


def resident() -> int:
    """Resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    wanted = int(sys.argv[1])
    traces = []
    while size := sys.stdin.buffer.read(8):
        traces.append(array("Q", sys.stdin.buffer.read(8 * int.from_bytes(size, "little"))))
    rng = random.Random(3)

    def make_run() -> Counter[int]:
        # A run: some stretches of what was really recorded.
        run: Counter[int] = Counter()
        for _ in range(rng.randrange(1, 6)):
            trace = rng.choice(traces)
            length = rng.randrange(500, 20_000)
            start = rng.randrange(max(1, len(trace) - length))
            run.update(trace[start : start + length])
        return run

    for _ in range(10):
        make_run()
    before = resident()
    runs = RunCounts(make_run() for _ in range(wanted))
    print(json.dumps({"mib": (resident() - before) / (1 << 20), "distinct": len(runs.counts)}))


if __name__ == "__main__":
    main()
