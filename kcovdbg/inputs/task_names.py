# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from kcovdbg.errors import UsageError, WordError, suggest
from kcovdbg.inputs.user_inputs import CommandInputs
from kcovdbg.model.kcov import name_some
from kcovdbg.model.state import Part
from kcovdbg.model.task import TaskFields

_ADDRESS: Final = re.compile(r"0[xX][0-9a-fA-F]+|[0-9a-fA-F]{16}")
# Limit for thread ids in a hint.
_NAMED: Final = 8
ALL: Final = "all"


def is_address(text: str) -> bool:
    """Return whether a text is an address: ``0x…``, or sixteen hexadecimal digits."""
    return bool(_ADDRESS.fullmatch(text))


def find_tids(inputs: CommandInputs, word: str) -> list[int]:
    """Return the thread ids for a word: a thread id, the name of tasks, a pattern of names, or
    ``all``.

    Tasks without KCOV state are found only if no task with KCOV state matches.

    :raises UsageError: when there is no such task.
    """
    if word.isdecimal():
        return [int(word)]
    state = inputs.state(Part.TASKS)
    for is_any in (False, True):
        found = []
        for task in _list_tasks(inputs, is_any=is_any):
            # A name may have characters that are special in a pattern.
            is_named = word in (ALL, task.comm) or fnmatchcase(task.comm or "", word)
            if is_named and task.pid is not None:
                found.append(task.pid)
        if found:
            return found
    hint = suggest_task(inputs, word, is_any=True) or "tasks -a lists all tasks"
    raise WordError(state.say_absent(f"no task '{word}'", Part.TASKS), word, hint=hint)


def find_tid(inputs: CommandInputs, comm: str, *, is_any: bool = False) -> int | None:
    """Return the thread id of the task with a name, None if there is no such task.

    :param is_any: whether to find tasks without KCOV state as well.
    :raises UsageError: when several tasks have this name.
    """
    found = [task.pid for task in _list_tasks(inputs, is_any=is_any) if task.comm == comm]
    if len(found) > 1:
        hint = f"use a thread id: {name_some(map(str, found), _NAMED)}"
        raise UsageError(f"{len(found)} tasks have the name '{comm}'", hint=hint)
    return next(iter(found), None)


def _list_tasks(inputs: CommandInputs, *, is_any: bool) -> Sequence[TaskFields]:
    state = inputs.state(Part.TASKS)
    if is_any:
        return state.task_fields
    return [task.fields for task in state.tasks]


def suggest_task(inputs: CommandInputs, wrong: str, *, is_any: bool = False) -> str | None:
    """Return a hint with the names of tasks that are similar to a wrong name, None if there are
    none.

    :param is_any: as for :func:`find_tid`.
    """
    tasks = _list_tasks(inputs, is_any=is_any)
    return suggest(wrong, dict.fromkeys(task.comm for task in tasks if task.comm))
