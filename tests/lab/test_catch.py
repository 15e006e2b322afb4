# SPDX-License-Identifier: LGPL-2.1-or-later
"""`catch` stops at the write that breaks a rule, and at none of thousands of legal writes.

A module overwrites fields of KCOV and prints before that which function will do it, during a storm
of legal changes.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pexpect
import pytest

from kcovdbg.abi.mode import IN_CTXSW
from kcovdbg.elf.header import EM_X86_64
from kcovdbg.target.connection import parse_socket_address
from kcovdbg.target.rsp import RspClient
from kcovdbg.target.stub_registers import stub_registers_of
from kcovdbg.target.watchpoints import MemorySpan, StubWatchpoints
from tests.lab.conftest import find_built
from tests.lab.guest import Guest
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import ROOT, ask, run_kcovdbg
from tests.lab.kernel import Kernel
from tests.support.gdb_run import NEWEST_GDB, START, run_gdb

SCRIBBLE = Path(__file__).parent / "scribble"
# Upper bound for the size of a function of the module.
_FUNCTION_SIZE = 64


# On x86-64 a watchpoint stops the CPU after the write, on arm64 before it.
@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """One guest for all tests here: the last test ends it."""
    kernel: Kernel = (
        find_built("6.12-arm64")
        if request.param == "aarch64"
        else request.getfixturevalue("kernel")
    )
    with Guest(
        kernel, make_userland(kernel, workload=SCRIBBLE, modules=SCRIBBLE / "module")
    ) as booted:
        yield booted


def options(guest: Guest) -> list[str]:
    (module,) = guest.userland.modules
    return [*guest.target("--gdb-remote"), "-s", str(module)]


def start(guest: Guest, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kcovdbg", *options(guest), *words]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True
    )
    wait_until(guest, running=False)
    return process


def wait_until(guest: Guest, *, running: bool) -> None:
    """Wait until a debugger has stopped the guest, which then has the watchpoint, or lets it go
    on.
    """
    deadline = time.monotonic() + 60
    while guest.qmp.running() != running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def told(guest: Guest) -> dict[str, Any]:
    """Return what the module printed last."""
    found: dict[str, Any] = json.loads(re.findall(r"SCRIBBLE (\{.*\})", guest.console())[-1])
    return found


def catch(guest: Guest, words: list[str], scribble: str) -> dict[str, Any]:
    process = start(guest, "catch", *words, "--for", "60s", "--json")
    guest.send(scribble)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    (row,) = json.loads(output)
    assert isinstance(row, dict)
    return row


def check_truth(guest: Guest, row: dict[str, Any], what: str) -> None:
    """Compare a caught write with what the guest printed, which since v7.3 a thread prints when the
    guest goes on.
    """
    deadline = time.monotonic() + 60
    while (truth := told(guest))["what"] != what:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert {key: row[key] for key in ("memory", "old", "new")} == {
        key: truth[key] for key in ("memory", "old", "new")
    }
    assert row["reason"] is None
    assert 0 <= int(row["stack"][0]["address"], 16) - int(truth["writer"], 16) < _FUNCTION_SIZE


@pytest.mark.gdb
def test_gdb(guest: Guest, tmp_path: Path) -> None:
    program = "gdb" if guest.kernel.recipe.architecture == "x86_64" else "gdb-multiarch"
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    stopped = tmp_path / "stopped"
    (module,) = guest.userland.modules
    who = next(line for line in guest.truth.lines() if line.get("state") == "who")
    ((info,),) = ask(guest.target(), "info")
    offset = info["kaslr_offset"]
    symbols = [
        f"symbol-file {guest.kernel.vmlinux} -o {offset}",
        f"add-symbol-file {module} {who['text']}",
    ]

    def run() -> Any:
        return run_gdb(
            before=[
                *symbols,
                f"target remote {guest.sockets.gdb_remote}",
                # From user space, arm64 does not let GDB read the kernel's memory.
                "thbreak kcov_ioctl",
                "continue",
            ],
            ask=[
                "kcov-show catch kc-victim kcov_mode --for 5s",
                f"shell touch {stopped}",
                "kcov-show catch kc-victim kcov_mode --for 60s --json",
                "kcov-show tasks kc-victim --json",
                "info breakpoints",
                "set can-use-hw-watchpoints 0",
                "kcov-show catch kc-victim kcov_mode",
            ],
            program=program,
            timeout=400,
        )

    with ThreadPoolExecutor() as pool:
        running = pool.submit(run)
        while not stopped.exists() and not running.done():
            time.sleep(0.01)
        # QEMU may lose the first write under GDB's second watchpoint: this is not to be it.
        while not running.done() and not guest.qmp.running():
            time.sleep(0.01)
        time.sleep(1)
        guest.send("mode {victim} 7")
        said = running.result()
    (row,) = said.json(2)
    check_truth(guest, row, "mode")
    names = [frame["function"] for frame in row["stack"]]
    assert names[0] == "kcovlab_scribble_mode"
    assert {"vfs_write", "ksys_write"} <= set(names)
    assert "T5" in {finding["rule"] for finding in row["findings"]}
    assert said.json(3)[0]["kcov_mode_raw"] == "0x7"
    guest.ask("mode {victim} 0")
    assert said.answers[4] == "No breakpoints or watchpoints."
    assert int(re.search(r"(\d+) writes", said.answers[0])[1]) > 5
    # GDB would single-step.
    assert said.answers[6] == ""
    assert "single-step" in said.stderr


class MachineInterface:
    """GDB at its machine interface."""

    def __init__(self, program: str, *arguments: object) -> None:
        self.child = pexpect.spawn(
            program,
            [*START, "-q", "-i=mi3", *map(str, arguments)],
            encoding="utf-8",
            codec_errors="replace",
            timeout=120,
        )

    def ask(self, line: str, answer: str) -> str:
        """Send a line; return the output until what matches a pattern, which is included."""
        self.child.sendline(line)
        self.child.expect(answer)
        return f"{self.child.before}{self.child.after}"

    def leave(self) -> None:
        """End GDB, which removes what it has set in the machine's stub."""
        self.child.sendline("-gdb-exit")
        self.child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=20)
        self.child.close(force=True)

    def interrupt(self, answer: str) -> None:
        """Interrupt the machine until an answer comes: QEMU ignores C-c while it is stopped at a
        watchpoint.
        """
        for token in range(100, 112):
            self.ask(f"{token}-exec-interrupt", rf"{token}\^(done|error)")
            if self.child.expect([answer, pexpect.TIMEOUT], timeout=10) == 0:
                return
        pytest.fail(f"GDB does not stop: {self.child.before!r}")


@pytest.mark.gdb
@pytest.mark.parametrize("program", ["gdb", str(NEWEST_GDB)])
def test_machine_interface(guest: Guest, program: str) -> None:
    """What catch found is reported after the stop, and -exec-interrupt ends it."""
    if guest.kernel.recipe.architecture != "x86_64" or shutil.which(program) is None:
        pytest.skip(f"needs {program}, and a guest of x86-64")
    gdb = MachineInterface(program, guest.kernel.vmlinux)
    found = r'(=kcov-show,rows=|"\{\\"kcov-show\\": )[^\r]*\r'
    try:
        gdb.ask(f"1-target-select remote {guest.sockets.gdb_remote}", r"1\^connected")
        gdb.ask("2-kcov-show catch kc-victim kcov_mode --for 60s", r"2\^running")
        wait_until(guest, running=True)
        guest.send("mode {victim} 7")
        gdb.child.expect(found)
        row = gdb.child.after
        truth = told(guest)
        assert truth["what"] == "mode"
        assert all(
            re.search(rf"{key}[^0-9a-z]+{truth[key]}\b", row) for key in ("memory", "old", "new")
        ), row
        gdb.ask("3-kcov-show tasks kc-victim", r"3\^done[^\r]*kcov_mode_raw=.0x7")
        gdb.ask("4-kcov-show catch kc-owner kcov_mode --for 600s", r"4\^running")
        gdb.interrupt(found)
        gdb.ask("6-kcov-show catch kc-owner kcov_mode --for 1s", r"6\^running")
        gdb.child.expect(found)
        gdb.ask("7-break-list", r"7\^done[^\r]*nr_rows=.0")
        gdb.ask("8-kcov-show tasks kc-owner", r"8\^done")
    finally:
        gdb.leave()
        guest.qmp.execute("cont")
    guest.ask("mode {victim} 0")


def test_signal(guest: Guest) -> None:
    process = start(guest, "catch", "kc-victim", "kcov_mode")
    wait_until(guest, running=True)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    # No watchpoint is left that the storm would hit.
    time.sleep(0.3)
    assert guest.qmp.running()


def test_first_write(guest: Guest) -> None:
    """The first stop after a watchpoint was removed is at the first write; without care, QEMU loses
    one write in 20.
    """
    if guest.kernel.recipe.architecture == "aarch64":
        pytest.skip("from user space, arm64's stub does not read the kernel's memory")
    guest.ask("same {victim}")
    span = MemorySpan(int(told(guest)["memory"], 16), 4)
    firsts: list[tuple[int, int]] = []
    for _ in range(300):
        client = RspClient(parse_socket_address(guest.sockets.gdb_remote)).attach()
        try:
            watchpoints = StubWatchpoints(
                client, "", lambda: None, stub_registers_of(EM_X86_64), lambda _: ()
            )
            values = [client.read(*span)]
            # QEMU remembers the watchpoint in memory that it has released: what uses that memory
            # makes the difference.
            guest.qmp.running()

            def note(client: RspClient = client, values: list[bytes] = values) -> bool:
                values.append(client.read(*span))
                return False

            watchpoints.run([span], note, random.random() * 0.02)
        finally:
            client.close()
        firsts += [
            (int.from_bytes(old, "little"), int.from_bytes(new, "little"))
            for old, new in pairwise(values[:2])
        ]
    assert len(firsts) > 30
    # A write changes the mode or the scheduler's flag, and only to 0 what was 0.
    assert not [
        (hex(old), hex(new))
        for old, new in firsts
        if old ^ new not in (0, IN_CTXSW) and (old | new) & IN_CTXSW
    ]
    assert not [hex(old) for old, new in firsts if old == new != 0]


def test_catch(guest: Guest) -> None:
    objects, areas = ask(guest.target(), "objects", "areas")
    kcov = next(row["kcov"] for row in objects if row["comm"] == "kc-owner")
    area = next(row["area"] for row in areas if row["list"] == "task")

    # Legal changes, and one that changes nothing.
    process = start(guest, "catch", "kc-victim", "kcov_mode", "--for", "10s")
    guest.send("same {victim}")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert int(re.search(r"(\d+) writes", output)[1]) > 20
    assert told(guest)["what"] == "same"
    assert guest.qmp.running()

    row = catch(guest, ["kc-victim", "kcov_mode"], "mode {victim} 7")
    assert "T5" in {finding["rule"] for finding in row["findings"]}
    names = [frame["function"] for frame in row["stack"]]
    assert names[0] == row["function"] == "kcovlab_scribble_mode"
    assert {"vfs_write", "ksys_write"} <= set(names)
    assert (row["cpu"], row["pid"], row["comm"]) == (0, 1, "init")
    # The guest is stopped where the field was overwritten, and each answer says so until the guest
    # goes on.
    assert not guest.qmp.running()
    done = run_kcovdbg(*options(guest), "-e", "tasks kc-victim --json", "-e", "resume")
    assert json.loads(done.stdout.partition("\n]")[0] + "]")[0]["kcov_mode_raw"] == "0x7"
    assert "left it so" in done.stderr
    assert guest.qmp.running()
    check_truth(guest, row, "mode")
    guest.ask("mode {victim} 0")

    # The thread that overwrites it also changes it legally, and references are taken meanwhile.
    row = catch(guest, [f"kcov:{kcov}", "refcount"], "ref {owner} 9")
    assert {finding["rule"] for finding in row["findings"]} == {"K1"}
    guest.qmp.execute("cont")
    check_truth(guest, row, "ref")

    row = catch(guest, [f"area:{area}", "header"], f"area {area}")
    assert "A1" in {finding["rule"] for finding in row["findings"]}
    assert [frame["function"] for frame in row["stack"]][:2] == [
        "kcovlab_scribble_area",
        "run_sections",
    ]
    guest.qmp.execute("cont")
    check_truth(guest, row, "area")


def test_gone(guest: Guest) -> None:
    process = start(guest, "catch", "kc-owner", "kcov_mode")
    wait_until(guest, running=True)
    guest.stop()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "is gone" in errors
