# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slices of mainline kernels: the answers are the same with each posted series taken out of the table, and with all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kcovdbg.series import table
from tests.lab.generation import GENERATIONS
from tests.lab.golden import DEBUG_INFO, DESTINATION, SLICE

MAINLINE = sorted(name for name, generation in GENERATIONS.items() if generation.kept and not generation.variants)
COMMANDS = ("info", "tasks -a", "objects", "remote", "areas", "percpu", "check --all")
# Runs the program with a table of series that lacks some, named by its first argument.
PROGRAM = """
import sys
from kcovdbg.frontends.cli import main
from kcovdbg.series import table
lacking = sys.argv[1].split(",")
table.SERIES = tuple(series for series in table.SERIES if series.name not in lacking)
sys.exit(main(sys.argv[2:]))
"""


def ask(directory: Path, lacking: tuple[str, ...]) -> str:
    target = ["-c", str(directory / SLICE), "-s", str(directory / DEBUG_INFO), "-q"]
    asked = [word for command in COMMANDS for word in ("-e", f"{command} --json")]
    words = [sys.executable, "-c", PROGRAM, ",".join(lacking), *target, *asked]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "internal error" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MAINLINE)
def test_mainline_needs_no_series(name: str) -> None:
    directory = DESTINATION / name
    answers = ask(directory, ())
    assert answers.count("[") >= len(COMMANDS)
    assert ask(directory, tuple(series.name for series in table.SERIES)) == answers


@pytest.mark.parametrize("lacking", [series.name for series in table.SERIES])
def test_mainline_needs_no_single_series(lacking: str) -> None:
    directory = DESTINATION / "6.12-gcc"
    assert ask(directory, (lacking,)) == ask(directory, ())
