# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decides which session each task is in, by its fields, its saved state and its object; and which
session uses each area.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from kcovdbg.abi import mode as modes
from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.abi.generations import Feature
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.remote import AREA_ALLOCATORS, IRQ_LIST, TASK_LIST, Area
from kcovdbg.model.task import Role, SavedState, Session, Task, TaskFields
from kcovdbg.target.pointer import is_kernel_pointer
from kcovdbg.walk.layout import TASK_LINKS, Layout
from kcovdbg.walk.objects import BufferMembers, find_fill, find_implausible, members_of_object
from kcovdbg.walk.saved import find_saved, saved_in_task
from kcovdbg.walk.structure_cache import StructureCache
from kcovdbg.walk.tasks import read_stack_cpu, read_task

# How often a task of a live kernel is read again if its fields disagree, as during a system call.
_RETRIES: Final = 3


class SessionWalk:
    """The sessions in one look at a kernel."""

    def __init__(self, cache: StructureCache) -> None:
        self._cache = cache
        self._target = cache.target
        self._layout = cache.layout
        self._generation = cache.layout.generation
        self._interpreted: dict[int, Task] = {}

    @cached_property
    def saved(self) -> tuple[SavedState, ...]:
        """The sessions that are saved now."""
        current = self._cache.current.found if self._generation.has(Feature.SAVED_PER_CPU) else {}
        return find_saved(self._layout, self._cache.tasks.found, self._cache.per_cpu.found, current)

    @cached_property
    def _saved_by_task(self) -> Mapping[int, SavedState]:
        return {saved.task: saved for saved in self.saved if saved.task is not None}

    @cached_property
    def unattributed(self) -> tuple[tuple[SavedState, Session], ...]:
        """The saved sessions whose task is unknown."""
        return tuple(
            (saved, self._decide_saved(saved)) for saved in self.saved if saved.task is None
        )

    @cached_property
    def with_state(self) -> tuple[Task, ...]:
        """The tasks with KCOV state."""
        # A session that is saved on its CPU leaves no trace in its task's fields.
        saved = self._saved_by_task
        return tuple(
            self._task(fields)
            for fields in self._cache.tasks.found
            if fields.address in saved or has_state(fields, self._layout)
        )

    @cached_property
    def all_tasks(self) -> tuple[Task, ...]:
        """Every task."""
        return tuple(self._task(fields) for fields in self._cache.tasks.found)

    def _task(self, fields: TaskFields) -> Task:
        task = self._interpreted.get(fields.address)
        if task is None:
            task = self._interpreted[fields.address] = self._settle(fields)
        return task

    def _settle(self, fields: TaskFields) -> Task:
        """Return a task with its sessions; in a live kernel, read it again while it has errors."""
        task = self.interpret(fields)
        retries = _RETRIES if self._target.live else 0
        for _ in range(retries):
            if not task.errors:
                return task
            # The kernel may have changed the task between two reads.
            try:
                fields = read_task(self._target, self._layout, fields.address)
            except ReadError:
                break
            for pointer in (fields.kcov, fields.kcov_remote, fields.saved_kcov):
                self._cache.forget(pointer or 0)
            task = self.interpret(fields)
        return task

    def interpret(self, fields: TaskFields) -> Task:
        """Return a task with its sessions and the fill of its buffer."""
        layout = self._layout
        if fields.cpu is None and layout.stack_cpu is not None:
            cpu = read_stack_cpu(self._target, layout.stack_cpu, fields.address)
            fields = fields._replace(cpu=cpu)
        errors = list(self._find_unreadable(fields))
        word = fields.kcov_mode
        in_ctxsw: bool | None = None
        if word is not None and layout.modes and self._generation.has(Feature.CTXSW_FLAG):
            in_ctxsw = bool(word & layout.in_ctxsw)
        session = self._decide_own(fields)
        unknown = session.unknown_bits
        if unknown:
            errors.append(f"mode {modes.name_bits(unknown)} is unknown")
        set_bits = (word or 0) & layout.mode_flags & ~unknown
        flags = [flag for flag in layout.traits.flags if flag.bit & set_bits]
        usual = self._usual_flags if in_ctxsw and flags else 0
        errors += [flag.remark for flag in flags if flag.remark and not flag.bit & usual]
        errors += session.errors
        saved = self._saved_of(fields)
        interrupted = None
        if saved is not None:
            interrupted = self._decide_saved(saved)
            errors += interrupted.errors
        elif fields.kcov_softirq and not self.sees_saved:
            errors.append("the session that its softirq section interrupted is unknown")
        owned, owns, unread = self._find_owned(fields, session, interrupted)
        errors += unread
        buffer = BufferMembers(
            fields.kcov_area,
            fields.kcov_size,
            session.mode,
            fields.trace,
            fields.trace_size,
            fields.kcov,
        )
        if fields.kcov_area == 0 and owned is not None:
            buffer = members_of_object(layout, owned)
        fill = find_fill(self._target, layout, buffer)
        errors += fill.problems
        return Task(
            fields=fields,
            in_ctxsw=in_ctxsw,
            pauses=() if in_ctxsw else tuple(flag.effect for flag in flags if flag.effect),
            session=session,
            interrupted=interrupted,
            owns_remote=owns,
            count=fill.count,
            capacity=fill.capacity,
            full=fill.full,
            saved=saved,
            errors=tuple(dict.fromkeys(errors)),
        )

    def _find_unreadable(self, fields: TaskFields) -> Iterator[str]:
        """Yield a line for each member on an unreadable page."""
        task = self._layout.task
        for name in task.names:
            if name not in TASK_LINKS and task.has(name) and getattr(fields, name) is None:
                yield f"{name} is unreadable"

    def _unknown_bits(self, word: int | None, kcov: int | None) -> int:
        """Return the bits of a task's or a saved mode word that are neither part of a mode nor a
        known flag.

        An object's mode never has a known flag. If it has the bit, the bit has another meaning.

        :param kcov: the object of the session.
        """
        of_object = 0
        if kcov:
            with contextlib.suppress(ReadError, MissingTypeError):
                of_object = self._layout.mode_numbers.split(self._cache.kcov(kcov).mode or 0)[1]
        word = word or 0
        mode = modes.strip_flags(word, self._layout.mode_flags)
        return word & of_object | self._layout.mode_numbers.split(mode)[1]

    @cached_property
    def _usual_flags(self) -> int:
        """The flag bits that tasks keep while they are switched out, if most of those have them."""
        words = [fields.kcov_mode or 0 for fields in self._cache.tasks.found]
        switched_out = [word for word in words if word & self._layout.in_ctxsw]
        usual = 0
        for flag in self._layout.traits.flags:
            count = sum(bool(word & flag.bit) for word in switched_out)
            if flag.stays_when_switched_out and 2 * count > len(switched_out):
                usual |= flag.bit
        return usual

    def _saved_of(self, fields: TaskFields) -> SavedState | None:
        if self._generation.has(Feature.SAVED_IN_TASK):
            saved = saved_in_task(fields)
            return None if saved.is_empty else saved
        return self._saved_by_task.get(fields.address)

    @cached_property
    def sees_saved(self) -> bool:
        """Whether every saved session and its task are known."""
        percpu = self._layout.percpu
        if not self._generation.has(Feature.SAVED_PER_CPU):
            return self._generation.has(Feature.SAVED_IN_TASK)
        if percpu is None or not percpu.has("saved_kcov"):
            return False
        found = len(self._cache.per_cpu.found), len(self._cache.current.found)
        cpus = len(self._target.cpus())
        return found == (cpus, cpus)

    def _decide_own(self, fields: TaskFields) -> Session:
        mode = None
        if fields.kcov_mode is not None:
            mode = self._layout.mode_name(fields.kcov_mode, fields.mode_flag)
        session = Session(
            fields.address,
            False,
            mode,
            fields.kcov_size,
            fields.kcov_area,
            fields.kcov,
            fields.kcov_sequence,
            None,
            unknown_bits=self._unknown_bits(fields.kcov_mode, fields.kcov),
        )
        return self.decide_session(session, fields.kcov_softirq)

    def _decide_saved(self, saved: SavedState) -> Session:
        mode = self._layout.mode_of_saved(saved)
        unknown = self._unknown_bits(saved.mode, saved.kcov)
        found = (saved.size, saved.area, saved.kcov, saved.sequence, None)
        session = Session(saved.task, True, mode, *found, unknown_bits=unknown)
        return self.decide_session(session, 0)

    def decide_session(self, session: Session, softirq: int | None) -> Session:
        """Return a session with its role: local, a remote or softirq section, or only the mark of a
        remote owner.

        :param softirq: ``task->kcov_softirq``, 0 for a saved session.
        """
        found = self._decide(session, softirq)
        has_softirqs = self._generation.has(Feature.SOFTIRQ)
        problem = ""
        if softirq not in (None, 0, 1):
            problem = f"kcov_softirq is {softirq:#x}"
        elif softirq and found.role is not Role.LOCAL:
            return found._replace(role=Role.SOFTIRQ_SECTION, is_certain=True)
        elif softirq:
            problem = "kcov_softirq is set, but the area is the object's own buffer"
        elif softirq is None and found.role is Role.REMOTE_SECTION and has_softirqs:
            problem = "without kcov_softirq it is unknown whether its section is a softirq section"
        errors = (*found.errors, problem) if problem else found.errors
        return found._replace(is_certain=not errors, errors=errors)

    def _decide(self, session: Session, softirq: int | None) -> Session:
        """Return a session with its role by mode, area and object; a softirq section counts as a
        remote section.
        """

        def decide(role: Role | None, *errors: str) -> Session:
            return session._replace(role=role, is_certain=not errors, errors=errors)

        mode, area, kcov = session.mode, session.area, session.kcov
        if mode is None:
            return decide(None)
        is_idle = modes.is_known(mode) and not modes.is_tracing(mode)
        if not modes.is_known(mode):
            if self._layout.modes:
                return decide(None, f"mode {mode} is not one of this kernel's modes")
            # The debug info has no names of modes. Only a session has an area.
            if area is None:
                return decide(None)
            is_idle = not area
        if not kcov:
            # The boot-time self-test (v6.11) sets a mode without an object, and records
            # nothing.
            return decide(Role.NONE if is_idle or kcov is not None else None)
        try:
            fields = self._cache.kcov(kcov)
        except (ReadError, MissingTypeError) as error:
            return decide(Role.NONE) if is_idle else decide(None, f"kcov {kcov:#x}: {error}")
        is_owner = fields.task is not None and fields.task == session.task
        if is_idle:
            return decide(Role.NONE)._replace(is_owner_mark=is_owner and bool(fields.remote))
        errors: list[str] = []
        problem = find_implausible(self._target, self._layout, fields)
        if problem is not None:
            errors.append(f"kcov {kcov:#x} is no longer a struct kcov: {problem}")
        # A local session uses the object's own buffer; a section never does (kcov-abi.md T2, T6).
        is_own_buffer = area is not None and area == fields.area
        if is_own_buffer or not self._generation.has(Feature.REMOTE):
            return decide(Role.LOCAL, *errors)
        is_local = is_owner and not fields.remote and not softirq
        if area and not is_kernel_pointer(self._target, area, PAGE_SIZE):
            errors.append(f"kcov_area {area:#x} is not the address of a buffer")
        elif area is None or fields.area is None:
            whose = "task" if area is None else "object"
            errors.append(f"without the {whose}'s area it is unknown whether the session is local")
        elif is_local:
            errors.append(
                f"kcov_area {area:#x} is not the buffer of kcov {kcov:#x}, which is enabled for "
                f"this task"
            )
        return decide(Role.LOCAL if is_local else Role.REMOTE_SECTION, *errors)

    def _find_owned(
        self, fields: TaskFields, session: Session, interrupted: Session | None
    ) -> tuple[KcovFields | None, bool | None, Sequence[str]]:
        """Find the object that a task owns by KCOV_REMOTE_ENABLE.

        :return: the object, whether the task owns one, None if that is unknown, and lines on
            unreadable objects.
        """
        if not self._generation.has(Feature.REMOTE):
            return None, None, ()
        own_member = self._generation.has(Feature.OWNER_MEMBER)
        own_pointer = fields.kcov_remote if own_member else fields.kcov
        # The pointers that may lead to the object; `unknown` if there may be others, or if objects
        # are unreadable.
        pointers = [fields.kcov_remote, fields.kcov]
        if interrupted is not None:
            marked = modes.REMOTE in (session.mode, interrupted.mode)
            unknown = own_pointer is None or interrupted.kcov is None
            pointers.append(interrupted.kcov)
        else:
            marked = session.mode == modes.REMOTE
            unknown = own_pointer is None or bool(fields.kcov_softirq and not self.sees_saved)
        if self._generation.has(Feature.SAVED_IN_TASK) and not own_member:
            # Since August 2026, kcov_remote or the mode marks an owner.
            unknown = unknown or not self._generation.has(Feature.MODE_REMOTE)
        errors: list[str] = []
        for pointer in dict.fromkeys(pointers):
            if not pointer:
                continue
            try:
                kcov = self._cache.kcov(pointer)
            except (ReadError, MissingTypeError) as error:
                errors.append(f"kcov {pointer:#x}: {error}")
                unknown = True
                continue
            if None in (kcov.remote, kcov.task):
                owns = marked or (own_member and pointer == fields.kcov_remote)
            else:
                owns = bool(kcov.remote) and kcov.task == fields.address
            if owns:
                return kcov, True, errors
            may_own = kcov.remote is not False and kcov.task in (None, fields.address)
            unknown = unknown or may_own
        if marked:
            return None, True, errors
        return None, None if unknown else False, errors


def has_state(fields: TaskFields, layout: Layout) -> bool:
    """Return whether a task has KCOV state.

    A sequence, which kcov_stop() leaves behind, is no state; neither is the flag of a task that is
    switched out.
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
        or layout.mode_numbers.split(modes.strip_flags(fields.kcov_mode or 0, layout.mode_flags))[0]
    )


def find_areas(cache: StructureCache, sessions: SessionWalk) -> tuple[Area, ...]:
    """Return the areas of remote and softirq sections: free ones on lists and of CPUs, areas in
    use, areas of interrupted sections, and unclaimed areas.
    """
    used = {area.address: area for area in _of_sections(cache, sessions)}
    claimed = (*cache.area_lists.found.areas, *_of_cpus(cache, used), *used.values())
    return (*claimed, *_unlisted(cache, sessions, {area.address for area in claimed}))


def _of_sections(cache: StructureCache, sessions: SessionWalk) -> Iterator[Area]:
    for task in sessions.with_state:
        fields, saved = task.fields, task.saved
        if task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION) and fields.kcov_area:
            kind = IRQ_LIST if task.role is Role.SOFTIRQ_SECTION else TASK_LIST
            yield Area(
                fields.kcov_area,
                fields.kcov_size,
                kind,
                "in-use",
                fields.pid,
                fields.cpu,
                _doubt_buffer(cache, "kcov_area", fields.kcov_area),
            )
        if saved is not None and task.beneath is Role.REMOTE_SECTION and saved.area:
            errors = _doubt_buffer(cache, "the saved area", saved.area)
            yield Area(saved.area, saved.size, TASK_LIST, "saved", fields.pid, saved.cpu, errors)
    for saved, session in sessions.unattributed:
        if saved.area and session.certain_role is Role.REMOTE_SECTION:
            yield Area(saved.area, saved.size, TASK_LIST, "saved", None, saved.cpu, saved.errors)
    of_cpus = {state.irq_area for state in cache.per_cpu.found.values()}
    for task in sessions.with_state:
        # A task that has a CPU's area uses it, although the task's role is unknown.
        fields = task.fields
        area, size = fields.kcov_area, fields.kcov_size
        if task.role is None and area and area in of_cpus:
            yield Area(area, size, IRQ_LIST, "in-use", fields.pid, fields.cpu, task.errors)


def _of_cpus(cache: StructureCache, used: dict[int, Area]) -> Iterator[Area]:
    """Yield the idle areas of CPUs."""
    known = {area.size for area in used.values() if area.list == IRQ_LIST}
    state = "cached" if _sees_tasks(cache) else None
    for cpu, of_cpu in cache.per_cpu.found.items():
        area = of_cpu.irq_area
        if not area or area in used:
            continue
        # An idle area does not hold its size, but all CPUs' areas have one size.
        size = next(iter(known), None)
        allocated = next((found for found in cache.kcov_areas if found.start == area), None)
        if not size and allocated is not None:
            size = allocated.size // cache.layout.buffer_word
        errors = _doubt_buffer(cache, "irq_area", area)
        yield Area(area, size, IRQ_LIST, state, cpu=cpu, errors=errors)


def _doubt_buffer(cache: StructureCache, name: str, address: int) -> tuple[str, ...]:
    """Return why there may be no area at an address."""
    if is_kernel_pointer(cache.target, address, PAGE_SIZE):
        return ()
    return (f"{name} {address:#x} is not the address of a buffer",)


def _unlisted(cache: StructureCache, sessions: SessionWalk, claimed: set[int]) -> Iterator[Area]:
    """Yield the allocated areas that are on no list, and of no CPU or section."""
    unclaimed = "unclaimed" if _sees_all_users(cache, sessions) else None
    holders = {fields.kcov_area: fields.pid for fields in cache.tasks.found if fields.kcov_area}
    for area in cache.kcov_areas:
        sections = AREA_ALLOCATORS.get(area.allocator)
        if sections is None or area.start in claimed:
            continue
        words = area.size // cache.layout.buffer_word
        if area.start in holders:
            # The area is in use or was left behind. In both cases it is not unclaimed.
            pid = holders[area.start]
            error = f"task {pid} has it outside of any section"
            yield Area(area.start, words, sections, None, pid, errors=(error,))
        else:
            yield Area(area.start, words, sections, unclaimed)


def _sees_all_users(cache: StructureCache, sessions: SessionWalk) -> bool:
    """Return whether every task, list and CPU that may have an area was read."""
    found = [session for _, session in sessions.unattributed]
    for task in sessions.with_state:
        found.append(task.session)
        if task.interrupted is not None:
            found.append(task.interrupted)
    return (
        _sees_tasks(cache)
        and cache.area_lists.is_whole
        and cache.per_cpu.is_whole
        and (sessions.sees_saved or not cache.layout.generation.has(Feature.SOFTIRQ))
        and all(session.certain_role is not None for session in found)
    )


def _sees_tasks(cache: StructureCache) -> bool:
    """Return whether every task that may have an area was read."""
    return cache.tasks.is_whole and all(task.kcov_area is not None for task in cache.tasks.found)
