# SPDX-License-Identifier: LGPL-2.1-or-later
"""The end of a crashed task's coverage, and the records of functions on its stack.

A crashing kernel keeps executing: panic() and its output leave tens of thousands of records in the buffer. The stack shows in
which function the crash began; the records up to there led to it. Functions that notice, report or handle a crash, or that work
for any caller, are not where it began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Final

from kcovdbg.elf.symbol_table import demangle
from kcovdbg.model.memory import StackFrame


class CrashRole(Enum):
    """The part of a function in a crash."""

    CRASH = "runs only in a crash"
    REPORT = "reports what its caller did"
    INTERRUPT_REPORT = "runs in an interrupt and reports what that interrupted"
    REMOTE_REPORT = "reports what another task or CPU did"
    EXCEPTION = "handles an exception"
    ENTRY = "entry point of an exception or interrupt"
    OUTERMOST = "entry point of a system call or of a new task"
    INSTRUMENTATION = "called by code that the compiler or a macro adds"
    HELPER = "works for any caller"
    ALLOCATOR = "allocates or frees for its caller, and is passed over behind a report"
    WAIT = "puts the task to sleep"
    INTERRUPTED = "is passed over where an interrupt found the CPU in it"


def _read_roles() -> Iterator[tuple[re.Pattern[str], CrashRole]]:
    """Read the groups of functions in ``crash_functions.ini``: regular expressions of whole names without a clone's suffix."""
    tables = ConfigParser(interpolation=None)
    tables.read_string(files(__package__).joinpath("crash_functions.ini").read_text("utf-8"))
    for name in tables.sections():
        functions = "|".join(tables[name]["functions"].split())
        yield re.compile(f"(?:{functions})$"), CrashRole[tables[name]["role"].upper()]


# The longest name of a symbol (include/linux/kallsyms.h); one of an image may be longer.
KSYM_NAME_LEN: Final = 512
# A function has the role of the first group that names it.
_ROLES: Final = tuple(_read_roles())


@cache
def role_of(function: str) -> CrashRole | None:
    """Return what a function has to do with a crash, None for an ordinary one.

    :param function: its name, without the suffix of a compiler's clone.
    """
    if len(function) > KSYM_NAME_LEN:
        return None
    return next((role for pattern, role in _ROLES if pattern.match(function)), None)


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


_ALWAYS: Final = frozenset({CrashRole.REPORT, CrashRole.INSTRUMENTATION, CrashRole.HELPER})
_HANDLING: Final = frozenset(
    {CrashRole.CRASH, CrashRole.REPORT, CrashRole.INTERRUPT_REPORT, CrashRole.EXCEPTION, CrashRole.ENTRY}
)
# The lockup detector's timer checks another CPU (kernel/watchdog_buddy.c, whose own functions end in tail calls).
_REMOTE_CHECK: Final = frozenset({"watchdog_hardlockup_check", "watchdog_timer_fn"})
# kernel/rcu/tree_stall.h: without another CPU to blame, print_other_cpu_stall() shows the task that it interrupted.
_OWN_STALL: Final = frozenset({"sched_show_task", "print_other_cpu_stall"})


def _plain(function: str | None) -> str:
    """Return a function's name without the suffix of a compiler's clone, such as ``.isra.0``; of Rust, demangled."""
    name = demangle(function or "")
    return name.split(" (.", 1)[0] if "::" in name else name.split(".", 1)[0]


def find_fault(stack: Sequence[StackFrame], *, is_clean: bool = False) -> int | None:
    """Return the number of the frame in which a crash began; None if the stack shows no crash, or one noticed for another.

    :param is_clean: whether the stack begins where it happened, without what handles a crash.
    """
    names = [frame.function for frame in stack]
    return find_origin(names) if is_clean or CrashRole.CRASH in _roles(names) else None


def find_origin(names: Sequence[str | None]) -> int | None:
    """Return the index of the function in which a reported crash, stall or hang began.

    :param names: functions of a stack, innermost first: of a crashed or hung task, or of a backtrace in the kernel's log;
        None for a frame without a name.
    :return: None where the stack is that of who noticed what another task or CPU did, or ends before the function.
    """
    roles = _roles(names)
    at = max((index for index, role in enumerate(roles) if role is CrashRole.CRASH), default=-1) + 1
    # Before the first exception or interrupt, whatever a reporter calls is part of the report.
    entry = next((index for index in range(at, len(roles)) if roles[index] is CrashRole.ENTRY), len(roles))
    reporting = set(roles[at:entry])
    reporters = {_plain(name) for name in names[at:entry]}
    if not reporters >= _OWN_STALL and (CrashRole.REMOTE_REPORT in reporting or reporters >= _REMOTE_CHECK):
        return None
    passed = _ALWAYS
    if CrashRole.INTERRUPT_REPORT in reporting or reporters >= _OWN_STALL:
        at, passed = entry, passed | {CrashRole.INTERRUPTED}
    elif CrashRole.REPORT in reporting:
        at = max(index for index in range(at, entry) if roles[index] is CrashRole.REPORT) + 1
    elif at < len(roles) and roles[at] is CrashRole.WAIT:
        passed |= {CrashRole.WAIT}
    before: CrashRole | None = CrashRole.CRASH
    while at < len(roles):
        role = roles[at]
        if role is CrashRole.REPORT or (at and roles[at - 1] is CrashRole.REPORT):
            passed |= {CrashRole.ALLOCATOR, CrashRole.WAIT}
        # An interrupt may have preempted the task.
        is_handling = role in _HANDLING and (before in _HANDLING or (role is CrashRole.ENTRY and before is CrashRole.WAIT))
        if role not in passed and not is_handling:
            # The function that an entry called is missing.
            return None if role in (CrashRole.ENTRY, CrashRole.OUTERMOST) else at
        before = role
        at += 1
    return None


def _roles(names: Iterable[str | None]) -> list[CrashRole | None]:
    return [role_of(_plain(name)) for name in names]


def find_crash_point(
    pcs: Sequence[int],
    symbol: Callable[[int], str | None],
    stack: Sequence[StackFrame],
    *,
    is_crashed: bool = False,
    is_stuck: bool = False,
) -> CrashPoint:
    """Return where the coverage before a crash ends, and which records belong to functions on the stack.

    :param pcs: PC of each record; 0 for a record without one.
    :param symbol: returns the function into which a PC's code was compiled.
    :param stack: stack of the task, innermost frame first.
    :param is_crashed: whether the kernel names the task as the one that crashed it.
    :param is_stuck: whether another task or CPU reported that it hangs or stalls: then it has not recorded any crash handling.
    """
    known = {pc: _plain(symbol(pc)) if pc else "" for pc in set(pcs)}
    names = [known[pc] for pc in pcs]
    # The dump that kdump takes of an oops has the registers of the fault: crash_kexec() passes them on.
    fault = find_fault(stack, is_clean=is_stuck or (is_crashed and CrashRole.CRASH in _roles(known.values())))
    end, name, covered = len(names), None, True
    if fault is not None:
        # Records of inlined functions carry the name of the function into which they were compiled.
        while fault < len(stack) - 1 and stack[fault].is_inline:
            fault += 1
        name = _plain(stack[fault].function) or None
        end, covered = (end, name in names) if is_stuck else _cut(names, stack, fault)
    return CrashPoint(end, name, covered, _meet(names, stack, end))


def _cut(names: Sequence[str], stack: Sequence[StackFrame], fault: int) -> tuple[int, bool]:
    """Return the number of records before the crash, and whether the function in which it began has a record."""
    handling = {_plain(frame.function) for frame in stack[:fault]}

    def is_handling(name: str) -> bool:
        return bool(name) and (name in handling or role_of(name) in _HANDLING)

    for number in range(fault, len(stack)):
        wanted = _plain(stack[number].function)
        indices = [index for index, name in enumerate(names) if name == wanted]
        if not indices:
            # Not instrumented: try its caller.
            continue
        # Crash handling may call the function again: prefer its last record that is directly followed by crash handling.
        adjacent = [index for index in indices if index + 1 < len(names) and is_handling(names[index + 1])]
        if number == fault:
            return (adjacent[-1] if adjacent else indices[-1]) + 1, True
        following = (index for index in range(indices[-1] + 1, len(names)) if is_handling(names[index]))
        return next(following, len(names)), False
    return len(names), False


def _meet(names: Sequence[str], stack: Sequence[StackFrame], end: int) -> dict[int, tuple[int, ...]]:
    wanted: dict[str, list[int]] = {}
    for number, frame in enumerate(stack):
        if frame.function and not frame.is_inline:
            wanted.setdefault(_plain(frame.function), []).append(number)
    last = {name: index for index, name in enumerate(names[:end]) if name in wanted}
    return {index: tuple(wanted[name]) for name, index in last.items()}
