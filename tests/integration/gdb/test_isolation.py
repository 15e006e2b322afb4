# SPDX-License-Identifier: LGPL-2.1-or-later
"""Page-table isolation: kcov-show while a vCPU runs on user space's page tables.

The kernel takes minutes to build: if it is not in the cache, the tests are skipped and say how to build it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator

import pytest

from kcovdbg.elf.file import ElfFile
from tests.lab import kernel as kernels
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import make_userland
from tests.lab.recipe import RECIPES
from tests.support.gdb_run import Said, run_gdb

pytestmark = pytest.mark.lab

_REASON = "is in user mode, from where"


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


class Isolated:
    """A guest whose CPUs leave the kernel's page tables when they leave the kernel."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.vmlinux = guest.kernel.vmlinux
        self.image = ElfFile(self.vmlinux.resolve())
        self.connect = f"target remote {guest.sockets.gdb_remote}"
        # If a CPU happens to be in user space, this is refused as well.
        for _ in range(10):
            said = self.ask([], "kcov-show info --json")
            if _REASON not in said.stderr:
                break
        self.offset = int(said.json(0)[0]["kaslr_offset"], 16)

    def ask(self, before: list[str], *lines: str) -> Said:
        return run_gdb(self.vmlinux, before=[self.connect, *before], ask=list(lines))

    def address(self, symbol: str) -> int:
        return self.image.symbols.find(symbol).address + self.offset


@pytest.fixture(scope="module", params=[1, 2], ids=["one CPU", "two CPUs"])
def isolated(request: pytest.FixtureRequest) -> Iterator[Isolated]:
    kernel = kernels.find(RECIPES["pti"])
    if kernel is None:
        pytest.skip("the kernel with page-table isolation isn't built: python -m tests.lab build --recipe pti")
    # QEMU's CPU reports that it needs no isolation.
    with Guest(kernel, make_userland(kernel), Machine(cpus=request.param, append="pti=on")) as guest:
        guest.wait_done()
        with speaking_to(guest):
            yield Isolated(guest)


def find_way_out(said: Said) -> list[str]:
    """Return the commands in kcov-show's hint that continue to where the kernel's memory is mapped."""
    found = re.search(r"(thbreak \*0x[0-9a-f]+), then (continue)|select a CPU that is in the kernel: (thread \d)", said.stderr)
    assert found is not None, said.stderr
    return [word for word in found.groups() if word]


@pytest.mark.parametrize("where", ["on the way in", "in user space"])
def test_told_and_how_to_go_on(isolated, where):
    # The first instructions of a system call, and those behind it in the program, whose address the CPU left in rcx.
    stop = [f"thbreak *{isolated.address('entry_SYSCALL_64'):#x}", "continue"]
    if where == "in user space":
        stop += ["thbreak *$rcx", "continue"]
    banner = f"x/s {isolated.address('linux_banner'):#x}"
    said = isolated.ask(stop, "print/x $cs & 3", banner, "kcov-show tasks", "print $kcov_count(1)")
    assert said.answers[0] == ("$1 = 0x3" if where == "in user space" else "$1 = 0x0")
    # GDB alone finds nothing of the kernel there.
    assert "Cannot access memory" in said.answers[1]
    assert said.answers[2:] == ["", ""]
    assert said.stderr.count(_REASON) == 2
    # Both hints work.
    lines = find_way_out(said)
    assert isolated.guest.machine.cpus > 1 or lines[1] == "continue"
    # The guest runs on in between: which CPU is in the kernel may be another one when it is stopped again.
    for _ in range(6):
        said = isolated.ask([*stop, "kcov-show tasks", *lines], banner, "kcov-show tasks --json")
        if find_way_out(said) == lines:
            break
        lines = find_way_out(said)
    assert "Linux version" in said.answers[0]
    assert len(said.json()) > 5
