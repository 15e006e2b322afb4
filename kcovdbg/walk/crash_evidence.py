# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the evidence of a crash: the crashed task, its stack, the log, and the CPUs' tasks."""

from __future__ import annotations

from kcovdbg.errors import KcovdbgError
from kcovdbg.model.crash_evidence import CrashEvidence, TaskStack
from kcovdbg.model.state import Part
from kcovdbg.target.target import Target
from kcovdbg.walk.printk_log import LOG_RECORDS, read_kernel_log
from kcovdbg.walk.state import StateReader

_NO_STACKS = "stacks are unavailable from this target"


def read_stack(target: Target, task: int) -> TaskStack:
    """Return the stack of a task.

    :param task: ``struct task_struct *``.
    """
    if target.stacks is None:
        return TaskStack(error=_NO_STACKS)
    try:
        return TaskStack(target.stacks.stack_trace(task))
    except KcovdbgError as error:
        return TaskStack(error=str(error))


def read_crash_evidence(target: Target, reader: StateReader) -> CrashEvidence:
    """Return the evidence of a crash, if the kernel has crashed."""
    if target.stacks is None:
        return CrashEvidence(error=_NO_STACKS)
    try:
        task = target.stacks.crashed_task()
    except KcovdbgError as error:
        return CrashEvidence(error=str(error))
    if task is None:
        return CrashEvidence()
    state = reader.read(Part.ALL_TASKS | Part.CURRENT)
    log = read_kernel_log(target, LOG_RECORDS).records
    return CrashEvidence(task, stack=read_stack(target, task), log=log, state=state)
