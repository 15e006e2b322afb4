# SPDX-License-Identifier: LGPL-2.1-or-later
"""arm64 kernels in QEMU's machine virt: every way in, against what the guest printed.

Built by hand: ``python -m tests.lab build --recipe 6.12-arm64``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.slab_memory import SlabWalk
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.integration.gdb.test_isolation import speaking_to
from tests.integration.gdb.test_same_answers import check_slice, check_stub
from tests.lab import situation
from tests.lab.comparison import assert_agrees
from tests.lab.conftest import built
from tests.lab.dump import truth_about
from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_run import ask, ask_state, run_kcovdbg
from tests.support.drgn_slabs import list_files, list_general_objects
from tests.support.gdb_run import run_gdb


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Guest(*built("6.12-arm64"), Machine(cpus=2)) as running:
        yield running


def read_offset(guest: Guest, way: str) -> str:
    """Assert that all state agrees; return the KASLR offset."""
    answers = ask_state(guest.target(way))
    assert_agrees(truth_about(guest), answers)
    return str(answers["info"][0]["kaslr_offset"])


def test_behind_the_gdb_stub_with_kaslr(guest: Guest) -> None:
    # The same as QEMU has it from VMCOREINFO.
    assert read_offset(guest, "--gdb-remote") == read_offset(guest, "--qemu") != "0x0"
    assert guest.qmp.running()


def test_stacks_of_running_tasks_through_the_stub(guest: Guest) -> None:
    """The registers of each CPU come through the stub: both idle tasks are unwound to the kernel's
    start.
    """
    with guest.paused():
        (rows,) = ask(guest.target("--gdb-remote"), "last --all")
        assert [rows] == ask(guest.target(), "last --all")
    assert rows


@pytest.mark.parametrize(
    ("append", "cpu"),
    [
        ("nokaslr", ""),
        # Without E0PD, page-table isolation is on with KASLR: in user space the CPU has a table
        # without the kernel.
        ("", "cortex-a72"),
    ],
)
def test_other_boots(append: str, cpu: str) -> None:
    with Guest(*built("6.12-arm64"), Machine(append=append, cpu=cpu)) as guest:
        assert (read_offset(guest, "--gdb-remote") == "0x0") == (append == "nokaslr")


def have_gdb() -> str:
    if shutil.which("gdb-multiarch") is None:
        pytest.skip("needs gdb-multiarch")
    return "gdb-multiarch"


def test_in_gdb_through_the_stub(guest: Guest, tmp_path: Path) -> None:
    check_stub(guest, tmp_path, "--gdb-remote", have_gdb())


@pytest.mark.parametrize("cpu", ["", "cortex-a72"], ids=["by E0PD", "by page-table isolation"])
def test_in_gdb_in_user_space(cpu: str) -> None:
    """The kernel's memory is hidden from there."""
    program = have_gdb()
    with Guest(*built("6.12-arm64"), Machine(cpu=cpu)) as guest:
        ((info,),) = ask(guest.target(), "info")
        offset = int(info["kaslr_offset"], 16)
        image = ElfFile(Path(guest.kernel.vmlinux).resolve())
        address = {
            name: f"{image.symbols.find(name).address + offset:#x}"
            for name in ("do_el0_svc", "linux_banner")
        }
        connect = [f"target remote {guest.sockets.gdb_remote}"]
        # pt_regs.pc of the system call's caller.
        stop = [
            f"thbreak *{address['do_el0_svc']}",
            "continue",
            "thbreak **(unsigned long *) ($x0 + 256)",
            "continue",
        ]
        banner = f"x/s {address['linux_banner']}"
        with speaking_to(guest):
            said = run_gdb(
                guest.kernel.vmlinux,
                before=[*connect, *stop],
                ask=[
                    "print $cpsr & 0xf",
                    banner,
                    "kcov-show tasks --json",
                    "kcov-show info --json",
                ],
                program=program,
            )
    assert said.answers[0] == "$1 = 0"
    # GDB alone finds nothing of the kernel there.
    assert "Cannot access memory" in said.answers[1]
    assert len(said.json(2)) > 5
    assert int(said.json(3)[0]["kaslr_offset"], 16) == offset


@pytest.mark.parametrize("state", ["standing", "hub-section", "softirq-over-local", "crashed"])
def test_in_gdb_on_a_slice(guest: Guest, state: str, tmp_path: Path) -> None:
    dump = situation.dump_of(guest.kernel, guest.userland, state)
    check_slice(dump.kernel, dump.path, tmp_path, 2, have_gdb())


@pytest.mark.parametrize("state", ["standing", "softirq-over-local", "crashed"])
def test_kdump_compressed_by_qemu(guest: Guest, state: str) -> None:
    """``dump-guest-memory -z``."""
    dump = situation.dump_of(guest.kernel, guest.userland, state, "kdump")
    answers = ask_state(dump.target)
    if state == "crashed":
        # What crashed the kernel came after what the guest printed.
        whole = ask_state(["-c", dump.path.with_name("elf"), *dump.target[2:]])
        assert {**answers, "info": []} == {**whole, "info": []}
        return
    assert_agrees(dump.truth, answers)


@pytest.mark.parametrize("state", ["standing", "softirq-over-local"])
def test_slab_memory_is_drgns(guest: Guest, state: str) -> None:
    dump = situation.dump_of(guest.kernel, guest.userland, state)
    target = open_target(TargetOptions(core=str(dump.path), symbols=[str(dump.kernel.vmlinux)]))
    assert isinstance(target, DrgnTarget)
    assert isinstance(target.slab, SlabWalk)
    assert sorted(target.slab.for_each_file()) == list_files(target.prog)
    for size in (64, 256, 1024):
        assert sorted(
            found.address for found in target.slab.for_each_slab_object(size)
        ) == list_general_objects(target.prog, size)


def test_another_vmlinux_is_refused(guest: Guest, tmp_path: Path) -> None:
    image, data = tmp_path / "vmlinux", guest.kernel.vmlinux.read_bytes()
    # Another build of the same source differs in its banner at least.
    assert data.count(b"Linux version 6.12") >= 1
    image.write_bytes(data.replace(b"Linux version 6.12", b"Linux version 6.13"))
    done = run_kcovdbg("--gdb-remote", guest.sockets.gdb_remote, "-s", image, "tasks", status=2)
    assert str(image) in done.stderr
    assert guest.qmp.running()
