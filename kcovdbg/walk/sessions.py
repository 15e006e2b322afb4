# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which session each task is in: what its fields mean, together with what is saved and whose object it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from kcovdbg.abi import mode as modes
from kcovdbg.abi.era import Feature
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.task import Role, SavedState, Task, TaskFields
from kcovdbg.walk.layout import TASK_FIELD_COUNT
from kcovdbg.walk.objects import PAGE, find_fill, find_implausible
from kcovdbg.walk.pointer import is_kernel_pointer
from kcovdbg.walk.readings import Readings
from kcovdbg.walk.saved import find_saved, saved_in_task
from kcovdbg.walk.tasks import complete_task, read_stack_cpu, read_task

# How often a live kernel is asked again when what was read disagrees: the state of a running task is consistent again within
# a system call.
_RETRIES: Final = 3


class Sessions:
    """The sessions of one look at a kernel.

    :param readings: what was read.
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._target = readings.target
        self._layout = readings.layout
        self._interpreted: dict[int, Task] = {}

    @cached_property
    def saved(self) -> tuple[SavedState, ...]:
        """The sessions that are saved now."""
        per_cpu = self._readings.per_cpu
        needs_current = self._layout.generation.has(Feature.SAVED_PER_CPU)
        found = find_saved(self._layout, self._readings.task_fields, per_cpu, self._readings.current if needs_current else {})
        if self._layout.late_task is None:
            return found
        return tuple(saved if saved.cpu is not None else saved._replace(cpu=self._cpu_of(saved.task)) for saved in found)

    def _cpu_of(self, task: int | None) -> int | None:
        try:
            return complete_task(self._target, self._layout, self._readings.by_address[task or 0]).cpu
        except (KeyError, ReadError):
            return None

    @cached_property
    def _saved_by_task(self) -> Mapping[int, SavedState]:
        return {saved.task: saved for saved in self.saved if saved.task is not None}

    def tasks(self, *, all_tasks: bool = False) -> tuple[Task, ...]:
        """Interpret the tasks.

        :param all_tasks: those without any KCOV state too.
        """
        # Everything that decides about a task's state is in its fields, but for a session saved on its CPU.
        saved = self._saved_by_task
        return tuple(
            self._task(fields)
            for fields in self._readings.task_fields
            if all_tasks or fields.address in saved or self.has_state(fields)
        )

    def has_state(self, fields: TaskFields) -> bool:
        """Tell whether a task has anything of KCOV's.

        A sequence alone is no state: kcov_stop() leaves it behind. Neither is the flag of a task that is switched out.
        """
        return bool(
            fields.kcov
            or fields.kcov_remote
            or fields.saved_kcov
            or fields.kcov_area
            or fields.kcov_size
            or fields.kcov_handle
            or fields.kcov_softirq
            or fields.saved_mode
            or modes.strip_flags(fields.kcov_mode or 0, self._layout.mode_flags)
        )

    def _task(self, fields: TaskFields) -> Task:
        task = self._interpreted.get(fields.address)
        if task is None:
            task = self._interpreted[fields.address] = self._settle(fields)
        return task

    def _settle(self, fields: TaskFields) -> Task:
        task = self.interpret(fields)
        for _ in range(_RETRIES if self._target.live else 0):
            if not task.errors:
                return task
            # A live kernel moves: read the task again, and its objects.
            try:
                fields = read_task(self._target, self._layout, fields.address)
            except ReadError:
                break
            for pointer in (fields.kcov, fields.kcov_remote, fields.saved_kcov):
                self._readings.forget(pointer or 0)
            task = self.interpret(fields)
        return task

    def interpret(self, fields: TaskFields) -> Task:
        """Say what a task's fields mean."""
        layout = self._layout
        errors: list[str] = []
        try:
            fields = complete_task(self._target, layout, fields)
        except ReadError as error:
            errors.append(str(error))
        if fields.cpu is None and layout.stack_cpu is not None:
            fields = fields._replace(cpu=read_stack_cpu(self._target, layout.stack_cpu, fields.address))
        errors += [f"{name} can't be read" for name in layout.task.names[:TASK_FIELD_COUNT] if self._is_lost(fields, name)]
        word = fields.kcov_mode
        mode = None if word is None else layout.mode_name(word)
        if (word or 0) & layout.mode_flags & modes.PAUSED:
            errors.append("bit 29 of its mode is set: KCOV_PAUSED of a posted series, or damage")
        role = self._role(mode, fields.kcov, fields.kcov_area, errors)
        if fields.kcov_softirq not in (None, 0, 1):
            errors.append(f"kcov_softirq is {fields.kcov_softirq:#x}")
            role = None
        elif fields.kcov_softirq:
            role = Role.SOFTIRQ_SECTION
        elif fields.kcov_softirq is None and role is Role.REMOTE_SECTION and layout.generation.has(Feature.SOFTIRQ):
            errors.append("whether its section is a softirq's can't be told without kcov_softirq")
            role = None
        saved = self._saved_of(fields)
        beneath = None if saved is None else self.saved_role(saved, errors)
        if saved is None and fields.kcov_softirq and not self.sees_saved:
            errors.append("what its softirq section interrupted can't be told")
        owned, owns_remote = self._owned(fields, mode, errors)
        area, size, trace, trace_size = fields.kcov_area, fields.kcov_size, fields.trace, fields.trace_size
        mode_of_buffer, kcov = mode, fields.kcov
        if area == 0 and owned is not None:
            area, size, trace, trace_size, kcov = owned.area, owned.size, owned.trace, owned.trace_size, owned.address
            mode_of_buffer = None if owned.mode is None else layout.object_mode_name(owned.mode)
        count, full = find_fill(self._target, self._layout, area, size, mode_of_buffer, errors, trace, trace_size, kcov)
        return Task(
            fields=fields,
            mode=mode,
            in_ctxsw=bool(word & layout.mode_flags & ~modes.PAUSED)
            if word is not None and layout.modes and layout.generation.has(Feature.CTXSW_FLAG)
            else None,
            role=role,
            beneath=beneath,
            owns_remote=owns_remote,
            count=count,
            full=full,
            saved=saved,
            errors=tuple(dict.fromkeys(errors)),
        )

    def _is_lost(self, fields: TaskFields, name: str) -> bool:
        """Tell whether a member that this kernel has is in a page that couldn't be read."""
        return getattr(fields, name) is None and self._layout.task.has(name)

    def _saved_of(self, fields: TaskFields) -> SavedState | None:
        if self._layout.generation.has(Feature.SAVED_IN_TASK):
            saved = saved_in_task(fields)
            return None if saved.is_empty else saved
        return self._saved_by_task.get(fields.address)

    @cached_property
    def sees_saved(self) -> bool:
        """Whether every saved session is known, and whose it is."""
        generation, percpu = self._layout.generation, self._layout.percpu
        if not generation.has(Feature.SAVED_PER_CPU):
            return generation.has(Feature.SAVED_IN_TASK)
        return (
            len(self._readings.per_cpu) == len(self._readings.current) == len(self._target.cpus())
            and percpu is not None
            and percpu.has("saved_kcov")
        )

    def saved_role(self, saved: SavedState, errors: list[str]) -> Role | None:
        mode = None if saved.mode is None else self._layout.mode_name(saved.mode)
        return self._role(mode, saved.kcov, saved.area, errors)

    def _role(self, mode: str | None, kcov: int | None, area: int | None, errors: list[str]) -> Role | None:
        """Say what a session collects: a local one's area is the object's own, a section's never is (kcov-abi.md T2, T6).

        :return: None where something that decides it isn't known.
        """
        if mode is None:
            return None
        if not modes.is_known(mode):
            if self._layout.modes:
                errors.append(f"mode {mode} is none of this kernel's")
                return None
            # Without names for modes: only a session has an area.
            if area is None:
                return None
            if not area:
                return Role.NONE
        elif not modes.is_tracing(mode):
            return Role.NONE
        if kcov is None:
            return None
        if not kcov:
            # A mode without an object is the boot-time self-test's (v6.11): nothing collects into the task.
            return Role.NONE
        try:
            fields = self._readings.kcov(kcov)
        except (ReadError, MissingTypeError) as error:
            errors.append(f"kcov {kcov:#x}: {error}")
            return None
        problem = find_implausible(self._target, self._layout, fields)
        if problem is not None:
            errors.append(f"kcov {kcov:#x} isn't a struct kcov, or not any more: {problem}")
            return None
        if not self._layout.generation.has(Feature.REMOTE):
            return Role.LOCAL
        if area and not is_kernel_pointer(self._target, area, PAGE):
            errors.append(f"its area {area:#x} is no buffer's address")
            return None
        if area is None or fields.area is None:
            errors.append(f"whether it traces itself can't be told without the {'task' if area is None else 'object'}'s area")
            return None
        return Role.LOCAL if fields.area == area else Role.REMOTE_SECTION

    def _owned(self, fields: TaskFields, mode: str | None, errors: list[str]) -> tuple[KcovFields | None, bool | None]:
        """Return the object of a KCOV_REMOTE_ENABLE that this task did, and whether it did one; None where it can't be told."""
        if not self._layout.generation.has(Feature.REMOTE):
            return None, None
        saved = self._saved_of(fields)
        own_member = self._layout.generation.has(Feature.OWNER_MEMBER)
        saved_mode = None if saved is None or saved.mode is None else self._layout.mode_name(saved.mode)
        marked = modes.REMOTE in (mode, saved_mode)
        unknown = saved is not None and saved.kcov is None
        unknown = unknown or bool(saved is None and fields.kcov_softirq and not self.sees_saved)
        # From August 2026 on, one of both marks an owner.
        unknown = unknown or (
            self._layout.generation.has(Feature.SAVED_IN_TASK)
            and not own_member
            and not self._layout.generation.has(Feature.MODE_REMOTE)
        )
        unknown = unknown or marked or (fields.kcov_remote if own_member else fields.kcov) is None
        pointers = [fields.kcov_remote, fields.kcov, None if saved is None else saved.kcov]
        for pointer in dict.fromkeys(pointers):
            if not pointer:
                continue
            try:
                kcov = self._readings.kcov(pointer)
            except (ReadError, MissingTypeError) as error:
                errors.append(f"kcov {pointer:#x}: {error}")
                unknown = True
                continue
            if kcov.remote and kcov.task == fields.address:
                return kcov, True
            if (marked or (own_member and pointer == fields.kcov_remote)) and None in (kcov.remote, kcov.task):
                # The task itself says so.
                return kcov, True
            unknown = (
                unknown
                or (kcov.remote is None and kcov.task in (None, fields.address))
                or (kcov.task is None and bool(kcov.remote))
            )
        return None, True if marked else None if unknown else False
