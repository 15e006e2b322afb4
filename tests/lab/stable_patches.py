# SPDX-License-Identifier: LGPL-2.1-or-later
"""``patch`` on what the stable tree changed between two releases, compared with QEMU's log.

python -m tests.lab.stable_patches OLD_TREE [--recipe NAME]

OLD_TREE is the source of an older release than the lab's kernel is of, as Debian's
linux-source-6.12=VERSION has it. Each file that was changed since then, and that the calls of
``calls.c`` ran code of, is a patch: what it adds is in the kernel. Those without a line with code
that KCOV may decide are left out. Status 1 if a state is wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kcovdbg.elf.file import ElfFile
from tests.lab import kernel as kernels
from tests.lab.execution_truth import Call
from tests.lab.patch_truth import DECIDED, UNDECIDED, PatchTruth
from tests.lab.recipe import RECIPES
from tests.lab.test_executed_lines import Truth

_TRACES: Final = 8
"""Calls that a patch is judged by, of those that ran code of its file."""


def write_diff(old: Path, tree: Path, file: str, path: Path) -> bool:
    """Write what was changed in a file as a diff; return whether anything was."""
    if not (old / file).is_file() or not (tree / file).is_file():
        return False
    labels = [f"--label={prefix}/{file}" for prefix in "ab"]
    command = ["diff", "-up", *labels, str(old / file), str(tree / file)]
    path.write_bytes(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    return path.stat().st_size > 0


class CallFiles:
    """The files that each call ran code of."""

    def __init__(self, judge: PatchTruth, calls: Sequence[tuple[Call, list[int]]]) -> None:
        self._calls = calls
        self._files: list[set[str]] = []
        for _, own in calls:
            executed = set(own)
            lines = judge.find_lines(judge.find_functions(executed), executed)
            self._files.append({file for (file, _), was_executed in lines.items() if was_executed})

    def all(self) -> list[str]:
        """Return the files that any call ran code of."""
        return sorted(set().union(*self._files))

    def choose(self, file: str) -> list[tuple[Call, list[int]]]:
        """Return some calls that ran code of a file, from the first to the last one."""
        found = [
            call for call, files in zip(self._calls, self._files, strict=True) if file in files
        ]
        return found[:: -(-len(found) // _TRACES)]


def judge_files(truth: Truth, kernel: kernels.Kernel, old: Path, folder: Path) -> Iterator[int]:
    """Print a line for each patch and some for all, and yield the number of wrong states of each."""
    judge = PatchTruth(truth, kernel.vmlinux, kernel.tree)
    files = CallFiles(judge, truth.calls)
    total: Counter[str] = Counter()
    patches = 0
    for file in files.all():
        diff = folder / f"{file.replace('/', '-')}.diff"
        if not write_diff(old, kernel.tree, file, diff):
            continue
        found = judge.judge(diff, files.choose(file), folder)
        states = Counter(found.states)
        yield len(found.wrong)
        if not states.keys() & {*DECIDED, *UNDECIDED}:
            continue
        patches += 1
        total += states
        print(f"{file}: {describe(states)}; {found.seconds:.2f} s", *found.wrong)
    print(f"{patches} patches: {describe(total)}")
    decided = sum(total[state] for state in DECIDED)
    lines = decided + sum(total[reason] for reason in UNDECIDED)
    print(f"{100 * decided / max(lines, 1):.1f} % of {lines} lines with code are decided")


def describe(states: Counter[str]) -> str:
    """Return how many lines have each state."""
    return ", ".join(f"{count} {state}" for state, count in states.most_common()) or "no lines"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.stable_patches")
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("--recipe", default="default", choices=sorted(RECIPES))
    options = parser.parse_args()
    kernel = kernels.find(RECIPES[options.recipe])
    if kernel is None:
        parser.error("no kernel: python -m tests.lab build")
    with tempfile.TemporaryDirectory() as folder, ElfFile(kernel.vmlinux) as elf:
        truth = Truth(kernel, elf, Path(folder))
        wrong = sum(judge_files(truth, kernel, options.old, Path(folder)))
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
