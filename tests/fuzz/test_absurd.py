# SPDX-License-Identifier: LGPL-2.1-or-later
"""Time and memory of a command stay bounded over lists without end and buffers of gigabytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of a processor, and of memory beyond what the program has anyway.
SECONDS = 15
MEBIBYTES = 400


def cost(claim, *commands):
    command = [sys.executable, "-m", "tests.fuzz.absurd", claim, *(word for line in commands for word in ("--command", line))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("claim", "command", "said"),
    [
        ("looped-tasks", "tasks", "is on it twice"),
        ("endless-chain", "remote", "it has more than 65536 elements"),
        ("endless-chain", "objects", "it has more than 65536 elements"),
        ("looped-chain", "remote", "it comes back to"),
        ("huge-buffer", "buffer 40 -n 10", "size isn't known"),
        ("huge-buffer", "check", "violations"),
        ("largest-buffer", "tasks", ""),
    ],
)
def test_bounded(claim, command, said):
    (facts,) = cost(claim, command)
    assert facts["command"] == command
    assert facts["seconds"] < SECONDS
    assert facts["mebibytes"] < MEBIBYTES
    assert said in facts["said"]
