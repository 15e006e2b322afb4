# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the task that crashed, and sum up its function and system call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kcovdbg.console.wording import syscall_text
from kcovdbg.crash.crash_point import find_fault
from kcovdbg.model.crash_evidence import CrashEvidence, TaskStack
from kcovdbg.model.log_record import LogRecord
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.task import Role, Task, TaskSyscall
from kcovdbg.records.crash_report import CrashReport, find_report


class CrashedTask(NamedTuple):
    """The task that crashed."""

    task: Task | None
    """None if no task crashed, or the task is unknown."""
    error: str | None = None
    """Why the task is unknown."""
    report: CrashReport = CrashReport()
    """The kernel's report of the crash."""
    log: tuple[LogRecord, ...] = ()
    """The last records of the kernel's log, oldest first; none if no task crashed."""
    reporter: Task | None = None
    """The task that crashed the kernel because this one hangs or stalls; None if this task crashed
    by itself.
    """


@dataclass(frozen=True, slots=True)
class CrashSummary:
    """A crash in values that JSON has."""

    pid: int | None = None
    comm: str | None = None
    role: str | None = None
    """The collector of the task: a value of :class:`~kcovdbg.model.task.Role`."""
    function: str | None = None
    """The function in which the crash began, as the stack shows it."""
    file: str | None = None
    line: int | None = None
    syscall: str | None = None
    """The name of the system call."""
    call: str | None = None
    """The system call with its arguments."""
    errors: Sequence[str] = ()
    """Missing parts, each a sentence."""


def find_crashed_task(evidence: CrashEvidence) -> CrashedTask:
    """Return the task that crashed, or the task whose hang or stall it reported."""
    state, address = evidence.state, evidence.task
    if state is None or address is None:
        return CrashedTask(None, evidence.error)
    by_address = {task.fields.address: task for task in state.all_tasks}
    crashed = by_address.get(address)
    report = find_report(evidence.log)
    if find_fault(evidence.stack.frames) is None:
        stuck = next((task for task in state.all_tasks if task.fields.pid == report.pid), None)
        if report.cpu is not None:
            stuck = by_address.get(state.current.get(report.cpu, 0))
        if stuck is not None and stuck.fields.address != address:
            return CrashedTask(stuck, report=report, log=evidence.log, reporter=crashed)
    return CrashedTask(crashed, report=report, log=evidence.log)


def has_buffer(task: Task) -> bool:
    """Return whether a task collects into a buffer."""
    return task.role is not Role.NONE and bool(task.fields.kcov_area)


def summarize_crash(
    crashed: CrashedTask, stack: TaskStack, syscall: TaskSyscall | None
) -> CrashSummary:
    """Return where the kernel crashed; missing parts are among the errors.

    :param stack: stack of the task that crashed.
    :param syscall: system call that it was in; None if no task crashed.
    """
    task, error = crashed.task, crashed.error
    if task is None or syscall is None:
        problem = "no task crashed"
        if error:
            problem = f"crashed task unknown: {error}"
        return CrashSummary(errors=(problem,))
    errors: list[str] = []
    fields = task.fields
    function = file = line = None
    # The stack of an oops that kdump saved begins at the oops, and the stack of a task that hangs
    # at the place where it hangs.
    is_clean = crashed.reporter is not None or crashed.report.title is not None
    found = _find_origin(stack.frames, is_clean=is_clean)
    if stack.error is not None:
        errors.append(stack.error)
    elif found is None:
        errors.append("the stack shows no crash")
    else:
        function, file, line = found
        if function is None:
            errors.append("no debug info for the code in which the crash began")
    if syscall.error is not None:
        errors.append(syscall.error)
    name = text = None
    if syscall.call is not None:
        name = syscall.call.name or str(syscall.call.number)
        text = syscall_text(syscall.call)
    role = None
    if task.role is not None:
        role = task.role.value
    return CrashSummary(fields.pid, fields.comm, role, function, file, line, name, text, errors)


def _find_origin(
    stack: Sequence[StackFrame], *, is_clean: bool
) -> tuple[str | None, str | None, int | None] | None:
    """Return function, file and line where a crash began. The function is the one that the code
    was compiled into, as in the kernel's reports.
    """
    number = find_fault(stack, is_clean=is_clean)
    if number is None:
        return None
    compiled = next((frame for frame in stack[number:] if not frame.is_inline), stack[number])
    return compiled.function, stack[number].file, stack[number].line
