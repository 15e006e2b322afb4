# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run all tests in steps: ``python -m tests``; ``make test`` does.

Each step is a process whose output is passed through. A failed step does not stop the others: the
table at the end and the exit status report it. Tests of guests and terminals wait for programs that
a busy machine delays: those that failed run once more, alone, and the table reports that as well.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import machine

ROOT = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest")
# As many workers as a small machine has cores; a larger one does not need more.
PARALLEL = ("-n", "2")
# By files, as the tests of one share packages, a cache or a guest. One worker more, as they wait for
# guests and terminals. In the order of names: by default, files with few tests come last, which are
# those that take minutes, and one worker is left with the last of them.
BY_FILE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")

# Only the tests that failed in the latest run, one at a time.
FAILED = ("--last-failed", "--last-failed-no-failures", "none", "-n", "0")
TESTS_FAILED = 1
"""The status of pytest when it ran to its end, and a test failed."""


class Step(NamedTuple):
    """A step of the run."""

    name: str
    command: Sequence[str]
    has_second_try: bool = False


STEPS = (
    Step("system packages and the lab's kernel", (sys.executable, "-m", "tests.prepare")),
    Step("format, lint, types, generated docs", ("make", "--silent", "static")),
    Step(
        "unit, native and fuzz tests",
        (*PYTEST, *PARALLEL, "tests/unit", "tests/native", "tests/fuzz"),
    ),
    Step(
        "integration tests",
        (*PYTEST, *BY_FILE, "tests/integration", "--ignore", "tests/integration/gdb"),
        has_second_try=True,
    ),
    Step(
        "the lab and GDB",
        (*PYTEST, *BY_FILE, "-m", "not bench", "tests/lab", "tests/integration/gdb"),
        has_second_try=True,
    ),
)


class Result(NamedTuple):
    """How a step ended."""

    step: Step
    status: int
    seconds: float
    tries: int

    @property
    def outcome(self) -> str:
        """Whether it passed, and at which try."""
        if self.status != 0:
            return f"status {self.status}"
        return "passed" if self.tries == 1 else "2nd try"


def main() -> int:
    """Check the machine, run the steps; return 0 when all passed, 1 when any failed, 2 when the
    machine cannot run them.
    """
    if machine.main():
        return 2
    start = time.monotonic()
    results = list(run_steps(STEPS, start))
    print(f"\n{format_time(time.monotonic() - start)} in all")
    for result in results:
        print(f"  {result.outcome:>10} {format_time(result.seconds)}  {result.step.name}")
    return 1 if any(result.status for result in results) else 0


def run_steps(steps: Sequence[Step], start: float) -> Iterator[Result]:
    """Run the steps in order, and print before each how far the run is and what is left."""
    for number, step in enumerate(steps, 1):
        left = ", ".join(later.name for later in steps[number:])
        print(
            f"\n[{number}/{len(steps)}] {format_time(time.monotonic() - start)} {step.name}", end=""
        )
        print(f" (then: {left})" if left else "", flush=True)
        began = time.monotonic()
        status, tries = run(step.command), 1
        if status == TESTS_FAILED and step.has_second_try:
            print("\nThe tests that failed, once more, alone:", flush=True)
            status, tries = run((*step.command, *FAILED)), 2
        yield Result(step, status, time.monotonic() - began, tries)


def run(command: Sequence[str]) -> int:
    """Run a command, pass its output through, and return its status."""
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def format_time(seconds: float) -> str:
    """Return minutes and seconds."""
    return f"{int(seconds) // 60:2}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
