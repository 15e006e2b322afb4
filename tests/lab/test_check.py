# SPDX-License-Identifier: LGPL-2.1-or-later
"""`check` has nothing to say of healthy kernels, and finds damage on real ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lab.asking import run_kcovdbg, symbol_options
from tests.lab.situation import SITUATIONS

if TYPE_CHECKING:
    from tests.lab.conftest import StateDumpMaker
    from tests.lab.guest import Guest

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("name", SITUATIONS)
def test_healthy_dumps(inflight_dump: StateDumpMaker, name: str) -> None:
    dump = inflight_dump(name)
    symbols = symbol_options(dump.kernel, dump.userland)
    done = run_kcovdbg("-c", dump.path, *symbols, "check", "--json")
    assert json.loads(done.stdout) == []
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["--qemu", "--gdb-remote"])
def test_healthy_guest(standing_guest: Guest, how: str) -> None:
    socket = standing_guest.sockets.debugger_qmp if how == "--qemu" else standing_guest.sockets.gdb_remote
    symbols = symbol_options(standing_guest.kernel, standing_guest.userland)
    done = run_kcovdbg(how, socket, *symbols, "check", "--json")
    assert json.loads(done.stdout) == []
    assert done.returncode == 0, done.stderr
