# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the end of a crashed task's coverage, and the records of functions on its stack.

A crashing kernel keeps executing: panic() and its output leave tens of thousands of records in the
buffer. The stack shows in which function the crash began; the records up to there led to it.
Functions that notice, report or handle a crash, or that work for any caller, are not where it
began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kcovdbg.model.memory import StackFrame
from kcovdbg.records.crash_origin import HANDLING, find_origin, plain_function, roles_of
from kcovdbg.records.report_table import CrashRole, role_of


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The end of the coverage that led to a crash."""

    end: int
    """Index of the first record of the crash handling; the number of records if there is no crash.
    """
    fault: str | None = None
    """The function in which the crash began."""
    is_covered: bool = True
    """Whether that function has records of its own."""
    stack_frames: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Index of a record -> numbers of the stack frames that it belongs to: it is the last record
    of their function. Frame 0 is the innermost.
    """


def find_fault(stack: Sequence[StackFrame], *, is_clean: bool = False) -> int | None:
    """Return the number of the frame in which a crash began; None if the stack shows no crash, or
    belongs to the reporter of another task's crash.

    :param is_clean: whether the stack begins at the crash, without functions that handle it.
    """
    names = [frame.function for frame in stack]
    if not is_clean and CrashRole.CRASH not in roles_of(names):
        return None
    return find_origin(names)


def find_crash_point(
    pcs: Sequence[int],
    symbol: Callable[[int], str | None],
    stack: Sequence[StackFrame],
    *,
    is_crashed: bool,
    is_stuck: bool = False,
) -> CrashPoint:
    """Return where the coverage before a crash ends, and which records belong to functions on the
    stack.

    :param pcs: PC of each record; 0 for a record without one.
    :param symbol: returns the function into which a PC's code was compiled.
    :param stack: stack of the task, innermost frame first.
    :param is_crashed: whether the kernel names the task as the one that crashed it.
    :param is_stuck: whether another task or CPU reported that the task hangs or stalls. Then the
        task itself has no records of crash handling.
    """
    # Records without a PC belong to no function.
    known = {0: ""}
    for pc in set(pcs) - {0}:
        known[pc] = plain_function(symbol(pc))
    names = [known[pc] for pc in pcs]
    # After an oops, kdump saves the registers of the fault, so that the stack has no crash handling
    # (crash_kexec() passes the registers on); the records have.
    is_recorded = is_crashed and CrashRole.CRASH in roles_of(known.values())
    fault = find_fault(stack, is_clean=is_stuck or is_recorded)
    if fault is None:
        return CrashPoint(len(names), stack_frames=_find_frames(names, stack))
    # Records of inlined functions carry the name of the function into which they were compiled.
    while fault < len(stack) - 1 and stack[fault].is_inline:
        fault += 1
    name = plain_function(stack[fault].function) or None
    if is_stuck:
        end, covered = len(names), name in names
    else:
        end, covered = _cut(names, stack, fault)
    return CrashPoint(end, name, covered, _find_frames(names[:end], stack))


def _cut(names: Sequence[str], stack: Sequence[StackFrame], fault: int) -> tuple[int, bool]:
    """Return the number of records before the crash, and whether the function in which it began has
    a record.
    """
    handling = {plain_function(frame.function) for frame in stack[:fault]}

    def is_handled_at(index: int) -> bool:
        if index == len(names) or not names[index]:
            return False
        return names[index] in handling or role_of(names[index]) in HANDLING

    for number in range(fault, len(stack)):
        wanted = plain_function(stack[number].function)
        indices = [index for index, name in enumerate(names) if name == wanted]
        if not indices:
            # The function is not instrumented: try its caller.
            continue
        # Crash handling may call the function again: prefer the function's last record that has
        # crash handling directly after it.
        adjacent = [index for index in indices if is_handled_at(index + 1)]
        if number == fault:
            return (adjacent or indices)[-1] + 1, True
        following = filter(is_handled_at, range(indices[-1] + 1, len(names)))
        return next(following, len(names)), False
    return len(names), False


def _find_frames(names: Sequence[str], stack: Sequence[StackFrame]) -> dict[int, tuple[int, ...]]:
    """Return the stack frames by the index of their function's last record."""
    numbers: dict[str, list[int]] = {}
    for number, frame in enumerate(stack):
        if frame.function and not frame.is_inline:
            numbers.setdefault(plain_function(frame.function), []).append(number)
    last = {name: index for index, name in enumerate(names) if name in numbers}
    return {index: tuple(numbers[name]) for name, index in last.items()}
