# SPDX-License-Identifier: LGPL-2.1-or-later
"""``$kcov(tid)`` and other functions for expressions and conditions of breakpoints. Without
``tid``, they are about the current task.

Each call reads the target again, because it may have run since the last one.
"""

from __future__ import annotations

from typing import Any, Optional

import gdb

from .lender import Lender


class _TaskFunction(gdb.Function):
    """A function that returns a number or a name about a task.

    :param type_name: if the number is an address, the type of the structure there.
    """

    def __init__(self, lender: Lender, name: str, type_name: Optional[str], doc: str) -> None:
        self._lender = lender
        self._name = name
        self._type_name = type_name
        self.__doc__ = doc + "\n\nWithout TID: the task that the CPU of the selected thread runs."
        super().__init__(name)

    def invoke(self, *arguments: Any) -> Any:
        if len(arguments) > 1:
            raise gdb.GdbError("expected one thread id")
        tid = int(arguments[0]) if arguments else None
        value = self._lender.ask("call", name=self._name, tid=tid)["value"]
        if self._type_name is None:
            return value
        return gdb.Value(value).cast(gdb.lookup_type(self._type_name).pointer())


_KCOV = """Return a task's struct kcov.

Usage: $kcov ([TID])

The struct kcov * that collects into the task. If none does, the one that the task enabled remote
coverage on, or null. Example: print *$kcov(41)"""
_COUNT = """Return how many records a task's buffer holds.

Usage: $kcov_count ([TID])

The count word of the buffer that kcov-show buffer TID shows, 0 if the task has no buffer. Example:
break do_exit if $kcov_count() > 1000"""
_MODE = """Return the name of a task's KCOV mode.

Usage: $kcov_mode ([TID])

Without the prefix KCOV_MODE_, and without flags. Example:
break do_exit if $_streq($kcov_mode(41), "TRACE_PC")"""
_AREA = """Return the buffer that a task collects into.

Usage: $kcov_area ([TID])

As unsigned long *, null if the task has no buffer. Example: x/8gx $kcov_area(41)"""
_TASK = """Return a task's struct task_struct.

Usage: $kcov_task ([TID])

Example: print $kcov_task(41)->kcov_sequence"""


def define(lender: Lender) -> None:
    """Define the functions in GDB."""
    _TaskFunction(lender, "kcov", "struct kcov", _KCOV)
    _TaskFunction(lender, "kcov_count", None, _COUNT)
    _TaskFunction(lender, "kcov_mode", None, _MODE)
    _TaskFunction(lender, "kcov_area", "unsigned long", _AREA)
    _TaskFunction(lender, "kcov_task", "struct task_struct", _TASK)
