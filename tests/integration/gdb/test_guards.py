# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads that GDB would answer from the vmlinux file: each test first shows GDB's wrong answer."""

from __future__ import annotations

import struct

import pytest

from tests.integration.gdb.conftest import Imitation, compile_imitation
from tests.support.gdb_run import Said, run_gdb

# As in the file, where no task has been made yet: the list of tasks is empty.
_EMPTY = "print init_task.tasks.next == &init_task.tasks"
_WRONG = "$1 = 1"


def check_refused(said: Said, reason: str, way_out: str) -> None:
    assert said.answers[-1] == ""
    assert reason in said.stderr
    assert way_out in said.stderr


def test_no_target(imitation):
    said = run_gdb(imitation.program, ask=[_EMPTY, "kcov-show tasks"])
    assert said.answers[0] == _WRONG
    check_refused(said, "no target", "target remote ADDRESS")


def test_no_kernel(imitation):
    said = run_gdb("-c", imitation.core, ask=["symbol-file", "kcov-show tasks"])
    check_refused(said, "no kernel is loaded", "symbol-file VMLINUX")


def without_page(made: Imitation, address: int) -> bytes:
    """Return the core without the segment that has an address, as makedumpfile leaves out pages."""
    data = bytearray(made.core.read_bytes())
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    for index in range(count):
        place = offset + index * size
        kind, _, _, start, _, in_file, _ = struct.unpack_from("<IIQQQQQ", data, place)
        if kind == 1 and start <= address < start + in_file:
            # Nothing of it is in the file.
            struct.pack_into("<QQ", data, place + 32, 0, 0)
    return bytes(data)


def test_page_that_a_core_lacks(imitation, tmp_path):
    address = run_gdb(imitation.program, ask=["output/x &init_task"]).text
    core = tmp_path / "partial.core"
    core.write_bytes(without_page(imitation, int(address, 16)))
    said = run_gdb(imitation.program, core, ask=[_EMPTY, "kcov-show tasks"])
    assert said.answers[0] == _WRONG
    assert "not in the core" in said.text + said.stderr
    assert "41" not in said.answers[-1].split("note:")[0]


@pytest.mark.parametrize("flags", [('-DBANNER="Linux version 6.13.0-other (nobody@nowhere) #1 SMP"',), ()])
def test_another_build(imitation, tmp_path, flags):
    # Another release; and the same release, with another configuration.
    other = compile_imitation(tmp_path, "other", "-no-pie", "-fno-pie", "-DOTHER_LAYOUT", *flags)
    walk = "print ((struct task_struct *)((char *)init_task.tasks.next - (long)&((struct task_struct *)0)->tasks))->pid"
    right = run_gdb(imitation.program, imitation.core, ask=[walk, "kcov-show tasks --json"])
    assert right.answers[0] == "$1 = 41"
    assert 41 in {row["pid"] for row in right.json()}
    # Newer versions of GDB open the program that a core names, unless another one is named after it.
    said = run_gdb(before=[f"core-file {imitation.core}", f"file {other}"], ask=[walk, "kcov-show tasks"])
    # GDB takes the memory there for a task.
    assert said.answers[0].startswith("$1 = ")
    assert said.answers[0] != "$1 = 41"
    check_refused(said, "not the vmlinux of", "symbol-file VMLINUX")


def test_target_that_is_gone(imitation):
    said = run_gdb(
        imitation.program, imitation.core, before=["kcov-show tasks", "detach", "core-file"], ask=["kcov-show tasks"]
    )
    check_refused(said, "no target", "core-file PATH")


def test_functions_are_guarded_too(imitation):
    said = run_gdb(imitation.program, ask=["print $kcov_count(41)"])
    check_refused(said, "no target", "core-file PATH")
