# SPDX-License-Identifier: LGPL-2.1-or-later
"""Walking tasks, against what one would write with drgn alone.

python -m tests.bench.task_walk [THREADS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import drgn
from drgn.helpers.linux.pid import for_each_task

from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.tasks import TaskWalk
from tests.bench.measure import Result, at_most, best_of_each, faster, show
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


def bench_command() -> Result:
    """``tasks --json`` as a whole process, against a process of drgn's that loads the same and
    counts the tasks.
    """
    kernel = kernels.build(RECIPES["default"])
    dump = dump_of(kernel, make_userland(kernel), STANDING)
    # An installed package has its modules compiled, as drgn's are.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }

    def run(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
            cwd=ROOT,
        )

    files = (str(dump.path), str(kernel.vmlinux))
    command = partial(run, "-m", "kcovdbg", "-c", files[0], "-s", files[1], "-e", "tasks --json")
    ours, theirs = best_of_each(command, partial(run, "-c", PLAIN, *files), rounds=ROUNDS)
    return at_most("tasks --json, whole process", ours, theirs, "plain drgn", 1.5)


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
    """Print both ratios, and whether they meet their goals."""
    return show([bench_command(), bench_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 20000)])


if __name__ == "__main__":
    sys.exit(main())
