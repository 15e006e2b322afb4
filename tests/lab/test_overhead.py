# SPDX-License-Identifier: LGPL-2.1-or-later
"""What collecting a command costs, beside a C program that makes the same calls by hand.

The cost is what passes from before the first call of KCOV's until the trace is copied, with the command between them: in a
guest whose clock counts instructions, so that it is the same on a busy machine. The start of Python before that, and what is
done with the trace afterwards, a C program hasn't got: they are no part of it, and their cost is printed.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

import pytest

from tests.lab.collecting import SHARED, Lab, put_programs
from tests.lab.guest import Guest, Machine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.initramfs import Userland
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab

MOST = 1.05
PAIRS = 3
SIZE = 1 << 19
# Each of ours in a process of its own, as somebody's is who collects a command: nothing is left over from another run.
OURS = """
import json, sys, time
from kcovdbg.collect import Request, run_command
began = time.monotonic()
collected = run_command(Request(tuple(sys.argv[2:]), size=int(sys.argv[1])))
print(json.dumps([collected.seconds, collected.tasks[0].buffer.count, time.monotonic() - began]))
"""


def test_overhead(kernel: Kernel, userland: Userland, tmp_path: Path) -> None:
    put_programs(tmp_path, userland)
    (tmp_path / "ours.py").write_text(OURS)
    machine = Machine(
        memory_mib=512, append="kcovlab.mode=none", shares=(("root", "/"),), exchange=str(tmp_path), counts_instructions=True
    )
    with Guest(kernel, userland, machine) as guest:
        guest.wait_done()
        lab = Lab(guest, tmp_path)
        # In memory: what a program waits for its pages is no cost of either.
        script = f"mkdir /programs && mount -t tmpfs none /programs && cp {SHARED}/work {SHARED}/byhand /programs\n"
        commands = {"work": "/programs/work 1500", "nothing": "/programs/work 0"}
        for command in commands.values():
            ours = lab.python(f"{SHARED}/ours.py {SIZE} {command}")
            # The first pair brings in the pages of both, and isn't looked at.
            script += f"{ours}\n/programs/byhand {SIZE} {command}\n" * (PAIRS + 1)
        done = guest.run(script, 600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name in commands:
        pairs, lines = lines[2 : 2 * (PAIRS + 1)], lines[2 * (PAIRS + 1) :]
        ours = [json.loads(line) for line in pairs[::2]]
        by_hand = [tuple(map(float, line.split())) for line in pairs[1::2]]
        if name == "work":
            # Both had the same to do: the buffer is full.
            assert {row[1] for row in (*ours, *by_hand)} == {SIZE - 1}
        ratios = [left[0] / right[0] for left, right in zip(ours, by_hand, strict=True)]
        told = ", ".join(f"{left[0]:.4f} / {right[0]:.4f}" for left, right in zip(ours, by_hand, strict=True))
        print(f"{name}: {told}: ratio {statistics.median(ratios):.3f}; with Python's part {ours[-1][2]:.4f}")
        assert statistics.median(ratios) <= MOST, told
