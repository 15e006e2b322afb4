# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.kcovdbg_run import run_kcovdbg


class Demo(NamedTuple):
    """The demo's files, which lie in one directory and are only read: a core, and the image of its kernel."""

    vmlinux: Path
    core: Path


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    assert run_kcovdbg("demo", folder).returncode == 0
    return Demo(folder / "vmlinux", folder / "vmcore")
