# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show as a client of kcovdbg's process, against commit 0ebfcde, where all of it ran in GDB:
processor time and packets.

    git worktree add ../base 0ebfcde && (cd ../base && python setup.py build_ext --inplace)
    python -m tests.lab boot --detach
    python -m tests.bench.gdb_client --base ../base --stub 127.0.0.1:PORT --vmlinux VMLINUX --core DUMP

The processor time of GDB and of its process are added up; each figure is the least of some rounds,
which alternate.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.measure import at_most, show
from tests.lab import kernel, recipe
from tests.support.gdb_run import ROOT

# Defines `cost LINE`, and `hits CONDITION`, which has a condition of a breakpoint asked some times.
_INSIDE = r"""
import json, os, statistics
def spent():
    total = 0
    pids = [str(os.getpid())]
    for thread in os.listdir("/proc/self/task"):
        pids += open("/proc/self/task/%s/children" % thread).read().split()
    for pid in pids:
        for thread in os.listdir("/proc/%s/task" % pid):
            total += int(open("/proc/%s/task/%s/schedstat" % (pid, thread)).read().split()[0])
    return total / 1e9
costs = []
class Cost(gdb.Command):
    def invoke(self, line, from_tty):
        before = spent()
        gdb.execute(line, to_string=True)
        costs.append(spent() - before)
Cost("cost", gdb.COMMAND_DATA)
class Asked(gdb.Function):
    times = []
    def invoke(self, value):
        Asked.times.append(spent())
        return len(Asked.times) == 12
Asked("asked")
"""
_HIT = "python print('HITS', min(b - a for a, b in zip(Asked.times, Asked.times[1:])))"


def run(words: list[str]) -> tuple[str, str, float]:
    """Return what GDB wrote, and its processor time from start to end, processes included."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        return output.read(), errors.read(), usage.ru_utime + usage.ru_stime


def start(checkout: Path, files: list[str], lines: list[str]) -> list[str]:
    words = [
        "gdb",
        "-nx",
        "-batch",
        "-iex",
        "set auto-load no",
        "-iex",
        "set debuginfod enabled off",
    ]
    words += ["-iex", f"source {checkout}/gdb/kcov.py", *files]
    return [*words, *(word for line in lines for word in ("-ex", line))]


def measure(checkout: Path, options: argparse.Namespace) -> dict[str, float]:
    vmlinux, connect = options.vmlinux, f"target remote {options.stub}"
    inside = f"python exec({_INSIDE!r})"
    found = {}
    _, _, found["start to end, a core and tasks"] = run(
        start(checkout, [vmlinux, options.core], ["kcov-show tasks"])
    )
    lines = [
        connect,
        inside,
        "cost kcov-show tasks",
        "cost kcov-show tasks",
        "python print('COSTS', json.dumps(costs))",
    ]
    output, _, _ = run(start(checkout, [vmlinux], lines))
    _, found["second tasks on a stub"] = json.loads(output.partition("COSTS ")[2].splitlines()[0])
    count = [connect, "kcov-show tasks", "set debug remote 1", "kcov-show check"]
    _, errors, _ = run(start(checkout, [vmlinux], [*count, "set debug remote 0"]))
    found["packets of check"] = errors.count("Sending packet:")
    # In a condition, the frontend of the base says that the target runs: there, what it does in an
    # expression is measured.
    condition = f"$kcov_count({options.tid})"
    if checkout == ROOT:
        place = [
            "kcov-show symbols --apply",
            f"break hrtimer_interrupt if $asked({condition})",
            "continue",
            _HIT,
        ]
        output, errors, _ = run(
            start(checkout, [vmlinux], [connect, inside, f"print {condition}", *place])
        )
        found["a hit of a condition"] = float(output.partition("HITS ")[2].split()[0])
    else:
        place = ["maint flush dcache", f"cost print {condition}"] * 8
        output, _, _ = run(
            start(
                checkout,
                [vmlinux],
                [connect, inside, f"print {condition}", *place, "python print('HITS', min(costs))"],
            )
        )
        found["a hit of a condition"] = float(output.partition("HITS ")[2].split()[0])
    return found


_GOALS = {
    "start to end, a core and tasks": 1.15,
    "second tasks on a stub": 0.5,
    "packets of check": 0.5,
    "a hit of a condition": 1.0,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gdb_client", description=__doc__)
    parser.add_argument(
        "--base", type=Path, required=True, help="a checkout of the commit that is compared with"
    )
    parser.add_argument("--stub", required=True, help="of a guest that stands")
    parser.add_argument(
        "--core", required=True, help="a dump with virtual addresses of the same kernel"
    )
    parser.add_argument(
        "--vmlinux", default=str(getattr(kernel.find(recipe.RECIPES["default"]), "vmlinux", ""))
    )
    parser.add_argument("--tid", type=int, default=1, help="of a task with a buffer")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = [
        (measure(ROOT, options), measure(options.base, options)) for _ in range(options.rounds)
    ]
    results = []
    for what, goal in _GOALS.items():
        mine, base = (min(one[side][what] for one in rounds) for side in (0, 1))
        unit = "packets" if what.startswith("packets") else "s"
        results.append(dataclasses.replace(at_most(what, mine, base, "0ebfcde", goal), unit=unit))
    return show(results)


if __name__ == "__main__":
    sys.exit(main())
