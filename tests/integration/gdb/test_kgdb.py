# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show on the kernel's own debugger, through a serial line: its answers equal kcovdbg's on the host.

If the kernel is not in the cache, the test is skipped and says how to build it. Each packet waits for QEMU, the guest and GDB
in turn: on a busy machine, give QEMU a higher priority. ``--exhaustive`` also counts the packets of the longer commands.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.gdb.test_same_answers import ask_kcovdbg
from tests.lab import kernel as kernels
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import make_userland
from tests.lab.recipe import RECIPES
from tests.support.gdb_run import run_gdb

pytestmark = pytest.mark.lab

_LINES = ("tasks",)
# GDB's own reads are four fifths of this test: 1,200 packets for each of the first two, 8,300 for `check`.
_COUNTED = ("tasks", "tasks -a", "check")
_MARK = "=== packets ==="
_MARKED = f"python import sys; print('{_MARK}', file=sys.stderr, flush=True)"


class _WithLine(Guest):
    """A guest with a third serial line."""

    @property
    def line(self) -> Path:
        return self.sockets.directory / "kgdb"

    def _command(self, gdb_fd: int) -> list[str]:
        chardev = f"socket,id=kgdb,path={self.line},server=on,wait=off"
        return [*super()._command(gdb_fd), "-chardev", chardev, "-serial", "chardev:kgdb"]


def test_same_as_from_outside(request):
    kernel = kernels.find(RECIPES["pti"])
    if kernel is None:
        pytest.skip("the kernel with kgdb isn't built: python -m tests.lab build --recipe pti")
    with _WithLine(kernel, make_userland(kernel), Machine(append="kgdboc=ttyS2,115200")) as guest:
        guest.wait_done()
        # A kernel that panics enters its debugger, which waits for a client on the line.
        guest.send("crash")
        deadline = time.monotonic() + 60
        while "Kernel panic - not syncing" not in guest.console() and time.monotonic() < deadline:
            time.sleep(0.1)
        connect = f"target remote {guest.line}"
        ask = [f"kcov-show {line} --json" for line in ("info", *_LINES)]
        # The same by GDB's own reads, which is what is counted against. test_blocks_of_kgdb counts all of them each time.
        lines = _COUNTED if request.config.getoption("exhaustive") else _COUNTED[:1]
        counted = []
        for way in ("KGDB", "OTHER"):
            counted.append(f"python import kcovdbg.target.gdb.opener as t; t.identify_stub = lambda: t.Stub.{way}")
            for line in lines:
                counted += [_MARKED, "set debug remote 1", f"kcov-show {line}", "set debug remote 0", _MARKED]
        who = "python import kcovdbg.target.gdb.stub as s; print(s.identify_stub())"
        # Before GDB, which lets the kernel go on when it leaves.
        outside = ask_kcovdbg(["--qemu", guest.sockets.debugger_qmp], kernel.vmlinux, ["info", *_LINES])
        said = run_gdb(kernel.vmlinux, before=[connect], ask=[*ask, who, *counted], timeout=1800)
    assert "found by searching" in said.stderr
    assert said.json(0)[0]["kaslr_offset"] == outside.rows("info")[0]["kaslr_offset"] != "0x0"
    assert len(said.json(1)) > 20
    assert "Stub.KGDB" in said.answers[1 + len(_LINES)]
    for line, answer in zip(_LINES, said.answers[1:], strict=False):
        assert answer == outside.texts[line]
    packets = [part.count("Sending packet:") for part in said.stderr.split(_MARK)[1::2]]
    for line, ours, gdbs in zip(lines, packets[: len(lines)], packets[len(lines) :], strict=True):
        print(f"{line}: {ours} packets instead of {gdbs}")
        assert 0 < ours <= gdbs / 2
