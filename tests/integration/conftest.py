# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.console.runner import run_reporting
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.lab.kcovdbg_run import Rows, run_kcovdbg
from tests.support.browser import Browser, find_browser
from tests.support.state import Streams


class Demo(NamedTuple):
    """The demo's files, which lie in one directory and are only read: a core, the image of its
    kernel, and a module.
    """

    vmlinux: Path
    core: Path
    module: Path


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    run_kcovdbg("demo", folder, status=0)
    return Demo(folder / "vmlinux", folder / "vmcore", folder / "kcovlab_keep.ko")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if find_browser() is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Callable[..., Browser]]:
    """Open a page; afterwards there must be no errors, and no request besides the page."""
    browser.complaints.clear()
    browser.requests.clear()

    def opened(path: Path, **look: Any) -> Browser:
        browser.look(**look)
        browser.open(path)
        return browser

    yield opened
    assert browser.complaints == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}
    assert len([url for url in browser.requests if url.startswith("file")]) == 1


class DemoWorkspace:
    """The demo, opened in this process."""

    def __init__(self) -> None:
        self._streams = Streams()
        kernel = Kernel(KernelOptions(lambda: open_target(TargetOptions(demo=True))))
        self.workspace = Workspace(COMMANDS, UserInputs(kernel), Frontend(self._streams.find))
        self.kernel = self.workspace.inputs.kernel
        # The table is built first.
        assert self.kernel.names.table is not None

    def run(self, line: str, status: int | None = 0) -> tuple[str, str]:
        """Run a line; return what it writes to standard output and to standard error."""
        found = run_reporting(self.workspace, line).status
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
