# SPDX-License-Identifier: LGPL-2.1-or-later
"""Interrupts on top of a task's own frames."""

import pytest

from kcovdbg.model.interrupt_frames import find_interrupt_frames
from kcovdbg.model.memory import StackFrame

SYSTEM_CALL = ("vfs_read", "__x64_sys_read", "do_syscall_64", "entry_SYSCALL_64_after_hwframe")
TIMER = ("tick", "sysvec_apic_timer_interrupt", "asm_sysvec_apic_timer_interrupt")
SOFTIRQ = ("net_rx", "handle_softirqs", "__do_softirq")


def make_stack(functions):
    return [StackFrame(0, function, None, None, None, False) for function in functions]


@pytest.mark.parametrize(
    ("on_top", "own"),
    [
        ((), SYSTEM_CALL),
        (TIMER, SYSTEM_CALL),
        ((*SOFTIRQ, "irq_exit_rcu", *TIMER[1:]), SYSTEM_CALL),
        # A task's own softirqs are not recorded either.
        (SOFTIRQ, ("do_softirq", "__local_bh_enable_ip", *SYSTEM_CALL)),
        ((*TIMER, *SOFTIRQ, "irq_exit_rcu", *TIMER[1:]), SYSTEM_CALL),
        # Work before the return to user space is the task's again, whoever interrupted it.
        (TIMER, ("run_work", "irqentry_exit_to_user_mode", *TIMER[1:])),
    ],
)
def test_frames(on_top, own):
    stack = make_stack((*on_top, *own))
    found = find_interrupt_frames(stack)
    assert stack[len(found) :] == make_stack(own[1:] if own[0] == "do_softirq" else own)
