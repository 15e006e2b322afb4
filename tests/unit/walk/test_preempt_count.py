# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where machines keep a CPU's preemption count."""

import pytest

from kcovdbg.target.protocol import Member, Symbol
from kcovdbg.walk.saved import is_serving_softirq
from tests.support.memory_target import MemoryTarget, Structure

LOWCORES, SECOND, TASK = 0x1000, 0x8000, 0x9000


@pytest.mark.parametrize(("count", "serving"), [(0x100, True), (0x8000_0100, True), (0x200, False), (0x1_0000, False)])
def test_s390_has_it_in_each_cpus_lowcore(count, serving):
    target = MemoryTarget(big_endian=True)
    target.types["struct lowcore"] = Structure(8192, {"preempt_count": Member(0x3A8, 4, "__s32", True, None)})
    # One in the task, as other machines have it, would mislead.
    target.types["struct thread_info"] = Structure(16, {"preempt_count": Member(8, 4, "int", True, None)})
    target.types["struct task_struct"] = Structure(16, {"thread_info": Member(0, 16, "struct thread_info", False, None)})
    target.symbols["lowcore_ptr"] = Symbol("lowcore_ptr", LOWCORES, 16)
    target.segments[LOWCORES] = bytearray((0x4000).to_bytes(8, "big") + SECOND.to_bytes(8, "big"))
    target.segments[SECOND + 0x3A8] = bytearray(count.to_bytes(4, "big"))
    target.segments[TASK] = bytearray(16)
    assert is_serving_softirq(target, 1, TASK) is serving
    # The first CPU's is not in the dump.
    assert is_serving_softirq(target, 0, TASK) is None
