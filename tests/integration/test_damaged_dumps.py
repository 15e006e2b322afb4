# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps as farms leave them, cut or behind text: what remains is answered as from the whole dump, and the damage is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import Demo
from tests.lab.comparison import parse_outputs
from tests.lab.kcovdbg_run import run_kcovdbg

WARNING = b"Warning: Permanently added '[localhost]:1569' (ED25519) to the list of known hosts.\r\n"
COMMANDS = {"tasks": "pid", "objects": "kcov", "remote": "handle", "info": "build_id"}


class Answer(NamedTuple):
    status: int
    rows: dict[str, set[Any]]
    """The key of each row, by command."""
    said: str


def ask(dump: Path, demo: Demo) -> Answer:
    words = [word for command in COMMANDS for word in ("-e", f"{command} --json")]
    done = run_kcovdbg("-c", dump, "-s", demo.vmlinux, *words)
    answers = parse_outputs(done.stdout, COMMANDS)
    # A row of nulls stands for rows that could not be read.
    rows = {command: {row[key] for row in answers[command]} - {None} for command, key in COMMANDS.items()}
    return Answer(done.returncode, rows, done.stderr)


@pytest.fixture(scope="module")
def whole(demo: Demo) -> Answer:
    return ask(demo.core, demo)


@pytest.mark.parametrize("share", [0.24, 0.72, 0.98])
def test_a_cut_core_answers_as_far_as_it_goes(demo: Demo, whole: Answer, tmp_path: Path, share: float) -> None:
    data = demo.core.read_bytes()
    size = int(len(data) * share)
    (tmp_path / "cut").write_bytes(data[:size])
    found = ask(tmp_path / "cut", demo)
    assert found.status == (0 if all(found.rows.values()) else 2), found.said
    assert f"{size:,} of {len(data):,} bytes" in found.said
    for command, rows in whole.rows.items():
        assert found.rows[command] <= rows
    # What is missing is told where rows are.
    assert found.rows == whole.rows or len(found.said.splitlines()) > 1
    if share > 0.5:
        assert found.rows["tasks"]


def test_behind_text_it_answers_the_same(demo: Demo, whole: Answer, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(WARNING + demo.core.read_bytes())
    found = ask(given, demo)
    assert (found.status, found.rows) == (0, whole.rows)
    assert f"tail -c +{len(WARNING) + 1} {given}" in found.said
    assert given.read_bytes() == WARNING + demo.core.read_bytes()
