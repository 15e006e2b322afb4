# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the function in which a crash began, by a stack. Functions that report the crash or handle
it, and helpers of any caller, are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kcovdbg.elf.symbol_table import demangle
from kcovdbg.records.report_table import CrashRole, is_allocator, role_of

_ALWAYS: Final = frozenset({CrashRole.REPORT, CrashRole.INSTRUMENTATION, CrashRole.HELPER})
HANDLING: Final = frozenset(
    {
        CrashRole.CRASH,
        CrashRole.REPORT,
        CrashRole.INTERRUPT_REPORT,
        CrashRole.EXCEPTION,
        CrashRole.ENTRY,
    }
)
"""The roles of functions that run because of a crash."""
# The lockup detector's timer checks another CPU (kernel/watchdog_buddy.c, whose own functions end
# in tail calls).
_REMOTE_CHECK: Final = frozenset({"watchdog_hardlockup_check", "watchdog_timer_fn"})
# kernel/rcu/tree_stall.h: without another CPU to blame, print_other_cpu_stall() shows the task that
# it interrupted.
_OWN_STALL: Final = frozenset({"sched_show_task", "print_other_cpu_stall"})


def plain_function(function: str | None) -> str:
    """Return a function's name, demangled, without the suffix of a clone, such as ``.isra.0``."""
    name = demangle(function or "")
    suffix = " (." if "::" in name else "."
    return name.split(suffix, 1)[0]


def find_allocation(names: Sequence[str | None]) -> int | None:
    """Return the index of the function that allocated, in the stack of an allocation; None if the
    stack ends before it.
    """
    for index, name in enumerate(map(plain_function, names)):
        if not is_allocator(name) and role_of(name) is not CrashRole.REPORT:
            return index
    return None


def find_origin(names: Sequence[str | None]) -> int | None:
    """Return the index of the function in which a reported crash, stall or hang began.

    :param names: functions of a stack, innermost first: of a crashed or hung task, or of a
        backtrace in the kernel's log; None for a frame without a name.
    :return: None if the stack belongs to the reporter, not the culprit, or ends before the
        function.
    """
    roles = roles_of(names)
    at = _find_end_of(CrashRole.CRASH, roles)
    # Before the first exception or interrupt, whatever a reporter calls is part of the report.
    entry = len(roles)
    if CrashRole.ENTRY in roles[at:]:
        entry = roles.index(CrashRole.ENTRY, at)
    reporting = set(roles[at:entry])
    reporters = {plain_function(name) for name in names[at:entry]}
    if not reporters >= _OWN_STALL and (
        CrashRole.REMOTE_REPORT in reporting or reporters >= _REMOTE_CHECK
    ):
        return None
    passed = _ALWAYS
    if CrashRole.INTERRUPT_REPORT in reporting or reporters >= _OWN_STALL:
        at, passed = entry, passed | {CrashRole.INTERRUPTED}
    elif CrashRole.REPORT in reporting:
        at = _find_end_of(CrashRole.REPORT, roles[:entry])
    elif at < len(roles) and roles[at] is CrashRole.WAIT:
        passed |= {CrashRole.WAIT}
    before: CrashRole | None = CrashRole.CRASH
    while at < len(roles):
        role = roles[at]
        if role is CrashRole.REPORT or (at and roles[at - 1] is CrashRole.REPORT):
            passed |= {CrashRole.ALLOCATOR, CrashRole.WAIT}
        # An interrupt may have preempted the task.
        is_handling = role in HANDLING and (
            before in HANDLING or (role is CrashRole.ENTRY and before is CrashRole.WAIT)
        )
        if role not in passed and not is_handling:
            # The function that an entry called is missing.
            return None if role in (CrashRole.ENTRY, CrashRole.OUTERMOST) else at
        before = role
        at += 1
    return None


def _find_end_of(wanted: CrashRole, roles: Sequence[CrashRole | None]) -> int:
    """Return the index behind the last function with a role; 0 if no function has it."""
    for index in reversed(range(len(roles))):
        if roles[index] is wanted:
            return index + 1
    return 0


def roles_of(names: Iterable[str | None]) -> list[CrashRole | None]:
    """Return the role of each function in a crash."""
    return [role_of(plain_function(name)) for name in names]
