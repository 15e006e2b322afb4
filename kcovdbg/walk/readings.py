# SPDX-License-Identifier: LGPL-2.1-or-later
"""What one look at a kernel reads of KCOV: each thing once, when it is first asked for, as it stands there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.task import TaskFields
from kcovdbg.target import Target, VmallocArea
from kcovdbg.walk.areas import IRQ_LIST, TASK_LIST, CachedArea, read_cached_areas
from kcovdbg.walk.files import FileWalk, KcovFile
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import find_map_areas, read_kcov
from kcovdbg.walk.remote import RemoteMap, read_remote_map
from kcovdbg.walk.saved import PerCpu, read_per_cpu
from kcovdbg.walk.tasks import TaskWalk, find_current_tasks, is_pid, read_task

# Who allocates KCOV's buffers (kcov-abi.md 10.6): user buffers since Linux kernel commit 17581aa136b2 ("kcov: split ioctl
# handling into locked and unlocked parts") (in v5.18) in the ioctl, before in mmap; kcov_map_init is the 2025 series'.
USER_CALLERS: Final = ("kcov_ioctl", "kcov_mmap", "kcov_map_init")
AREA_CALLERS: Final = {"kcov_remote_start": TASK_LIST, "kcov_init": IRQ_LIST}


class Readings:
    """One look at all of KCOV's memory.

    :param target: the kernel.
    :param layout: of this kernel.
    """

    def __init__(self, target: Target, layout: Layout) -> None:
        self.target = target
        self.layout = layout
        self.lacking: dict[str, tuple[str, ...]] = {}
        """What couldn't be read, by source; :meth:`kcovdbg.walk.census.Census.lacks` names these."""
        self._owners: dict[int, tuple[int | None, str | None, str | None]] = {}
        self._kcov_cache: dict[int, KcovFields | ReadError | MissingTypeError] = {}

    @cached_property
    def task_fields(self) -> tuple[TaskFields, ...]:
        """Every task, as read."""
        walk = TaskWalk(self.target, self.layout)
        found = tuple(walk)
        self.lacking["tasks"] = tuple(walk.remarks)
        return found

    @cached_property
    def by_address(self) -> Mapping[int, TaskFields]:
        """Every task by its address."""
        return {task.address: task for task in self.task_fields}

    @cached_property
    def current(self) -> Mapping[int, int]:
        """Each CPU's current task, ``struct task_struct *``, as far as they can be read."""
        return find_current_tasks(self.target)

    @cached_property
    def per_cpu(self) -> tuple[PerCpu, ...]:
        """``kcov_percpu_data`` of each CPU, where it holds anything."""
        found, self.lacking["per-cpu"] = read_per_cpu(self.target, self.layout)
        return found

    @cached_property
    def remote_map(self) -> RemoteMap:
        """The hash of handles, as read."""
        found = read_remote_map(self.target, self.layout)
        self.lacking["remote"] = found.remarks
        return found

    @cached_property
    def cached_areas(self) -> tuple[CachedArea, ...]:
        """The free areas, as read."""
        found, self.lacking["areas"] = read_cached_areas(self.target, self.layout)
        return found

    @cached_property
    def files(self) -> tuple[KcovFile, ...]:
        """Descriptors and mappings of KCOV's files."""
        walk = FileWalk(self.target)
        users = self.task_fields
        found = (*walk.for_each_descriptor(users), *walk.for_each_mapping(users))
        self.lacking["files"] = tuple(walk.remarks)
        return found

    @cached_property
    def vmalloc_areas(self) -> Mapping[int, VmallocArea] | None:
        """All vmalloc areas by their start, whoever allocated them; None where the target can't list them."""
        source = self.target.vmalloc
        if source is None:
            self.lacking["vmalloc"] = ("this target can't list vmalloc areas: buffers that nothing refers to aren't found",)
            return None
        found: dict[int, VmallocArea] = {}
        try:
            found.update((area.start, area) for area in source.for_each_vmalloc_area())
        except ReadError as error:
            self.lacking["vmalloc"] = (f"the vmalloc areas can't be read to their end: {error}",)
        return found

    @cached_property
    def kcov_areas(self) -> tuple[VmallocArea, ...]:
        """The vmalloc areas that KCOV allocated."""
        return tuple(
            area
            for area in (self.vmalloc_areas or {}).values()
            if (plain_name(area.caller) in USER_CALLERS or plain_name(area.caller) in AREA_CALLERS)
            # What lists the pages of a buffer of more than 2 MiB is no buffer.
            and not area.is_page_array
        )

    @property
    def user_buffers(self) -> tuple[VmallocArea, ...]:
        """The vmalloc areas that KCOV allocated for user space."""
        return tuple(area for area in self.kcov_areas if plain_name(area.caller) in USER_CALLERS)

    def kcov(self, address: int) -> KcovFields:
        """Read an object, once a census.

        :raises ReadError: when it can't be read.
        :raises MissingTypeError: when the debug info has no ``struct kcov``.
        """
        known = self._kcov_cache.get(address)
        if known is None:
            try:
                known = read_kcov(self.target, self.layout, address)
            except (ReadError, MissingTypeError) as error:
                known = error
            self._kcov_cache[address] = known
        if isinstance(known, KcovFields):
            return known
        raise known

    def kcov_or_none(self, address: int) -> KcovFields | None:
        try:
            return self.kcov(address)
        except (ReadError, MissingTypeError):
            return None

    def buffers_of(self, addresses: Iterable[int]) -> set[int]:
        """Return the buffers of the objects that can be read."""
        found: set[int] = set()
        for address in addresses:
            kcov = self.kcov_or_none(address)
            if kcov is None:
                continue
            if kcov.area:
                found.add(kcov.area)
            if self.layout.generation.has(Feature.UNIQUE_MAPS):
                found |= find_map_areas(self.target, address)
        return found

    def vmalloc_words(self, start: int) -> int | None:
        return next((area.size // self.layout.buffer_word for area in self.kcov_areas if area.start == start), None)

    def owner(self, task: int) -> tuple[int | None, str | None, str | None]:
        """Return pid and comm of an object's ``t``, and why they are missing."""
        if task not in self._owners:
            self._owners[task] = self._find_owner(task)
        return self._owners[task]

    def _find_owner(self, task: int) -> tuple[int | None, str | None, str | None]:
        fields = self.by_address.get(task)
        if fields is not None:
            lost = [name for name in ("pid", "comm") if getattr(fields, name) is None and self.layout.task.has(name)]
            problem = f"t {task:#x}: {' and '.join(lost)} can't be read" if lost else None
            return fields.pid, fields.comm, problem
        try:
            fields = read_task(self.target, self.layout, task)
        except ReadError as error:
            return None, None, f"t {task:#x}: {error}"
        if not (is_pid(fields.pid) and is_pid(fields.tgid)):
            return None, None, f"t {task:#x} is no task, or not any more"
        return fields.pid, fields.comm, f"t {task:#x} is on no task list"

    def forget(self, kcov: int) -> None:
        """Read an object again when it is next asked for: a live kernel moves."""
        self._kcov_cache.pop(kcov, None)


def plain_name(function: str) -> str:
    """Return a function's name without what the compiler appends to a clone's."""
    return function.split(".", 1)[0]
