# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV's state at one moment, as plain data: what analysis works on instead of a target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from kcovdbg.abi.address import align
from kcovdbg.abi.generations import Feature, Generation
from kcovdbg.abi.mode import IN_CTXSW, split_unknown_bits
from kcovdbg.abi.record import Codec, pc_words
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.device import DeviceSession, DeviceState
from kcovdbg.model.finding import Certainty
from kcovdbg.model.kcov import Kcov, KcovFields, KcovFile, name_kcov, name_task
from kcovdbg.model.memory import ListLink, StackFrame, VmallocArea
from kcovdbg.model.remote import Area, Carrier, RemoteHandle
from kcovdbg.model.task import SavedState, Session, Task, TaskFields, TaskSyscall


class PointProof(Protocol):
    """The code of a kernel's image and of its loaded modules."""

    def problem(self) -> str | None:
        """Return why nothing can be judged, None when it can."""

    def judge(
        self, pcs: Collection[int], codec: Codec, read: Callable[[int, int], bytes]
    ) -> tuple[Mapping[int, str], Collection[int]]:
        """Return impossible PCs, with what is there instead of a callback, and those that callbacks for comparisons record.

        :param pcs: as recorded.
        """


class NextMapping(NamedTuple):
    """A mapping next to one of a buffer."""

    start: int
    end: int
    writable: bool
    name: str
    """Its file's name, or what it is without one."""


class BufferMapping(NamedTuple):
    """A mapping of a buffer in user space, and what is next to it."""

    pid: int | None
    start: int
    end: int
    offset: int
    """In bytes from the start of the buffer."""
    writable: bool
    before: NextMapping | None
    """None where nothing is mapped directly before it."""
    after: NextMapping | None


_T = TypeVar("_T")


class Part(Flag):
    """The parts that a reader can be asked for. Asking for a part reads it, and what is needed to interpret it, once."""

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
    TASK_FACTS = auto()
    """Whether exiting tasks are dead, and whether the CPUs of softirq sections serve a softirq."""
    CARRIERS = auto()
    """Carriers of common handles other than tasks."""
    BUFFERS = auto()
    """The contents of enabled objects' buffers and of sections' areas."""
    SERIES = auto()
    """Data of this kernel's posted series for their rules."""
    PROOF = auto()
    """The records in the contents of buffers that no callback can have written, and the mappings of such buffers."""
    DEVICES = auto()
    """The objects, handles and sessions of devices that posted series add."""
    DEVICE_SESSIONS = auto()
    """The sessions of such devices alone, which take little reading."""
    TEXT = auto()
    """The range of the kernel's text. The look-up loads the symbol table, which takes as much memory as the tasks."""


class Source(str, Enum):
    """A structure that was searched; what could not be read of it is in :attr:`State.lacking`."""

    TASKS = "tasks"
    PER_CPU = "per-cpu"
    REMOTE = "remote"
    AREAS = "areas"
    FILES = "files"
    VMALLOC = "vmalloc"
    SLAB = "slab"
    LOST = "lost"
    """Buffers whose object was not found."""
    CARRIERS = "carriers"
    BUFFERS = "buffers"
    PROOF = "proof"
    STACKS = "stacks"
    SERIES = "series"
    """Data of posted series for their rules."""
    DEVICES = "devices"
    """Devices of posted series."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[_T]):
    """The data of some structures, and lines on what of them could not be read, by where it was looked for."""

    found: _T
    lacking: Mapping[Source, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return not any(self.lacking.values())


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
    """In bytes."""
    kernel_range: tuple[int, int]
    """First and last address that a pointer can have."""
    kaslr_offset: int
    cpus: tuple[int, ...]
    """The possible CPUs."""
    modes: Mapping[str, int]
    """``enum kcov_mode``."""
    mode_flags: int
    """The bits of a task's mode word that are flags, not part of the mode."""
    mode_values: frozenset[int]
    """The numbers of all modes, legal combinations included where modes are bits."""
    size_limit: int
    """The largest size, in words, that KCOV_INIT_TRACE accepts: ``INT_MAX`` divided by the size of a word."""
    counts_mappings: bool
    """Whether each mapping of a buffer holds a reference of its own."""
    has_prefix: bool
    """Whether words may come before a buffer's count."""
    leaves_saved_state: bool
    """Whether a CPU's saved mode and sequence stay when a session is restored."""
    buffers: int
    """Number of buffers of its size that an object has."""
    live: bool
    """Whether the kernel runs while it is read."""
    is_rt: bool
    """PREEMPT_RT."""

    def has(self, feature: str) -> bool:
        """Return whether this kernel has a feature."""
        return self.generation.has(feature)

    def split_mode(self, value: int) -> tuple[int, int]:
        """Return the mode in a mode word without known flags, and the bits beside it that are unknown."""
        if not self.modes:
            return value, 0
        flags = IN_CTXSW if self.has(Feature.CTXSW_FLAG) else 0
        return split_unknown_bits(value, self.mode_values, flags, all_named=self.generation.names_modes)

    def bytes_of(self, words: int) -> int:
        """Return the size in bytes of so many words of a buffer."""
        return words * self.buffer_word

    def page_align(self, size: int) -> int:
        """Return a size in bytes, rounded up to whole pages."""
        return align(size, self.page_size)

    def is_kernel_pointer(self, address: int, alignment: int | None = None) -> bool:
        """Return whether this can be the address of a structure in the kernel.

        :param alignment: in bytes; the kernel's word by default.
        """
        low, high = self.kernel_range
        return low <= address <= high and address % (alignment or self.word_size) == 0


@dataclass(frozen=True, slots=True)
class BufferContents:
    """The contents of a buffer that a rule may look at."""

    buffer: Buffer
    kcov: int
    """The object that it belongs to or collects for."""
    section: TaskFields | None = None
    """The task whose section collects into it; None for an object's own buffer, which user space can write."""

    @property
    def about(self) -> str:
        """Its name in findings."""
        if self.section is None:
            return name_kcov(self.kcov)
        return f"area {self.buffer.address or 0:#x} of {name_task(self.section)}"

    @property
    def written(self) -> Sequence[int]:
        """The words with the addresses of the records, without the last one: the count is raised before it is written."""
        return pc_words(self.buffer.words, self.buffer.encoding)[: max(self.buffer.count - 1, 0)]


@dataclass(frozen=True, slots=True)
class WrongRecords:
    """The records of one buffer that no callback of the sanitizer can have written."""

    contents: BufferContents
    count: int
    first: tuple[tuple[int, int], ...]
    """Numbers and words of the first ones."""
    problem: str
    """Why the first one cannot have been written."""
    neighbors: Mapping[int, int]
    """Words of the records before and after the first one, by their numbers."""
    offset: int
    """Of the first one, in bytes from the start of the buffer."""
    mappings: tuple[BufferMapping, ...] = ()
    """The buffer's mappings in user space."""
    vmalloc: tuple[VmallocArea | None, VmallocArea | None] = (None, None)
    """The vmalloc areas before and after the buffer's own."""
    problems: tuple[str, ...] = ()
    """Why mappings may be missing."""


class _Members:
    """What a State has of the parts that were asked for."""

    task_fields: tuple[TaskFields, ...]
    """Every task, as read."""
    tasks: tuple[Task, ...]
    """The tasks with KCOV state."""
    all_tasks: tuple[Task, ...]
    current: Mapping[int, int]
    """Each CPU's current task, ``struct task_struct *``; CPUs where it is unreadable are left out."""
    saved: tuple[SavedState, ...]
    """The sessions that are saved now."""
    cpu_states: Mapping[int, SavedState]
    """``kcov_percpu_data`` of each CPU, on kernels that keep state there. Its task, the CPU's current one, is unknown here."""
    handles: tuple[RemoteHandle, ...]
    buckets: int
    """Of ``kcov_remote_map``."""
    cached_areas: tuple[Area, ...]
    areas: tuple[Area, ...]
    files: tuple[KcovFile, ...]
    vmalloc: Mapping[int, VmallocArea] | None
    """All vmalloc areas by their start; None where they cannot be listed to the end."""
    kcov_areas: tuple[VmallocArea, ...]
    """The vmalloc areas that KCOV allocated, as far as they can be listed."""
    objects: Mapping[int, Kcov]
    """Every object by its address, those that cannot be read included."""
    lists_vmas: bool
    """Whether the target can list mappings."""
    hash_links: tuple[ListLink, ...]
    """Of ``kcov_remote_map``; empty where it is unreadable."""
    area_links: tuple[ListLink, ...]
    """Of ``kcov_remote_areas``; empty where it is unreadable."""
    remote_lock_held: bool
    """``kcov_remote_lock``, which protects the hash and the lists of areas."""
    cpu_lock_owners: Mapping[int, int]
    """For each CPU, the task that holds the lock of its ``kcov_percpu_data``, where the lock has an owner."""
    dead: Mapping[int, bool | None]
    """For each exiting task with an object, whether it is past ``exit_notify()``; None where unknown."""
    serving_softirq: Mapping[int, bool | None]
    """For each task in a softirq section, whether its CPU (on PREEMPT_RT, the task) serves a softirq; None where unknown."""
    carriers: tuple[Carrier, ...]
    buffers: tuple[BufferContents, ...]
    """Of objects in their first session, and of sections; others may hold records of an earlier mode."""
    wrong_records: tuple[WrongRecords, ...]
    """The records that no callback can have written, by buffer: of enabled objects and of sections."""
    proof_problem: str | None
    """Why the code cannot say whether a record can have been written; None where it can."""
    text: tuple[int | None, int | None]
    """``_stext`` and ``_etext``, with the KASLR offset; None where the kernel lacks the symbol."""
    devices: tuple[DeviceState, ...]
    device_sessions: tuple[DeviceSession, ...]
    series: Mapping[str, Any]
    """For each posted series, by name, what its ``read`` hook returned."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name in self.read:
                return self.read[name]
            raise LookupError(f"State.{name} was not read: its part was not asked for")


@dataclass(frozen=True, eq=False)
class State(_Members):
    """KCOV's state as one reader found it. Nothing in it changes; what was not asked for raises LookupError."""

    kernel: KernelFacts
    read: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The members that were asked for, by name."""
    lacking: Mapping[Source, tuple[str, ...]] = field(default_factory=dict)
    """Lines on unreadable data, by where it was looked for."""
    stacks: Mapping[int, tuple[StackFrame, ...] | None] = field(default_factory=dict, repr=False)
    """The stacks that were asked for, by task; None for one that cannot be unwound."""
    syscalls: Mapping[int, TaskSyscall] = field(default_factory=dict, repr=False)
    """The system calls that were asked for, by task."""

    def lacks(self, *sources: Source) -> tuple[str, ...]:
        """Return what could not be read of some sources.

        :raises LookupError: when one was not read at all.
        """
        for source in sources:
            if source not in self.lacking:
                raise LookupError(f"{source} was not read: ask for its part")
        return tuple(note for source in sources for note in self.lacking[source])

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything that could not be read; each a line."""
        return self.lacks(*self.lacking)

    def doubt(self, *sources: Source) -> tuple[Certainty, str | None]:
        """Return how certain it is that what was not found in some sources does not exist, and why it is not certain."""
        lacking = self.lacks(*sources)
        return (Certainty.UNSURE, lacking[0]) if lacking else (Certainty.CERTAIN, None)

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
    def handles_of(self) -> Mapping[int, tuple[RemoteHandle, ...]]:
        """The registered handles by their object."""
        return _group((handle for handle in self.handles if handle.kcov), lambda handle: handle.kcov)

    @cached_property
    def readable(self) -> tuple[tuple[Kcov, KcovFields], ...]:
        """The objects that can be read, with their fields."""
        return tuple((kcov, kcov.fields) for kcov in self.objects.values() if kcov.fields is not None)

    @cached_property
    def kcovs(self) -> Mapping[int, KcovFields]:
        """The objects that can be read, by their address."""
        return {fields.address: fields for _, fields in self.readable}

    @cached_property
    def irq_areas(self) -> Mapping[int, int]:
        """Each CPU's own area for softirq sections, where it has one."""
        return {cpu: state.irq_area for cpu, state in self.cpu_states.items() if state.irq_area}

    def allocated_by(self, function: str) -> Iterator[VmallocArea]:
        """Iterate over the vmalloc areas that a function allocated, as far as they can be listed."""
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

    def read(self, parts: Part, *, stacks: Collection[int] = (), syscalls: Collection[TaskFields] = ()) -> State:
        """Return a State with some parts, each read once, and the stacks and system calls of some tasks.

        :param stacks: of these tasks, ``struct task_struct *``.
        """

    def kcov(self, address: int) -> KcovFields:
        """Return an object, also one that nothing refers to.

        :param address: ``struct kcov *``.
        :raises ReadError: when it is unreadable.
        :raises MissingTypeError: when the debug info has no ``struct kcov``.
        """

    def renew(self) -> StateSource:
        """Return a new look at the same kernel."""
