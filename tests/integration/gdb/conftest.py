# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.conftest import boot, inflight_dump, kernel, standing_dump, standing_guest, userland
from tests.support.gdb_run import ROOT, have_gdb

__all__ = ["boot", "inflight_dump", "kernel", "standing_dump", "standing_guest", "userland"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gdb)
            if not have_gdb():
                item.add_marker(pytest.mark.skip(reason="no gdb"))


class Demo(NamedTuple):
    """The demo's files: a core that GDB reads, and the image of its kernel."""

    vmlinux: Path
    core: Path


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    directory = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "kcovdbg", "demo", directory]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return Demo(directory / "vmlinux", directory / "vmcore")
