# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cached reads of KCOV's structures: each is read once, on first use, and kept as it was read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, cached_property, wraps
from typing import Protocol, TypeVar

from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFields, KcovFile
from kcovdbg.model.memory import VmallocArea
from kcovdbg.model.remote import AREA_ALLOCATORS
from kcovdbg.model.state import Lack, Reading, Source
from kcovdbg.model.task import SavedState, TaskFields
from kcovdbg.series.table import user_allocators
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import read_kcov
from kcovdbg.walk.remote import AreaLists, RemoteMap, read_area_lists, read_remote_map
from kcovdbg.walk.saved import read_per_cpu
from kcovdbg.walk.tasks import TaskWalk, is_pid, read_current_tasks, read_known_tasks, read_task

_T = TypeVar("_T")


class _Reader(Protocol):
    lacking: dict[Source, Lack]
    """Everything that could not be read so far, by source."""


_R = TypeVar("_R", bound=_Reader)


def read_once(read: Callable[[_R], Reading[_T]]) -> cached_property[Reading[_T]]:
    """Make a property of a method that reads. The property reads once, and adds the data that could
    not be read to ``lacking`` of its object.
    """

    @wraps(read)
    def read_and_keep(reader: _R) -> Reading[_T]:
        reading = read(reader)
        reader.lacking.update(reading.lacking)
        return reading

    return cached_property(read_and_keep)


class StructureCache:
    """KCOV's structures in one look at a kernel.

    :param known_tasks: tasks to read again instead of walking the lists of tasks; None to walk.
    """

    def __init__(
        self, target: Target, layout: Layout, known_tasks: Collection[TaskFields] | None = None
    ) -> None:
        self.target = target
        self.layout = layout
        self._known_tasks = known_tasks
        self.owner = cache(self._find_owner)
        """Returns pid and comm of an object's ``t``, and the reasons if one of them is missing."""
        self.lacking: dict[Source, Lack] = {}
        """Everything that could not be read so far, by source."""
        self._kcov_cache: dict[int, KcovFields | ReadError | MissingTypeError] = {}

    @read_once
    def tasks(self) -> Reading[tuple[TaskFields, ...]]:
        """Every task as read."""
        if self._known_tasks is not None:
            known = read_known_tasks(self.target, self.layout, self._known_tasks)
            return Reading.of(Source.TASKS, tuple(known))
        walk = TaskWalk(self.target, self.layout)
        return Reading(tuple(walk), {Source.TASKS: walk.lack})

    @cached_property
    def by_address(self) -> Mapping[int, TaskFields]:
        """Every task by its address, as read."""
        return {task.address: task for task in self.tasks.found}

    @read_once
    def current(self) -> Reading[dict[int, int]]:
        """Each CPU's current task, ``struct task_struct *``; unreadable ones are left out."""
        return read_current_tasks(self.target)

    @read_once
    def per_cpu(self) -> Reading[Mapping[int, SavedState]]:
        """``kcov_percpu_data`` of each CPU, on kernels that keep state there."""
        return read_per_cpu(self.target, self.layout)

    @read_once
    def remote_map(self) -> Reading[RemoteMap]:
        """``kcov_remote_map`` as read."""
        return read_remote_map(self.target, self.layout)

    @read_once
    def area_lists(self) -> Reading[AreaLists]:
        """``kcov_remote_areas`` as read."""
        return read_area_lists(self.target, self.layout)

    @read_once
    def files(self) -> Reading[tuple[KcovFile, ...]]:
        """Descriptors and mappings of KCOV's files."""
        from kcovdbg.walk.files import FileWalk

        walk = FileWalk(self.target)
        users = self.tasks.found
        found = (*walk.for_each_descriptor(users), *walk.for_each_mapping(users))
        return Reading.of(Source.FILES, found, walk.remarks)

    @read_once
    def vmalloc_areas(self) -> Reading[Mapping[int, VmallocArea]]:
        """All vmalloc areas by their start, as far as they can be listed."""
        source = self.target.vmalloc
        if source is None:
            problem = (
                "this target cannot list vmalloc areas: buffers without references are not found"
            )
            return Reading.of(Source.VMALLOC, {}, (problem,))
        found: dict[int, VmallocArea] = {}
        problems: list[str] = []
        try:
            found.update((area.start, area) for area in source.for_each_vmalloc_area())
        except ReadError as error:
            problems.append(f"the list of vmalloc areas is incomplete: {error}")
        return Reading.of(Source.VMALLOC, found, problems)

    @cached_property
    def kcov_areas(self) -> tuple[VmallocArea, ...]:
        """The vmalloc areas that KCOV allocated."""
        allocators = user_allocators() | AREA_ALLOCATORS.keys()
        return tuple(
            area
            for area in self.vmalloc_areas.found.values()
            if area.allocator in allocators
            # A buffer of more than 2 MiB has a page array, which the same function allocates.
            and not area.is_page_array
        )

    def kcov(self, address: int) -> KcovFields:
        """Read an object once.

        :raises ReadError: when it is unreadable.
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

    def own_areas(self, kcov: KcovFields) -> tuple[frozenset[int], bool]:
        """Return the vmalloc areas that an object allocated, and whether these are all of them."""
        found = frozenset({kcov.area} if kcov.area else ())
        second = self.layout.traits.second_buffer
        if second is None:
            return found, True
        allocated = second.allocations(self.target, kcov.address)
        return found | allocated, kcov.size == 0 or len(allocated) == second.allocation_count

    def _find_owner(self, task: int | None) -> tuple[int | None, str | None, tuple[str, ...]]:
        if not task:
            return None, None, ()
        fields = self.by_address.get(task)
        if fields is not None:
            lost = [
                name
                for name in ("pid", "comm")
                if getattr(fields, name) is None and self.layout.task.has(name)
            ]
            errors = (f"t {task:#x}: {' and '.join(lost)} unreadable",) if lost else ()
            return fields.pid, fields.comm, errors
        try:
            fields = read_task(self.target, self.layout, task)
        except ReadError as error:
            return None, None, (f"t {task:#x}: {error}",)
        if not (is_pid(fields.pid) and is_pid(fields.tgid)):
            return None, None, (f"t {task:#x} is not a task, or no longer one",)
        return fields.pid, fields.comm, (f"t {task:#x} is not on any task list",)

    def forget(self, kcov: int) -> None:
        """Read an object again when it is next asked for."""
        self._kcov_cache.pop(kcov, None)
