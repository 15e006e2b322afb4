# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show on the kernel's own debugger, through a serial line: its answers equal kcovdbg's on the
host.

If the kernel is not in the cache, the test is skipped and says how to build it. Each packet waits
for QEMU, the guest and GDB in turn: on a busy machine, give QEMU a higher priority.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gdb.test_same_answers import ask_kcovdbg
from tests.lab.conftest import built
from tests.lab.guest import Guest, Machine
from tests.support.gdb_run import run_gdb

pytestmark = pytest.mark.lab

_LINES = ("tasks", "remote", "last")


class _WithLine(Guest):
    """A guest with a third serial line."""

    @property
    def line(self) -> Path:
        return self.sockets.directory / "kgdb"

    def _command(self, gdb_fd: int) -> list[str]:
        chardev = f"socket,id=kgdb,path={self.line},server=on,wait=off"
        return [*super()._command(gdb_fd), "-chardev", chardev, "-serial", "chardev:kgdb"]


def test_same_as_from_outside():
    kernel, userland = built("pti")
    with _WithLine(kernel, userland, Machine(append="kgdboc=ttyS2,115200")) as guest:
        # A kernel that panics enters its debugger, which waits for a client on the line.
        guest.send("crash")
        deadline = time.monotonic() + 60
        while "Kernel panic - not syncing" not in guest.console() and time.monotonic() < deadline:
            time.sleep(0.1)
        # Before GDB, which lets the kernel go on when it leaves.
        outside = ask_kcovdbg(
            ["--qemu", guest.sockets.debugger_qmp], kernel.vmlinux, ["info", *_LINES]
        )
        offset = outside.rows("info")[0]["kaslr_offset"]
        lines = [f"kcov-show {line} --json" for line in ("info", *_LINES)]
        kind = "python import kcov_show; print(kcov_show._installed[0]._stub.kind)"
        connect = [f"target remote {guest.line}"]
        # The offset is searched for, unless the user tells it.
        said = run_gdb(
            kernel.vmlinux,
            before=[f"set kcov kaslr-offset {offset}", *connect],
            ask=[*lines, kind],
            timeout=1800,
        )
    assert said.json(0)[0]["kaslr_offset"] == offset != "0x0"
    assert said.answers[-1] == "kgdb"
    assert len(said.json(1)) > 20
    for number, line in enumerate(_LINES, 1):
        assert drop_stack(said.json(number)) == drop_stack(outside.rows(line))


def drop_stack(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """kgdb shows the registers of the exception, QEMU those of kgdb's own loop: there, the frames
    have other numbers.
    """
    return [{key: value for key, value in row.items() if key != "stack"} for row in rows]
