# SPDX-License-Identifier: LGPL-2.1-or-later
"""The writer of a field: KCOV's own functions change several fields one by one, so that a single write of theirs is no bug."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from kcovdbg.check.kcov_functions import find_kcov_function
from kcovdbg.model.memory import StackFrame

# Functions through which an interrupt enters; the outer frames belong to the interrupted code.
_ENTRIES: Final = (
    "asm_",
    "call_on_irq_stack",
    "common_interrupt",
    "do_softirq",
    "__do_softirq",
    "handle_softirqs",
    "el1h_64_",
    "el0t_64_",
    "sysvec_",
    "exc_",
    "nmi_",
)
# The functions that set and clear the flag of a task that is switched out.
_SWITCHING: Final = ("__schedule", "schedule", "__switch_to", "finish_task_switch", "prepare_task_switch", "context_switch")
# The functions in which a CPU waits for work.
_IDLE: Final = ("default_idle", "cpuidle_", "do_idle", "pv_native_safe_halt", "acpi_", "poll_idle", "arch_cpu_idle")
# The innermost frames in which these are looked for.
_NEAR: Final = 4


def find_kcov_writer(stack: Iterable[StackFrame]) -> str | None:
    """Return the function of KCOV that wrote, itself or by a helper that it called; None where none did.

    :param stack: of the CPU that wrote; what an interrupt interrupted did not write.
    """
    return find_kcov_function(takewhile(lambda frame: not (frame.function or "").startswith(_ENTRIES), stack))


def is_context_switch(function: str | None) -> bool:
    """Return whether a function marks tasks as switched out and back in."""
    return function is not None and function.startswith(_SWITCHING)


def is_innocent(stack: Iterable[StackFrame]) -> bool:
    """Return whether a CPU with this stack cannot just have written to a field against the rules: it is in KCOV, switches
    tasks, or is idle.
    """
    frames = tuple(takewhile(lambda frame: not (frame.function or "").startswith(_ENTRIES), stack))
    functions = [frame.function or "" for frame in frames[:_NEAR]]
    return find_kcov_function(frames) is not None or any(function.startswith((*_SWITCHING, *_IDLE)) for function in functions)
