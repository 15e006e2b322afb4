# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about a guest that ends, panics or is stopped; and however kcovdbg ends, a stopped guest is reported or resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING

import pytest

from tests.lab.dump import write_dump
from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import ROOT, run_kcovdbg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.initramfs import Userland
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab

# Pauses the guest as slice does, until it is killed.
PAUSE = """
import sys, time
from kcovdbg.target.opener import TargetOptions, open_target
target = open_target(TargetOptions(qemu=sys.argv[1], symbols=[sys.argv[2]]))
with target.connection.pause():
    print("paused", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def guest(kernel: Kernel, userland: Userland) -> Iterator[Guest]:
    """One guest for all tests here: the last test ends it."""
    with Guest(kernel, userland) as booted:
        booted.wait_done()
        yield booted


def start(guest: Guest, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kcovdbg", *guest.target(), *words]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def wait_for(stream: IO[str] | None, word: str) -> None:
    assert stream is not None
    for line in stream:
        if word in line:
            return
    raise AssertionError(f"ended before it said {word}")


def wait_until(happens: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def end_while_paused(guest: Guest, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PAUSE, str(guest.sockets.debugger_qmp), str(guest.kernel.vmlinux)]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    wait_for(running.stdout, "paused")
    assert not guest.qmp.running()
    running.send_signal(number)
    running.communicate(timeout=60)
    return running


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP])
def test_signals_let_a_paused_guest_go_on(guest: Guest, number: int) -> None:
    assert end_while_paused(guest, number).returncode == 128 + number
    assert guest.qmp.running()
    assert not list(guest.sockets.directory.glob("*kcovdbg*"))


def test_a_guest_left_stopped_by_a_killed_run(guest: Guest) -> None:
    killed = end_while_paused(guest, signal.SIGKILL)
    assert not guest.qmp.running()
    asking = start(guest, "-e", "info", "-e", "info --json", "-e", "resume --json", "-e", "resume")
    output, errors = asking.communicate(timeout=60)
    text, _, answers = output.partition("\n[\n")
    for told in (text, errors):
        assert [str(killed.pid) in line for line in told.splitlines() if line.startswith("note:") and "stopped" in line] == [
            True
        ]
    states = [row["state"] for part in f"[\n{answers}".split("\n]") if part.strip() for row in json.loads(f"{part}]")]
    assert states == ["stopped", "running"]
    assert guest.qmp.running()
    # It runs already.
    assert asking.returncode == 2


def test_a_guest_that_others_stopped_is_left_alone(guest: Guest) -> None:
    with guest.paused():
        refused = start(guest, "resume")
        _, errors = refused.communicate(timeout=60)
        assert refused.returncode == 2
        assert "cont" in errors
        assert not guest.qmp.running()


def test_a_stub_left_by_signals(guest: Guest) -> None:
    words = ("-m", "kcovdbg", *guest.target("--gdb-remote"))
    for number, runs in ((signal.SIGQUIT, True), (signal.SIGKILL, False)):
        running = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert running.stdin is not None
        running.stdin.write("info\n!echo now\n")
        running.stdin.flush()
        wait_for(running.stdout, "now")
        assert not guest.qmp.running()
        running.send_signal(number)
        running.wait(timeout=30)
        assert guest.qmp.running() == runs
    done = subprocess.run([sys.executable, *words, "-e", "resume"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert str(running.pid) in done.stderr
    assert guest.qmp.running()


def test_the_last_steps_of_a_panicked_guest(guest: Guest, tmp_path: Path) -> None:
    guest.crash()
    with guest.paused():
        write_dump(guest, tmp_path / "dump")
        through_qmp = run_kcovdbg(*guest.target(), "last", "--json")
    of_dump = run_kcovdbg("-c", tmp_path / "dump", *guest.target()[2:], "last", "--json")
    assert through_qmp.stdout == of_dump.stdout
    rows = json.loads(of_dump.stdout)
    assert rows[-1]["stack"] is not None
    assert {row["comm"] for row in rows} == {"kc-crash"}
    # It spins in panic(), so the numbers of later records and of frames change.
    running = run_kcovdbg(*guest.target(), "last")
    assert "sysrq_handle_crash" in running.stdout
    assert "cannot unwind" not in running.stdout
    assert guest.qmp.running()


def test_a_guest_that_dies(guest: Guest, tmp_path: Path) -> None:
    running = start(guest)
    assert running.stdin is not None
    running.stdin.write("info\ntasks\n!echo now\n")
    wait_for(running.stdout, "now")
    os.kill(guest.pid, signal.SIGKILL)
    wait_until(lambda: not guest.alive())
    lines = ["tasks", "last", "check", f"report -o {tmp_path}/page", f"areas > {tmp_path}/areas", f"slice -o {tmp_path}/slice"]
    output, errors = running.communicate("\n".join([*lines, "info --json"]) + "\n", timeout=60)
    assert running.returncode == 2
    said = [line for line in errors.splitlines() if "standard input" in line]
    assert len(said) == len(lines)
    assert all("qmp-debugger is gone" in line for line in said)
    assert not list(tmp_path.iterdir())
    (info,) = json.loads(output)
    assert (info["live"], info["state"]) == (False, "gone")
