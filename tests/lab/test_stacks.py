# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks are those that the guest prints."""

from __future__ import annotations

import re

from drgn.helpers.linux.pid import for_each_task

from kcovdbg.target.drgn.programs import open_core
from tests.lab.dump import write_dump
from tests.lab.guest import Machine
from tests.support.programs import output_of

# What the guest says about each thread: how often it was switched out, then where it sleeps.
_SAY = (
    "grep -s ctxt_switches /proc/[0-9]*/task/[0-9]*/status; grep -s . "
    "/proc/[0-9]*/task/[0-9]*/stack"
)
# A process that nobody waits for: its stack is freed, and the saved stack pointer stays.
_DIE = """
(sleep 0 & echo $! > /tmp/dead; exec sleep 1000) &
until grep -q '^State:.Z' /proc/$(cat /tmp/dead)/status; do sleep 0.1; done
"""


def parse_stacks(text: str) -> dict[int, tuple[int, list[tuple[str, int]]]]:
    """Return by thread how often it was switched out, and each frame's function and the offset in
    it.
    """
    found: dict[int, tuple[int, list[tuple[str, int]]]] = {}
    for tid, said in re.findall(r"^/proc/\d+/task/(\d+)/\w+:(.*)", text, re.MULTILINE):
        switched, frames = found.setdefault(int(tid), (0, []))
        if "ctxt_switches:" in said:
            found[int(tid)] = switched + int(said.split()[1]), frames
        elif match := re.match(r"\[<0>\] (\S+)\+(\w+)/", said):
            frames.append((match[1], int(match[2], 16)))
    return found


def test_stacks_that_the_guest_prints(kernel, userland, boot, tmp_path):
    guest = boot(Machine(cpus=2, shares=(("root", "/"),), exchange=str(tmp_path)))
    told = parse_stacks(guest.run(_DIE + _SAY).stdout)
    assert not told[int(guest.run("cat /tmp/dead").stdout)][1]
    write_dump(guest, tmp_path / "dump", "elf-paging")
    target = open_core(
        str(tmp_path / "dump"), [str(path) for path in (kernel.vmlinux, *userland.modules)]
    )
    sleeping: dict[int, list[int]] = {}
    for task in for_each_task(target.prog):
        tid, switched = task.pid.value_(), (task.nvcsw + task.nivcsw).value_()
        if not task.on_cpu and told.get(tid, (-1, []))[0] == switched:
            frames = target.stacks.stack_trace(task.value_())
            sleeping[tid] = [frame.pc for frame in frames if not frame.is_inline]
    symbols: dict[str, list[int]] = {}
    for line in output_of("nm", kernel.vmlinux).splitlines():
        address, _, name = line.split()
        symbols.setdefault(name, []).append(int(address, 16))
    offset = target.kaslr_offset
    (first,), (end,) = symbols["__sched_text_start"], symbols["__sched_text_end"]
    target.close()

    print(f"{len(sleeping)} stacks, {sum(map(len, sleeping.values()))} frames")
    assert len(sleeping) > 50
    for tid, stack in sleeping.items():
        # The kernel leaves out the scheduler's functions.
        left = [pc - offset for pc in stack if not first <= pc - offset < end]
        printed = told[tid][1]
        assert len(left) == len(printed), (tid, printed)
        for pc, (function, place) in zip(left, printed, strict=True):
            assert pc - place in symbols[function]
