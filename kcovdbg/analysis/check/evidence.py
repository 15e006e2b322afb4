# SPDX-License-Identifier: LGPL-2.1-or-later
"""What rules look at: one census, put so that a rule is a few lines."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.abi import mode as modes
from kcovdbg.abi.era import Feature
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.carrier import Carrier
from kcovdbg.model.finding import Certainty
from kcovdbg.model.kcov import Kcov, KcovFields
from kcovdbg.model.task import SavedState, Task, TaskFields
from kcovdbg.target import StackFrame, Target, VmallocArea
from kcovdbg.walk.areas import IRQ_LIST, TASK_LIST, CachedArea
from kcovdbg.walk.block import find_member
from kcovdbg.walk.buffers import read_buffer
from kcovdbg.walk.carriers import CarrierWalk
from kcovdbg.walk.census import Census
from kcovdbg.walk.context import is_serving_softirq, is_task_serving_softirq
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.links import Link, read_area_links, read_hash_links
from kcovdbg.walk.locks import SpinLock, find_spin_lock, is_preempt_rt, is_symbol_held
from kcovdbg.walk.maps import KcovMap, MapEntries, read_entries
from kcovdbg.walk.pointer import is_kernel_pointer
from kcovdbg.walk.remote import RemoteEntry

PAGE: Final = 4096
# What a task may be in the middle of while no lock says so: it holds a reference or an area that isn't linked yet.
KCOV_FUNCTIONS: Final = (
    "kcov_open",
    "kcov_close",
    "kcov_mmap",
    "kcov_ioctl",
    "kcov_remote_start",
    "kcov_remote_stop",
    "kcov_task_exit",
    "kcov_task_init",
    "kcov_start",
    "kcov_stop",
    "kcov_put",
    "kcov_init",
    "kcov_unique_",
)
# Unwinding is slow: of so many sleeping tasks at most.
_MAX_STACKS: Final = 2000
# As many names as one reads.
_NAMED: Final = 20
# Words of buffers: those of one that is read at all, those that are kept for the next rule, and those that a check reads.
_MAX_WORDS: Final = 1 << 23
_KEPT_WORDS: Final = 1 << 22
_READ_WORDS: Final = 1 << 26
# Of the January 2025 series: words of a map's buckets, and entries of one that is read at all.
_MAP_WORDS: Final = 1 << 15
_MAX_ENTRIES: Final = 1 << 20


class Session(NamedTuple):
    """What collects into a task, or did until a softirq section interrupted it."""

    task: Task
    is_saved: bool
    mode: str
    """Flags masked."""
    size: int
    area: int
    kcov: int
    sequence: int | None

    @property
    def is_tracing(self) -> bool:
        """Whether it records."""
        return modes.is_tracing(self.mode)


class Evidence:
    """One census, and what can be told from it.

    :param target: the kernel.
    :param layout: of this kernel.
    :param census: one look at it.
    """

    def __init__(self, target: Target, layout: Layout, census: Census) -> None:
        self.target = target
        self.layout = layout
        self.census = census
        self._buffers: dict[str, Buffer | None] = {}
        self._stacks: dict[int, Sequence[StackFrame] | None] = {}
        self._maps: dict[int, MapEntries | None] = {}
        self._kept_words = self._read_words = 0
        self._unread: set[str] = set()
        self._unwound: set[int] = set()

    def has(self, feature: Feature) -> bool:
        """Tell whether this kernel has a feature."""
        return self.layout.generation.has(feature)

    # Tasks.

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks."""
        return self.census.tasks(all_tasks=True)

    @cached_property
    def task_by_address(self) -> Mapping[int, Task]:
        """All tasks by their address."""
        return {task.fields.address: task for task in self.tasks}

    @cached_property
    def running(self) -> Collection[int]:
        """The CPUs' current tasks."""
        return frozenset(self.census.current.values())

    @cached_property
    def sessions(self) -> tuple[Session, ...]:
        """Everything that a task's fields, or its saved ones, say is collecting, or is marked as an owner."""
        return tuple(self._find_sessions())

    def _find_sessions(self) -> Iterator[Session]:
        for task in self.tasks:
            fields = task.fields
            if fields.kcov and fields.kcov_mode is not None:
                mode = self.layout.mode_name(fields.kcov_mode)
                yield Session(
                    task, False, mode, fields.kcov_size or 0, fields.kcov_area or 0, fields.kcov, fields.kcov_sequence
                )
            saved = task.saved
            if saved is not None and saved.kcov and saved.mode is not None:
                mode = self.layout.mode_name(saved.mode)
                yield Session(task, True, mode, saved.size or 0, saved.area or 0, saved.kcov, saved.sequence)

    @cached_property
    def sessions_of(self) -> Mapping[int, tuple[Session, ...]]:
        """Sessions by their object."""
        found: dict[int, list[Session]] = {}
        for session in self.sessions:
            found.setdefault(session.kcov, []).append(session)
        return {kcov: tuple(sessions) for kcov, sessions in found.items()}

    @cached_property
    def users_of(self) -> Mapping[int, Collection[int]]:
        """The tasks that refer to an object, by their fields or saved ones, by the object."""
        return {kcov: {session.task.fields.address for session in found} for kcov, found in self.sessions_of.items()}

    @cached_property
    def in_section(self) -> Collection[int]:
        """The tasks that are in a remote section now."""
        return {session.task.fields.address for session in self.sessions if not session.is_saved and self.is_section(session)}

    @cached_property
    def objects_of_areas(self) -> Mapping[int, tuple[int, ...]]:
        """The objects by their buffer."""
        found: dict[int, list[int]] = {}
        for address, kcov in self.objects.items():
            if kcov.fields is not None and kcov.fields.area:
                found.setdefault(kcov.fields.area, []).append(address)
        return {area: tuple(owners) for area, owners in found.items()}

    def in_softirq(self, task: Task) -> bool:
        """Tell whether a softirq section is on top of what the task did."""
        return bool(task.fields.kcov_softirq)

    def is_owner(self, session: Session) -> bool:
        """Tell whether this is how kernels before v7.2 mark the owner of a KCOV_REMOTE_ENABLE."""
        kcov = self.kcov(session.kcov)
        return kcov is not None and bool(kcov.remote) and kcov.task == session.task.fields.address and not session.is_tracing

    def is_local(self, session: Session) -> bool:
        """Tell whether a session claims to be the object's own: by its area, or because the object says so."""
        kcov = self.kcov(session.kcov)
        if kcov is None or not session.is_tracing:
            return False
        if not self.has(Feature.REMOTE):
            return True
        return kcov.area == session.area or (
            kcov.task == session.task.fields.address and not kcov.remote and not (self._is_softirq_top(session))
        )

    def is_section(self, session: Session) -> bool:
        """Tell whether a session is a remote section."""
        kcov = self.kcov(session.kcov)
        return self.has(Feature.REMOTE) and kcov is not None and session.is_tracing and not self.is_local(session)

    def _is_softirq_top(self, session: Session) -> bool:
        return not session.is_saved and self.in_softirq(session.task)

    # Objects.

    @cached_property
    def objects(self) -> Mapping[int, Kcov]:
        """All objects that could be read, by their address."""
        return {address: kcov for address, kcov in self.census.objects.items() if kcov.fields is not None}

    def kcov(self, address: int) -> KcovFields | None:
        """Return an object's members, None where they can't be read."""
        found = self.objects.get(address)
        return None if found is None else found.fields

    def mode_of(self, kcov: KcovFields) -> str:
        """Name an object's mode."""
        return self.layout.object_mode_name(kcov.mode or 0)

    def is_enabled(self, kcov: KcovFields) -> bool:
        """Tell whether an object is in a mode in which it collects."""
        return modes.is_tracing(self.mode_of(kcov)) or kcov.mode == 0x30

    @cached_property
    def size_limit(self) -> int:
        """Words that a KCOV_INIT_TRACE can ask for: INT_MAX divided by the size of one."""
        return ((1 << 31) - 1) // (1 if self.has(Feature.WORDS_32) else self.target.word_size)

    def is_dead(self, task: int) -> bool | None:
        """Tell whether a task has come to the end of its exit, None where this kernel's types don't tell."""
        member = find_member(self.target, "struct task_struct", ("exit_state",))
        try:
            return None if member is None else any(self.target.read(task + member.offset, member.size))
        except KcovdbgError:
            return None

    def serves_softirq(self, task: int) -> bool | None:
        """Tell whether the CPU that runs a task serves a softirq, or on PREEMPT_RT the task; None where that can't be told."""
        if self.is_rt:
            return is_task_serving_softirq(self.target, task)
        cpu = next((cpu for cpu, current in self.census.current.items() if current == task), None)
        return None if cpu is None else is_serving_softirq(self.target, cpu, task)

    def is_known_to(self, kcov: KcovFields, task: Task) -> bool:
        """Tell whether a task refers to an object: where it doesn't, its address may have been another task's."""
        return task.fields.kcov_remote == kcov.address or task.fields.address in self.users_of.get(kcov.address, ())

    # Memory.

    @cached_property
    def vmalloc(self) -> Mapping[int, VmallocArea] | None:
        """All vmalloc areas by their start; None where they can't be listed to their end."""
        found = self.census.vmalloc_areas
        return None if self.census.lacks("vmalloc") else found

    @cached_property
    def irq_areas(self) -> Mapping[int, int]:
        """Each CPU's own area for softirq sections, where it has one."""
        return {instance.cpu: instance.irq_area for instance in self.census.per_cpu if instance.irq_area}

    @cached_property
    def area_lists(self) -> tuple[str, ...]:
        """The lists of areas that this kernel has."""
        if not self.has(Feature.REMOTE):
            return ()
        return (TASK_LIST, IRQ_LIST) if self.has(Feature.AREA_LISTS) else (TASK_LIST,)

    @cached_property
    def cached_areas(self) -> tuple[CachedArea, ...]:
        """The free areas."""
        return self.census.cached_areas

    @cached_property
    def area_links(self) -> tuple[Link, ...]:
        """The links of the lists of areas; empty where they can't be read."""
        try:
            return tuple(read_area_links(self.target, self.layout, self.area_lists))
        except KcovdbgError:
            return ()

    @cached_property
    def hash_links(self) -> tuple[Link, ...]:
        """The links of the hash; empty where they can't be read."""
        try:
            return tuple(read_hash_links(self.target, self.layout))
        except KcovdbgError:
            return ()

    @cached_property
    def entries(self) -> tuple[RemoteEntry, ...]:
        """The registered handles."""
        return self.census.remote_map.entries if self.has(Feature.REMOTE) else ()

    @cached_property
    def entries_of(self) -> Mapping[int, tuple[RemoteEntry, ...]]:
        """The registered handles by their object."""
        found: dict[int, list[RemoteEntry]] = {}
        for entry in self.entries:
            if entry.kcov:
                found.setdefault(entry.kcov, []).append(entry)
        return {kcov: tuple(entries) for kcov, entries in found.items()}

    @cached_property
    def carriers(self) -> tuple[tuple[Carrier, ...], tuple[str, ...]]:
        """What carries a handle beside tasks, as far as it can be found, and what couldn't be read on the way."""
        walk = CarrierWalk(self.target, (task.fields for task in self.tasks))
        found = tuple(walk)
        return found, tuple(walk.remarks)

    @cached_property
    def areas_in_use(self) -> Mapping[int, str]:
        """Areas that a section uses, or that belong to a CPU, and who that is."""
        found: dict[int, str] = {area: f"irq_area of CPU {cpu}" for cpu, area in self.irq_areas.items()}
        for session in self.sessions:
            if session.area and session.is_tracing:
                what = "the saved session" if session.is_saved else "the session"
                found[session.area] = f"{what} of {name_task(session.task.fields)}"
        return found

    def words(self, area: VmallocArea) -> int:
        """Return how many words fit into a vmalloc area."""
        return round_up(area.size) // self.layout.buffer_word

    def buffer(self, name: str, words: int) -> Buffer | None:
        """Read a buffer by its name, a small one once; None where there is none, or nothing of it can be read.

        :param words: that it may have, at most; what is too long is left alone, and said.
        """
        if name in self._buffers:
            return self._buffers[name]
        if words > _MAX_WORDS or self._read_words + words > _READ_WORDS:
            self._unread.add(name)
            return None
        self._read_words += words
        try:
            found = read_buffer(self.target, self.layout, self.census, name)
        except KcovdbgError:
            found = None
        if self._kept_words + words <= _KEPT_WORDS:
            self._kept_words += words
            self._buffers[name] = found
        return found

    def map_entries(self, found: KcovMap, words: int) -> MapEntries | None:
        """Read a map's entries, once; None where they can't be read.

        :param words: size of its object; what is too large is left alone, and said.
        """
        if found.address not in self._maps:
            entries = None
            # Each entry is a read of its own.
            if words > _MAX_ENTRIES or self._read_words + _MAP_WORDS > _READ_WORDS:
                self._unread.add(f"map {found.address:#x}")
            else:
                with contextlib.suppress(KcovdbgError):
                    entries = read_entries(self.target, found, words)
                self._read_words += _MAP_WORDS + 8 * len(() if entries is None else entries.entries)
            self._maps[found.address] = entries
        return self._maps[found.address]

    def remarks(self) -> tuple[str, ...]:
        """Say what wasn't looked at, as it is too much."""
        said = []
        if self._unread:
            names = name_some(sorted(self._unread))
            said.append(f"what {len(self._unread)} buffers hold isn't checked, they are too long: {names}")
        if self._unwound:
            said.append(f"the stacks of {len(self._unwound)} tasks weren't looked at: they are too many")
        return tuple(said)

    def bytes_of(self, words: int) -> int:
        """Return the size of so many words of a buffer."""
        return words * self.layout.buffer_word

    def may_be_missing(self, address: int) -> bool:
        """Tell whether memory that can't be read may be absent from the dump, rather than the address wrong."""
        return is_kernel_pointer(self.target, address)

    # What is about to be put right.

    @cached_property
    def is_rt(self) -> bool:
        """Whether this is a PREEMPT_RT kernel."""
        return is_preempt_rt(self.target)

    @cached_property
    def remote_lock_held(self) -> bool:
        """Whether somebody is changing the hash or the lists of areas."""
        return self.has(Feature.REMOTE) and bool(is_symbol_held(self.target, "kcov_remote_lock"))

    @cached_property
    def _spin_lock(self) -> SpinLock:
        return find_spin_lock(self.target)

    def lock_held(self, address: int) -> bool:
        """Tell whether somebody is changing an object."""
        kcov = self.kcov(address)
        return kcov is not None and self._spin_lock.is_held(kcov.lock)

    def stack(self, task: int) -> Sequence[StackFrame] | None:
        """Return a task's stack, None where it can't be had."""
        if task not in self._stacks:
            # Whoever looks for busy tasks has had as many before.
            if len(self._stacks) >= 2 * _MAX_STACKS and task not in self.running and self.target.stacks is not None:
                self._unwound.add(task)
                return None
            found: Sequence[StackFrame] | None = None
            if self.target.stacks is not None:
                try:
                    found = self.target.stacks.stack_trace(task)
                except KcovdbgError:
                    found = None
            self._stacks[task] = found
        return self._stacks[task]

    def kcov_function(self, task: int) -> str | None:
        """Name the function of KCOV that a task is inside of, None where it is in none, or its stack can't be had."""
        for frame in self.stack(task) or ():
            if frame.function is not None and frame.function.startswith(KCOV_FUNCTIONS):
                return frame.function
        return None

    @cached_property
    def busy(self) -> tuple[tuple[int, str], ...]:
        """The tasks that are inside a function of KCOV and may hold what nothing leads to, each with that function."""
        order = [*self.running, *(task.fields.address for task in self.tasks if task.fields.address not in self.running)]
        found = ((address, self.kcov_function(address)) for address in order[:_MAX_STACKS])
        return tuple(
            (address, function) for address, function in found if function is not None and not self._shows(address, function)
        )

    def _shows(self, address: int, function: str) -> bool:
        """Tell whether a task that is about to end a section still shows it: then nothing of it is hidden."""
        task = self.task_by_address.get(address)
        if task is None or not function.startswith("kcov_remote_stop"):
            return False
        if self.in_softirq(task):
            return True
        # After a softirq's section the one that it interrupted is back before the reference is dropped.
        below = any("softirq" in (frame.function or "") for frame in self.stack(address) or ())
        return not below and address in self.in_section

    def doubt(self, *sources: str) -> tuple[Certainty, str | None]:
        """Say how sure something's absence is.

        :param sources: what it was looked for in, as :meth:`Census.lacks` takes them.
        """
        lacking = self.census.lacks(*sources)
        return (Certainty.UNSURE, lacking[0]) if lacking else (Certainty.CERTAIN, None)


def name_some(names: Sequence[str]) -> str:
    """List names, of many the first ones and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def round_up(size: int) -> int:
    """Round up to pages."""
    return -(-size // PAGE) * PAGE


def name_task(fields: TaskFields | SavedState) -> str:
    """Name a task."""
    return f"task {'?' if fields.pid is None else fields.pid}" + (f" ({fields.comm})" if fields.comm else "")


def name_kcov(address: int) -> str:
    """Name an object."""
    return f"kcov {address:#x}"


def values(**named: object) -> tuple[tuple[str, str], ...]:
    """Write values for a finding; addresses are given as :class:`Hex`. An underscore at a name's end is left out."""
    return tuple((name.rstrip("_").replace("__", "."), str(value)) for name, value in named.items())


class Hex(int):
    """A number that is written in hexadecimal."""

    def __str__(self) -> str:
        return hex(self)
