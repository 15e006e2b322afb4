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
    return [sys.executable, "-m", "kcovdbg", *guest.target(way), *words]


def run_until(words: list[str], number: int, seconds: float) -> tuple[subprocess.Popen[str], str]:
    """Run a command and send it a signal; return the ended process and what it said."""
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=restore_signals
    ) as running:
        time.sleep(seconds)
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    return running, errors


def resume(guest: Guest, way: str, pid: int) -> bool:
    """Let a guest go on that a process left stopped; return whether kcovdbg named the process, and the guest runs."""
    done = subprocess.run(command(guest, way, "-e", "resume"), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode == 0 and f"{pid}" in done.stderr and guest.qmp.running()


# The signal arrives when the connection stops the guest.
INJECTED = """
import os, sys, time
from kcovdbg.__main__ import main
from kcovdbg.target import rsp
number = int(sys.argv.pop())
connect = rsp.connect
def connect_and_signal(*arguments):
    made = connect(*arguments)
    time.sleep(0.5)
    os.kill(os.getpid(), number)
    return made
rsp.connect = connect_and_signal
sys.exit(main())
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_connecting_stops_the_guest(guest: Guest, number: int) -> None:
    words = [sys.executable, "-c", INJECTED, *command(guest, "--gdb-remote", "-e", "tasks")[3:], str(int(number))]
    ended, errors = run_until(words, 0, 0)
    assert ended.returncode in (128 + number, -number), errors
    assert "ignored" not in errors
    if number == signal.SIGKILL:
        assert not guest.qmp.running()
        assert resume(guest, "--gdb-remote", ended.pid)
    assert guest.qmp.running()


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
        ended, errors = run_until(commands[way], number, seconds)
        status = ended.returncode
        case = f"trial {trial}: {way}, {number!r} after {seconds:.3f} s: {status}, {errors}"
        # It may have ended by itself, or before it took the signals; 130 is C-c.
        assert status in (0, 128 + number, -number), case
        assert "Traceback" not in errors, case
        assert "ignored" not in errors, case
        if guest.qmp.running():
            continue
        left += 1
        assert number == signal.SIGKILL, case
        assert resume(guest, way, ended.pid), case
    print(f"left stopped and resumed after SIGKILL: {left}")
