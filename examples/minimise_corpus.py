#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Choose among trace files of one kernel those that cover together what all of them cover.

examples/minimise_corpus.py traces/*.kcov

Each trace is kept as a set of about one byte for each PC, so that ten thousand of them are some hundred megabytes at most. The
choice is greedy: always the trace that adds most, of equal ones the first. The last line says what is covered and by how many.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping

from kcovdbg.analysis.counting import count_pcs
from kcovdbg.analysis.pcset import PcSet, PcUniverse
from kcovdbg.collect.trace_file import read_trace
from kcovdbg.errors import KcovdbgError


def choose(sets: Mapping[str, PcSet]) -> list[tuple[str, int]]:
    """Return the names of the sets to keep, with how many PCs each adds to those before it."""
    covered: PcSet | None = None
    # What a set adds only becomes less: of most it needn't be computed again while another one is known to add more.
    gains = {name: len(found) for name, found in sets.items()}
    chosen: list[tuple[str, int]] = []
    while gains:
        name = max(gains, key=gains.__getitem__)
        gain = len(sets[name]) if covered is None else len(sets[name] - covered)
        if not gain:
            del gains[name]
        elif gain < gains[name]:
            gains[name] = gain
        else:
            del gains[name]
            covered = sets[name] if covered is None else covered | sets[name]
            chosen.append((name, gain))
    return chosen


def main() -> int:
    if len(sys.argv) < 2:
        print(f"usage: {sys.argv[0]} TRACE...", file=sys.stderr)
        return 2
    universe = PcUniverse(array("Q"))
    sets: dict[str, PcSet] = {}
    for path in sys.argv[1:]:
        try:
            sets[path] = universe.make_set(array("Q", sorted(count_pcs(read_trace(path)))))
        except KcovdbgError as error:
            print(f"left out: {error}", file=sys.stderr)
    chosen = choose(sets)
    for name, gain in chosen:
        print(f"{gain}\t{name}")
    print(f"{sum(gain for _, gain in chosen)} PCs in {len(chosen)} of {len(sets)} traces", file=sys.stderr)
    return 0 if len(sets) == len(sys.argv) - 1 else 2


if __name__ == "__main__":
    sys.exit(main())
