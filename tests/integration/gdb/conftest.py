# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Demo
from tests.lab.conftest import boot, inflight_dump, kernel, standing_dump, standing_guest, userland
from tests.support.gdb_run import Said, have_gdb, run_gdb

__all__ = ["boot", "inflight_dump", "kernel", "standing_dump", "standing_guest", "userland"]

HERE = Path(__file__).parent


@pytest.fixture
def gdb(demo: Demo) -> Callable[..., Said]:
    """Run GDB on the demo."""
    return functools.partial(run_gdb, demo.vmlinux, demo.core)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gdb)
            if not have_gdb():
                item.add_marker(pytest.mark.skip(reason="no gdb"))
