# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fuzzing by command: ``python -m tests.fuzz --cases 100000 --files 3000 --seed 0 --workers 2``."""

from __future__ import annotations

import argparse
import os
import sys

from tests.fuzz.run import run_cases


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Run kcovdbg on damaged memory of the demo, and on damaged files, and count "
        "failures.",
    )
    parser.add_argument("--cases", type=int, default=1000, help="cases of damaged memory")
    parser.add_argument("--files", type=int, default=0, help="cases of damaged files")
    parser.add_argument(
        "--kind", action="append", default=[], help="kinds of damaged files, by default all"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first case; each next one has the next number"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="end after so long, of however many cases",
    )
    parser.add_argument(
        "--native",
        type=int,
        default=0,
        metavar="SECONDS",
        help="try the C code for so long, and nothing else",
    )
    parser.add_argument(
        "--libfuzzer",
        type=int,
        default=0,
        metavar="SECONDS",
        help="the same with libFuzzer, where clang is",
    )
    parser.add_argument("--nice", type=int, default=15)
    args = parser.parse_args()
    os.nice(args.nice)

    def say(text: str) -> None:
        print(text, flush=True)

    if args.native:
        from tests.native.driver import run_all

        return 0 if run_all(args.native, args.seed, args.workers, say) else 1
    if args.libfuzzer:
        from tests.native.driver import run_libfuzzer

        return 0 if run_libfuzzer(args.libfuzzer, args.seed, say) else 1
    clean = not args.cases or run_cases(args.cases, args.seed, args.workers, args.seconds, say)
    if args.files:
        from tests.fuzz.files import run_files

        clean = run_files(args.files, args.seed, args.seconds, say, args.kind) and clean
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
