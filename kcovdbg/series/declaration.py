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
    """One form of a series, and its row in docs/generations.md."""

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
    """Types with a member, or ``enum kcov_mode`` with an enumerator: a kernel that has one of these
    has this form.
    """
    shown_by: Callable[[Target], bool] | None = None
    """Returns whether a kernel without these marks has this form; None if marks alone decide."""
    enumerators: tuple[str, ...] = ()
    """Enumerators of ``enum kcov_mode`` that its kernels have, with prefix."""
    flagged_modes: tuple[tuple[str, str, int], ...] = ()
    """Modes that consist of an enumerator and a bit: the mode's name, with prefix, the enumerator
    and the bit.
    """


class SeriesMember(NamedTuple):
    """A member that a series adds, or its path for a member of mainline."""

    type_name: str
    paths: tuple[str, ...]
    """Newest kernel first."""
    field: str | None = None
    """The field of the layout (:mod:`kcovdbg.walk.layout`) that has its value; None if only the
    series reads it.
    """
    feature: str | None = None
    """Feature of the kernels that have it; None for the feature of the series."""
    expected: bool = True
    """Whether all these kernels have it: then debug info without it is incomplete."""


class ModeFlag(NamedTuple):
    """A flag bit in a task's mode word."""

    bit: int
    remark: str | None = None
    """The remark on a task in which it is set."""
    effect: str | None = None
    """Why a running task with this flag records nothing."""
    stays_when_switched_out: bool = False
    """Whether every task may keep it while it is switched out. A task then gets the remark only if
    most tasks lack the flag.
    """


@dataclass(frozen=True, slots=True)
class BufferFacts:
    """The facts about a buffer that are known before it is read."""

    name: str
    address: int
    size: int | None
    """Size in kernel words."""
    mode: str | None
    kcov: int | None = None
    task: int | None = None
    """``struct task_struct *``: the task whose fields describe it; None if its object describes it.
    """
    pid: int | None = None
    comm: str | None = None
    private: bool = False
    """Whether user space cannot write it."""
    cached: bool = False
    """Whether it is on a free list."""
    remarks: tuple[str, ...] = ()
    doubt: str | None = None
    """Why ``mode`` and the format are unknown; None if they are known."""
    second: int | None = None
    """Address of the second buffer to show beside it; None if there is none."""

    @property
    def owner(self) -> tuple[str, int] | None:
        """Type and address of the task or object whose members describe the buffer; None if there
        is neither.
        """
        if self.task is not None:
            return TASK, self.task
        if self.kcov is not None:
            return KCOV, self.kcov
        return None

    def with_remark(self, remark: str, **changes: Any) -> BufferFacts:
        """Return the facts with another remark, and with changed values."""
        return replace(self, remarks=(*self.remarks, remark), **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectField:
    """A number that a series adds to each object, and its column in ``objects``."""

    name: str
    """Its key in JSON."""
    meaning: str
    null: str
    """The meaning of null."""
    unit: str = ""
    after: str
    """The key of the column before it in a table."""
    priority: int
    """In a narrow terminal, the column with the highest number is dropped first."""
    title: str | None = None
    """The heading of its column; by default the key in capitals."""
    is_address: bool = False


@dataclass(frozen=True, slots=True)
class SecondBuffer:
    """The second buffer of an object. In some modes the kernel writes it instead of the first
    buffer, in others both.
    """

    mode: str
    """The mode by whose format it is read."""
    noun: str
    """Name of its records in messages, plural."""
    first_mode: str
    """The mode by whose format the first buffer is read in these modes."""
    first_noun: str
    """Name of the first buffer's records in messages, plural."""
    alone: frozenset[str]
    """Modes in which the kernel writes only the second buffer."""
    both: frozenset[str]
    """Modes in which the kernel writes both buffers."""
    find: Callable[[Target, int], int]
    """Returns its address, by ``struct kcov *``. Raises ReadError and MissingTypeError."""
    allocations: Callable[[Target, int], frozenset[int]]
    """Returns the vmalloc areas that an object allocated, with its buffers, by ``struct kcov *``.
    """
    allocation_count: int
    """The number of these areas if none is missing."""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """A limit for records other than the size of the buffer."""

    is_reached: Callable[[Target, int, str, int], bool]
    """Returns whether an object records nothing more, by ``struct kcov *``, mode, and size in
    words. Raises ReadError and MissingTypeError.
    """
    reason: str
    """Why an object that has reached it records nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSections:
    """Remote sections of a device: their handles, and the areas that they collect into."""

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
        """Yield the areas: free ones on the list, those that sections use, and other allocated
        ones.

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
    """A device besides KCOV's, with objects, handles and buffers of its own.

    A mapping of members has the paths of each field, newest kernel first, by the field's name.
    """

    name: str
    """Its name in ``objects``. The names of its buffers begin with it."""
    feature: str
    """Feature of the kernels that have the device in this form."""
    mode: str
    """The mode by whose format its buffers are read."""
    init_request: str
    """The name of the request that makes an object's buffer."""
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
"""Reads a buffer, by its name and its greatest possible number of words; returns None if it is
unreadable, or too long to be checked.
"""

_K = TypeVar("_K")
_T = TypeVar("_T")
READ_PARTS: Final = Part.TASKS | Part.OBJECTS | Part.SAVED | Part.CURRENT
"""The parts of the State that a ``read`` hook gets."""


def read_known(read: Callable[[_K], _T | None], keys: Iterable[_K]) -> Mapping[_K, _T]:
    """Return the value that can be read for each key; keys without one are left out."""
    found: dict[_K, _T] = {}
    for key in keys:
        with suppress(KcovdbgError):
            value = read(key)
            if value is not None:
                found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class OwnedMembers(Generic[_T]):
    """The readable members of a series in tasks, CPUs' saved states and objects."""

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
    """Read the members of a series in tasks, CPUs' saved states and objects.

    :param read: called with the type and the address of a structure; returns its members.
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
    """Its common name: ``KCOV_UNIQUE_ENABLE``."""
    feature: str
    """Feature that every kernel with the series has."""
    variants: tuple[Variant, ...] = ()
    """Its forms. A kernel has the first form that its types show; a series that no types show has
    no forms.
    """
    era: Era | None = None
    """Its row of the table of generations, if it changes a generation that mainline never had."""
    members: tuple[SeriesMember, ...] = ()
    enumerators: tuple[str, ...] = ()
    """Enumerators of ``enum kcov_mode`` that it may add, with prefix."""
    replaced: frozenset[str] = frozenset()
    """Mainline's enumerators that its kernels lack, with prefix."""
    modes: tuple[Mode, ...] = ()
    every_codec: Codec | None = None
    """The format of all buffers, if the mode does not decide it."""
    word_size: int | None = None
    """Bytes of a word of a buffer, if it is not the kernel's."""
    size_in_words: bool = False
    """Whether KCOV_INIT_TRACE takes up to INT_MAX words, instead of INT_MAX bytes."""
    counts_mappings: bool = False
    """Whether each mapping of a buffer holds a reference of its own."""
    flags: tuple[ModeFlag, ...] = ()
    """Further flag bits of a task's mode word. They are masked in every kernel if no types show the
    series.
    """
    modes_by_member: Mapping[str, str] = field(default_factory=dict)
    """For the name of a mode, the name of the mode that it becomes if the member for ``mode_flag``
    is set.
    """
    combined_modes: tuple[frozenset[str], ...] = ()
    """Sets of enumerators, with prefix, that are the bits of one mode. It has all their names."""
    encode: Callable[[Target, BufferFacts, Encoding], tuple[Encoding, Sequence[str]]] | None = None
    """Returns the encoding of a buffer, changed by the kernel's members, and remarks. Raises
    ReadError and MissingTypeError.
    """
    layout_by_mode: bool = False
    """Whether the place of a buffer's count depends on the mode; then no format is guessed."""
    prefix_feature: str | None = None
    """Feature of the kernels in which a prefix may come before the count. Only members show its
    size.
    """
    prefix_modes: frozenset[str] = frozenset()
    """Modes in which buffers have a prefix."""
    second_buffer: SecondBuffer | None = None
    object_fields: tuple[ObjectField, ...] = ()
    read_object: ObjectReader | None = None
    """Reads the values of ``object_fields``; returns them, and a line for each unreadable one."""
    record_limit: RecordLimit | None = None
    devices: tuple[Device, ...] = ()
    """The forms of its device; a kernel has at most one of them."""
    allocators: tuple[str, ...] = ()
    """Its functions that allocate buffers of objects."""
    functions: tuple[str, ...] = ()
    """The starts of the names of its other functions that change KCOV's state."""
    leaves_saved_state: bool = False
    """Whether a CPU's saved mode and sequence stay when a session is restored."""
    read: Callable[[Target, State, BufferReader], tuple[object, Sequence[str]]] | None = None
    """Reads further data for its rules in a kernel that has the series; returns immutable data,
    which becomes ``state.series[feature]``, and a line for each structure that is unreadable.
    """
    rules: tuple[Rule, ...] = ()
    rule_groups: Mapping[str, str] = field(default_factory=dict)
    """Titles of its groups of rules, by the first letter of their names."""
    bugs: tuple[KnownBug, ...] = ()

    def detect(self, target: Target, enumerators: Collection[str]) -> Variant | None:
        """Return the form of the series that a kernel has, None if it lacks the series.

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
