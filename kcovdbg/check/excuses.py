# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reasons why a violation may be transient: a held lock, or a task inside KCOV that may be about to resolve it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from kcovdbg.check.kcov_functions import find_kcov_function
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.object_names import name_kcov, name_task
from kcovdbg.model.rule import Violation
from kcovdbg.model.state import Part, State, StateSource

# Unwinding is slow: limit for the tasks in which a function of KCOV is looked for.
_MAX_STACKS: Final = 2000
# An object that only these roads lead to was found in slab memory.
_SLAB_ROADS: Final = frozenset(("file", "vmalloc"))


class Excuses:
    """Finds reasons in one look at a kernel; what a violation does not need is not read.

    :param source: the look.
    """

    def __init__(self, source: StateSource) -> None:
        self._source = source

    @cached_property
    def _objects(self) -> State:
        return self._source.read(Part.OBJECTS)

    @cached_property
    def _locks(self) -> State:
        return self._source.read(Part.LOCKS)

    @cached_property
    def _tasks(self) -> State:
        return self._source.read(Part.TASKS | Part.CURRENT)

    def find(self, violation: Violation) -> str | None:
        """Return why a violation may be about to be resolved, None where nothing speaks for that."""
        for kcov in violation.kcovs:
            if self._objects.is_locked(kcov):
                return f"the lock of {name_kcov(kcov)} is held"
        if violation.remote_lock and self._locks.remote_lock_held:
            return "kcov_remote_lock is held"
        for address in violation.tasks:
            function = find_kcov_function(self._stack(address)) if address in self._tasks.running else None
            if function is not None:
                return f"{self._name(address)} is inside {function}(), which may be changing it"
        if violation.anybody and len(self._busy) >= violation.most:
            address, function = self._busy[0]
            return f"{self._name(address)} is inside {function}(), which may hold what is not linked"
        return None

    def find_doubtful_object(self, violation: Violation) -> str | None:
        """Return the object that may have been freed: a live kernel's free slab objects may look allocated."""
        for address in violation.kcovs:
            kcov = self._objects.objects.get(address)
            if kcov is not None and kcov.fields is not None and kcov.found_by and _SLAB_ROADS.issuperset(kcov.found_by):
                return f"{name_kcov(address)} was found only in slab memory, and may have been freed"
        return None

    def _name(self, address: int) -> str:
        fields = self._tasks.task_by_address.get(address)
        return f"task {address:#x}" if fields is None else name_task(fields)

    def _stack(self, address: int) -> Sequence[StackFrame] | None:
        return self._source.read(Part.NOTHING, stacks=(address,)).stack(address)

    @cached_property
    def _busy(self) -> tuple[tuple[int, str], ...]:
        """The tasks that are inside a function of KCOV and may hold what is not linked, each with that function."""
        running = self._tasks.running
        order = [*running, *(fields.address for fields in self._tasks.task_fields if fields.address not in running)]
        stacks = ((address, self._stack(address)) for address in order[:_MAX_STACKS])
        found = ((address, stack, find_kcov_function(stack)) for address, stack in stacks)
        return tuple(
            (address, function)
            for address, stack, function in found
            if function is not None and not self._shows_reference(address, stack or (), function)
        )

    def _shows_reference(self, address: int, stack: Sequence[StackFrame], function: str) -> bool:
        """Return whether a task that is ending a section still refers to the object, so that it hides nothing."""
        task = self._tasks.tasks_with_state.get(address)
        if task is None or not function.startswith("kcov_remote_stop"):
            return False
        if task.fields.kcov_softirq:
            return True
        # A softirq section drops its reference after the interrupted session is restored.
        in_softirq = any("softirq" in (frame.function or "") for frame in stack)
        return not in_softirq and task.session.is_section
