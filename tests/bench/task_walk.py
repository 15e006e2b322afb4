# SPDX-License-Identifier: LGPL-2.1-or-later
"""Walking tasks, against what one would write with drgn alone.

python -m tests.bench.task_walk [THREADS]
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import drgn
from drgn.helpers.linux.pid import for_each_task

from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.tasks import TaskWalk
from tests.bench.measure import Result, at_most, best_of_each, faster, processor_time, show
from tests.lab import kernel as kernels
from tests.lab.dump import write_dump
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import ROOT
from tests.lab.recipe import RECIPES
from tests.lab.situation import STANDING, dump_of

ROUNDS = 7
# The members of a task that matter for KCOV, read one by one as in drgn's documentation.
MEMBERS = (
    "pid tgid flags mm files kcov_mode kcov_size kcov_area kcov kcov_handle kcov_sequence".split()
)
PLAIN = """
import sys, drgn
from drgn.helpers.linux.pid import for_each_task
prog = drgn.Program()
prog.set_core_dump(sys.argv[1])
prog.load_debug_info([sys.argv[2]])
print(sum(1 for task in for_each_task(prog)))
"""


def bench_commands() -> Iterator[Result]:
    """Commands as whole processes, against a process of drgn's that loads the same and counts the
    tasks, in processor time.
    """
    kernel = kernels.build(RECIPES["default"])
    dump = dump_of(kernel, make_userland(kernel), STANDING)
    # An installed package has its modules compiled, as drgn's are.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    # drgn alone would not load kcovdbg's plugin.
    alone = {**environment, "DRGN_DISABLE_PLUGINS": "kcov"}

    def run(*arguments: str, given: Mapping[str, str] = environment) -> float:
        command = [sys.executable, *arguments]
        return processor_time(command, cwd=ROOT, environment=given, statuses=(0, 1))

    files = (str(dump.path), str(kernel.vmlinux))
    lines = {
        "tasks --json": 1.2,
        "check": 1.5,
        "why kc-pc": 1.4,
        "why 2": 1.5,
        "view kc-pc --text": 1.5,
    }
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        seconds[PLAIN].append(run("-c", PLAIN, *files, given=alone))
        for line in lines:
            seconds[line].append(run("-m", "kcovdbg", "-c", files[0], "-s", files[1], "-e", line))
    for line, times in lines.items():
        yield at_most(line, min(seconds[line]), min(seconds[PLAIN]), "plain drgn", times)


def bench_threads(threads: int) -> Result:
    """Walk a guest with many threads."""
    kernel = kernels.build(RECIPES["default"])
    machine = Machine(memory_mib=1024, append=f"kcovlab.mode=none,threads:{threads}")
    with tempfile.TemporaryDirectory(prefix="kcovdbg-bench-") as directory:
        path = Path(directory) / "dump"
        with Guest(kernel, make_userland(kernel), machine) as guest:
            write_dump(guest, path)
        prog = drgn.Program()
        prog.set_core_dump(str(path))
        prog.load_debug_info([str(kernel.vmlinux)])
        target = DrgnTarget(prog, str(path), False)
        layout = detect_layout(target)

        def walk() -> int:
            return sum(1 for _ in TaskWalk(target, layout))

        def loop() -> None:
            for task in for_each_task(prog):
                _ = [getattr(task, name).value_() for name in MEMBERS], task.comm.string_()

        ours, theirs = best_of_each(walk, loop, rounds=3)
        return faster(f"{walk()} tasks", ours, theirs, "member by member", 5)


def main() -> int:
    """Print ratios, and whether they meet their goals."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 20000
    return show([*bench_commands(), bench_threads(threads)])


if __name__ == "__main__":
    sys.exit(main())
