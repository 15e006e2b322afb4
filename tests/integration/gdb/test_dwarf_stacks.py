# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks that GDB unwinds, of a vmlinux without ORC, are those that kcovdbg unwinds by ORC."""

from __future__ import annotations

import subprocess

import pytest

from tests.lab import situation
from tests.lab.guest import Machine
from tests.support.gdb_run import run_gdb

pytestmark = pytest.mark.lab

_ORC = (".orc_header", ".orc_unwind_ip", ".orc_unwind", ".orc_lookup")
# GDB prints frames of its user before and after: they must be the same.
_FRAMES = "frame 2"
_WHERE = "bt 3"
_STACKS = """
import json, kcovdbg.target.gdb.opener as opener
from kcovdbg.errors import KcovdbgError
target = opener.open_target()
found = {}
for task in json.loads(gdb.execute("kcov-show tasks -a --json", to_string=True)):
    try:
        found[task["task"]] = [list(frame) for frame in target.stacks.stack_trace(int(task["task"], 16))]
    except KcovdbgError as error:
        found[task["task"]] = str(error)
print(json.dumps([{"stacks": found, "note": target.stacks.note}]))
"""
_ASK = f"python exec({_STACKS!r})"


@pytest.fixture(scope="module")
def without_orc(kernel, tmp_path_factory):
    made = tmp_path_factory.mktemp("dwarf") / "vmlinux"
    removed = [word for name in _ORC for word in ("-R", name)]
    subprocess.run(["objcopy", *removed, kernel.vmlinux, made], check=True, capture_output=True)
    return made


def compare(by_orc, by_gdb):
    """Check that the stacks are the same; return how many tasks and frames were compared."""
    assert by_orc["note"] is None
    assert by_gdb["note"] is not None
    assert by_gdb["stacks"] == by_orc["stacks"]
    stacks = [stack for stack in by_orc["stacks"].values() if isinstance(stack, list)]
    return len(stacks), sum(map(len, stacks))


@pytest.mark.parametrize("state", [situation.STANDING, situation.CRASHED, "softirq-over-section", "softirq-over-local"])
def test_on_a_dump(kernel, without_orc, inflight_dump, state):
    path = inflight_dump(state, "elf-paging").path
    by_orc, by_gdb = (run_gdb(vmlinux, path, ask=[_ASK], timeout=300) for vmlinux in (kernel.vmlinux, without_orc))
    tasks, frames = compare(by_orc.json()[0], by_gdb.json()[0])
    print(f"{tasks} stacks, {frames} frames")
    assert tasks > 50
    assert frames > 5 * tasks


def test_symbols_where_the_kernel_is(kernel, without_orc, standing_dump):
    path = standing_dump("elf-paging").path
    offset = run_gdb(kernel.vmlinux, path, ask=["kcov-show info --json"]).json()[0]["kaslr_offset"]
    by_orc = run_gdb(kernel.vmlinux, path, ask=[_ASK])
    relocated = run_gdb(
        before=[f"symbol-file {without_orc} -o {offset}", f"core-file {path}", _FRAMES],
        ask=[_WHERE, "frame", _ASK, _WHERE, "frame"],
    )
    compare(by_orc.json()[0], relocated.json(2)[0])
    # GDB's user sees none of it.
    assert relocated.answers[0].count("\n") >= 2
    assert relocated.answers[3:] == relocated.answers[:2]


def test_through_the_stub(kernel, without_orc, boot):
    guest = boot(Machine(cpus=2))
    guest.wait_done()
    with guest.paused():
        connect = [f"target remote {guest.sockets.gdb_remote}"]
        by_orc, by_gdb = (
            run_gdb(vmlinux, before=connect, ask=[_ASK, "info threads"], timeout=300)
            for vmlinux in (kernel.vmlinux, without_orc)
        )
    # GDB comes in again after it has let the guest run: stacks of tasks that sleep are as they were.
    ours, theirs = by_orc.json(0)[0], by_gdb.json(0)[0]
    same = [task for task, stack in ours["stacks"].items() if theirs["stacks"].get(task) == stack and isinstance(stack, list)]
    assert len(same) > 50
    assert len(same) >= 0.9 * len(ours["stacks"])


def test_which_unwinder_answers(kernel, without_orc, standing_dump):
    path = standing_dump("elf-paging").path
    for vmlinux, is_said in ((kernel.vmlinux, False), (without_orc, True)):
        said = run_gdb(vmlinux, path, ask=["kcov-show last -a --json"])
        assert said.json()
        assert ("unwound by GDB" in said.stderr) is is_said
