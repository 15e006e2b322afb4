# SPDX-License-Identifier: LGPL-2.1-or-later
"""Time and memory of a command stay bounded over lists without end and buffers of gigabytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of a processor, and of memory beyond what the program has anyway.
SECONDS = 30
MEBIBYTES = 300
# Of one answer: 20 violations of each rule, with up to five lines each, would be more.
LINES = 1000


def cost(claim, line, number=None):
    command = [sys.executable, "-m", "tests.fuzz.absurd_kernel", claim, "--command", line]
    if number is not None:
        command += ["--number", str(number)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("claim", "command", "said"),
    [
        ("endless-tasks", "saved", "there are more than 131072 tasks"),
        ("endless-areas", "areas", "more than 65536 elements"),
        (
            "endless-chain",
            "remote",
            "bucket 0 of kcov_remote_map is broken: it has more than 65536 elements",
        ),
        ("huge-buffer", "buffer 40 -n 10", "size"),
        ("largest-buffer", "tasks", ""),
    ],
)
def test_bounded(claim, command, said):
    (facts,) = cost(claim, command)
    assert facts["command"] == command
    assert facts["seconds"] < SECONDS
    assert facts["mebibytes"] < MEBIBYTES
    assert said in facts["said"]


@pytest.mark.parametrize(
    ("claim", "number", "said"),
    [
        # Fewer than the command claims: the tests are to be cheap.
        ("looped-tasks", 10_000, " rules applied: 10001 violations"),
        ("looped-tasks", 20_000, "at least 16385 violations"),
        ("endless-areas", None, "and at least 16364 more"),
        ("looped-chain", None, "and at least 16364 more"),
        ("huge-buffer", None, "violations"),
    ],
)
def test_check_is_bounded(claim, number, said):
    (facts,) = cost(claim, "check", number)
    assert facts["seconds"] < SECONDS
    assert facts["mebibytes"] < MEBIBYTES
    assert facts["lines"] < LINES
    assert said in facts["said"]


def test_a_large_machine_is_shown_whole():
    """Twenty thousand tasks with KCOV state are no damage."""
    (facts,) = cost("many-tasks", "tasks")
    assert facts["lines"] > 20_000
    assert "broken" not in facts["said"]
