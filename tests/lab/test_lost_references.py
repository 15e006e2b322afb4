# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lost remote references of 5.8 to 6.9, on a kernel with that bug: answers of check about the task, and after its exit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import kernel as kernels
from tests.lab import requirements
from tests.lab.generation import GENERATIONS
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import run_kcovdbg, symbol_options

if TYPE_CHECKING:
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def affected() -> Kernel:
    found = kernels.find(GENERATIONS["saved-per-cpu"].recipe)
    if found is None:
        pytest.skip("the kernel isn't built: python -m tests.lab build --recipe saved-per-cpu")
    if lacking := requirements.missing(requirements.BOOT):
        pytest.skip(f"the lab needs {', '.join(lacking)}; {requirements.remedy(lacking)}")
    return found


def test_found_before_and_after_the_owner_exits(affected: Kernel) -> None:
    userland = make_userland(affected)
    symbols = symbol_options(affected, userland)
    with Guest(affected, userland, Machine()) as guest:
        guest.wait_done()

        def check() -> list[dict[str, Any]]:
            done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, "-e", "check --json")
            found: list[dict[str, Any]] = json.loads(done.stdout)
            assert done.returncode == bool(found)
            return found

        # The bug may have hit an owner of the workload already.
        earlier = check()
        assert all(row["rule"] == "T4" and "lost remote references" in row["cause"] for row in earlier)
        (lost,) = [line for line in guest.ask("lost") if line.get("state") == "kc-lost"]
        (row,) = [row for row in check() if row not in earlier]
        assert row["rule"] == "T4"
        assert f"task {lost['tid']} (kc-lost)" in row["message"]
        guest.ask("stop")
        rows = {row["rule"]: row for row in check() if row not in earlier}
        # Nothing refers to the object any more, but its handle stays registered.
        assert set(rows) == {"K6", "X3"}
        for found in (row, *rows.values()):
            assert "lost remote references" in found["cause"]
