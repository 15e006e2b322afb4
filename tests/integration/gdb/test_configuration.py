# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's configuration file inside GDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Demo
from tests.support.gdb_run import Said, run_gdb
from tests.support.table_writer import write_one

TEXT = '[columns]\ntasks = ["comm", "pid"]\n[aliases]\nfull = "tasks --mode trace-cmp"\nnewest-tasks = "tasks"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kcovdbg" / "config.toml"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def ask(path: Path, lines: list[str], made: Demo | None = None) -> Said:
    files = () if made is None else (made.vmlinux, made.core)
    return run_gdb(*files, ask=lines, environment={"XDG_CONFIG_HOME": str(path.parent.parent)})


def test_columns_and_aliases(demo: Demo, path: Path) -> None:
    said = ask(path, ["kcov-show tasks", "kcov-show full"], demo)
    for answer in said.answers:
        assert answer.split()[:2] == ["COMM", "PID"], said.stderr
    assert 1 < len(said.answers[1].splitlines()) < len(said.answers[0].splitlines())


def test_aliases_are_completed(path: Path) -> None:
    said = ask(path, ["complete kcov-show fu", "complete kcov-show newest-tasks --wid"])
    assert said.answers == ["kcov-show full", "kcov-show newest-tasks --wide"]


def test_an_error_names_the_file(path: Path) -> None:
    path.write_text('\ncolor = "never"\ncolors = 1\n')
    said = ask(path, ["kcov-show tasks", "complete kcov-show tas"])
    assert f"{path}: " in said.stderr
    assert "Traceback" not in said.stderr
    assert said.answers[1] == "kcov-show tasks"


def test_gdbs_parameter_goes_before_the_file(demo: Demo, path: Path) -> None:
    path.write_text('color = "always"\n')
    said = ask(path, ["kcov-show tasks", "set kcov color never", "kcov-show tasks"], demo)
    assert "\x1b[" in said.answers[0]
    assert "\x1b[" not in said.answers[2]


def test_the_symbol_table_of_the_build(demo: Demo, path: Path) -> None:
    write_one(path.parent / "other", demo.vmlinux, "from_other", is_other_build=True)
    pc = write_one(path.parent / "mine", demo.vmlinux, "from_mine")
    path.write_text(f'symbol-tables = ["{path.parent}/other", "{path.parent}/mine"]\n')
    (row,) = ask(path, [f"kcov-show sym {pc:#x} --json"], demo).json()
    assert row["frames"][0]["function"] == "from_mine"
    path.write_text('symbol-tables = ["/nosuch"]\n')
    said = ask(path, [f"kcov-show sym {pc:#x}"], demo)
    assert "/nosuch" in said.stderr
    assert "Traceback" not in said.stderr


def test_the_file_is_read_again_when_it_changes(demo: Demo, path: Path) -> None:
    change = f"""python open({str(path)!r}, "w").write('[columns]\\ntasks = ["comm"]\\n')"""
    said = ask(path, ["kcov-show tasks", change, "kcov-show tasks"], demo)
    assert said.answers[0].split()[:2] == ["COMM", "PID"]
    assert said.answers[2].split()[0] == "COMM"
    assert said.answers[2].split()[1] != "PID"
