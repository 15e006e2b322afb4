# SPDX-License-Identifier: LGPL-2.1-or-later
"""The output of every command with ``--json`` matches its declared schema, on the demo and on each
kept generation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kcovdbg.commands import COMMANDS
from tests.lab.kcovdbg_run import ROOT, run_kcovdbg, run_lines
from tests.support.frozen_answers import list_kept_dumps, read_answers
from tests.support.state import strict_schema

DUMPS = {dump.name: dump for dump in list_kept_dumps()}
STATE_LINES = ("tasks", "objects", "remote", "config", "check -a", "last --all -n 5", "jobs")
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


def ask(
    target: Sequence[str | Path], lines: Sequence[str]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each line with its answer; a line that failed has none."""
    for line, part in zip(
        lines, run_lines(target, *(f"{line} --json" for line in lines)), strict=True
    ):
        if part:
            yield line, json.loads(part)


def validate(line: str, rows: list[dict[str, Any]]) -> None:
    """Check an answer against its command's schema: all keys, and no others; of a long one, rows
    spread over it.
    """
    validator = jsonschema.Draft202012Validator(strict_schema(COMMANDS.find(line.split()[0]).name))
    sample = rows[:: max(1, len(rows) // SAMPLE)]
    errors = [
        f"{line}: {error.json_path}: {error.message[:300]}"
        for error in validator.iter_errors(sample)
    ]
    assert errors[:3] == []


def buffer_lines(answers: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield lines about buffers and subjects in the state's answers: of each mode and state, not of
    each task and object.
    """
    pids = list({row["kcov_mode"]: row["pid"] for row in answers["tasks"] if row["count"]}.values())
    for pid in pids:
        yield from (f"buffer {pid} -n 200", f"why {pid}")
    for pid in pids[:1]:
        yield from (
            f"top {pid}",
            f"top {pid} --by file",
            f"top {pid} --by pc",
            f"trace {pid}",
            f"source {pid}",
        )
        yield from (f"keep @a{pid} {pid}", f"points vfs_read {pid}")
    for left, right in islice(pairwise(pids), 1):
        yield from (f"diff {left} {right}", f"diff --ordered {left} {right}")
        yield f"trace {left} --against {right}"
    kinds = {
        (row["mode"], row["remote"], row["full"], row["pid"] is None): row["kcov"]
        for row in answers["objects"]
    }
    for kcov in kinds.values():
        yield from (f"buffer kcov:{kcov} -n 50", f"why {kcov}")
    yield from (f"why {row['handle']}" for row in answers["remote"][:2])


@pytest.mark.parametrize("name", DUMPS)
def test_kept_answers_are_as_declared(name: str) -> None:
    """They are the answers of today: test_frozen_answers.py compares them."""
    for line, rows in read_answers(DUMPS[name]).items():
        # Where the dump lies is not kept.
        validate(line, [{**row, "target": ""} for row in rows] if line == "info" else rows or [])


@pytest.mark.parametrize("name", ["demo", "dataflow"])
def test_answers_are_as_declared(name: str) -> None:
    answers = dict(ask(DUMPS[name].target, STATE_LINES))
    assert set(answers) == set(STATE_LINES)
    lines = [*LINES, *dict.fromkeys(buffer_lines(answers))]
    if name == "demo":
        # It searches all buffers, for seconds.
        lines.append(f"why {answers['tasks'][0]['pid']} vfs_read")
    asked = dict(ask(DUMPS[name].target, lines))
    assert set(LINES) - {"points vfs_read", "doctor"} <= set(asked)
    assert {line.split()[0] for line in asked} >= {
        "buffer",
        "top",
        "trace",
        "source",
        "why",
        "keep",
    }
    for line, rows in (answers | asked).items():
        validate(line, rows)


def test_a_wrong_answer_is_refused() -> None:
    row = read_answers(DUMPS["demo"])["tasks -a"][0]
    for wrong in ({**row, "added": 1}, {**row, "kcov": 1}):
        with pytest.raises(AssertionError):
            validate("tasks", [wrong])
    # Those that read the printed schema are to accept the keys of later versions.
    jsonschema.validate(
        [{**row, "added": 1}], json.loads(run_kcovdbg("-q", "-e", "help tasks --schema").stdout)
    )


def test_written_files_are_as_declared(tmp_path: Path) -> None:
    lines = [
        f"slice -o {tmp_path / 'slice'}",
        f"export lcov 41 -o {tmp_path / 'lcov'}",
        f"report 41 -o {tmp_path / 'report.html'}",
        f"batch -e tasks {tmp_path / 'slice'} -o {tmp_path / 'batch'}",
        f"demo {tmp_path / 'demo'}",
    ]
    answers = dict(ask(DUMPS["demo"].target, lines))
    assert list(answers) == lines
    for line, rows in answers.items():
        assert rows
        validate(line, rows)


@pytest.mark.parametrize(
    "options", [(), ("--syscall",), ("--repeat", "2"), ("-o", "trace.kcov"), ("--mode", "cmp")]
)
def test_collect_is_as_declared(tmp_path: Path, options: tuple[str, ...]) -> None:
    words = ["collect", *options, "--json", "--", "sh", "-c", "true; true"]
    command = [sys.executable, "-m", "tests.support.collector_process", *words]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    validate("collect", json.loads(done.stdout))


def test_every_command_with_json_is_declared() -> None:
    """Commands without a schema print something else, or another command's JSON."""
    assert {command.name for command in COMMANDS if not command.row_types} == {"gdb", "mcp"}
