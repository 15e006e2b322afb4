# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a task's coverage ends, and where it meets its stack.

A kernel that crashes goes on executing: what panic() prints lands in the coverage buffer, tens of thousands of records of it.
The stack tells in which function the crash began; the coverage up to there is what led to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcovdbg.target import StackFrame

# Functions that nothing but a crash calls, on x86 and arm64.
_CRASH: Final = re.compile(
    r"(v?panic|nmi_panic|oops_\w+|die|__die\w*|die_\w+|page_fault_oops|make_task_dead|__?crash_kexec|crash_kexec_post_notifiers"
    r"|(native_)?machine_crash_shutdown|__do_kernel_fault|no_context|arm64_notify_die)$"
)
# What lies between an exception and these.
_EXCEPTION: Final = re.compile(
    r"(asm_(exc|sysvec|common)_\w+|sysvec_\w+|exc_\w+|kernelmode_fixup_or_oops|__?bad_area\w*|do_(user|kern)_addr_fault"
    r"|handle_page_fault|do_(error_)?trap\w*|handle_bug|report_bug|do_mem_abort|do_page_fault|do_translation_fault|__do_page_fault"
    r"|el1h?_\w+|do_invalid_op|do_general_protection|invalid_op|general_protection|page_fault|math_error|do_undefinstr"
    r"|bug_handler|brk_handler|call_break_hook|do_debug_exception)$"
)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a buffer that matters."""

    end: int
    """Records from here on are of the crash's own handling; the number of all where there is no crash."""
    fault: str | None = None
    """The function in which the crash began."""
    is_covered: bool = True
    """Whether it has records of its own."""
    meets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """From a record to the frames of the stack, 0 the innermost, whose function it is the last one of."""


def plain(function: str | None) -> str | None:
    """Return a function's name without what the compiler appends to a clone's."""
    return None if function is None else function.split(".", 1)[0]


def find_fault(stack: Sequence[StackFrame]) -> int | None:
    """Return the number of the frame in which a crash began, None where the stack shows no crash."""
    crash = [number for number, frame in enumerate(stack) if _CRASH.match(plain(frame.function) or "")]
    if not crash:
        return None
    number = crash[-1] + 1
    while number < len(stack) and _EXCEPTION.match(plain(stack[number].function) or ""):
        number += 1
    return number if number < len(stack) else None


def find_ending(pcs: Sequence[int], symbol: Callable[[int], str | None], stack: Sequence[StackFrame]) -> Ending:
    """Find where coverage ends before a crash, and where it meets the stack.

    :param pcs: of the records, 0 where one has none.
    :param symbol: from a PC to the function that its code was compiled into.
    :param stack: of the task, innermost frame first.
    """
    known: dict[int, str | None] = {}
    names: list[str | None] = []
    for pc in pcs:
        if pc not in known:
            known[pc] = plain(symbol(pc)) if pc else None
        names.append(known[pc])
    fault = find_fault(stack)
    end, name, covered = len(names), None, True
    if fault is not None:
        # Of functions that are inlined, records are called by what they were inlined into.
        while fault < len(stack) - 1 and stack[fault].is_inline:
            fault += 1
        name = plain(stack[fault].function)
        end, covered = _cut(names, stack, fault)
    return Ending(end, name, covered, _meet(names, stack, end))


def _cut(names: Sequence[str | None], stack: Sequence[StackFrame], fault: int) -> tuple[int, bool]:
    """Return the number of records before the crash, and whether the function in which it began has any."""
    handling = {plain(frame.function) for frame in stack[:fault]}

    def is_handling(name: str | None) -> bool:
        return name is not None and (name in handling or bool(_CRASH.match(name) or _EXCEPTION.match(name)))

    for number in range(fault, len(stack)):
        wanted = plain(stack[number].function)
        places = [index for index, name in enumerate(names) if name == wanted]
        if not places:
            # It isn't instrumented: what called it is.
            continue
        # What is printed about the crash may pass through the function again: the record after which its handling follows.
        adjacent = [index for index in places if index + 1 < len(names) and is_handling(names[index + 1])]
        if number == fault:
            return (adjacent[-1] if adjacent else places[-1]) + 1, True
        following = (index for index in range(places[-1] + 1, len(names)) if is_handling(names[index]))
        return next(following, len(names)), False
    return len(names), False


def _meet(names: Sequence[str | None], stack: Sequence[StackFrame], end: int) -> dict[int, tuple[int, ...]]:
    wanted: dict[str, list[int]] = {}
    for number, frame in enumerate(stack):
        name = plain(frame.function)
        if name is not None and not frame.is_inline:
            wanted.setdefault(name, []).append(number)
    found: dict[int, tuple[int, ...]] = {}
    for index in range(end - 1, -1, -1):
        if not wanted:
            break
        name = names[index]
        if name is not None and name in wanted:
            found[index] = tuple(wanted.pop(name))
    return found
