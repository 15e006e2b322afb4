# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every command writes with ``--json`` is what its declared schema says, on the demo and on each kept generation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.render.json_schema import schema_of
from tests.lab.golden import DEBUG_INFO, DESTINATION, SLICE
from tests.lab.kcovdbg_run import run_kcovdbg

TARGETS = {"demo": ["--demo"]} | {
    path.parent.name: ["-c", str(path), "-s", str(path.parent / DEBUG_INFO)] for path in sorted(DESTINATION.glob(f"*/{SLICE}"))
}
STATE_LINES = (
    "info",
    "tasks -a",
    "tasks",
    "objects",
    "remote",
    "areas",
    "percpu",
    "config",
    "check -a",
    "last --all -n 5",
    "jobs",
)
# The validator is slow, and the rows of a command are made in one place.
SAMPLE = 100
LINES = (
    "check --list",
    "check --explain K1",
    "trace --classes",
    "points vfs_read",
    "sym ffffffff81000000",
    "doctor",
    "help",
    "help tasks",
)


def ask(target: Sequence[str], lines: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each line with its answer; a line that failed has none."""
    words = [word for line in lines for word in ("-e", f"{line} --json", "-e", "! echo @@@")]
    parts = run_kcovdbg(*target, "-q", *words).stdout.split("@@@\n")
    assert len(parts) == len(lines) + 1
    for line, part in zip(lines, parts, strict=False):
        if part:
            yield line, json.loads(part)


def validate(line: str, rows: list[dict[str, Any]]) -> None:
    """Check an answer against its command's schema: all keys, and no others; of a long one, rows spread over it."""
    command = COMMANDS.find(line.split()[0])
    schema = schema_of(command.name, command.row_types, closed=True)
    validator = jsonschema.Draft202012Validator(schema)
    sample = rows[:: max(1, len(rows) // SAMPLE)]
    errors = [f"{line}: {error.json_path}: {error.message[:300]}" for error in validator.iter_errors(sample)]
    assert errors[:3] == []


def buffer_lines(answers: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield lines about the buffers and subjects in the state's answers."""
    pids = [row["pid"] for row in answers["tasks"] if row["count"]][:4]
    for pid in pids:
        yield from (f"buffer {pid} -n 200", f"top {pid}", f"top {pid} --by file", f"top {pid} --by pc", f"trace {pid}")
        yield from (f"source {pid}", f"why {pid}", f"why {pid} vfs_read", f"keep @a{pid} {pid}")
        yield from (f"points vfs_read {pid}",)
    for left, right in pairwise(pids):
        yield from (f"diff {left} {right}", f"diff --ordered {left} {right}")
    for row in answers["objects"][:12]:
        yield from (f"buffer kcov:{row['kcov']} -n 50", f"tree kcov:{row['kcov']}", f"why {row['kcov']}")
    yield from (f"why {row['handle']}" for row in answers["remote"][:2])


@pytest.mark.parametrize("name", TARGETS)
def test_answers_are_as_declared(name: str) -> None:
    answers = dict(ask(TARGETS[name], STATE_LINES))
    assert set(answers) == set(STATE_LINES)
    asked = dict(ask(TARGETS[name], (*LINES, *dict.fromkeys(buffer_lines(answers)))))
    assert set(LINES) - {"points vfs_read", "doctor"} <= set(asked)
    assert {line.split()[0] for line in asked} >= {"buffer", "top", "trace", "source", "why", "keep"}
    for line, rows in (answers | asked).items():
        validate(line, rows)


def test_a_wrong_answer_is_refused() -> None:
    answers = dict(ask(TARGETS["demo"], ["tasks"]))
    row = answers["tasks"][0]
    for wrong in (
        {**row, "more": 1},
        {key: value for key, value in row.items() if key != "pid"},
        {**row, "kcov": 1},
        {**row, "task": None},
    ):
        with pytest.raises(AssertionError):
            validate("tasks", [wrong])


def test_open_schema_accepts_added_keys() -> None:
    rows = [{**dict(ask(TARGETS["demo"], ["tasks"]))["tasks"][0], "added": 1}]
    printed = run_kcovdbg("-q", "-e", "help tasks --schema").stdout
    jsonschema.validate(rows, json.load(StringIO(printed)))


def test_written_files_are_as_declared(tmp_path: Path) -> None:
    lines = [f"slice -o {tmp_path / 'slice'}", f"export --format lcov -o {tmp_path / 'lcov'} 41", f"demo {tmp_path / 'demo'}"]
    for line, rows in ask(TARGETS["demo"], lines):
        validate(line, rows)


def test_every_command_with_json_is_declared() -> None:
    """Those without print something else, or another command's JSON."""
    assert {command.name for command in COMMANDS if not command.row_types} == {"view", "gdb", "gdb-path", "watch"}
