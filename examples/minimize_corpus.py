#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Select trace files of one kernel that together cover what all of them cover.

examples/minimize_corpus.py traces/*.kcov

The selection is greedy: the trace that adds most PCs comes next, of equal ones the first. Each line
of output is the number of PCs that a trace adds, and its path. A trace takes four bytes of memory
for each distinct PC.
"""

from __future__ import annotations

import signal
import sys
from array import array
from collections.abc import Mapping

from kcovdbg.errors import KcovdbgError
from kcovdbg.records.pc_counts import count_pcs
from kcovdbg.records.trace_reader import read_trace


def choose(traces: Mapping[str, array[int]], distinct: int) -> list[tuple[str, int]]:
    """Return the names of the traces to keep, each with the number of PCs that it adds to those
    before it.

    :param traces: name -> numbers of the PCs that it covers.
    :param distinct: PCs of all traces, numbered from 0.
    """
    missing = bytearray(b"\1" * distinct)
    # A trace's gain only shrinks: the largest known one is computed again, the others are upper
    # bounds.
    gains = {name: len(pcs) for name, pcs in traces.items()}
    chosen: list[tuple[str, int]] = []
    while gains:
        name = max(gains, key=gains.__getitem__)
        gain = sum(map(missing.__getitem__, traces[name]))
        if gain and gain < gains[name]:
            gains[name] = gain
            continue
        del gains[name]
        if gain:
            for pc in traces[name]:
                missing[pc] = 0
            chosen.append((name, gain))
    return chosen


def main() -> int:
    if len(sys.argv) < 2:
        print(f"usage: {sys.argv[0]} TRACE...", file=sys.stderr)
        return 2
    numbers: dict[int, int] = {}
    traces: dict[str, array[int]] = {}
    for path in sys.argv[1:]:
        try:
            pcs = count_pcs(read_trace(path))
        except KcovdbgError as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        traces[path] = array("I", [numbers.setdefault(pc, len(numbers)) for pc in pcs])
    chosen = choose(traces, len(numbers))
    for name, gain in chosen:
        print(f"{gain}\t{name}")
    print(f"{len(numbers)} PCs in {len(chosen)} of {len(traces)} traces", file=sys.stderr)
    return 0 if len(traces) == len(sys.argv) - 1 else 2


if __name__ == "__main__":
    # End quietly if the output is piped to a program that closes it, such as head.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
