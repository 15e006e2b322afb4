# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slices of mainline kernels: the answers are the kept ones without each posted series in the
table, and without all of them.

:mod:`tests.integration.test_frozen_answers` asks with the whole table.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from kcovdbg.series import table
from tests.lab.comparison import parse_outputs
from tests.lab.recipe import GENERATIONS
from tests.support.frozen_answers import list_kept_dumps, read_answers

DUMPS = {dump.name: dump for dump in list_kept_dumps()}
MAINLINE = sorted(
    name for name, generation in GENERATIONS.items() if generation.kept and not generation.variants
)
COMMANDS = ("info", "tasks -a", "objects", "remote", "areas", "saved", "check")
# Runs the program with a table of series that lacks some, named by its first argument.
PROGRAM = """
import sys
from kcovdbg.frontends.cli import main
from kcovdbg.series import table
lacking = sys.argv[1].split(",")
table.SERIES = tuple(series for series in table.SERIES if series.name not in lacking)
sys.exit(main(sys.argv[2:]))
"""
ALL = ",".join(series.name for series in table.SERIES)


@pytest.mark.parametrize(
    ("name", "lacking"),
    [*((name, ALL) for name in MAINLINE), *(("6.12-gcc", series.name) for series in table.SERIES)],
)
def test_mainline_needs_no_series(name: str, lacking: str) -> None:
    asked = [word for command in COMMANDS for word in ("-e", f"{command} --json")]
    words = [sys.executable, "-c", PROGRAM, lacking, *DUMPS[name].target, "-q", *asked]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "internal error" not in done.stderr
    kept = read_answers(DUMPS[name])
    # These guests are healthy: check finds nothing, or a rule that it cannot judge on a slice
    # without the page.
    assert {row["severity"] for row in kept["check"]} <= {"unknown"}
    assert done.returncode == (3 if kept["check"] else 0), done.stderr
    added = {
        field.name
        for series in table.SERIES
        if series.name in lacking.split(",")
        for field in series.object_fields
    }
    for command, rows in parse_outputs(done.stdout, COMMANDS).items():
        expected = []
        for row in kept[command]:
            # A mainline kernel has no value in the columns that a series adds.
            assert not any(row.get(key) for key in added)
            expected.append({key: value for key, value in row.items() if key not in added})
        # Where the dump lies is not kept.
        found = [{key: value for key, value in row.items() if key != "target"} for row in rows]
        assert found == expected, command
