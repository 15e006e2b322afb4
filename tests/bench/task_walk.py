# SPDX-License-Identifier: LGPL-2.1-or-later
"""Walking tasks, against what one would write with drgn alone.

python -m tests.bench.task_walk [THREADS]
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import drgn
from drgn.helpers.linux.pid import for_each_task

from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.tasks import TaskWalk
from tests.lab import kernel as kernels
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import ROOT
from tests.lab.recipe import RECIPES
from tests.lab.situation import STANDING, dump_of

ROUNDS = 7
# The members of a task that matter for KCOV, read one by one as in drgn's documentation.
MEMBERS = (
    "pid",
    "tgid",
    "flags",
    "mm",
    "files",
    "kcov_mode",
    "kcov_size",
    "kcov_area",
    "kcov",
    "kcov_handle",
    "kcov_sequence",
)
PLAIN = """
import sys, drgn
from drgn.helpers.linux.pid import for_each_task
prog = drgn.Program()
prog.set_core_dump(sys.argv[1])
prog.load_debug_info([sys.argv[2]])
print(sum(1 for task in for_each_task(prog)))
"""


def measure_pair(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float, float]:
    """Run both in turn; return the medians in seconds and the median of the ratios ours/theirs, after one round for warmth."""
    pairs = []
    for _ in range(rounds + 1):
        pairs.append((_time(ours), _time(theirs)))
    del pairs[0]
    return (
        statistics.median(pair[0] for pair in pairs),
        statistics.median(pair[1] for pair in pairs),
        statistics.median(pair[0] / pair[1] for pair in pairs),
    )


def _time(work: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def bench_command() -> tuple[float, float, float]:
    """``tasks --json`` as a whole process, against a process of drgn's that loads the same and counts the tasks."""
    kernel = kernels.build(RECIPES["default"])
    dump = dump_of(kernel, make_userland(kernel), STANDING)

    # An installed package has its modules compiled, as drgn's are.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment, cwd=ROOT)

    files = (str(dump.path), str(kernel.vmlinux))
    return measure_pair(
        lambda: run("-m", "kcovdbg", "-c", files[0], "-s", files[1], "-e", "tasks --json"), lambda: run("-c", PLAIN, *files)
    )


def bench_threads(threads: int) -> tuple[int, float, float, float]:
    """Walk a guest with many threads; return how many tasks there were, too."""
    kernel = kernels.build(RECIPES["default"])
    machine = Machine(memory_mib=1024, append=f"kcovlab.mode=none,threads:{threads}")
    with tempfile.TemporaryDirectory(prefix="kcovdbg-bench-") as directory:
        path = Path(directory) / "dump"
        with Guest(kernel, make_userland(kernel), machine) as guest:
            guest.wait_done()
            with guest.paused():
                guest.qmp.dump(path, paging=False, dump_format="elf")
        path.chmod(0o600)
        prog = drgn.Program()
        prog.set_core_dump(str(path))
        prog.load_debug_info([str(kernel.vmlinux)])
        target = DrgnTarget(prog, str(path), False)
        layout = detect_layout(target)
        found: list[int] = []

        def walk() -> None:
            found.append(sum(1 for _ in TaskWalk(target, layout)))

        def loop() -> None:
            for task in for_each_task(prog):
                _ = [getattr(task, name).value_() for name in MEMBERS], task.comm.string_()

        ours, theirs, ratio = measure_pair(walk, loop, 3)
        return found[-1], ours, theirs, ratio


def main() -> int:
    """Print both ratios, and whether they meet their goals."""
    ours, theirs, ratio = bench_command()
    print(f"tasks --json, whole process: {ours:.2f} s, plain drgn {theirs:.2f} s: {ratio:.2f} times (at most 1.5)")
    count, walk, loop, inverse = bench_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 20000)
    print(f"{count} tasks: {walk:.3f} s, member by member {loop:.3f} s: {1 / inverse:.1f} times faster (at least 5)")
    return int(ratio > 1.5 or 1 / inverse < 5)


if __name__ == "__main__":
    sys.exit(main())
