# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals at random moments: no guest is left stopped without a word. ``--exhaustive`` sends 200."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import ROOT
from tests.support.child_process import restore_signals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.initramfs import Userland
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
FEW, MANY = 30, 200
SEED = 5


@pytest.fixture(scope="module")
def guest(kernel: Kernel, userland: Userland) -> Iterator[Guest]:
    with Guest(kernel, userland) as booted:
        booted.wait_done()
        yield booted


def command(guest: Guest, way: str, *words: str) -> list[str]:
    address = guest.sockets.debugger_qmp if way == "--qemu" else guest.sockets.gdb_remote
    return [sys.executable, "-m", "kcovdbg", way, str(address), "-s", str(guest.kernel.vmlinux), *words]


def run_until(words: list[str], number: int, seconds: float) -> tuple[int, str]:
    """Run a command, send it a signal, and return its status and what it says."""
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=restore_signals
    ) as running:
        time.sleep(seconds)
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    return running.returncode, errors


def test_signals_at_random_moments(guest: Guest, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    path = tmp_path / "slice"
    commands = {
        # Slices stop a guest that is read through QMP.
        "--qemu": command(guest, "--qemu", "slice", "-o", str(path)),
        "--gdb-remote": command(guest, "--gdb-remote", "-e", "objects", "-e", "tasks"),
    }
    longest = {}
    for way, words in commands.items():
        start = time.monotonic()
        subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
        longest[way] = time.monotonic() - start
    left = 0
    for trial in range(MANY if request.config.getoption("exhaustive") else FEW):
        way = ("--qemu", "--gdb-remote")[trial % 2]
        number = SIGNALS[trial // 2 % len(SIGNALS)]
        path.unlink(missing_ok=True)
        # Before, it is Python that starts.
        seconds = chance.uniform(0.15, longest[way])
        status, errors = run_until(commands[way], number, seconds)
        case = f"trial {trial}: {way}, {number!r} after {seconds:.3f} s: {status}, {errors}"
        # It may have ended by itself, or before it took the signals; 130 is C-c.
        assert status in (0, 128 + number, -number), case
        assert "Traceback" not in errors, case
        assert "ignored" not in errors, case
        if guest.qmp.running():
            continue
        left += 1
        assert number == signal.SIGKILL, case
        done = subprocess.run(command(guest, way, "resume"), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{case}\n{done.stderr}"
        assert guest.qmp.running(), case
    print(f"left stopped and resumed after SIGKILL: {left}")
