# SPDX-License-Identifier: LGPL-2.1-or-later
"""The declaration of a posted series: everything that it adds to mainline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from kcovdbg.abi.generations import KCOV, MODE, PERCPU, TASK, Era
from kcovdbg.abi.mode import Mode
from kcovdbg.abi.record import Codec, Encoding
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.device import DeviceState
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.remote import TASK_LIST, Area
from kcovdbg.model.rule import KnownBug, Rule, Shown
from kcovdbg.model.state import Part, Source, State
from kcovdbg.model.task import Session
from kcovdbg.target.struct_layout import find_member
from kcovdbg.target.target import Target


class Variant(NamedTuple):
    """One form of a series, as ``info`` names it, and its row in docs/generations.md."""

    text: str
    """Its name in ``variants[]`` of ``info``; empty if its kernels have a row of their own in the
    table of generations.
    """
    recognized_by: str
    also_shown: str
    tested_on: str
    not_shown: str = ""
    features: frozenset[str] = frozenset()
    """Features that its kernels have."""
    marks: Shown = ()
    """Types and their members, or ``enum kcov_mode`` and its enumerators; any of these shows it."""
    shown_by: Callable[[Target], bool] | None = None
    """Returns whether other facts of a kernel show it; None if only ``marks`` do."""
    enumerators: tuple[str, ...] = ()
    """Enumerators of ``enum kcov_mode`` that its kernels have, with prefix."""
    flagged_modes: tuple[tuple[str, str, int], ...] = ()
    """Modes that ``enum kcov_mode`` lacks: their names, with prefix, and the enumerator and the bit
    that they consist of.
    """


class SeriesMember(NamedTuple):
    """A member that a series brings, or another path for one of mainline's."""

    type_name: str
    paths: tuple[str, ...]
    """Newest kernel first."""
    field: str | None = None
    """Field of the layout (:mod:`kcovdbg.walk.layout`) that is read from it; None if only the
    series reads it.
    """
    feature: str | None = None
    """Feature that brings it; None for the series' own."""
    expected: bool = True
    """Whether a kernel with the feature must have it: debug info without it is incomplete."""


class ModeFlag(NamedTuple):
    """A flag bit in a task's mode word."""

    bit: int
    remark: str | None = None
    """A remark for when it is set."""
    effect: str | None = None
    """Why a running task with this flag records nothing."""
    stays_when_switched_out: bool = False
    """Whether every task keeps it while switched out.

    Such a task gets the remark only if most others lack the flag.
    """


@dataclass(frozen=True, slots=True)
class BufferFacts:
    """The facts about a buffer before it is read."""

    name: str
    address: int
    size: int | None
    """Size in kernel words."""
    mode: str | None
    kcov: int | None = None
    task: int | None = None
    """``struct task_struct *`` whose fields describe it, None if the object's do."""
    pid: int | None = None
    comm: str | None = None
    private: bool = False
    """Whether user space cannot write it."""
    cached: bool = False
    """Whether it is on a free list."""
    remarks: tuple[str, ...] = ()
    doubt: str | None = None
    """Why ``mode``, and with it the format, is unknown."""
    second: int | None = None
    """Address of the second buffer, if there is one to be shown beside this one."""

    @property
    def owner(self) -> tuple[str, int] | None:
        """Type and address of the task or object whose members describe the buffer; None if there
        is neither.
        """
        if self.task is not None:
            return TASK, self.task
        return None if self.kcov is None else (KCOV, self.kcov)

    def with_remark(self, remark: str, **changes: Any) -> BufferFacts:
        """Return the facts with one remark more, and other changes."""
        return replace(self, remarks=(*self.remarks, remark), **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectField:
    """A number that a series adds to each object, as ``objects`` shows it."""

    name: str
    """Its key in JSON."""
    meaning: str
    null: str
    """When it is missing."""
    unit: str = ""
    after: str
    """The key that it follows in a table."""
    priority: int
    """The column with the highest priority is dropped first in a narrow terminal."""
    title: str | None = None
    """The heading of its column; by default the key in capitals."""
    is_address: bool = False


@dataclass(frozen=True, slots=True)
class SecondBuffer:
    """The second buffer of an object, which some modes write instead of the first, or beside it."""

    mode: str
    """Mode in which it is read."""
    noun: str
    """Name of its records in messages, plural."""
    first_mode: str
    """Mode in which the first one is read meanwhile."""
    first_noun: str
    """Name of the first one's records."""
    alone: frozenset[str]
    """Modes that write only the second buffer."""
    both: frozenset[str]
    """Modes that write both."""
    find: Callable[[Target, int], int]
    """Return its address, by ``struct kcov *``. Raises ReadError and MissingTypeError."""
    allocations: Callable[[Target, int], frozenset[int]]
    """Return what an object allocated with vmalloc, its buffers included, by ``struct kcov *``."""
    allocation_count: int
    """How many allocations that is, if none is missing."""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """A limit of records beside the size of a buffer."""

    is_reached: Callable[[Target, int, str, int], bool]
    """Returns whether nothing more is recorded, by ``struct kcov *``, mode, and size in words.
    Raises ReadError and MissingTypeError."""
    reason: str
    """Why nothing more is recorded then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSections:
    """Remote sections of a device: their handles, and the areas that they record into."""

    map: str
    """Symbol of the hash of handles."""
    type: str
    """Type of its entries."""
    members: Mapping[str, Sequence[str]]
    """``handle``, ``kcov``, ``next`` and ``pprev``, in this order."""
    idle_list: str
    """Symbol of the list of free areas, whose links are at their start."""
    idle_count: str
    """Symbol of its length."""
    area_words: int
    """Size of each area, in words of 64 bits."""
    allocator: str
    """The function that allocates areas."""

    def find_areas(self, state: State, device: DeviceState) -> Iterator[Area]:
        """Yield the areas: on the list of free ones, in use by a section, or allocated and in
        neither.

        :param state: with the parts DEVICES, TASKS and VMALLOC.
        """
        make = partial(Area, list=TASK_LIST, device=device.name)
        claimed = set(device.idle_areas)
        for address in device.idle_areas:
            yield make(address, self.area_words, state="cached")
        for session in device.sessions:
            if session.depth and session.area:
                claimed.add(session.area)
                yield make(session.area, session.size, state="in-use", pid=session.pid)
        unclaimed = None if state.lacks(Source.DEVICES, Source.TASKS) else "unclaimed"
        for area in state.allocated_by(self.allocator):
            if area.start not in claimed:
                yield make(area.start, area.size // 8, state=unclaimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of its own, beside KCOV's, with objects, handles and buffers.

    Of each mapping the keys are the names of fields, the values paths of members, newest kernel
    first.
    """

    name: str
    """Its name in ``objects``, with which names of its buffers begin."""
    feature: str
    """Feature of the kernels in which it is as described here."""
    mode: str
    """Mode in which its buffers are read."""
    init_request: str
    """The request that makes an object's buffer, as messages name it."""
    operations: str
    """Symbol of the ``struct file_operations`` of its files."""
    object_type: str
    object_members: Mapping[str, Sequence[str]]
    """``refcount``, ``size``, ``area``, ``task``; a device with remote sections also has
    ``handle``.
    """
    task_members: Mapping[str, Sequence[str]]
    """``area``, ``size``, ``sequence``, ``enabled``; a device with remote sections also has
    ``kcov``, the object, and ``depth``.
    """
    sequence_mask: int
    """The bits of ``sequence`` that count."""
    allocator: str
    """The function that allocates buffers of objects."""
    tasks_count: bool = True
    """Whether the task that an object is enabled for holds a reference."""
    remote: DeviceSections | None = None
    """Its remote sections; None if it has none."""


ObjectReader: TypeAlias = Callable[
    [Target, KcovFields], tuple[Mapping[str, "int | None"], Sequence[str]]
]
BufferReader: TypeAlias = Callable[[str, int], "Buffer | None"]
"""Reads a buffer, by its name and the most words that it can have; returns None if it cannot be
read, or is too long to be checked.
"""

_K = TypeVar("_K")
_T = TypeVar("_T")
READ_PARTS: Final = Part.TASKS | Part.OBJECTS | Part.SAVED | Part.CURRENT
"""The parts of the State that a ``read`` hook is given."""


def read_known(read: Callable[[_K], _T | None], keys: Iterable[_K]) -> Mapping[_K, _T]:
    """Return what can be read for each key."""
    found: dict[_K, _T] = {}
    for key in keys:
        with suppress(KcovdbgError):
            value = read(key)
            if value is not None:
                found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class OwnedMembers(Generic[_T]):
    """Members of a series in tasks, CPUs' saved states and objects, as far as they can be read."""

    tasks: Mapping[int, _T]
    """The members in tasks, by ``struct task_struct *``."""
    cpus: Mapping[int, _T]
    """The members in saved states, by CPU."""
    kcovs: Mapping[int, _T]
    """The members in objects, by ``struct kcov *``."""

    def of_session(self, state: State, session: Session) -> _T | None:
        """Return the members that describe a session, None if they are unknown."""
        if not session.is_saved:
            return self.tasks.get(session.task or 0)
        for saved in state.saved:
            if saved.task == session.task:
                return self.cpus.get(saved.cpu or 0)
        return None


def read_owned(
    target: Target, state: State, read: Callable[[Target, str, int], _T | None]
) -> OwnedMembers[_T]:
    """Read such members.

    :param read: called with the type and the address of a structure that has them.
    """

    def read_saved(cpu: int) -> _T | None:
        return read(target, PERCPU, target.per_cpu("kcov_percpu_data", cpu))

    tasks = [fields.address for fields in state.task_fields]
    return OwnedMembers(
        read_known(partial(read, target, TASK), tasks),
        read_known(read_saved, state.cpu_states),
        read_known(partial(read, target, KCOV), state.kcovs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A posted series."""

    name: str
    """The name that it is known by: ``KCOV_UNIQUE_ENABLE``."""
    feature: str
    """Feature that every kernel with the series has."""
    variants: tuple[Variant, ...] = ()
    """Its forms, of which a kernel has the first whose marks it has; none if types do not show the
    series.
    """
    era: Era | None = None
    """Its own row of the table of generations, if its kernels are none of mainline's."""
    members: tuple[SeriesMember, ...] = ()
    enumerators: tuple[str, ...] = ()
    """Enumerators of ``enum kcov_mode`` that it may bring, with prefix."""
    replaced: frozenset[str] = frozenset()
    """Mainline's enumerators that its kernels lack, with prefix."""
    modes: tuple[Mode, ...] = ()
    every_codec: Codec | None = None
    """Format of all buffers, whatever their mode."""
    word_size: int | None = None
    """Bytes of a word of a buffer, if it is not the kernel's."""
    size_in_words: bool = False
    """Whether KCOV_INIT_TRACE takes up to INT_MAX words, instead of INT_MAX bytes."""
    counts_mappings: bool = False
    """Whether each mapping of a buffer holds a reference of its own."""
    flags: tuple[ModeFlag, ...] = ()
    """More flag bits of a task's mode word; of a series that types do not show, they are masked in
    every kernel.
    """
    modes_by_member: Mapping[str, str] = field(default_factory=dict)
    """Names of modes, each with the mode that it stands for where the member for ``mode_flag`` of a
    task, an object or a saved state is set.
    """
    combined_modes: tuple[frozenset[str], ...] = ()
    """Enumerators, with prefix, that a mode combines, where modes are bits.

    Such a mode is named by all of them.
    """
    encode: Callable[[Target, BufferFacts, Encoding], tuple[Encoding, Sequence[str]]] | None = None
    """Refine by the kernel's members how a buffer is to be read, and return remarks on it. Raises
    ReadError and MissingTypeError.
    """
    layout_by_mode: bool = False
    """Whether the place of a buffer's count depends on the mode: then no format is guessed."""
    prefix_feature: str | None = None
    """Feature of kernels in which a prefix may come before the count; its size is in members only.
    """
    prefix_modes: frozenset[str] = frozenset()
    """Modes in which there is a prefix."""
    second_buffer: SecondBuffer | None = None
    object_fields: tuple[ObjectField, ...] = ()
    read_object: ObjectReader | None = None
    """Read the values of ``object_fields``, and return lines on those that are unreadable."""
    record_limit: RecordLimit | None = None
    devices: tuple[Device, ...] = ()
    """The forms of its device, of which a kernel has at most one."""
    allocators: tuple[str, ...] = ()
    """Functions of its own that allocate buffers of objects."""
    functions: tuple[str, ...] = ()
    """Beginnings of the names of its other functions that change KCOV's state."""
    leaves_saved_state: bool = False
    """Whether a CPU's saved mode and sequence stay when a session is restored."""
    read: Callable[[Target, State, BufferReader], tuple[object, Sequence[str]]] | None = None
    """Read what its rules need beyond mainline's State, in a kernel that has the series: immutable
    data, which rules find in ``state.series[feature]``, and lines on what is unreadable."""
    rules: tuple[Rule, ...] = ()
    rule_groups: Mapping[str, str] = field(default_factory=dict)
    """Titles of groups of rules of its own, by the letter that their names begin with."""
    bugs: tuple[KnownBug, ...] = ()

    def detect(self, target: Target, enumerators: Collection[str]) -> Variant | None:
        """Return the form of the series that a kernel has by its types.

        :param enumerators: the enumerators of ``enum kcov_mode``.
        """

        def has(type_name: str, name: str) -> bool:
            if type_name == MODE:
                return name in enumerators
            return find_member(target, type_name, (name,)) is not None

        for variant in self.variants:
            if any(has(*mark) for mark in variant.marks):
                return variant
            if variant.shown_by is not None and variant.shown_by(target):
                return variant
        return None
