# SPDX-License-Identifier: LGPL-2.1-or-later
"""arm64 kernels in QEMU's machine virt: every way in, against what the guest printed.

Built by hand: ``python -m tests.lab build --recipe 6.12-arm64``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.table_builder import build_table
from kcovdbg.symbols.table_cache import open_table
from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.opener import TargetOptions, open_target
from kcovdbg.target.slab_memory import SlabWalk
from tests.integration.gdb.test_isolation import speaking_to
from tests.integration.gdb.test_same_answers import ask_gdb, ask_kcovdbg, check_same, gather
from tests.lab import kernel as kernels
from tests.lab import requirements, situation
from tests.lab.comparison import explain, find_differences
from tests.lab.dump import truth_about
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland, make_userland
from tests.lab.kcovdbg_run import ask_state, run_kcovdbg, symbol_options
from tests.support.drgn_slabs import list_files, list_general_objects
from tests.support.gdb_run import run_gdb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab


def built(name: str) -> tuple[Kernel, Userland]:
    """Return a kernel and what its guests run; skip the test where it is not built."""
    recipe = kernels.by_name(name)
    found = kernels.find(recipe)
    if found is None:
        pytest.skip(f"the lab's kernel isn't built: python -m tests.lab build --recipe {name}")
    lacking = requirements.missing(requirements.for_boot(recipe.platform) | requirements.for_userland(recipe.platform))
    if lacking:
        pytest.skip(f"the lab needs {', '.join(lacking)}; {requirements.remedy(lacking)}")
    return found, make_userland(found)


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Guest(*built("6.12-arm64"), Machine(cpus=2)) as running:
        running.wait_done()
        yield running


def assert_agrees(guest: Guest, *target: str | Path) -> dict[str, list[dict[str, object]]]:
    answers = ask_state(target, symbol_options(guest.kernel, guest.userland))
    differences = find_differences(truth_about(guest), answers)
    assert not differences, explain(differences)
    return answers


def test_behind_the_gdb_stub_with_kaslr(guest: Guest) -> None:
    answers = assert_agrees(guest, "--gdb-remote", guest.sockets.gdb_remote)
    assert answers["info"][0]["kaslr_offset"] != "0x0"
    # The same as QEMU has it from VMCOREINFO.
    assert (
        answers["info"][0]["kaslr_offset"]
        == assert_agrees(guest, "--qemu", guest.sockets.debugger_qmp)["info"][0]["kaslr_offset"]
    )
    assert guest.qmp.running()


def test_stacks_of_running_tasks_through_the_stub(guest: Guest) -> None:
    """The registers of each CPU come through the stub: both idle tasks are unwound to the kernel's start."""
    with guest.paused():
        done = run_kcovdbg(
            *("--gdb-remote", guest.sockets.gdb_remote, "-s", guest.kernel.vmlinux, "last", "--all", "--json"),
        )
        through_qmp = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, "-s", guest.kernel.vmlinux, "last", "--all", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert done.stdout == through_qmp.stdout


@pytest.mark.parametrize(
    ("append", "cpu"),
    [
        ("nokaslr", ""),
        # Without E0PD, page-table isolation is on with KASLR: in user space the CPU has a table without the kernel.
        ("", "cortex-a72"),
    ],
)
def test_other_boots(append: str, cpu: str) -> None:
    with Guest(*built("6.12-arm64"), Machine(append=append, cpu=cpu)) as guest:
        guest.wait_done()
        answers = assert_agrees(guest, "--gdb-remote", guest.sockets.gdb_remote)
        assert (answers["info"][0]["kaslr_offset"] == "0x0") == (append == "nokaslr")


def have_gdb() -> str:
    if shutil.which("gdb-multiarch") is None:
        pytest.skip("needs gdb-multiarch")
    return "gdb-multiarch"


@pytest.fixture
def table(guest: Guest) -> None:
    """The kernel's table of lines is in the user's cache."""
    image = ElfFile(Path(guest.kernel.vmlinux).resolve())
    if open_table(str(image.build_id)) is None:
        build_table(image.path)


# The words of tasks that are stopped on a CPU are known to a debugger that has stopped them, and not to QMP.
def test_in_gdb_through_the_stub(guest: Guest, table: None, tmp_path: Path) -> None:
    program = have_gdb()
    with guest.paused():
        asked = ["--gdb-remote", guest.sockets.gdb_remote]
        lines, outside = gather(lambda lines: ask_kcovdbg(asked, guest.kernel.vmlinux, lines), tmp_path)
        connect = [f"target remote {guest.sockets.gdb_remote}"]
        in_gdb = ask_gdb([guest.kernel.vmlinux], [*lines, "info"], connect, program=program)
    check_same(lines, in_gdb, outside)


@pytest.mark.parametrize("cpu", ["", "cortex-a72"], ids=["by E0PD", "by page-table isolation"])
def test_in_gdb_in_user_space(cpu: str) -> None:
    """The kernel's memory is hidden from there."""
    program = have_gdb()
    with Guest(*built("6.12-arm64"), Machine(cpu=cpu)) as guest:
        guest.wait_done()
        done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, "-s", guest.kernel.vmlinux, "info", "--json")
        offset = int(json.loads(done.stdout)[0]["kaslr_offset"], 16)
        image = ElfFile(Path(guest.kernel.vmlinux).resolve())
        address = {name: f"{image.symbols.find(name).address + offset:#x}" for name in ("do_el0_svc", "linux_banner")}
        connect = [f"target remote {guest.sockets.gdb_remote}"]
        # pt_regs.pc of the system call's caller.
        stop = [f"thbreak *{address['do_el0_svc']}", "continue", "thbreak **(unsigned long *) ($x0 + 256)", "continue"]
        banner = f"x/s {address['linux_banner']}"
        with speaking_to(guest):
            said = run_gdb(
                guest.kernel.vmlinux,
                before=[*connect, *stop],
                ask=["print $cpsr & 0xf", banner, "kcov-show tasks --json", "kcov-show info --json"],
                program=program,
            )
    assert said.answers[0] == "$1 = 0"
    # GDB alone finds nothing of the kernel there.
    assert "Cannot access memory" in said.answers[1]
    assert len(said.json(2)) > 5
    assert int(said.json(3)[0]["kaslr_offset"], 16) == offset


@pytest.mark.parametrize("state", ["standing", "hub-section", "softirq-over-local", "crashed"])
def test_in_gdb_on_a_slice(guest: Guest, table: None, state: str, tmp_path: Path) -> None:
    program = have_gdb()
    dump = situation.dump_of(guest.kernel, guest.userland, state)
    path = tmp_path / "slice.elf"
    made = run_kcovdbg("-c", dump.path, "-s", dump.kernel.vmlinux, "slice", "-o", path)
    assert made.returncode == 0, made.stderr
    lines, outside = gather(lambda lines: ask_kcovdbg(["-c", path], dump.kernel.vmlinux, lines), tmp_path, 2)
    check_same(lines, ask_gdb([dump.kernel.vmlinux, path], lines, program=program), outside)


@pytest.mark.parametrize("state", ["standing", "softirq-over-local", "crashed"])
def test_kdump_compressed_by_qemu(guest: Guest, state: str) -> None:
    """``dump-guest-memory -z``."""
    dump = situation.dump_of(guest.kernel, guest.userland, state, "kdump")
    symbols = symbol_options(dump.kernel, dump.userland)
    answers = ask_state(["-c", dump.path], symbols)
    if state == "crashed":
        # What crashed the kernel came after what the guest printed.
        whole = ask_state(["-c", dump.path.with_name("elf")], symbols)
        assert {**answers, "info": []} == {**whole, "info": []}
        return
    differences = find_differences(dump.truth, answers)
    assert not differences, explain(differences)


@pytest.mark.parametrize("state", ["standing", "softirq-over-local"])
def test_slab_memory_is_drgns(guest: Guest, state: str) -> None:
    dump = situation.dump_of(guest.kernel, guest.userland, state)
    target = open_target(TargetOptions(core=str(dump.path), symbols=[str(dump.kernel.vmlinux)]))
    assert isinstance(target, DrgnTarget)
    assert isinstance(target.slab, SlabWalk)
    assert sorted(target.slab.for_each_file()) == list_files(target.prog)
    for size in (64, 256, 1024):
        assert sorted(found.address for found in target.slab.for_each_slab_object(size)) == list_general_objects(
            target.prog, size
        )


def test_another_vmlinux_is_refused(guest: Guest, tmp_path: Path) -> None:
    image = tmp_path / "vmlinux"
    shutil.copyfile(guest.kernel.vmlinux, image)
    data = image.read_bytes()
    # Another build of the same source differs in its banner at least.
    assert data.count(b"Linux version 6.12") >= 1
    image.write_bytes(data.replace(b"Linux version 6.12", b"Linux version 6.13"))
    done = run_kcovdbg("--gdb-remote", guest.sockets.gdb_remote, "-s", image, "tasks")
    assert done.returncode == 2
    assert str(image) in done.stderr
    assert guest.qmp.running()
