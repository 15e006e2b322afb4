# SPDX-License-Identifier: LGPL-2.1-or-later
"""The frames of interrupts and softirqs on a kernel stack, by the names of their functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kcovdbg.model.memory import StackFrame

# The outermost functions of interrupts and softirqs on x86 and arm64.
_INTERRUPT: Final = re.compile(
    r"(asm_sysvec_\w+|sysvec_\w+|asm_common_interrupt|common_interrupt|asm_exc_nmi|exc_nmi|do_IRQ"
    r"|ret_from_intr|apic_timer_interrupt"
    r"|el[01][ht]_\d+_(irq|fiq)\w*|el1_interrupt|el0_interrupt|gic_handle_irq|call_on_irq_stack"
    r"|irq_exit\w*|__irq_exit_rcu"
    r"|(__)?do_softirq\w*|handle_softirqs|run_ksoftirqd)$"
)
# The entries of interrupts in assembly: an interrupt may come directly on top of another one's
# frame.
_INTERRUPT_ENTRY: Final = re.compile(r"(asm_\w+|el[01][ht]_\d+_(irq|fiq)\w*)$")
# Functions that the entry code calls after an interrupt, in the context that was interrupted:
# rescheduling, and work before the return to user space.
_INTERRUPT_EXIT: Final = re.compile(
    r"(irqentry_exit\w*|raw_irqentry_exit_cond_resched|(arm64_)?preempt_schedule_irq"
    r"|exit_to_kernel_mode\w*|exit_to_user_mode\w*"
    r"|(prepare_)?exit_to_usermode\w*|do_notify_resume)$"
)


def is_interrupt_function(name: str) -> bool:
    """Return whether a function is the outermost one of interrupts or softirqs."""
    return _INTERRUPT.match(name) is not None


def find_interrupt_frames(stack: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return the frames of interrupts and softirqs on top of a task's own, innermost first.

    Code that runs after an interrupt's handler and before its return runs in the task's context
    again, and KCOV records it: its frames are not returned.

    :param stack: innermost frame first.
    """
    # Outermost frames of the interrupts that are handled, the outer ones first.
    active: list[int] = []
    outer = ""
    for number, frame in reversed(list(enumerate(stack))):
        function = frame.function or ""
        if _INTERRUPT.match(function) and (
            _INTERRUPT_ENTRY.match(function) or not _INTERRUPT.match(outer)
        ):
            active.append(number)
        elif _INTERRUPT_EXIT.match(function) and _INTERRUPT.match(outer):
            active.pop()
        outer = function
    return stack[: active[0] + 1] if active else ()
