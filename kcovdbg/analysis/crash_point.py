# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where coverage of a crashed task ends, and which records belong to functions on its stack.

A crashing kernel keeps executing: panic() and its output leave tens of thousands of records in the buffer. The stack shows in
which function the crash began; the records up to there led to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcovdbg.model.memory import StackFrame

# Functions that only run in a crash.
_CRASH: Final = re.compile(
    r"(v?panic|nmi_panic|oops_\w+|die|__die\w*|die_\w+|page_fault_oops|make_task_dead|__?crash_kexec|crash_kexec_post_notifiers"
    r"|(native_)?machine_crash_shutdown|__do_kernel_fault|(do_)?no_context|arm64_notify_die)$"
)
# Functions between the exception and those: its handlers, the reports that panic_on_warn makes a crash of, and the timer of the
# soft lockup detector.
_EXCEPTION: Final = re.compile(
    "("
    # x86; DEFINE_IDTENTRY() makes two functions of a handler.
    r"asm_(exc|sysvec|common)_\w+|sysvec_\w+|(__)?exc_\w+|kernelmode_fixup_or_oops|_{0,2}bad_area\w*|do_(user|kern)_addr_fault"
    r"|handle_page_fault|do_(error_)?trap\w*|handle_bug|do_page_fault|__do_page_fault|do_invalid_op|do_general_protection"
    r"|invalid_op|general_protection|page_fault|math_error"
    # arm64
    r"|el1h?_\w+|do_el1_\w+|do_mem_abort|do_translation_fault|do_bad(_area)?|do_alignment_fault|do_tag_check_fault|do_sea"
    r"|do_sp_pc_abort|do_undefinstr|do_debug_exception|call_(el1_)?break_hook"
    r"|brk_handler|(bug|cfi|kasan|ubsan|reserved_fault)_(brk_)?handler"
    # riscv64, beside names of x86
    r"|handle_exception|handle_break|handle_bad_stack|handle_kernel_stack_overflow"
    # s390x
    r"|pgm_check_handler|__do_pgm_check|do_(dat|protection)_exception|do_exception|handle_fault_error\w*|do_report_trap"
    r"|default_trap_handler|illegal_op|\w+_event_exception|kernel_stack_overflow"
    # all
    r"|check_panic_on_warn|__warn|warn_slowpath_\w+|(__)?report_bug|end_report|kasan_report\w*|__?kasan_check_\w+|__asan_\w+"
    r"|kasan_check_range|kmsan_report|kmsan_internal_check_memory|__msan_\w+|kcsan_report\w*|ubsan_epilogue|__ubsan_\w+"
    r"|watchdog_timer_fn|__run_hrtimer|__hrtimer_run_queues|hrtimer_interrupt|local_apic_timer_interrupt|\w*_sysvec_\w+)$"
)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The end of the coverage that led to a crash."""

    end: int
    """Index of the first record of the crash handling; the number of records if there is no crash."""
    fault: str | None = None
    """The function in which the crash began."""
    is_covered: bool = True
    """Whether that function has records of its own."""
    meets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """From the index of a record to the stack frames, 0 the innermost, for whose function it is the last record."""


def plain(function: str | None) -> str | None:
    """Return a function's name without the suffix of a compiler's clone, such as ``.isra.0``."""
    return None if function is None else function.split(".", 1)[0]


def find_fault(stack: Sequence[StackFrame]) -> int | None:
    """Return the number of the frame in which a crash began; None if the stack shows no crash."""
    crash = [number for number, frame in enumerate(stack) if _CRASH.match(plain(frame.function) or "")]
    if not crash:
        return None
    number = crash[-1] + 1
    while number < len(stack) and _EXCEPTION.match(plain(stack[number].function) or ""):
        number += 1
    return number if number < len(stack) else None


def find_crash_point(
    pcs: Sequence[int], symbol: Callable[[int], str | None], stack: Sequence[StackFrame], *, is_crashed: bool = False
) -> CrashPoint:
    """Return where the coverage before a crash ends, and which records belong to functions on the stack.

    :param pcs: PC of each record; 0 for a record without one.
    :param symbol: returns the function into which a PC's code was compiled.
    :param stack: stack of the task, innermost frame first.
    :param is_crashed: whether the kernel names the task as the one that crashed it.
    """
    known: dict[int, str | None] = {}
    names: list[str | None] = []
    for pc in pcs:
        if pc not in known:
            known[pc] = plain(symbol(pc)) if pc else None
        names.append(known[pc])
    fault = find_fault(stack)
    if fault is None and is_crashed and stack and any(name is not None and _CRASH.match(name) for name in known.values()):
        # The dump that kdump takes of an oops has the registers of the fault: crash_kexec() passes them on.
        fault = 0
    end, name, covered = len(names), None, True
    if fault is not None:
        # Records of inlined functions carry the name of the function into which they were compiled.
        while fault < len(stack) - 1 and stack[fault].is_inline:
            fault += 1
        name = plain(stack[fault].function)
        end, covered = _cut(names, stack, fault)
    return CrashPoint(end, name, covered, _meet(names, stack, end))


def _cut(names: Sequence[str | None], stack: Sequence[StackFrame], fault: int) -> tuple[int, bool]:
    """Return the number of records before the crash, and whether the function in which it began has a record."""
    handling = {plain(frame.function) for frame in stack[:fault]}

    def is_handling(name: str | None) -> bool:
        return name is not None and (name in handling or bool(_CRASH.match(name) or _EXCEPTION.match(name)))

    for number in range(fault, len(stack)):
        wanted = plain(stack[number].function)
        places = [index for index, name in enumerate(names) if name == wanted]
        if not places:
            # Not instrumented: try its caller.
            continue
        # Crash handling may call the function again: prefer its last record that is directly followed by crash handling.
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
