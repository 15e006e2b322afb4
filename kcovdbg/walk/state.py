# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reader of KCOV's state: :class:`StateReader` reads parts when they are asked for,
:func:`read_state` some parts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kcovdbg.abi.generations import PERCPU, REMOTE, TASK, Feature
from kcovdbg.abi.record import CMP_WORDS
from kcovdbg.errors import CutStackError, KcovdbgError, MissingError, MissingTypeError, ReadError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.device import DeviceSession, DeviceState
from kcovdbg.model.kcov import Kcov, KcovFields, name_some
from kcovdbg.model.memory import StackFrame, VmallocArea
from kcovdbg.model.remote import Carrier, RemoteHandle
from kcovdbg.model.state import (
    BufferContents,
    KernelFacts,
    Lack,
    Part,
    PointProof,
    Reading,
    Source,
    State,
    WrongRecords,
    list_members,
)
from kcovdbg.model.task import Task, TaskFields, TaskSyscall
from kcovdbg.series.declaration import READ_PARTS
from kcovdbg.target.pointer import read_word, strip_tag
from kcovdbg.target.struct_layout import find_kernel_symbol, find_member
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import SPINLOCK, Layout, is_preempt_rt
from kcovdbg.walk.saved import is_serving_softirq
from kcovdbg.walk.sessions import SessionWalk, find_areas
from kcovdbg.walk.structure_cache import StructureCache, read_once

# Walks that few commands need are imported when a part is read.
if TYPE_CHECKING:
    from kcovdbg.walk.devices import DeviceWalk
    from kcovdbg.walk.syscalls import SyscallWalk


def read_cpu_lock_owner(target: Target, cpu: int) -> int | None:
    """Return the task that holds the lock of a CPU's ``kcov_percpu_data``.

    The lock has an owner on PREEMPT_RT, and elsewhere with lock debugging.

    :return: ``struct task_struct *``, 0 when the lock is free; None when it has no owner.
    :raises ReadError: when it is unreadable.
    """
    paths: tuple[str, ...] = ("lock.owner",)
    if is_preempt_rt(target):
        paths = ("lock.lock.owner", "lock.lock.rtmutex.owner")
    member = find_member(target, PERCPU, paths)
    if member is None:
        return None
    try:
        address = target.per_cpu("kcov_percpu_data", cpu) + member.offset
    except MissingError:
        return None
    # The lowest bit says that there are waiters.
    return strip_tag(target, read_word(target, address, member.size) & ~1)


# Limits for the words of one buffer, and of all buffers in a State (128 MiB).
_MAX_WORDS: Final = 1 << 23
_HELD_WORDS: Final = 1 << 24
# Limits for the stacks that a reader and a brief reader unwind, as unwinding is slow.
_MAX_STACKS: Final = 4000
_MAX_BRIEF_STACKS: Final = 64


class StateReader:
    """One look at a kernel. Every part is read once, when it is first asked for.

    :param find_proof: returns the judge of records by the kernel's code; None if no image is known.
    :param known_tasks: tasks to read again instead of walking the lists of tasks; None to walk.
    :param is_brief: whether to save time: slab memory is not searched, and few stacks are unwound.
    """

    def __init__(
        self,
        target: Target,
        layout: Layout,
        find_proof: Callable[[], PointProof] | None = None,
        *,
        known_tasks: Collection[TaskFields] | None = None,
        is_brief: bool = False,
    ) -> None:
        self.target = target
        self.layout = layout
        self._find_proof = find_proof
        self._is_brief = is_brief
        self._max_stacks = _MAX_BRIEF_STACKS if is_brief else _MAX_STACKS
        self.lacking: dict[Source, Lack] = {}
        """Everything that could not be read so far, by source, without the cache's structures."""
        self._cache = StructureCache(target, layout, known_tasks)
        self._sessions = SessionWalk(self._cache)
        self._known: dict[str, object] = {}
        """The members of a State that were read, by name."""
        self._parts = Part.NOTHING
        """The parts that were asked for."""
        self._stacks: dict[int, tuple[StackFrame, ...] | None] = {}
        self._stacks_left = False
        self._unread_stacks: list[str] = []
        self._syscalls: dict[int, TaskSyscall] = {}
        self._readers = self._make_readers()
        self._proofs: dict[frozenset[str], Mapping[str, object]] = {}

    def _make_readers(self) -> Mapping[str, Callable[[], object]]:
        """Return for each member of a State the function that reads it."""
        cache, sessions = self._cache, self._sessions
        return {
            "task_fields": lambda: cache.tasks.found,
            "tasks": lambda: sessions.with_state,
            "all_tasks": lambda: sessions.all_tasks,
            "current": lambda: cache.current.found,
            "saved": lambda: sessions.saved,
            "cpu_states": lambda: cache.per_cpu.found,
            "handles": lambda: tuple(self._read_handles()),
            "buckets": lambda: cache.remote_map.found.buckets,
            "cached_areas": lambda: cache.area_lists.found.areas,
            "areas": lambda: find_areas(cache, sessions),
            "files": lambda: cache.files.found,
            "vmalloc": self._read_vmalloc,
            "kcov_areas": lambda: cache.kcov_areas,
            "objects": lambda: self._objects.found,
            "lists_vmas": lambda: self.target.vmas is not None,
            "hash_links": lambda: cache.remote_map.found.links,
            "area_links": lambda: cache.area_lists.found.links,
            "remote_lock_held": lambda: self._locks.found["remote_lock_held"],
            "cpu_lock_owners": lambda: self._locks.found["cpu_lock_owners"],
            "dead": lambda: self._exits.found,
            "serving_softirq": lambda: self._softirqs.found,
            "carriers": lambda: self._carriers.found,
            "buffers": lambda: self._buffers.found,
            "series": lambda: self._series.found,
            "devices": lambda: self._devices.found,
            "device_sessions": lambda: self._device_sessions.found,
            "text": self._read_text,
        }

    def renew(self) -> StateReader:
        """Return a new look at the same kernel."""
        return StateReader(self.target, self.layout, self._find_proof, is_brief=self._is_brief)

    def read(
        self,
        parts: Part,
        *,
        stacks: Collection[int] = (),
        syscalls: Collection[TaskFields] = (),
        about: Collection[str] = (),
    ) -> State:
        """Return a State with some parts, as :meth:`StateSource.read`."""
        if Part.PROOF in parts:
            self._known.update(self._read_proof(frozenset(about)))
        read: dict[str, object] = {}
        for name in list_members(parts):
            if name not in self._known:
                self._known[name] = self._readers[name]()
            read[name] = self._known[name]
        self._parts |= parts
        wanted = {task: self._unwind(task) for task in stacks}
        calls = {fields.address: self._read_syscall(fields) for fields in syscalls}
        return State(self.facts, read, self._lacking, wanted, calls, parts)

    def recall(self) -> State:
        """Return a State with every part that was asked for so far, without reading anything."""
        return State(self.facts, dict(self._known), self._lacking, parts=self._parts)

    @property
    def _lacking(self) -> Mapping[Source, Lack]:
        """Everything that could not be read so far."""
        found = self._cache.lacking | self.lacking
        lines = tuple(self._unread_stacks)
        if self._stacks_left:
            line = f"only {self._max_stacks} stacks are unwound; those of other tasks are unknown"
            lines = (*lines, line)
        if lines:
            found[Source.STACKS] = Lack(lines)
        return found

    def kcov(self, address: int) -> KcovFields:
        """Return the fields of an object, as :meth:`StateSource.kcov`."""
        return self._cache.kcov(address)

    def interpret(self, fields: TaskFields) -> Task:
        """Return one task with its sessions.

        :param fields: as :func:`kcovdbg.walk.tasks.read_task` returns them.
        """
        return self._sessions.interpret(fields)

    @cached_property
    def facts(self) -> KernelFacts:
        """The facts that do not change while the kernel runs."""
        target, layout, traits = self.target, self.layout, self.layout.traits
        return KernelFacts(
            generation=layout.generation,
            word_size=target.word_size,
            big_endian=target.big_endian,
            buffer_word=layout.buffer_word,
            page_size=target.page_size,
            kernel_range=target.kernel_range,
            kaslr_offset=target.kaslr_offset,
            cpus=tuple(target.cpus()),
            modes=layout.modes,
            mode_flags=layout.mode_flags,
            mode_numbers=layout.mode_numbers,
            size_limit=traits.size_limit(target.word_size),
            counts_mappings=traits.counts_mappings,
            has_prefix=traits.has_prefix,
            leaves_saved_state=traits.leaves_saved_state,
            buffers=1 if traits.second_buffer is None else 2,
            live=target.live,
            is_rt=is_preempt_rt(target),
        )

    def _has(self, feature: Feature) -> bool:
        return self.layout.generation.has(feature)

    def _read_handles(self) -> Iterator[RemoteHandle]:
        for entry in self._cache.remote_map.found.entries:
            if entry.kcov is None:
                yield entry._replace(errors=(f"the debug info has no {REMOTE}.kcov",))
                continue
            try:
                pid, comm, errors = self._cache.owner(self._cache.kcov(entry.kcov).task)
                yield entry._replace(pid=pid, comm=comm, errors=errors)
            except (ReadError, MissingTypeError) as error:
                yield entry._replace(errors=(f"kcov {entry.kcov:#x}: {error}",))

    def _read_text(self) -> tuple[int | None, ...]:
        found: list[int | None] = []
        for name in ("_stext", "_etext"):
            symbol = find_kernel_symbol(self.target, name)
            found.append(None if symbol is None else symbol.address)
        return tuple(found)

    def _read_vmalloc(self) -> Mapping[int, VmallocArea] | None:
        areas = self._cache.vmalloc_areas
        return areas.found if areas.is_whole else None

    @read_once
    def _objects(self) -> Reading[Mapping[int, Kcov]]:
        from kcovdbg.walk.references import ReferenceWalk

        return ReferenceWalk(
            self._cache, self._sessions, searches_slab=not self._is_brief
        ).find_objects()

    @read_once
    def _devices(self) -> Reading[tuple[DeviceState, ...]]:
        found = tuple(walk.read() for walk in self._device_walks)
        return Reading(found, self._lacking_devices())

    @read_once
    def _device_sessions(self) -> Reading[tuple[DeviceSession, ...]]:
        found = tuple(session for walk in self._device_walks for session in walk.sessions)
        return Reading(found, self._lacking_devices())

    @cached_property
    def _device_walks(self) -> tuple[DeviceWalk, ...]:
        devices = self.layout.traits.devices
        if not devices:
            return ()
        from kcovdbg.walk.devices import DeviceWalk

        return tuple(DeviceWalk(self._cache, device) for device in devices)

    def _lacking_devices(self) -> Mapping[Source, Lack]:
        if not self._device_walks:
            return {}
        # A device's objects and sessions are found by tasks.
        remarks = list(self._cache.tasks.lines)
        for walk in self._device_walks:
            remarks += walk.remarks
        return {Source.DEVICES: Lack(tuple(remarks))}

    @read_once
    def _locks(self) -> Reading[Mapping[str, object]]:
        remarks: list[str] = []
        is_held: bool | None = False
        try:
            if self._has(Feature.REMOTE):
                lock, size = self.target.symbol("kcov_remote_lock"), self.target.type_size(SPINLOCK)
                is_held = self.layout.is_lock_held(self.target.read(lock.address, size))
        except ReadError as error:
            is_held = None
            remarks.append(f"kcov_remote_lock could not be read: {error}")
        except MissingError:
            # No dump of this kernel shows the lock: it counts as free.
            pass
        owners: dict[int, int] = {}
        cpus = self.facts.cpus if self._has(Feature.SOFTIRQ) else ()
        for cpu in cpus:
            try:
                owner = read_cpu_lock_owner(self.target, cpu)
            except ReadError as error:
                what = f"the lock of CPU {cpu}'s kcov_percpu_data"
                remarks.append(f"{what} could not be read: {error}")
                continue
            if owner:
                owners[cpu] = owner
        found = {"remote_lock_held": is_held, "cpu_lock_owners": owners}
        return Reading.of(Source.LOCKS, found, remarks)

    @read_once
    def _exits(self) -> Reading[Mapping[int, bool | None]]:
        """Whether each exiting task with an object is dead; None if that is unknown."""
        exit_state = find_member(self.target, TASK, ("exit_state",))
        found: dict[int, bool | None] = {}
        remarks: list[str] = []
        for with_state in self._sessions.with_state:
            task = with_state.fields
            if not (task.is_exiting and task.kcov):
                continue
            found[task.address] = None
            if exit_state is None:
                continue
            try:
                data = self.target.read(task.address + exit_state.offset, exit_state.size)
                found[task.address] = any(data)
            except ReadError as error:
                remarks.append(f"{task.label}: exit_state could not be read: {error}")
        return Reading.of(Source.EXITS, found, remarks)

    @read_once
    def _softirqs(self) -> Reading[Mapping[int, bool | None]]:
        """For each task in a softirq section, whether its CPU (on PREEMPT_RT, the task) serves a
        softirq; None if that is unknown.
        """
        cpu_of = {task: cpu for cpu, task in self._cache.current.found.items()}
        found: dict[int, bool | None] = {}
        remarks: list[str] = []
        for with_state in self._sessions.with_state:
            task = with_state.fields
            if not task.kcov_softirq:
                continue
            found[task.address] = None
            cpu = None
            if not self.facts.is_rt:
                cpu = cpu_of.get(task.address)
                if cpu is None:
                    continue
            try:
                found[task.address] = is_serving_softirq(self.target, task.address, cpu)
            except ReadError as error:
                remarks.append(
                    f"{task.label}: whether it serves a softirq could not be read: {error}"
                )
        return Reading.of(Source.SOFTIRQS, found, remarks)

    @read_once
    def _carriers(self) -> Reading[tuple[Carrier, ...]]:
        from kcovdbg.walk.carriers import CarrierWalk

        walk = CarrierWalk(self.target, self._cache.tasks.found)
        return Reading.of(Source.CARRIERS, tuple(walk), walk.remarks)

    @read_once
    def _buffers(self) -> Reading[tuple[BufferContents, ...]]:
        """The contents of buffers within a budget. Buffers that are left out are named."""
        budget = self._make_budget()
        found = (*self._read_user_buffers(budget), *self._read_section_buffers(budget))
        return Reading.of(Source.BUFFERS, found, (*budget.remarks, *self._find_uncounted()))

    def _make_budget(self, held: int = 0) -> _BufferBudget:
        from kcovdbg.walk.buffers import read_buffer

        return _BufferBudget(lambda name: read_buffer(self.target, self.layout, self, name), held)

    @cached_property
    def _proof(self) -> PointProof | None:
        return None if self._find_proof is None else self._find_proof()

    @cached_property
    def _proof_problem(self) -> str | None:
        return "no kernel image is given" if self._proof is None else self._proof.problem()

    def _read_proof(self, about: frozenset[str]) -> Mapping[str, object]:
        """Compare records of enabled objects and of sections with the code."""
        if about not in self._proofs:
            wrong = self._find_wrong_records(about)
            self.lacking.update(wrong.lacking)
            self._proofs[about] = {
                "wrong_records": wrong.found,
                "proof_problem": self._proof_problem,
            }
        return self._proofs[about]

    def _find_wrong_records(self, about: frozenset[str]) -> Reading[tuple[WrongRecords, ...]]:
        if self._proof is None or self._proof_problem is not None:
            return Reading.of(Source.PROOF, ())
        from kcovdbg.walk.wrong_records import WrongRecordWalk

        walk = WrongRecordWalk(self._cache, self._proof)
        held = sum(len(contents.buffer.words) for contents in self._buffers.found)
        budget = self._make_budget(held)
        found: list[WrongRecords] = []
        for is_reused, buffers in (
            (False, self._buffers.found),
            (True, self._read_user_buffers(budget, is_reused=True)),
        ):
            for contents in buffers:
                if about and contents.about not in about:
                    continue
                wrong = walk.find(contents, is_reused=is_reused)
                if wrong is not None:
                    found.append(wrong)
        return Reading.of(Source.PROOF, tuple(found), budget.remarks)

    @read_once
    def _series(self) -> Reading[Mapping[str, object]]:
        """The data for the rules of the posted series in this kernel, by the feature of the
        series.
        """
        state, budget = self.read(READ_PARTS), self._make_budget()
        found: dict[str, object] = {}
        notes: list[str] = []
        for series in self.layout.traits.series:
            if series.read is not None:
                found[series.feature], lines = series.read(self.target, state, budget.read)
                notes += lines
        return Reading.of(Source.SERIES, found, (*notes, *budget.remarks))

    def _enabled_buffers(self) -> Iterator[tuple[Kcov, KcovFields, int]]:
        """Yield the enabled objects that have a buffer, with its size in words."""
        for kcov in self._objects.found.values():
            fields = kcov.fields
            if fields is not None and fields.area and fields.size and kcov.is_enabled:
                yield kcov, fields, fields.size

    def _find_uncounted(self) -> Iterator[str]:
        """Yield a line for each buffer of an enabled object whose count is unreadable."""
        for kcov, fields, _ in self._enabled_buffers():
            if kcov.count is None:
                yield f"kcov:{fields.address:#x}: its count could not be read"

    def _read_user_buffers(
        self, budget: _BufferBudget, *, is_reused: bool = False
    ) -> Iterator[BufferContents]:
        """Read the buffers of objects in their first session, which have no records of an earlier
        mode.

        :param is_reused: whether to read the buffers of objects in a later session instead.
        """
        for kcov, fields, size in self._enabled_buffers():
            # Kernels without remote coverage do not count sessions.
            if not kcov.count or (fields.sequence == 1) is is_reused:
                continue
            words = min(size, _most_words(kcov.count))
            buffer = budget.read(f"kcov:{fields.address:#x}", words)
            if buffer is not None:
                yield BufferContents(buffer, fields.address)

    def _read_section_buffers(self, budget: _BufferBudget) -> Iterator[BufferContents]:
        """Read the areas that sections collect into."""
        for task in self._sessions.with_state:
            for session in (task.session, task.interrupted):
                if session is None or not session.is_section:
                    continue
                if not (session.area and session.size and session.kcov):
                    continue
                name, words = f"area:{session.area:#x}", session.size
                if session.is_saved and task.saved is not None:
                    name = task.saved.buffer
                elif task.count is not None:
                    words = min(words, _most_words(task.count))
                buffer = budget.read(name, words)
                if buffer is not None and buffer.address == session.area:
                    yield BufferContents(buffer, session.kcov, task.fields)

    def _read_syscall(self, fields: TaskFields) -> TaskSyscall:
        if fields.address not in self._syscalls:
            found = self._syscall_walk.read(fields, self._is_in_kernel)
            self._syscalls[fields.address] = found
        return self._syscalls[fields.address]

    @cached_property
    def _syscall_walk(self) -> SyscallWalk:
        from kcovdbg.walk.syscalls import SyscallWalk

        return SyscallWalk(self.target)

    def _is_in_kernel(self, task: int) -> bool | None:
        """Return whether a running task is in the kernel, None if its registers are unknown."""
        stack = self._unwind(task)
        return None if stack is None else bool(stack)

    def _unwind(self, task: int) -> tuple[StackFrame, ...] | None:
        source = self.target.stacks
        if source is None:
            return None
        if task not in self._stacks:
            if len(self._stacks) >= self._max_stacks:
                self._stacks_left = True
                return None
            try:
                self._stacks[task] = tuple(source.stack_trace(task))
            except CutStackError as error:
                self._stacks[task] = None
                self._unread_stacks.append(f"task {task:#x}: {error}")
            except KcovdbgError:
                # Slices have few stacks, and a running task's registers may be unknown.
                self._stacks[task] = None
        return self._stacks[task]


class _BufferBudget:
    """Reads buffers until a limit of words is reached.

    :param read: reads the buffer with a name.
    :param held: the number of words that the State has already.
    """

    def __init__(self, read: Callable[[str], Buffer], held: int) -> None:
        self._read = read
        self._held = held
        self._left: set[str] = set()
        self._unread: list[str] = []

    def read(self, name: str, words: int) -> Buffer | None:
        """Read a buffer.

        :param words: the greatest number of words that it can have.
        :return: None if it is unreadable, if it exceeds the limit, or if the format of its records
            is a guess.
        """
        if words > _MAX_WORDS or self._held + words > _HELD_WORDS:
            self._left.add(name)
            return None
        try:
            buffer = self._read(name)
        except KcovdbgError as error:
            self._unread.append(f"{name} could not be read: {error}")
            return None
        if buffer.has_doubtful_format:
            # Rule X6 reports that.
            return None
        if buffer.is_incomplete:
            self._unread.append(f"{name} could be read only in part: pages are missing")
        self._held += len(buffer.words)
        return buffer

    @property
    def remarks(self) -> tuple[str, ...]:
        """A line on the buffers that exceed the limit, and a line for each buffer that could not be
        read whole.
        """
        if not self._left:
            return tuple(self._unread)
        left = sorted(self._left)
        line = f"the contents of {len(left)} buffers are not checked, too long: {name_some(left)}"
        return (line, *self._unread)


def _most_words(count: int) -> int:
    """Return the greatest number of words that records take, with the count word."""
    return CMP_WORDS * count + 1


def read_state(
    target: Target, layout: Layout, parts: Part, *, stacks: Collection[int] = ()
) -> State:
    """Read some parts of KCOV's state.

    :param stacks: tasks, ``struct task_struct *``, whose stacks to read.
    """
    return StateReader(target, layout).read(parts, stacks=stacks)
