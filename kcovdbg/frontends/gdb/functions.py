# SPDX-License-Identifier: LGPL-2.1-or-later
"""``$kcov(tid)`` and the like, for expressions and the conditions of breakpoints.

Each looks at the target anew: a condition is asked while the target moves from stop to stop.
"""

from __future__ import annotations

from typing import Any

import gdb
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.gdb import parameters
from kcovdbg.frontends.gdb.kcov_show import error_text
from kcovdbg.model.task import TaskFields
from kcovdbg.target.gdb.opener import open_target
from kcovdbg.target.gdb.target import GdbTarget
from kcovdbg.walk.layout import KCOV, TASK, Layout, detect_layout
from kcovdbg.walk.state import StateReader
from kcovdbg.walk.tasks import TaskWalk


class _Look:
    """One look at a task."""

    def __init__(self, tid: int) -> None:
        self.target: GdbTarget = open_target(parameters.kaslr_offset())
        self.layout: Layout = detect_layout(self.target)
        walk = TaskWalk(self.target, self.layout)
        # Idle tasks all have number 0: the first is the boot CPU's.
        found = next((task for task in walk if task.pid == tid), None)
        if found is None:
            broken = f" ({'; '.join(walk.remarks)})" if walk.remarks else ""
            raise KcovdbgError(f"no task {tid}{broken}", hint="kcov-show tasks -a lists them")
        self.fields: TaskFields = found

    def pointer(self, type_name: str, address: int | None) -> gdb.Value:
        return gdb.Value(address or 0).cast(self.target.kernel.find_type(type_name).pointer())


class _TaskFunction(gdb.Function):
    def __init__(self, name: str) -> None:
        super().__init__(name)

    def invoke(self, *args: Any) -> Any:
        if len(args) != 1:
            raise gdb.GdbError("expected one thread id")
        try:
            return self.of(_Look(int(args[0])))
        except KcovdbgError as error:
            raise gdb.GdbError(error_text(error)) from None

    def of(self, look: _Look) -> Any:
        raise NotImplementedError


class _KcovOf(_TaskFunction):
    """Return a task's struct kcov.

    Usage: $kcov (TID)

    The struct kcov * that collects into the task, or, where nothing does, the one that the task enabled remote coverage on;
    null where it has none. Example: print *$kcov(41)
    """

    def of(self, look: _Look) -> Any:
        return look.pointer(KCOV, look.fields.kcov or look.fields.kcov_remote)


class _CountOf(_TaskFunction):
    """Return how many records a task's buffer holds.

    Usage: $kcov_count (TID)

    The count word of the buffer that kcov-show buffer TID shows, 0 where the task has none. Example:
    break do_exit if $kcov_count(41) > 1000
    """

    def of(self, look: _Look) -> Any:
        task = StateReader(look.target, look.layout).interpret(look.fields)
        if task.count is None and task.errors:
            raise KcovdbgError("; ".join(task.errors))
        return task.count or 0


class _ModeOf(_TaskFunction):
    """Return the name of a task's KCOV mode.

    Usage: $kcov_mode (TID)

    Without prefix, flags masked. Example: break do_exit if $_streq($kcov_mode(41), "TRACE_PC")
    """

    def of(self, look: _Look) -> Any:
        return look.layout.mode_name(look.fields.kcov_mode or 0)


class _AreaOf(_TaskFunction):
    """Return the buffer that a task collects into.

    Usage: $kcov_area (TID)

    As unsigned long *, null where it has none. Example: x/8gx $kcov_area(41)
    """

    def of(self, look: _Look) -> Any:
        return gdb.Value(look.fields.kcov_area or 0).cast(gdb.lookup_type("unsigned long").pointer())


class _TaskOf(_TaskFunction):
    """Return a task's struct task_struct.

    Usage: $kcov_task (TID)

    Example: print $kcov_task(41)->kcov_sequence
    """

    def of(self, look: _Look) -> Any:
        return look.pointer(TASK, look.fields.address)


def define_functions() -> None:
    """Define the functions in GDB."""
    _KcovOf("kcov")
    _CountOf("kcov_count")
    _ModeOf("kcov_mode")
    _AreaOf("kcov_area")
    _TaskOf("kcov_task")
