# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.console.kernel import Kernel
from kcovdbg.console.runner import run_reporting
from kcovdbg.target.opener import TargetOptions, open_target
from tests.lab.kcovdbg_run import Rows, run_kcovdbg
from tests.support.state import Streams


class Demo(NamedTuple):
    """The demo's files, which lie in one directory and are only read: a core, the image of its kernel, and a module."""

    vmlinux: Path
    core: Path
    module: Path


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    run_kcovdbg("demo", folder, status=0)
    return Demo(folder / "vmlinux", folder / "vmcore", folder / "kcovlab_keep.ko")


class DemoWorkspace:
    """The demo, opened in this process."""

    def __init__(self) -> None:
        self._streams = Streams()
        kernel = Kernel(lambda: open_target(TargetOptions(demo=True)))
        self.workspace = Workspace(COMMANDS, kernel, find_terminal=self._streams.find)
        self.kernel = self.workspace.kernel
        # The table is built first.
        assert self.kernel.names.table is not None

    def run(self, line: str, status: int | None = 0) -> tuple[str, str]:
        """Run a line; return what it writes to standard output and to standard error."""
        found = run_reporting(self.workspace, line)
        output, errors = self._streams.take()
        assert status in (None, found), errors
        return output, errors

    def ask(self, line: str, status: int | None = 0) -> Rows:
        """Return the rows of a line."""
        rows: Rows = json.loads(self.run(f"{line} --json", status)[0])
        return rows


@pytest.fixture(scope="session")
def opened_demo() -> DemoWorkspace:
    return DemoWorkspace()
