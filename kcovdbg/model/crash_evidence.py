# SPDX-License-Identifier: LGPL-2.1-or-later
"""Evidence of a crash in a kernel's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcovdbg.model.log_record import LogRecord
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.state import State


class TaskStack(NamedTuple):
    """A task's stack."""

    frames: Sequence[StackFrame] = ()
    """Innermost first; empty if it could not be read."""
    error: str | None = None
    """Why it could not be read."""


class CrashEvidence(NamedTuple):
    """The task that crashed the kernel, its stack, and the kernel's log."""

    task: int | None = None
    """``struct task_struct *``; None if no task crashed, or it is unknown."""
    error: str | None = None
    """Why the task is unknown."""
    stack: TaskStack = TaskStack()
    """The stack of that task."""
    log: tuple[LogRecord, ...] = ()
    """The newest records of the kernel's log, oldest first; empty if no task crashed."""
    state: State | None = None
    """All tasks, and each CPU's current task; None if no task crashed."""
