# SPDX-License-Identifier: LGPL-2.1-or-later
"""Page-table isolation: kcov-show while a vCPU runs on user space's page tables.

The kernel takes minutes to build: if it is not in the cache, the tests are skipped and say how to
build it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from kcovdbg.elf.file import ElfFile
from tests.integration.gdb.test_same_answers import ask_kcovdbg
from tests.lab.conftest import built
from tests.lab.guest import Guest, Machine
from tests.support.gdb_run import run_gdb

pytestmark = pytest.mark.lab


@contextlib.contextmanager
def speaking_to(guest: Guest) -> Iterator[None]:
    """Have the workload make system calls all the time."""
    done = threading.Event()

    def speak() -> None:
        while not done.wait(0.3):
            guest.send("no such command")

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("where", ["on the way in", "in user space"])
def test_same_as_from_outside(cpus, where):
    kernel, userland = built("pti")
    # QEMU's CPU reports that it needs no isolation.
    with Guest(kernel, userland, Machine(cpus=cpus, append="pti=on")) as guest:
        outside = ask_kcovdbg(
            ["--qemu", guest.sockets.debugger_qmp], kernel.vmlinux, ["info", "remote"]
        )
        offset = int(outside.rows("info")[0]["kaslr_offset"], 16)
        image = ElfFile(kernel.vmlinux.resolve())
        address = {
            name: image.symbols.find(name).address + offset
            for name in ("entry_SYSCALL_64", "linux_banner")
        }
        # The first instructions of a system call, and those behind it in the program, whose address
        # the CPU left in rcx.
        stop = [
            f"target remote {guest.sockets.gdb_remote}",
            f"thbreak *{address['entry_SYSCALL_64']:#x}",
            "continue",
        ]
        if where == "in user space":
            stop += ["thbreak *$rcx", "continue"]
        with speaking_to(guest):
            said = run_gdb(
                kernel.vmlinux,
                before=stop,
                ask=[
                    "print/x $cs & 3",
                    f"x/s {address['linux_banner']:#x}",
                    "kcov-show info --json",
                    "kcov-show remote --json",
                    "kcov-show tasks --json",
                    "print $kcov_count(1)",
                    "print/x $cs & 3",
                ],
            )
    assert said.answers[0] == ("$1 = 0x3" if where == "in user space" else "$1 = 0x0")
    # GDB alone finds nothing of the kernel there.
    assert "Cannot access memory" in said.answers[1]
    assert said.json(2)[0]["kaslr_offset"] == f"{offset:#x}"
    assert said.answers[3] == outside.texts["remote"] != "[]"
    assert len(said.json(4)) > 5
    assert said.answers[5] == "$2 = 0"
    assert said.answers[6].endswith(said.answers[0].partition(" = ")[2])
