# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's configuration file inside GDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Demo
from tests.support.gdb_run import Said, run_gdb
from tests.support.table_writer import write_one

TEXT = '[columns]\ntasks = ["comm", "pid"]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kcovdbg" / "config.toml"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def ask(path: Path, lines: list[str], made: Demo | None = None) -> Said:
    files = () if made is None else (made.vmlinux, made.core)
    return run_gdb(*files, ask=lines, environment={"XDG_CONFIG_HOME": str(path.parent.parent)})


def test_columns_and_changes(demo: Demo, path: Path) -> None:
    """GDB's parameters go before the file, which is read again when it changes."""
    change = f"""python open({str(path)!r}, "w").write('color = "always"\\n[columns]\\ntasks = ["comm"]\\n')"""
    tasks = "kcov-show tasks"
    said = ask(path, [tasks, change, tasks, "set kcov color never", tasks], demo)
    chosen, _, colored, _, plain = said.answers
    assert chosen.split()[:2] == ["COMM", "PID"], said.stderr
    assert "\x1b[" in colored
    assert "\x1b[" not in plain
    assert (plain.split()[0], plain.split()[1] != "PID") == ("COMM", True)


def test_an_error_names_the_file(path: Path) -> None:
    path.write_text('\ncolor = "never"\ncolors = 1\n')
    said = ask(path, ["kcov-show tasks", "complete kcov-show tas"])
    assert f"{path}: " in said.stderr
    assert "Traceback" not in said.stderr
    assert said.answers[1] == "kcov-show tasks"


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
