# SPDX-License-Identifier: LGPL-2.1-or-later
"""All of KCOV's state, put together: what each walker found, who refers to whom, and what a task's fields mean.

A :class:`Census` is one look at a kernel. It reads what is asked of it, once; a new look is a new census.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

from kcovdbg.abi import mode as modes
from kcovdbg.abi.era import Feature
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.area import Area
from kcovdbg.model.kcov import Kcov, KcovFields, Reference
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.model.snapshot import Snapshot
from kcovdbg.model.task import Role, SavedState, Task, TaskFields
from kcovdbg.target import Target, VmallocArea
from kcovdbg.walk.areas import IRQ_LIST, TASK_LIST, CachedArea, read_cached_areas
from kcovdbg.walk.files import FileWalk, KcovFile
from kcovdbg.walk.layout import REMOTE, TASK_FIELD_COUNT, Layout
from kcovdbg.walk.objects import (
    PAGE,
    decode_kcov,
    find_capacity,
    find_edges,
    find_implausible,
    find_map_areas,
    has_count,
    looks_like_kcov,
    read_count,
    read_kcov,
)
from kcovdbg.walk.pointer import is_kernel_pointer
from kcovdbg.walk.remote import RemoteMap, read_remote_map
from kcovdbg.walk.saved import PerCpu, find_saved, read_per_cpu, saved_in_task
from kcovdbg.walk.tasks import TaskWalk, complete_task, find_current_tasks, is_pid, read_stack_cpu, read_task

# How often a live kernel is asked again when what was read disagrees: the state of a running task is consistent again within
# a system call.
_RETRIES: Final = 3
# Who allocates KCOV's buffers (kcov-abi.md 10.6): user buffers since Linux kernel commit 17581aa136b2 ("kcov: split ioctl
# handling into locked and unlocked parts") (in v5.18) in the ioctl, before in mmap; kcov_map_init is the 2025 series'.
_USER_CALLERS: Final = ("kcov_ioctl", "kcov_mmap", "kcov_map_init")
_AREA_CALLERS: Final = {"kcov_remote_start": TASK_LIST, "kcov_init": IRQ_LIST}


# By the source of remarks what walks it.
_WALKS: Final = {
    "tasks": "task_fields",
    "per-cpu": "_per_cpu",
    "remote": "remote_map",
    "areas": "cached_areas",
    "files": "_files",
    "vmalloc": "vmalloc_areas",
    "slab": "objects",
}


class Census:
    """One look at all of KCOV's state.

    :param target: the kernel.
    :param layout: of this kernel.
    """

    def __init__(self, target: Target, layout: Layout) -> None:
        self._target = target
        self._layout = layout
        self._kcov_cache: dict[int, KcovFields | ReadError | MissingTypeError] = {}
        self._remarks: dict[str, tuple[str, ...]] = {}
        self._owners: dict[int, tuple[int | None, str | None, str | None]] = {}
        self._interpreted: dict[int, Task] = {}

    # What was read.

    @cached_property
    def task_fields(self) -> tuple[TaskFields, ...]:
        """Every task, as read."""
        walk = TaskWalk(self._target, self._layout)
        found = tuple(walk)
        self._remarks["tasks"] = tuple(walk.remarks)
        return found

    @cached_property
    def by_address(self) -> Mapping[int, TaskFields]:
        """Every task by its address."""
        return {task.address: task for task in self.task_fields}

    @cached_property
    def _current(self) -> Mapping[int, int]:
        return find_current_tasks(self._target)

    @cached_property
    def _per_cpu(self) -> tuple[PerCpu, ...]:
        found, self._remarks["per-cpu"] = read_per_cpu(self._target, self._layout)
        return found

    @cached_property
    def remote_map(self) -> RemoteMap:
        """The hash of handles, as read."""
        found = read_remote_map(self._target, self._layout)
        self._remarks["remote"] = found.remarks
        return found

    @cached_property
    def cached_areas(self) -> tuple[CachedArea, ...]:
        """The free areas, as read."""
        found, self._remarks["areas"] = read_cached_areas(self._target, self._layout)
        return found

    @cached_property
    def _files(self) -> tuple[KcovFile, ...]:
        walk = FileWalk(self._target)
        users = self.task_fields
        found = (*walk.for_each_descriptor(users), *walk.for_each_mapping(users))
        self._remarks["files"] = tuple(walk.remarks)
        return found

    @cached_property
    def vmalloc_areas(self) -> Mapping[int, VmallocArea] | None:
        """All vmalloc areas by their start, whoever allocated them; None where the target can't list them."""
        source = self._target.vmalloc
        if source is None:
            self._remarks["vmalloc"] = ("this target can't list vmalloc areas: buffers that nothing refers to aren't found",)
            return None
        found: dict[int, VmallocArea] = {}
        try:
            found.update((area.start, area) for area in source.for_each_vmalloc_area())
        except ReadError as error:
            self._remarks["vmalloc"] = (f"the vmalloc areas can't be read to their end: {error}",)
        return found

    @cached_property
    def _vmalloc(self) -> tuple[VmallocArea, ...]:
        """The vmalloc areas that KCOV allocated."""
        return tuple(
            area
            for area in (self.vmalloc_areas or {}).values()
            if (plain_name(area.caller) in _USER_CALLERS or plain_name(area.caller) in _AREA_CALLERS)
            # What lists the pages of a buffer of more than 2 MiB is no buffer.
            and not area.is_page_array
        )

    @property
    def user_buffers(self) -> tuple[VmallocArea, ...]:
        """The vmalloc areas that KCOV allocated for user space."""
        return tuple(area for area in self._vmalloc if plain_name(area.caller) in _USER_CALLERS)

    @property
    def current(self) -> Mapping[int, int]:
        """Each CPU's current task, ``struct task_struct *``, as far as they can be read."""
        return self._current

    @property
    def per_cpu(self) -> tuple[PerCpu, ...]:
        """``kcov_percpu_data`` of each CPU, where it holds anything."""
        return self._per_cpu

    @property
    def files(self) -> tuple[KcovFile, ...]:
        """Descriptors and mappings of KCOV's files."""
        return self._files

    def lacks(self, *sources: str) -> tuple[str, ...]:
        """Say what couldn't be read of some sources; who wasn't asked yet is asked now.

        :param sources: ``tasks``, ``per-cpu``, ``remote``, ``areas``, ``files``, ``vmalloc``, ``slab``.
        """
        for source in sources:
            if self._layout.generation.has(Feature.REMOTE) or source not in ("remote", "areas"):
                getattr(self, _WALKS[source])
        return tuple(remark for source in sources for remark in self._remarks.get(source, ()))

    def kcov(self, address: int) -> KcovFields:
        """Read an object, once a census.

        :raises ReadError: when it can't be read.
        :raises MissingTypeError: when the debug info has no ``struct kcov``.
        """
        known = self._kcov_cache.get(address)
        if known is None:
            try:
                known = read_kcov(self._target, self._layout, address)
            except (ReadError, MissingTypeError) as error:
                known = error
            self._kcov_cache[address] = known
        if isinstance(known, KcovFields):
            return known
        raise known

    # What it means.

    @cached_property
    def saved(self) -> tuple[SavedState, ...]:
        """The sessions that are saved now."""
        per_cpu = self._per_cpu
        needs_current = self._layout.generation.has(Feature.SAVED_PER_CPU)
        found = find_saved(self._layout, self.task_fields, per_cpu, self._current if needs_current else {})
        if self._layout.late_task is None:
            return found
        return tuple(saved if saved.cpu is not None else saved._replace(cpu=self._cpu_of(saved.task)) for saved in found)

    def _cpu_of(self, task: int | None) -> int | None:
        try:
            return complete_task(self._target, self._layout, self.by_address[task or 0]).cpu
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
            self._task(fields) for fields in self.task_fields if all_tasks or fields.address in saved or self.has_state(fields)
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
                self._kcov_cache.pop(pointer or 0, None)
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
        beneath = None if saved is None else self._saved_role(saved, errors)
        if saved is None and fields.kcov_softirq and not self._sees_saved:
            errors.append("what its softirq section interrupted can't be told")
        owned, owns_remote = self._owned(fields, mode, errors)
        area, size, trace, trace_size = fields.kcov_area, fields.kcov_size, fields.trace, fields.trace_size
        mode_of_buffer, kcov = mode, fields.kcov
        if area == 0 and owned is not None:
            area, size, trace, trace_size, kcov = owned.area, owned.size, owned.trace, owned.trace_size, owned.address
            mode_of_buffer = None if owned.mode is None else layout.object_mode_name(owned.mode)
        count, full = self._count(area, size, mode_of_buffer, errors, trace, trace_size, kcov)
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
    def _sees_saved(self) -> bool:
        """Whether every saved session is known, and whose it is."""
        generation, percpu = self._layout.generation, self._layout.percpu
        if not generation.has(Feature.SAVED_PER_CPU):
            return generation.has(Feature.SAVED_IN_TASK)
        return (
            len(self._per_cpu) == len(self._current) == len(self._target.cpus())
            and percpu is not None
            and percpu.has("saved_kcov")
        )

    def _saved_role(self, saved: SavedState, errors: list[str]) -> Role | None:
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
            fields = self.kcov(kcov)
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
        unknown = unknown or bool(saved is None and fields.kcov_softirq and not self._sees_saved)
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
                kcov = self.kcov(pointer)
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

    def _count(
        self,
        area: int | None,
        size: int | None,
        mode: str | None,
        errors: list[str],
        trace: int | None = None,
        trace_size: int | None = None,
        kcov: int | None = None,
    ) -> tuple[int | None, bool | None]:
        """Read a buffer's count word.

        :param trace: where it is, in kernels whose buffers may have a bitmap before it.
        :param kcov: the object that it is or collects for.
        :return: the count, and whether the buffer is full.
        """
        layout, target = self._layout, self._target
        if not area or not has_count(layout, mode):
            return None, None
        if (mode is None or not modes.is_known(mode)) and (
            not layout.modes
            or layout.generation.has(Feature.UNIQUE_MAPS)
            or layout.generation.has(Feature.TEXT_BITMAP)
            or (target.word_size, target.big_endian) == (4, True)
        ):
            # Where the count is, how long it is and whether there is one depends on the mode.
            return None, None
        if mode == "TRACE_UNIQ_EDGE" and not kcov:
            return None, None
        start = area
        try:
            if layout.generation.has(Feature.UNIQUE_BITMAP):
                if trace is None:
                    return None, None
                if not area <= trace < area + max(size or 1, 1) * layout.buffer_word:
                    errors.append(f"buffer {area:#x}: its trace {trace:#x} isn't in it")
                    return None, None
                start = trace
            elif mode == "TRACE_UNIQ_EDGE" and kcov:
                start = find_edges(self._target, kcov)
            count = read_count(self._target, layout, start, mode)
        except (ReadError, MissingTypeError) as error:
            errors.append(f"buffer {area:#x}: {error}")
            return None, None
        if mode is None or not modes.is_known(mode):
            # Comparisons take four times the room.
            return count, None
        capacity = find_capacity(layout, mode, size, trace_size)
        return count, None if capacity is None else count >= capacity

    # Objects.

    @cached_property
    def objects(self) -> Mapping[int, Kcov]:
        """Every ``struct kcov`` by its address, found by every road of kcov-abi.md 10, with everybody who refers to it."""
        roads: dict[int, list[str]] = defaultdict(list)
        references: dict[int, list[Reference]] = defaultdict(list)
        uncertain: dict[int, list[str]] = defaultdict(list)

        for address, road, reference in self._references(uncertain):
            if road not in roads[address]:
                roads[address].append(road)
            if reference is not None:
                references[address].append(reference)
        self._add_files(self._files, roads, references)
        self._add_attached(roads, references)
        self._add_unreferenced(roads, references)
        return {
            address: self._object(address, tuple(references[address]), tuple(roads[address]), uncertain.get(address, ()))
            for address in sorted(roads)
        }

    def _references(self, uncertain: dict[int, list[str]]) -> Iterator[tuple[int, str, Reference | None]]:
        """Yield (object, road, reference) for what tasks, saved state and the hash refer to.

        :param uncertain: takes, by object, what may be a reference and can't be told.
        """
        for task in self.tasks():
            fields = task.fields
            if fields.kcov:
                section = task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION)
                # The reference of a session that is the object's own task is counted by the object's `t`, below.
                yield fields.kcov, "task", Reference("section", 1, fields.pid, cpu=fields.cpu) if section else None
                if task.role is None:
                    uncertain[fields.kcov].append(f"whether task {fields.pid} refers to it by a section can't be told")
            if fields.kcov_remote:
                yield fields.kcov_remote, "task", None
            if task.saved is not None and task.saved.kcov:
                # A section that was interrupted keeps its own reference; a local session's is that of `t`.
                counts = int(task.beneath is Role.REMOTE_SECTION)
                yield task.saved.kcov, "saved", Reference("saved", counts, fields.pid, cpu=task.saved.cpu)
                if task.beneath is None:
                    uncertain[task.saved.kcov].append(f"whether task {fields.pid}'s saved session is a section can't be told")
        for saved in self.saved:
            if saved.task is None and saved.kcov:
                counts = int(self._saved_role(saved, uncertain[saved.kcov]) is Role.REMOTE_SECTION)
                yield saved.kcov, "saved", Reference("saved", counts, cpu=saved.cpu)
        for entry in self.remote_map.entries:
            if entry.kcov is not None:
                # Hash entries hold no reference.
                yield entry.kcov, "remote", Reference("remote", 0, handle=entry.handle)

    def _add_files(
        self, files: tuple[KcovFile, ...], roads: dict[int, list[str]], references: dict[int, list[Reference]]
    ) -> None:
        counted: set[int] = set()
        per_mapping = self._layout.generation.has(Feature.VMA_REFERENCES)
        for file in files:
            kind = "vma" if file.fd is None else "fd"
            if per_mapping and kind == "vma" and file.file not in counted:
                # The mapping has a reference of its own beside that of the file, which nothing else shows.
                references[file.kcov].append(Reference("fd", 1, file=file.file))
            counts = int(file.file not in counted or (per_mapping and kind == "vma"))
            counted.add(file.file)
            if kind not in roads[file.kcov]:
                roads[file.kcov].append(kind)
            references[file.kcov].append(Reference(kind, counts, file.pid, file.fd, file.file, file.start))

    def _add_attached(self, roads: Mapping[int, list[str]], references: dict[int, list[Reference]]) -> None:
        """Add the reference that an enabled task holds: one exactly while ``kcov->t`` is set (kcov-abi.md K1)."""
        for address in roads:
            try:
                fields = self.kcov(address)
            except (ReadError, MissingTypeError):
                continue
            if fields.task:
                references[address].insert(0, Reference("task", 1, self._owner(fields.task)[0]))

    def _add_unreferenced(self, roads: dict[int, list[str]], references: dict[int, list[Reference]]) -> None:
        """Look for objects that no road led to, and for files that no table or mapping shows."""
        if self._layout.kcov is None or not self._layout.kcov.has("area"):
            # Then nothing tells whose a buffer is.
            return
        areas = self._areas_of(roads)
        lost = {area.start for area in self._vmalloc if plain_name(area.caller) in _USER_CALLERS} - areas
        unbalanced = any(
            (kcov := self._kcov_or_none(address)) is not None
            and (kcov.refcount or 0) > sum(reference.counts for reference in references[address])
            for address in roads
        )
        slab = self._target.slab
        if not (lost or unbalanced):
            return
        if slab is None:
            self._remarks["slab"] = ("this target can't search the slab allocator: files that no process holds aren't found",)
        else:
            self._search_files(slab.for_each_file(), roads, references)
            areas = self._areas_of(roads)
            if lost - areas and self._layout.kcov is not None:
                self._search_slab(lost - areas, roads)
                areas = self._areas_of(roads)
        self._remarks["lost"] = tuple(
            f"no struct kcov that can be read refers to the buffer at {area:#x}" for area in sorted(lost - areas)
        )

    def _areas_of(self, addresses: Iterable[int]) -> set[int]:
        """Return the buffers of the objects that can be read."""
        found: set[int] = set()
        for address in addresses:
            kcov = self._kcov_or_none(address)
            if kcov is None:
                continue
            if kcov.area:
                found.add(kcov.area)
            if self._layout.generation.has(Feature.UNIQUE_MAPS):
                found |= find_map_areas(self._target, address)
        return found

    def _search_files(self, files: Iterator[int], roads: dict[int, list[str]], references: dict[int, list[Reference]]) -> None:
        """Find files of KCOV that are in flight over a socket, registered with io_uring, or leaked."""
        known = {reference.file for found in references.values() for reference in found}
        walk = FileWalk(self._target)
        try:
            extra = tuple(
                KcovFile(0, file, kcov)
                for file in files
                if file not in known and (kcov := walk.find_kcov(file, "a struct file of the slab cache")) is not None
            )
        except ReadError as error:
            self._remarks["slab"] = (f"the slab cache of files can't be read to its end: {error}",)
            return
        for file in extra:
            if "file" not in roads[file.kcov]:
                roads[file.kcov].append("file")
            references[file.kcov].append(Reference("fd", 1, file=file.file))
            fields = self._kcov_or_none(file.kcov)
            if fields is not None and fields.task and not any(found.kind == "task" for found in references[file.kcov]):
                references[file.kcov].insert(0, Reference("task", 1, self._owner(fields.task)[0]))

    def _search_slab(self, areas: set[int], roads: dict[int, list[str]]) -> None:
        """Find the objects of buffers that nothing leads to, by what a ``struct kcov`` looks like (kcov-abi.md 10.7)."""
        layout = self._layout.kcov
        slab = self._target.slab
        if layout is None or slab is None:
            return
        try:
            for item in slab.for_each_slab_object(layout.size):
                block = item.data[layout.start : layout.start + layout.span]
                if len(block) < layout.span:
                    continue
                fields = decode_kcov(self._layout, item.address, block)
                if fields.area in areas and looks_like_kcov(self._target, fields, fields.area or 0):
                    roads[item.address].append("vmalloc")
        except ReadError as error:
            self._remarks["slab"] = (f"the slab caches can't be read to their end: {error}",)

    def _kcov_or_none(self, address: int) -> KcovFields | None:
        try:
            return self.kcov(address)
        except (ReadError, MissingTypeError):
            return None

    def _owner(self, task: int) -> tuple[int | None, str | None, str | None]:
        """Return pid and comm of an object's ``t``, and why they are missing."""
        if task not in self._owners:
            self._owners[task] = self._find_owner(task)
        return self._owners[task]

    def _find_owner(self, task: int) -> tuple[int | None, str | None, str | None]:
        fields = self.by_address.get(task)
        if fields is not None:
            lost = [name for name in ("pid", "comm") if getattr(fields, name) is None and self._layout.task.has(name)]
            problem = f"t {task:#x}: {' and '.join(lost)} can't be read" if lost else None
            return fields.pid, fields.comm, problem
        try:
            fields = read_task(self._target, self._layout, task)
        except ReadError as error:
            return None, None, f"t {task:#x}: {error}"
        if not (is_pid(fields.pid) and is_pid(fields.tgid)):
            return None, None, f"t {task:#x} is no task, or not any more"
        return fields.pid, fields.comm, f"t {task:#x} is on no task list"

    def _object(
        self, address: int, references: tuple[Reference, ...], roads: tuple[str, ...], uncertain: Iterable[str]
    ) -> Kcov:
        try:
            fields = self.kcov(address)
        except (ReadError, MissingTypeError) as error:
            return Kcov(None, address, None, None, None, None, None, None, references, roads, (str(error), *uncertain))
        errors: list[str] = [*uncertain]
        problem = find_implausible(self._target, self._layout, fields)
        if problem is not None:
            errors.append(f"it isn't a struct kcov, or not any more: {problem}")
        if fields.task is None:
            errors.append("whom it is enabled for can't be told: that reference isn't counted")
        pid = comm = None
        if fields.task:
            pid, comm, problem = self._owner(fields.task)
            if problem is not None:
                errors.append(problem)
        mode = None if fields.mode is None else self._layout.object_mode_name(fields.mode)
        count, full = self._count(fields.area, fields.size, mode, errors, fields.trace, fields.trace_size, address)
        capacity = None
        if mode is not None and modes.is_known(mode):
            capacity = find_capacity(self._layout, mode, fields.size, fields.trace_size)
        return Kcov(fields, address, mode, pid, comm, count, capacity, full, references, roads, tuple(errors))

    # Handles and areas.

    @cached_property
    def remote(self) -> tuple[RemoteHandle, ...]:
        """The registered handles with their owners."""
        found: list[RemoteHandle] = []
        for entry in self.remote_map.entries:
            pid = comm = None
            errors: tuple[str, ...] = ()
            try:
                if entry.kcov is None:
                    raise MissingTypeError(f"the debug info has no {REMOTE}.kcov")  # noqa: TRY301
                fields = self.kcov(entry.kcov)
            except (ReadError, MissingTypeError) as error:
                errors = (str(error) if entry.kcov is None else f"kcov {entry.kcov:#x}: {error}",)
            else:
                if fields.task:
                    pid, comm, problem = self._owner(fields.task)
                    errors = () if problem is None else (problem,)
            found.append(RemoteHandle(entry.address, entry.handle, entry.bucket, entry.kcov, pid, comm, errors))
        return tuple(found)

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """Remote and softirq areas: on a list, idle on their CPU, in use, of an interrupted section, or unclaimed."""
        found = [Area(area.address, area.size, area.list, "cached") for area in self.cached_areas]
        used: dict[int, Area] = {}
        for task in self.tasks():
            fields = task.fields
            if task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION) and fields.kcov_area:
                kind = IRQ_LIST if task.role is Role.SOFTIRQ_SECTION else TASK_LIST
                used[fields.kcov_area] = Area(fields.kcov_area, fields.kcov_size, kind, "in-use", fields.pid, fields.cpu)
            saved = task.saved
            if saved is not None and task.beneath is Role.REMOTE_SECTION and saved.area:
                used[saved.area] = Area(saved.area, saved.size, TASK_LIST, "saved", fields.pid, saved.cpu)
        for saved in self.saved:
            if saved.task is None and saved.area and self._saved_role(saved, []) is Role.REMOTE_SECTION:
                used[saved.area] = Area(saved.area, saved.size, TASK_LIST, "saved", None, saved.cpu, saved.errors)
        of_cpus = {instance.irq_area for instance in self._per_cpu}
        for task in self.tasks():
            # Whatever else isn't known of it, a CPU's area is used by whom has it.
            fields = task.fields
            if task.role is None and fields.kcov_area and fields.kcov_area in of_cpus:
                used[fields.kcov_area] = Area(
                    fields.kcov_area, fields.kcov_size, IRQ_LIST, "in-use", fields.pid, fields.cpu, task.errors
                )
        known = {area.size for area in used.values() if area.list == IRQ_LIST}
        idle = "cached" if self._sees_tasks() else None
        for instance in self._per_cpu:
            if instance.irq_area and instance.irq_area not in used:
                # What isn't in use doesn't say its size; all CPUs' areas have the same.
                size = next(iter(known), None) or self._vmalloc_words(instance.irq_area)
                errors: tuple[str, ...] = ()
                if not is_kernel_pointer(self._target, instance.irq_area, PAGE):
                    errors = ("this is no buffer's address",)
                found.append(Area(instance.irq_area, size, IRQ_LIST, idle, cpu=instance.cpu, errors=errors))
        found.extend(used.values())
        claimed = {area.address for area in found}
        # Nobody's is an area only when everybody is known who could have it.
        unclaimed = "unclaimed" if self._sees_all_areas() else None
        holders = {fields.kcov_area: fields.pid for fields in self.task_fields if fields.kcov_area}
        for area in self._vmalloc:
            sections = _AREA_CALLERS.get(plain_name(area.caller))
            if sections is None or area.start in claimed:
                continue
            words = area.size // self._layout.buffer_word
            if area.start in holders:
                # A task has it without being in a section: used or left behind, but not nobody's.
                doubt = (f"task {holders[area.start]} has it, and is in no section",)
                found.append(Area(area.start, words, sections, None, holders[area.start], errors=doubt))
            else:
                found.append(Area(area.start, words, sections, unclaimed))
        return tuple(found)

    def _sees_all_areas(self) -> bool:
        """Tell whether every task, list and CPU was read that could have an area."""
        return (
            self._sees_tasks()
            and not self._remarks.get("areas")
            and not self._remarks.get("per-cpu")
            and all(task.role is not None for task in self.tasks())
            and (self._sees_saved or not self._layout.generation.has(Feature.SOFTIRQ))
            and all(self._saved_role(saved, []) is not None for saved in self.saved)
        )

    def _sees_tasks(self) -> bool:
        """Tell whether every task was read that could have an area."""
        return not self._remarks.get("tasks") and all(task.kcov_area is not None for task in self.task_fields)

    def _vmalloc_words(self, start: int) -> int | None:
        return next((area.size // self._layout.buffer_word for area in self._vmalloc if area.start == start), None)

    def remarks(self) -> tuple[str, ...]:
        """Say what the answers so far lack."""
        return tuple(remark for remarks in self._remarks.values() for remark in remarks)

    def recall(self) -> Snapshot:
        """Return what this census was asked for already; nothing is read."""
        known = self.__dict__
        return Snapshot(
            objects=known.get("objects", {}),
            remote=known.get("remote", ()),
            areas=known.get("areas", ()),
            saved=known.get("saved", ()),
            remarks=self.remarks(),
        )

    def snapshot(self) -> Snapshot:
        """Look at everything."""
        tasks, objects, remote, areas, saved = self.tasks(all_tasks=True), self.objects, self.remote, self.areas, self.saved
        return Snapshot(tasks, objects, remote, areas, saved, self.remarks())


def plain_name(function: str) -> str:
    """Return a function's name without what the compiler appends to a clone's."""
    return function.split(".", 1)[0]
