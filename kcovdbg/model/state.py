# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV's state at one moment, as plain data: verdicts work on it instead of a target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from functools import cached_property
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from kcovdbg.abi.address import ReadMemory, align, is_aligned_in
from kcovdbg.abi.generations import Feature, Generation
from kcovdbg.abi.mode import ModeNumbers
from kcovdbg.abi.record import Codec
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.device import DeviceSession, DeviceState
from kcovdbg.model.finding import Certainty
from kcovdbg.model.kcov import Kcov, KcovFields, KcovFile, name_kcov, name_task
from kcovdbg.model.memory import ListLink, StackFrame, VmallocArea
from kcovdbg.model.remote import Area, Carrier, RemoteHandle
from kcovdbg.model.task import Role, SavedState, Session, Task, TaskFields, TaskSyscall


class PointProof(Protocol):
    """Judges records by the code of a kernel's image and of its loaded modules."""

    def problem(self) -> str | None:
        """Return why no record can be judged, None when records can be."""

    def judge(
        self, pcs: Collection[int], codec: Codec, read: ReadMemory
    ) -> tuple[Mapping[int, str], Collection[int]]:
        """Return the PCs that no callback records, each with a description of the code there, and
        the PCs that callbacks for comparisons record.

        :param pcs: minus the KASLR offset, as recorded.
        """


class NextMapping(NamedTuple):
    """A mapping next to a buffer's mapping."""

    start: int
    end: int
    writable: bool
    name: str
    """The name of its file, or its kind."""


class BufferMapping(NamedTuple):
    """A mapping of a buffer in user space, and its neighbors."""

    pid: int | None
    start: int
    end: int
    offset: int
    """Distance from the start of the buffer, in bytes."""
    writable: bool
    before: NextMapping | None
    """None if nothing is mapped directly before it."""
    after: NextMapping | None


_T = TypeVar("_T")


class Part(Flag):
    """The parts of a State. A reader reads a part when it is first asked for it, and the structures
    that are needed to interpret it.
    """

    NOTHING = 0
    TASKS = auto()
    """Every task's fields; those with KCOV state interpreted, with their sessions."""
    ALL_TASKS = auto()
    """Every task interpreted."""
    CURRENT = auto()
    """Each CPU's current task."""
    SAVED = auto()
    """The saved state of interrupted sessions, and each CPU's KCOV data."""
    REMOTE = auto()
    """The registered handles."""
    CACHED_AREAS = auto()
    """The lists of free areas."""
    AREAS = auto()
    """Every area with its user."""
    FILES = auto()
    """Descriptors and mappings of KCOV's files."""
    VMALLOC = auto()
    """The vmalloc areas."""
    OBJECTS = auto()
    """Every object with its references."""
    LINKS = auto()
    """The links of the hash and of the lists of areas."""
    LOCKS = auto()
    """Whether ``kcov_remote_lock`` is held, and the owners of CPUs' locks."""
    EXITS = auto()
    """Whether exiting tasks are dead."""
    SOFTIRQS = auto()
    """Whether the CPUs of softirq sections serve a softirq."""
    CARRIERS = auto()
    """Carriers of common handles other than tasks."""
    BUFFERS = auto()
    """The contents of enabled objects' buffers and of sections' areas."""
    SERIES = auto()
    """Data of this kernel's posted series for their rules."""
    PROOF = auto()
    """The records in the contents of buffers that no callback can have written, and the mappings of
    such buffers.
    """
    DEVICES = auto()
    """The objects, handles and sessions of devices that posted series add."""
    DEVICE_SESSIONS = auto()
    """The sessions of such devices alone, which take little reading."""
    TEXT = auto()
    """The range of the kernel's text.

    The look-up loads the symbol table, which takes as much memory as the tasks.
    """


class Source(str, Enum):
    """A kind of structures that are searched. :attr:`State.lacking` has what could not be read of
    each source.
    """

    TASKS = "tasks"
    CURRENT = "current"
    """The CPUs' current tasks."""
    PER_CPU = "per-cpu"
    REMOTE = "remote"
    AREAS = "areas"
    FILES = "files"
    VMALLOC = "vmalloc"
    OBJECTS = "objects"
    """The fields of the objects that were found."""
    COUNTS = "counts"
    """The counts of the objects' and the sessions' buffers."""
    SLAB = "slab"
    LOST = "lost"
    """Buffers whose object was not found: it is unreadable, or it was freed."""
    LOCKS = "locks"
    EXITS = "exits"
    SOFTIRQS = "softirqs"
    CARRIERS = "carriers"
    BUFFERS = "buffers"
    PROOF = "proof"
    STACKS = "stacks"
    SERIES = "series"
    """Data of posted series for their rules."""
    DEVICES = "devices"
    """Devices of posted series."""


class Extent(str, Enum):
    """How much of the data was read."""

    WHOLE = "whole"
    PART = "part"
    NONE = "none"


class Lack(NamedTuple):
    """The data of a source that could not be read."""

    lines: tuple[str, ...] = ()
    """A line for each structure that is missing; empty if the whole source was read."""
    is_total: bool = False
    """Whether nothing of the source could be read."""

    @property
    def extent(self) -> Extent:
        """How much of the source was read."""
        if not self.lines:
            return Extent.WHOLE
        if self.is_total:
            return Extent.NONE
        return Extent.PART


@dataclass(frozen=True, slots=True)
class Reading(Generic[_T]):
    """The data of some structures, and what could not be read, by source."""

    found: _T
    lacking: Mapping[Source, Lack] = field(default_factory=dict)

    @staticmethod
    def of(
        source: Source, found: _T, lines: Iterable[str] = (), *, is_total: bool | None = None
    ) -> Reading[_T]:
        """Return the data of one source.

        :param lines: a line for each structure that is missing.
        :param is_total: whether nothing could be read; by default, whether nothing was found.
        """
        if is_total is None:
            is_total = not found
        return Reading(found, {source: Lack(tuple(lines), is_total)})

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return not self.lines

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each structure that is missing."""
        return tuple(line for lack in self.lacking.values() for line in lack.lines)


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The facts that do not change while a kernel runs."""

    generation: Generation
    word_size: int
    """Bytes of ``unsigned long``."""
    big_endian: bool
    buffer_word: int
    """Bytes of one word of a buffer."""
    page_size: int
    """Size in bytes."""
    kernel_range: tuple[int, int]
    """First and last address that a pointer can have."""
    kaslr_offset: int
    cpus: tuple[int, ...]
    """The possible CPUs."""
    modes: Mapping[str, int]
    """``enum kcov_mode``."""
    mode_flags: int
    """The bits of a task's mode word that are flags and not part of the mode."""
    mode_numbers: ModeNumbers
    size_limit: int
    """The largest size, in words, that KCOV_INIT_TRACE accepts: ``INT_MAX`` divided by the size of
    a word.
    """
    counts_mappings: bool
    """Whether each mapping of a buffer holds a reference of its own."""
    has_prefix: bool
    """Whether words may come before a buffer's count."""
    leaves_saved_state: bool
    """Whether a CPU's saved mode and sequence stay when a session is restored."""
    buffers: int
    """Number of buffers that an object has; all have its size."""
    live: bool
    """Whether the kernel runs while it is read."""
    is_rt: bool
    """PREEMPT_RT."""

    def has(self, feature: str) -> bool:
        """Return whether this kernel has a feature."""
        return self.generation.has(feature)

    def modes_called(self, *parts: str) -> frozenset[int]:
        """Return the modes whose names contain one of the parts.

        :param parts: in capital letters.
        """
        found: set[int] = set()
        for name, number in self.modes.items():
            if any(part in name.upper() for part in parts):
                found.add(number)
        return frozenset(found)

    def bytes_of(self, words: int) -> int:
        """Return the size in bytes of a number of words of a buffer."""
        return words * self.buffer_word

    def page_align(self, size: int) -> int:
        """Return a size in bytes, rounded up to whole pages."""
        return align(size, self.page_size)

    def words_in(self, area: VmallocArea) -> int:
        """Return how many words of a buffer fit in the pages of a vmalloc area."""
        return self.page_align(area.size) // self.buffer_word

    def is_pointer(self, address: int) -> bool:
        """Return whether an address can be the address of a structure in the kernel."""
        return is_aligned_in(self.kernel_range, address, self.word_size)


_OF_TASKS: Final = (Source.TASKS, Source.PER_CPU, Source.CURRENT)
# LOST is not among them, as it leads to no object: a buffer without an object is leaked if all of
# these were read whole.
_OF_OBJECTS: Final = (
    *_OF_TASKS,
    Source.FILES,
    Source.REMOTE,
    Source.OBJECTS,
    Source.SLAB,
    Source.VMALLOC,
)
_OF_AREAS: Final = (Source.AREAS, *_OF_TASKS, Source.VMALLOC)
_SOURCES: Final[Mapping[Part, tuple[Source, ...]]] = {
    Part.TASKS: _OF_TASKS,
    Part.ALL_TASKS: _OF_TASKS,
    Part.CURRENT: (Source.CURRENT,),
    Part.SAVED: (Source.PER_CPU, Source.CURRENT, Source.TASKS),
    Part.REMOTE: (Source.REMOTE,),
    Part.CACHED_AREAS: (Source.AREAS,),
    Part.AREAS: _OF_AREAS,
    Part.FILES: (Source.FILES, Source.TASKS),
    Part.VMALLOC: (Source.VMALLOC,),
    Part.OBJECTS: _OF_OBJECTS,
    Part.LINKS: (Source.REMOTE, Source.AREAS),
    Part.LOCKS: (Source.LOCKS,),
    Part.EXITS: (Source.EXITS, Source.TASKS),
    Part.SOFTIRQS: (Source.SOFTIRQS, *_OF_TASKS),
    Part.CARRIERS: (Source.CARRIERS, Source.TASKS),
    Part.BUFFERS: (Source.BUFFERS, *_OF_OBJECTS),
    Part.SERIES: (Source.SERIES, *_OF_OBJECTS),
    Part.PROOF: (Source.PROOF, Source.BUFFERS, *_OF_OBJECTS),
    Part.DEVICES: (Source.DEVICES,),
    Part.DEVICE_SESSIONS: (Source.DEVICES,),
}


# The main source of a part: if nothing of it was read, nothing of the part was read.
_MAIN: Final[Mapping[Part, Source]] = {
    Part.TASKS: Source.TASKS,
    Part.ALL_TASKS: Source.TASKS,
    Part.SAVED: Source.PER_CPU,
    Part.DEVICES: Source.DEVICES,
    Part.REMOTE: Source.REMOTE,
    Part.CACHED_AREAS: Source.AREAS,
    Part.AREAS: Source.AREAS,
    Part.FILES: Source.FILES,
    Part.OBJECTS: Source.TASKS,
}


def sources_of(parts: Part, kernel: KernelFacts) -> tuple[Source, ...]:
    """Return the sources from which parts of a kernel's State are read."""
    found: dict[Source, None] = {}
    for part in Part:
        if part is Part.NOTHING or part not in parts:
            continue
        sources = _SOURCES.get(part, ())
        if part is Part.SAVED and not kernel.has(Feature.SAVED_PER_CPU):
            sources = (Source.TASKS,) if kernel.has(Feature.SAVED_IN_TASK) else ()
        if part in (Part.AREAS, Part.CACHED_AREAS) and not kernel.has(Feature.REMOTE):
            sources = ()
        found.update(dict.fromkeys(sources))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BufferContents:
    """The contents of a buffer that a rule may look at."""

    buffer: Buffer
    kcov: int
    """The object whose buffer it is, or for which a section collects into it."""
    section: TaskFields | None = None
    """The task whose section collects into it; None for an object's own buffer, which user space
    can write.
    """

    @property
    def about(self) -> str:
        """The buffer's name in findings."""
        if self.section is None:
            return name_kcov(self.kcov)
        return f"area {self.buffer.address or 0:#x} of {name_task(self.section)}"

    @property
    def written(self) -> Sequence[int]:
        """The address word of each record but the last one, which may not be written yet: the
        kernel raises the count first.
        """
        return self.buffer.pc_words[: max(self.buffer.count - 1, 0)]


@dataclass(frozen=True, slots=True)
class WrongRecords:
    """The records of one buffer that no callback of the sanitizer can have written."""

    contents: BufferContents
    count: int
    first: tuple[tuple[int, int], ...]
    """Number and word of each of the first wrong records."""
    problem: str
    """Why no callback can have written the first one."""
    neighbors: Mapping[int, int]
    """Words of the records before and after the first wrong one, by number."""
    offset: int
    """Distance of the first wrong record from the start of the buffer, in bytes."""
    mappings: tuple[BufferMapping, ...] = ()
    """The buffer's mappings in user space."""
    vmalloc: tuple[VmallocArea | None, VmallocArea | None] = (None, None)
    """The vmalloc areas before and after the buffer's own."""
    problems: tuple[str, ...] = ()
    """Why mappings may be missing."""


class _Member(Generic[_T]):
    """A member of a State. Reading it raises LookupError if its part was not asked for."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, state: State, owner: type) -> _T:
        try:
            value: _T = state.read[self._name]
        except KeyError:
            raise LookupError(f"State.{self._name} was not read: ask for {self.part}") from None
        return value


class _Members:
    """The members of a State, each with the part that has it."""

    task_fields = _Member[tuple[TaskFields, ...]](Part.TASKS)
    """Every task, as read."""
    tasks = _Member[tuple[Task, ...]](Part.TASKS)
    """The tasks with KCOV state."""
    all_tasks = _Member[tuple[Task, ...]](Part.ALL_TASKS)
    current = _Member[Mapping[int, int]](Part.CURRENT)
    """Each CPU's current task, ``struct task_struct *``; CPUs are left out if it is unreadable."""
    saved = _Member[tuple[SavedState, ...]](Part.SAVED)
    """The sessions that are saved now."""
    cpu_states = _Member[Mapping[int, SavedState]](Part.SAVED)
    """``kcov_percpu_data`` of each CPU, on kernels that keep state there; ``task`` is None."""
    handles = _Member[tuple[RemoteHandle, ...]](Part.REMOTE)
    buckets = _Member[int](Part.REMOTE)
    """Number of buckets of ``kcov_remote_map``."""
    cached_areas = _Member[tuple[Area, ...]](Part.CACHED_AREAS)
    areas = _Member[tuple[Area, ...]](Part.AREAS)
    files = _Member[tuple[KcovFile, ...]](Part.FILES)
    vmalloc = _Member[Mapping[int, VmallocArea] | None](Part.VMALLOC)
    """All vmalloc areas by their start; None if they cannot be listed to the end."""
    kcov_areas = _Member[tuple[VmallocArea, ...]](Part.VMALLOC)
    """The vmalloc areas that KCOV allocated, as far as they can be listed."""
    objects = _Member[Mapping[int, Kcov]](Part.OBJECTS)
    """Every object by its address, those that cannot be read included."""
    lists_vmas = _Member[bool](Part.OBJECTS)
    """Whether the target can list mappings."""
    hash_links = _Member[tuple[ListLink, ...]](Part.LINKS)
    """Links of ``kcov_remote_map``; none if it is unreadable."""
    area_links = _Member[tuple[ListLink, ...]](Part.LINKS)
    """Links of ``kcov_remote_areas``; none if it is unreadable."""
    remote_lock_held = _Member[bool | None](Part.LOCKS)
    """Whether ``kcov_remote_lock`` is held, which protects the hash and the lists of areas; None if
    it is unreadable.
    """
    cpu_lock_owners = _Member[Mapping[int, int]](Part.LOCKS)
    """The task that holds the lock of each CPU's ``kcov_percpu_data``, on kernels whose locks have
    an owner.
    """
    dead = _Member[Mapping[int, bool | None]](Part.EXITS)
    """Whether each exiting task with an object is past ``exit_notify()``; None if unknown."""
    serving_softirq = _Member[Mapping[int, bool | None]](Part.SOFTIRQS)
    """For each task in a softirq section, whether its CPU serves a softirq (on PREEMPT_RT, whether
    the task does); None if unknown.
    """
    carriers = _Member[tuple[Carrier, ...]](Part.CARRIERS)
    buffers = _Member[tuple[BufferContents, ...]](Part.BUFFERS)
    """The buffers of objects in their first session, and of sections. Other buffers may hold
    records of an earlier mode.
    """
    series = _Member[Mapping[str, Any]](Part.SERIES)
    """The data that the ``read`` hook of each posted series returned, by its feature."""
    wrong_records = _Member[tuple[WrongRecords, ...]](Part.PROOF)
    """For each buffer, the records that no callback can have written. These are the buffers of
    enabled objects and of sections, or the buffers that were asked for.
    """
    proof_problem = _Member[str | None](Part.PROOF)
    """Why records cannot be judged by the code; None if they can."""
    devices = _Member[tuple[DeviceState, ...]](Part.DEVICES)
    device_sessions = _Member[tuple[DeviceSession, ...]](Part.DEVICE_SESSIONS)
    text = _Member[tuple[int | None, int | None]](Part.TEXT)
    """``_stext`` and ``_etext``, with the KASLR offset; None if the kernel lacks the symbol."""


def list_members(parts: Part) -> Iterator[str]:
    """Iterate over the names of the members of some parts, in the order in which they are read."""
    for name, member in vars(_Members).items():
        if isinstance(member, _Member) and member.part in parts:
            yield name


@dataclass(frozen=True, eq=False)
class State(_Members):
    """KCOV's state as one reader found it.

    Nothing in it changes; what was not asked for raises LookupError.
    """

    kernel: KernelFacts
    read: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The members that were asked for, by name."""
    lacking: Mapping[Source, Lack] = field(default_factory=dict)
    """Everything that could not be read, by source."""
    stacks: Mapping[int, tuple[StackFrame, ...] | None] = field(default_factory=dict, repr=False)
    """The stacks that were asked for, by task; None for a stack that cannot be unwound."""
    syscalls: Mapping[int, TaskSyscall] = field(default_factory=dict, repr=False)
    """The system calls that were asked for, by task."""
    parts: Part = Part.NOTHING
    """The parts that were asked for."""

    def lacks(self, *sources: Source) -> tuple[str, ...]:
        """Return what could not be read of some sources.

        :raises LookupError: when the reader was not asked for a source.
        """
        lines: dict[str, None] = {}
        for source in sources:
            if source not in self.lacking:
                raise LookupError(f"{source} was not read: ask for its part")
            lines |= dict.fromkeys(self.lacking[source].lines)
        return tuple(lines)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each structure that could not be read."""
        return self.lacks(*self.lacking)

    def unread(self, parts: Part) -> tuple[str, ...]:
        """Return what could not be read of the sources of some parts."""
        # A reader skips sources that the kernel lacks.
        read = [source for source in sources_of(parts, self.kernel) if source in self.lacking]
        return self.lacks(*read)

    def extent(self, parts: Part) -> Extent:
        """Return how much was read of the sources of some parts: nothing, if nothing was read of
        the main source of one of the parts.
        """
        if not self.unread(parts):
            return Extent.WHOLE
        mains = [source for part, source in _MAIN.items() if part in parts]
        if Part.SAVED in parts and self.kernel.has(Feature.SAVED_IN_TASK):
            mains.append(Source.TASKS)
        extents = [self.lacking.get(source, Lack()).extent for source in mains]
        return Extent.NONE if Extent.NONE in extents else Extent.PART

    def say_absent(self, said: str, parts: Part) -> str:
        """Return a sentence that something is absent, with a restriction if some parts were not
        read whole.
        """
        unread = self.unread(parts)
        if unread:
            return f"{said} in what could be read; unknown: {unread[0]}"
        return said

    def find_task(self, tid: int) -> Task:
        """Return the task with a thread id. Idle tasks share 0: one with KCOV state is preferred.

        :raises KcovdbgError: if there is no such task, or it could not be read.
        """
        found = [task for task in self.all_tasks if task.fields.pid == tid]
        if not found:
            raise KcovdbgError(
                self.say_absent(f"no task {tid}", Part.ALL_TASKS), hint="tasks -a lists all tasks"
            )
        with_state = (task for task in found if task.fields.kcov_area or task.role is not Role.NONE)
        return next(with_state, found[0])

    def doubt(self, parts: Part) -> tuple[Certainty, str | None]:
        """Return how certain it is that something does not exist because it is not in some parts,
        and the reason of a doubt.
        """
        unread = self.unread(parts)
        if unread:
            return Certainty.UNKNOWN, unread[0]
        return Certainty.CERTAIN, None

    @cached_property
    def task_by_address(self) -> Mapping[int, TaskFields]:
        """Every task by its address."""
        found = {fields.address: fields for fields in self.task_fields}
        found.update((task.fields.address, task.fields) for task in self.tasks)
        return found

    @cached_property
    def running(self) -> Collection[int]:
        """The CPUs' current tasks."""
        return frozenset(self.current.values())

    @cached_property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions of tasks that refer to an object, saved ones included."""
        return tuple(
            session
            for task in self.tasks
            for session in (task.session, task.interrupted)
            if session is not None and session.kcov and session.mode is not None
        )

    @cached_property
    def tasks_with_state(self) -> Mapping[int, Task]:
        """The tasks with KCOV state by their address."""
        return {task.fields.address: task for task in self.tasks}

    @cached_property
    def sessions_of(self) -> Mapping[int, tuple[Session, ...]]:
        """The sessions by their object."""
        return _group(self.sessions, lambda session: session.kcov)

    @cached_property
    def sessions_in(self) -> Mapping[int, tuple[Session, ...]]:
        """The sessions by their task."""
        return _group(self.sessions, lambda session: session.task)

    @cached_property
    def handles_of(self) -> Mapping[int, tuple[RemoteHandle, ...]]:
        """The registered handles by their object."""
        found = (handle for handle in self.handles if handle.kcov)
        return _group(found, lambda handle: handle.kcov)

    @cached_property
    def readable(self) -> tuple[tuple[Kcov, KcovFields], ...]:
        """The objects that can be read, with their fields."""
        return tuple(
            (kcov, kcov.fields) for kcov in self.objects.values() if kcov.fields is not None
        )

    @cached_property
    def kcovs(self) -> Mapping[int, KcovFields]:
        """The objects that can be read, by their address."""
        return {fields.address: fields for _, fields in self.readable}

    @cached_property
    def irq_areas(self) -> Mapping[int, int]:
        """Each CPU's own area for softirq sections; CPUs without one are left out."""
        return {cpu: state.irq_area for cpu, state in self.cpu_states.items() if state.irq_area}

    def allocated_by(self, function: str) -> Iterator[VmallocArea]:
        """Iterate over the vmalloc areas that a function allocated, as far as they can be
        listed.
        """
        areas = (self.vmalloc or {}).values()
        return (area for area in areas if area.allocator == function and not area.is_page_array)

    def is_locked(self, kcov: int) -> bool:
        """Return whether an object's ``lock`` is held."""
        fields = self.kcovs.get(kcov)
        return fields is not None and fields.is_locked

    def refers_to(self, task: int, kcov: int) -> bool:
        """Return whether a task's own fields or saved ones refer to an object."""
        return any(session.task == task for session in self.sessions_of.get(kcov, ()))


def _group(items: Any, key: Callable[[Any], int | None]) -> Mapping[int, tuple[Any, ...]]:
    found: dict[int, list[Any]] = {}
    for item in items:
        found.setdefault(key(item) or 0, []).append(item)
    return {value: tuple(group) for value, group in found.items()}


class StateSource(Protocol):
    """Reads the State of a kernel, once."""

    def read(
        self,
        parts: Part,
        *,
        stacks: Collection[int] = (),
        syscalls: Collection[TaskFields] = (),
        about: Collection[str] = (),
    ) -> State:
        """Return a State with some parts, each read once, and the stacks and system calls of some
        tasks.

        :param stacks: the tasks, ``struct task_struct *``, whose stacks to read.
        :param syscalls: the tasks whose system calls to read.
        :param about: the buffers whose records to compare with the code, by their names in
            findings; empty for all.
        """

    def kcov(self, address: int) -> KcovFields:
        """Return the fields of an object. It need not be among the objects that were found.

        :param address: ``struct kcov *``.
        :raises ReadError: when it is unreadable.
        :raises MissingTypeError: when the debug info has no ``struct kcov``.
        """

    def renew(self) -> StateSource:
        """Return a new look at the same kernel."""
