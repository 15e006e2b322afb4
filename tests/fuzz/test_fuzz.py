# SPDX-License-Identifier: LGPL-2.1-or-later
"""A reduced run of the fuzzer, without the oracle; ``python -m tests.fuzz`` runs more, and compares
each answer.
"""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.run import Case, Figures, Fuzzer

CASES = 150
FILES = 40


@pytest.fixture(scope="module")
def fuzzer():
    return Fuzzer()


def test_damaged_memory(fuzzer):
    figures = fuzzer.run(range(1_000_000, 1_000_000 + CASES))
    assert not figures.problems, "\n".join(figures.problems)
    assert figures.cases == CASES
    # Otherwise the damage was in memory that is not read.
    assert figures.changed > CASES // 2
    print(figures)


def test_damaged_files():
    """In a process of its own: the fuzzer forks, which drgn's threads do not survive."""
    command = [
        sys.executable,
        *"-m tests.fuzz --cases 0 --nice 0 --seed 1000000 --files".split(),
        str(FILES),
    ]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{FILES} cases, 0 crashes, 0 hangs, 0 raw" in done.stdout


def test_object_with_flag_bits(fuzzer):
    """Bit 30 is a flag in a task's mode word, and damage in an object's."""
    target = fuzzer.target
    target.heal()
    kcov = fuzzer.places.kcovs[0]
    target.put(kcov, "struct kcov", "mode", 1 << 30 | 2)
    case = Case(fuzzer, Figures(), "flag", Random(0))
    row = next(row for row in case.rows("objects") if int(row["kcov"], 16) == kcov)
    assert row["mode"] == "0x40000002"
    assert any("mode" in error for error in row["errors"])
    target.heal()


def test_object_that_is_not_aligned(fuzzer):
    """Every command that follows a pointer into the middle of an object refuses it with a
    reason.
    """
    target = fuzzer.target
    target.heal()
    kcov = fuzzer.places.kcovs[0]
    case = Case(fuzzer, Figures(), "aligned", Random(0))
    task = next(int(row["task"], 16) for row in case.rows("tasks") if row["kcov"] == hex(kcov))
    target.put(task, "struct task_struct", "kcov", kcov + 1)
    target.memory.settle()
    row = next(row for row in case.rows("objects") if row["kcov"] == hex(kcov + 1))
    assert row["refcount"] is None
    assert row["errors"]
    assert not case.figures.problems
    target.heal()
