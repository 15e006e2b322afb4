# SPDX-License-Identifier: LGPL-2.1-or-later
"""What GDB would answer from the vmlinux file, or from nothing: each is refused, with a way out."""

from __future__ import annotations

import pytest

from kcovdbg.elf.file import ElfFile
from tests.support.gdb_run import Said, run_gdb

# As in the file, where no task has been made yet: the list of tasks is empty.
_EMPTY = "print init_task.tasks.next == &init_task.tasks"
_WRONG = "$1 = 1"


def check_refused(said: Said, reason: str, way_out: str) -> None:
    assert said.answers[-1] == ""
    assert reason in said.stderr
    assert way_out in said.stderr


@pytest.mark.parametrize("asked", ["kcov-show tasks", "print $kcov_count(34)"])
def test_no_target(demo, asked):
    said = run_gdb(demo.vmlinux, ask=[_EMPTY, asked])
    assert said.answers[0] == _WRONG
    check_refused(said, "no target", "target remote ADDRESS")


def test_target_that_is_gone(gdb):
    said = gdb(before=["kcov-show tasks", "detach", "core-file"], ask=["kcov-show tasks"])
    check_refused(said, "no target", "core-file PATH")


def test_another_build(demo, tmp_path):
    with ElfFile(demo.vmlinux) as image:
        build_id = bytes.fromhex(image.build_id)
    other = tmp_path / "vmlinux"
    other.write_bytes(demo.vmlinux.read_bytes().replace(build_id, build_id[::-1]))
    said = run_gdb(other, demo.core, ask=["kcov-show tasks"])
    check_refused(said, "does not match", build_id.hex())
    # The next core of the same GDB is another one.
    said = run_gdb(
        other,
        demo.core,
        ask=["kcov-show tasks", f"symbol-file {demo.vmlinux}", "kcov-show tasks --json"],
    )
    assert said.answers[0] == ""
    assert said.json()


def test_a_process(tmp_path):
    said = run_gdb("/bin/true", before=["starti"], ask=["kcov-show tasks"])
    check_refused(said, "a process", "target remote ADDRESS")
