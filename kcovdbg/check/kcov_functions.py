# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find functions of KCOV on stacks. A task inside such a function may hold a reference or an area
that is on no list yet, or may have just written a member.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from kcovdbg.model.memory import StackFrame
from kcovdbg.series import table

_PREFIXES: Final[tuple[str, ...]] = (
    "kcov_open",
    "kcov_close",
    "kcov_mmap",
    "kcov_ioctl",
    "kcov_remote_start",
    "kcov_remote_stop",
    "kcov_task_exit",
    "kcov_task_init",
    "kcov_start",
    "kcov_stop",
    "kcov_put",
    "kcov_init",
)


def find_kcov_function(stack: Iterable[StackFrame] | None) -> str | None:
    """Return the innermost function of KCOV on a stack, None if there is none."""
    prefixes = _PREFIXES
    for series in table.SERIES:
        prefixes += series.functions
    for frame in stack or ():
        if frame.function is not None and frame.function.startswith(prefixes):
            return frame.function
    return None


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
_SWITCHING: Final = (
    "__schedule",
    "schedule",
    "__switch_to",
    "finish_task_switch",
    "prepare_task_switch",
    "context_switch",
)
# The functions in which a CPU waits for work.
_IDLE: Final = (
    "default_idle",
    "cpuidle_",
    "do_idle",
    "pv_native_safe_halt",
    "acpi_",
    "poll_idle",
    "arch_cpu_idle",
)
# Number of innermost frames in which these functions are searched for.
_NEAR: Final = 4


def find_kcov_writer(stack: Iterable[StackFrame]) -> str | None:
    """Return the function of KCOV that wrote, itself or through a function that it called; None if
    another function wrote.

    :param stack: the stack of the CPU that wrote.
    """
    return find_kcov_function(_without_interrupted(stack))


def _without_interrupted(stack: Iterable[StackFrame]) -> list[StackFrame]:
    """Return the frames of a stack up to interrupted code."""
    return [*takewhile(lambda frame: not (frame.function or "").startswith(_ENTRIES), stack)]


def is_context_switch(function: str | None) -> bool:
    """Return whether a function marks tasks as switched out and back in."""
    return function is not None and function.startswith(_SWITCHING)


def is_innocent(stack: Iterable[StackFrame]) -> bool:
    """Return whether a CPU cannot have written a field against the rules, because it is in KCOV,
    switches tasks, or is idle.
    """
    frames = _without_interrupted(stack)
    functions = [frame.function or "" for frame in frames[:_NEAR]]
    is_harmless = any(function.startswith((*_SWITCHING, *_IDLE)) for function in functions)
    return is_harmless or find_kcov_function(frames) is not None
