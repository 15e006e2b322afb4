# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about a guest that ends, panics or is stopped; and however kcovdbg ends, a stopped guest
is reported or resumed.

The last test ends the guest.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.lab.comparison import parse_rows
from tests.lab.dump import write_dump
from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import ROOT, run_kcovdbg
from tests.support.child_process import restore_signals

# Pauses the guest as slice does, until it is killed.
PAUSE = """
import sys, time
from kcovdbg.target.target_options import TargetOptions, open_target
target = open_target(TargetOptions(qemu=sys.argv[1], symbols=[sys.argv[2]]))
with target.connection.pause():
    print("paused", flush=True)
    time.sleep(60)
"""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
FEW, MANY = 12, 200
SEED = 5


def command(guest: Guest, *words: str, way: str = "--qemu") -> list[str]:
    return [sys.executable, "-m", "kcovdbg", *guest.target(way), *words]


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
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
    running = start(
        [sys.executable, "-c", PAUSE, str(guest.sockets.debugger_qmp), str(guest.kernel.vmlinux)]
    )
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
    asking = run_kcovdbg(
        *guest.target(), "-e", "info", "-e", "info --json", "-e", "resume --json", "-e", "resume"
    )
    text, _, answers = asking.stdout.partition("\n[\n")
    for told in (text, asking.stderr):
        assert [
            str(killed.pid) in line
            for line in told.splitlines()
            if line.startswith("note:") and "stopped" in line
        ] == [True]
    (info,), (resumed,) = parse_rows(f"[\n{answers}")
    assert (info["state"], resumed["state"]) == ("stopped", "running")
    assert guest.qmp.running()
    # It runs already.
    assert asking.returncode == 2


def test_a_guest_that_others_stopped_is_left_alone(guest: Guest) -> None:
    with guest.paused():
        refused = run_kcovdbg(*guest.target(), "resume", status=2)
        assert "cont" in refused.stderr
        assert not guest.qmp.running()


def resume(guest: Guest, way: str, pid: int) -> bool:
    """Let a guest go on that a process left stopped; return whether kcovdbg named the process, and
    the guest runs.
    """
    done = run_kcovdbg(*guest.target(way), "-e", "resume")
    return done.returncode == 0 and f"{pid}" in done.stderr and guest.qmp.running()


def test_a_stub_left_by_signals(guest: Guest) -> None:
    for number, runs in ((signal.SIGQUIT, True), (signal.SIGKILL, False)):
        running = start(command(guest, "--script", "-", way="--gdb-remote"))
        assert running.stdin is not None
        running.stdin.write("info\n!echo now\n")
        wait_for(running.stdout, "now")
        assert not guest.qmp.running()
        running.send_signal(number)
        running.communicate(timeout=30)
        assert guest.qmp.running() == runs
    assert resume(guest, "--gdb-remote", running.pid)


def run_until(words: list[str], number: int, seconds: float) -> tuple[subprocess.Popen[str], str]:
    """Run a command and send it a signal; return the ended process and what it said."""
    with subprocess.Popen(
        words,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restore_signals,
    ) as running:
        time.sleep(seconds)
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    return running, errors


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
    words = [
        sys.executable,
        "-c",
        INJECTED,
        *command(guest, "-e", "tasks", way="--gdb-remote")[3:],
        str(int(number)),
    ]
    ended, errors = run_until(words, 0, 0)
    assert ended.returncode in (128 + number, -number), errors
    assert "ignored" not in errors
    if number == signal.SIGKILL:
        assert not guest.qmp.running()
        assert resume(guest, "--gdb-remote", ended.pid)
    assert guest.qmp.running()


def test_signals_at_random_moments(
    guest: Guest, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """No guest is left stopped without a word. ``--exhaustive`` sends 200."""
    chance = random.Random(SEED)
    path = tmp_path / "slice"
    commands = {
        # Slices stop a guest that is read through QMP.
        "--qemu": command(guest, "slice", "-o", str(path)),
        "--gdb-remote": command(guest, "-e", "objects", "-e", "tasks", way="--gdb-remote"),
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
    # A script goes on after an error, unlike standard input.
    script = tmp_path / "script"
    os.mkfifo(script)
    running = start(command(guest, "--script", str(script)))
    typed = script.open("w", buffering=1)
    typed.write("info\ntasks\n!echo now\n")
    wait_for(running.stdout, "now")
    os.kill(guest.pid, signal.SIGKILL)
    wait_until(lambda: not guest.alive())
    lines = [
        "tasks",
        "last",
        "check",
        f"report -o {tmp_path}/page",
        f"areas > {tmp_path}/areas",
        f"slice -o {tmp_path}/slice",
    ]
    with typed:
        typed.write("\n".join([*lines, "info --json"]) + "\n")
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 2
    said = [line for line in errors.splitlines() if f"{script}:" in line]
    assert len(said) == len(lines)
    assert all("qmp-debugger is gone" in line for line in said)
    assert list(tmp_path.iterdir()) == [script]
    (info,) = json.loads(output)
    assert (info["live"], info["state"]) == (False, "gone")
