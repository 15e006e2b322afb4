# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks that kcovdbg unwinds are those that drgn unwinds; drgn uses DWARF's call frame information where there is some."""

from __future__ import annotations

from pathlib import Path

import pytest
from drgn.helpers.linux.pid import for_each_task

from kcovdbg.elf.file import ElfFile
from kcovdbg.target.drgn.programs import open_core
from kcovdbg.target.orc_tables import OrcTables
from kcovdbg.target.pointer import read_word
from kcovdbg.target.stack_walk import StackWalk
from tests.lab import situation

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("state", [situation.STANDING, "softirq-over-section"])
def test_stacks_of_tasks_that_sleep(kernel, inflight_dump, state):
    target = open_core(str(inflight_dump(state, "elf-paging").path), [str(kernel.vmlinux)])
    walk = StackWalk(target, OrcTables(target, ElfFile(Path(kernel.vmlinux).resolve())))
    frame = "struct inactive_task_frame"
    rip, rbp = (target.member(frame, name).offset for name in ("ret_addr", "bp"))
    saved = target.member("struct task_struct", "thread.sp").offset
    compared = frames = 0
    for task in for_each_task(target.prog):
        if task.on_cpu:
            continue
        address = task.value_()
        expected = [frame.pc for frame in target.stacks.stack_trace(address) if not frame.is_inline]
        sp = read_word(target, address + saved)
        registers = {
            "rip": read_word(target, sp + rip),
            "rbp": read_word(target, sp + rbp),
            "rsp": sp + target.type_size(frame),
        }
        assert [place.pc for place in walk.unwind(registers, is_interrupted=False)] == expected, task.comm.string_()
        compared += 1
        frames += len(expected)
    target.close()
    assert compared > 50
    assert frames > 5 * compared
