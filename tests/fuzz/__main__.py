# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fuzzing by command: ``python -m tests.fuzz --cases 10000 --seed 1``."""

from __future__ import annotations

import argparse
import resource
import sys

from tests.fuzz.run import Figures, Fuzzer

_MEMORY = 4 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run kcovdbg over damaged memory of the demo.")
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; each next one has the next number")
    args = parser.parse_args()
    # Absurd sizes must not be allocated.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    fuzzer, figures = Fuzzer(), Figures()
    said = 0
    for seed in range(args.seed, args.seed + args.cases):
        fuzzer.case(seed, figures)
        problems = [*figures.crashes, *(f"HANG {case}" for case in figures.hangs), *figures.raw]
        for problem in problems[said:]:
            print(problem, flush=True)
        said = len(problems)
        if figures.cases % 500 == 0:
            print(figures, flush=True)
    print(figures)
    return 0 if figures.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
