# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cost of collecting a command, compared with a C program that makes the same calls.

The cost is what passes from before the first call of KCOV's until the trace is copied, with the
command between them: in a guest whose clock counts instructions, so that it is the same on a busy
machine. The start of Python before that, and what is done with the trace afterwards, a C program
hasn't got: they are no part of it, and their cost is printed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.collect_guest import SHARED, boot_shared
from tests.lab.initramfs import Userland
from tests.lab.kernel import Kernel

MOST = 1.05
# Rounds of the command's work.
COMMANDS = {"work": 1500, "nothing": 0}
RUNS = ("work", "work", "nothing")
SIZE = 1 << 19
# Each of kcovdbg's runs is a process of its own, as for a user: nothing is left over from another
# run.
OURS = """
import json, sys, time
from kcovdbg.collect import Request, collect_command
began = time.monotonic()
collected = collect_command(Request(tuple(sys.argv[2:]), size=int(sys.argv[1])))
print(json.dumps([collected.seconds, collected.tasks[0].buffer.count, time.monotonic() - began]))
"""


def test_overhead(
    kernel: Kernel, userland: Userland, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("exhaustive"):
        pytest.skip("takes a minute and a half: --exhaustive runs it")
    (tmp_path / "ours.py").write_text(OURS)
    with boot_shared(kernel, userland, tmp_path, memory_mib=512, counts_instructions=True) as lab:
        # In memory, so that waiting for pages of a program is not measured.
        script = (
            f"mkdir /programs && mount -t tmpfs none /programs && cp {SHARED}/work {SHARED}/byhand "
            f"/programs\n"
        )
        for name in RUNS:
            command = f"{SIZE} /programs/work {COMMANDS[name]}"
            script += f"{lab.python(f'{SHARED}/ours.py {command}')}\n/programs/byhand {command}\n"
        done = lab.run(script, 600)
    lines = done.stdout.splitlines()
    rows = [
        (name, json.loads(ours), [*map(float, hand.split())])
        for name, ours, hand in zip(RUNS, lines[::2], lines[1::2], strict=True)
    ]
    # The first pair loads the pages of both.
    for name, ours, by_hand in rows[1:]:
        told = (
            f"{name}: collect {ours[0]:.4f} s, by hand {by_hand[0]:.4f} s, ratio "
            f"{ours[0] / by_hand[0]:.3f}"
        )
        print(f"{told}; with what Python does with the trace {ours[2]:.4f} s")
        if name == "work":
            # Both did the same work: the buffer is full.
            assert ours[1] == by_hand[1] == SIZE - 1
        assert ours[0] / by_hand[0] <= MOST, told
