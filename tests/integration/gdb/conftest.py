# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import boot, inflight_dump, kernel, standing_dump, standing_guest, userland
from tests.support.gdb_run import have_gdb, run_gdb

__all__ = ["boot", "inflight_dump", "kernel", "standing_dump", "standing_guest", "userland"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gdb)
            if not have_gdb():
                item.add_marker(pytest.mark.skip(reason="no gdb"))


@dataclasses.dataclass(frozen=True)
class Imitation:
    """The compiled imitation, a core of it, and what it printed about itself."""

    program: Path
    core: Path
    truth: list[dict[str, Any]]


def compile_imitation(directory: Path, name: str, *flags: str) -> Path:
    program = directory / name
    # Ubuntu's gcc begins each function with an instruction for branch protection, whose line is that of the brace.
    usual = ["-g", "-O1", "-fcf-protection=none", "-Wall", "-Wextra", "-Werror", "-Wl,--build-id"]
    command = ["gcc", *usual, *flags, "-o", program, HERE / "imitation.c"]
    subprocess.run(command, check=True)
    return program


def make_imitation(directory: Path, name: str, *flags: str) -> Imitation:
    program = compile_imitation(directory, name, *flags)
    core = directory / f"{name}.core"
    said = run_gdb(program, ask=["run", f"generate-core-file {core}"], before=["break standing"], loader=None)
    if not core.exists():
        pytest.skip(f"GDB can't make a core here: {said.stderr}")
    truth = [json.loads(line) for line in said.output.splitlines() if line.startswith("{")]
    return Imitation(program, core, truth)


@pytest.fixture(scope="session")
def imitation(tmp_path_factory: pytest.TempPathFactory) -> Imitation:
    return make_imitation(tmp_path_factory.mktemp("imitation"), "imitation", "-no-pie", "-fno-pie")


@pytest.fixture(scope="session")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> Imitation:
    """The same, loaded at another address than it is linked to, as by KASLR."""
    return make_imitation(tmp_path_factory.mktemp("shifted"), "imitation", "-pie", "-fpie")
