# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov_dataflow: a second device that records data flow, by Yunseong Kim, 2026 (kcov-abi.md 8.5).

Since the second posting, the device has its own source file; the first posting, in kcov.c, is not
supported. A later posting, in which tasks point to their objects, adds remote sections,
comparisons, and the whole number of values in the header of a record.
"""

from __future__ import annotations

import errno
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.abi.generations import TASK
from kcovdbg.abi.mode import DeviceRequests, EnableRequest, Ioctl, Mode
from kcovdbg.abi.record import (
    Codec,
    Comparison,
    Encoding,
    RecordKind,
    Values,
    decode_comparison,
    signed_value,
)
from kcovdbg.model.device import DeviceSession, DeviceState
from kcovdbg.model.finding import Certainty
from kcovdbg.model.kcov import Kcov, KcovFields, name_kcov, name_task
from kcovdbg.model.rule import Hex, Rule, Shown, Violation, Violations, values
from kcovdbg.model.state import Part, State
from kcovdbg.series.declaration import (
    BufferFacts,
    Device,
    DeviceSections,
    Series,
    SeriesMember,
    Variant,
)
from kcovdbg.target.target import Target

DATAFLOW: Final = "dataflow"
"""Feature: the device exists."""
OBJECTS: Final = "dataflow-objects"
"""Feature: tasks point to their objects, and there are remote handles."""
EARLY: Final = "dataflow-early"
"""Feature: the device has the form of the second posting."""
MODE: Final = "DATAFLOW"
"""The only mode of the device, which ``enum kcov_mode`` lacks."""
EARLY_MODE: Final = "DATAFLOW_EARLY"
"""The only mode of the device in the second posting."""

# Members of a task, by the posting that adds them.
_OF_OBJECTS: Final = ("kcov_df", "kcov_df_remote_depth")
_OF_FILE: Final = ("kcov_df_seq",)
_OF_ALL: Final = ("kcov_df_area", "kcov_df_size", "kcov_df_enabled")

# A record: header, PC, pointer or type of the comparison, values.
_HEAD_WORDS: Final = 3
_SEQUENCE_MASK: Final = 0xFFFFFF
_UNREADABLE: Final = 0xBADADD85
_KINDS: Final = {0xC: RecordKind.CMP, 0xE: RecordKind.ARGUMENT, 0xF: RecordKind.RETURN}


class _Codec(Codec):
    __slots__ = ()

    def find_records(self, words: Sequence[int]) -> tuple[array[int], int]:
        starts = array("Q")
        at, end = 0, len(words)
        while at + _HEAD_WORDS <= end:
            following = at + _HEAD_WORDS + (words[at] >> 32 & 0xFFFF)
            # Without a header, the start of the next record is unknown.
            if following > end or words[at] >> 28 & 0xF not in _KINDS:
                break
            starts.append(at)
            at = following
        return starts, at

    def decode_values(
        self, words: Sequence[int]
    ) -> tuple[RecordKind, Comparison | None, Values | None]:
        header, _, third, *rest = words
        kind = _KINDS[header >> 28 & 0xF]
        if kind is RecordKind.CMP:
            return kind, decode_comparison(third, *rest) if len(rest) == 2 else None, None
        argument = header >> 56 if kind is RecordKind.ARGUMENT else None
        found = tuple(None if word == _UNREADABLE else word for word in rest)
        return kind, None, Values(argument, header >> 48 & 0xFF, third, found)


CODEC: Final[Codec] = _Codec(
    "dataflow",
    "arguments and return values",
    word_size=8,
    pc_word=1,
    kind=RecordKind.ARGUMENT,
    least_words=_HEAD_WORDS + 1,
    has_points=False,
)
"""Three words and a number of values for each argument, returned value or comparison.

The count word counts words.
"""

_EARLY_KINDS: Final = {kind: _KINDS[kind] for kind in (0xE, 0xF)}
_POINTER_BITS: Final = 48
# Limit for the difference between the sequences of two consecutive records.
_NEAR: Final = 16


class _EarlyCodec(Codec):
    """The second posting's format. The header has the number of values, if that is below 16.

    Otherwise the next record is searched for: its sequence and its PC are similar.
    """

    __slots__ = ()

    def find_records(self, words: Sequence[int]) -> tuple[array[int], int]:
        starts = array("Q")
        at, end = 0, len(words)
        while at + _HEAD_WORDS < end and self._is_header(words[at]):
            starts.append(at)
            at = self._find_next(words, at)
        return starts, at

    def _is_header(self, word: int) -> bool:
        return not word >> 32 and word >> 28 in _EARLY_KINDS

    def _find_next(self, words: Sequence[int], at: int) -> int:
        """Return the index at which the next record begins, or the end."""
        end = len(words)
        stored = at + _HEAD_WORDS + (words[at] >> 24 & 0xF)
        if stored > at + _HEAD_WORDS and (stored == end or self._follows(words, at, stored)):
            return stored
        for other in range(at + _HEAD_WORDS + 1, end):
            if self._follows(words, at, other):
                return other
        return end

    def _follows(self, words: Sequence[int], at: int, other: int) -> bool:
        if other + _HEAD_WORDS >= len(words) or not self._is_header(words[other]):
            return False
        step = (words[other] - words[at]) & _SEQUENCE_MASK
        is_near = 0 < min(step, _SEQUENCE_MASK + 1 - step) <= _NEAR
        # All kernel addresses have the same upper bits.
        return is_near and words[other + 1] >> 48 == words[at + 1] >> 48

    def decode_values(
        self, words: Sequence[int]
    ) -> tuple[RecordKind, Comparison | None, Values | None]:
        header, _, packed, *rest = words
        kind = _EARLY_KINDS[header >> 28]
        pointer = signed_value(packed, _POINTER_BITS // 8) & WORD_MASK
        found = tuple(None if word == _UNREADABLE else word for word in rest)
        argument = packed >> 56 if kind is RecordKind.ARGUMENT else None
        return kind, None, Values(argument, packed >> _POINTER_BITS & 0xFF, pointer, found)

    def decode_address(self, word: int, encoding: Encoding) -> tuple[RecordKind, int | None]:
        return self.kind, word + encoding.base & WORD_MASK


EARLY_CODEC: Final[Codec] = _EarlyCodec(
    "dataflow-early",
    "arguments and return values",
    word_size=8,
    pc_word=1,
    kind=RecordKind.ARGUMENT,
    least_words=_HEAD_WORDS + 1,
    has_points=False,
    has_plain_pcs=False,
)
"""Header, PC with the KASLR offset, a word with argument, size and pointer, and the values."""

_SECTIONS: Final = DeviceSections(
    map="kcov_df_remote_map",
    type="struct kcov_df_remote",
    members={
        "handle": ("handle",),
        "kcov": ("df",),
        "next": ("hnode.next",),
        "pprev": ("hnode.pprev",),
    },
    idle_list="kcov_df_scratch_pool",
    idle_count="kcov_df_scratch_pool_nr",
    area_words=1 << 20,
    allocator="kcov_df_remote_start",
)
_OBJECT_MEMBERS: Final = {
    "refcount": ("refcount.refs.counter", "refcount"),
    "size": ("size",),
    "area": ("area",),
    "task": ("t",),
}
_TASK_MEMBERS: Final = {
    "area": ("kcov_df_area",),
    "size": ("kcov_df_size",),
    "sequence": ("kcov_df_seq",),
    "enabled": ("kcov_df_enabled",),
}
EARLY_DEVICE: Final = Device(
    name=DATAFLOW,
    feature=EARLY,
    mode=EARLY_MODE,
    init_request="KCOV_DF_INIT_TRACK",
    operations="kcov_df_fops",
    object_type="struct kcov_dataflow",
    object_members=_OBJECT_MEMBERS,
    task_members=_TASK_MEMBERS,
    sequence_mask=_SEQUENCE_MASK,
    allocator="kcov_df_ioctl",
    tasks_count=False,
)
DEVICE: Final = replace(
    EARLY_DEVICE,
    feature=OBJECTS,
    mode=MODE,
    object_members=_OBJECT_MEMBERS | {"handle": ("remote_handle",)},
    task_members=_TASK_MEMBERS | {"kcov": ("kcov_df",), "depth": ("kcov_df_remote_depth",)},
    tasks_count=True,
    remote=_SECTIONS,
)


REQUEST: Final = EnableRequest(
    feature=OBJECTS,
    since="a posted series of 2026",
    ioctl=Ioctl(100, letter="d"),
    device=DeviceRequests(
        "kcov_dataflow",
        init=Ioctl(1, "r", 8, "d"),
        disable=Ioctl(101, letter="d"),
        remote_enable=Ioctl(102, "w", 8, "d"),
        remote_disable=Ioctl(103, letter="d"),
    ),
    errors={
        ("ENABLE", errno.EBUSY): (
            "KCOV_DF_ENABLE: EBUSY: this task collects already, with another object",
            "a task can use one object; kcovdbg tasks shows whether another tool enabled it",
        ),
        ("REMOTE_ENABLE", errno.E2BIG): (
            "more than one remote handle",
            "an object of this device takes one handle",
        ),
    },
)


def _devices(state: State) -> Iterator[DeviceState]:
    return (device for device in state.devices if device.name == DATAFLOW)


def _sessions(state: State, *, remote: bool) -> Iterator[tuple[DeviceSession, KcovFields]]:
    """Yield the sessions whose object can be read, with the object's fields.

    :param remote: whether to yield remote sections, and not other sessions.
    """
    for device in _devices(state):
        for session in device.sessions:
            kcov = device.objects.get(session.kcov or 0)
            if session.depth is None or kcov is None or kcov.fields is None:
                continue
            if bool(session.depth) is remote:
                yield session, kcov.fields


def _objects(state: State) -> Iterator[tuple[DeviceState, Kcov, KcovFields]]:
    """Yield the objects that can be read."""
    for device in _devices(state):
        for kcov in device.objects.values():
            if kcov.fields is not None:
                yield device, kcov, kcov.fields


def _name_object(address: int) -> str:
    return name_kcov(address, DATAFLOW)


def _shown(session: DeviceSession) -> Shown:
    return values(
        kcov_df=Hex(session.kcov or 0),
        kcov_df_area=Hex(session.area or 0),
        kcov_df_size=session.size,
        kcov_df_remote_depth=session.depth,
    )


def _violation(
    state: State,
    about: str,
    message: str,
    shown: Shown,
    *tasks: int,
    anybody: bool = False,
) -> Violation:
    """Return a violation, which is uncertain if a part of the device could not be read."""
    return Violation(
        about, message, shown, *state.doubt(Part.DEVICES), tasks=tasks, anybody=anybody
    )


_IN_FLIGHT: Final = "its file may be in flight between sockets"
_rule = partial(
    Rule, since="posted series of 2026 with kcov_dataflow in its own file", features=(OBJECTS,)
)


@_rule(
    "T14",
    "the object that a task traces data flow for is enabled for the task, and has the task's "
    "area and size",
    guaranteed_by="kcov_dataflow's ioctl",
    consequence="Data flow is recorded into another task's buffer, or past its end.",
    needs=Part.DEVICES | Part.TASKS,
    detail="Inside a remote section of that device the area is another one: rule D1.",
)
def _check_dataflow(state: State) -> Violations:
    for session, fields in _sessions(state, remote=False):
        about, shown = name_task(session), _shown(session)
        if fields.task is not None and fields.task != session.task:
            message = f"its kcov_df {session.kcov:#x} is enabled for {fields.task:#x}"
            yield _violation(state, about, message, (*shown, ("t", hex(fields.task))), session.task)
            continue
        for name in ("area", "size"):
            of_task, of_object = getattr(session, name), getattr(fields, name)
            if of_task is None or of_object is None or of_task == of_object:
                continue
            message = (
                f"its kcov_df_{name} is {of_task:#x}, but kcov_df {session.kcov:#x} has "
                f"{of_object:#x}"
            )
            yield _violation(state, about, message, (*shown, (name, hex(of_object))), session.task)


@_rule(
    "D1",
    "a remote session records data flow into an area of its own, of 2^20 words",
    guaranteed_by="kcov_df_remote_start()",
    consequence="Sections that run at once overwrite each other's records, or memory behind the "
    "area.",
    needs=Part.DEVICES | Part.TASKS,
)
def _check_remote_area(state: State) -> Violations:
    users: dict[int, DeviceSession] = {}
    for session, fields in _sessions(state, remote=True):
        about, shown = name_task(session), _shown(session)
        if session.area and session.area == fields.area:
            message = f"its kcov_df_area is the buffer of {_name_object(fields.address)}"
            yield _violation(state, about, message, shown, session.task)
        elif session.size != _SECTIONS.area_words:
            message = f"its kcov_df_size is {session.size}, not {_SECTIONS.area_words}"
            yield _violation(state, about, message, shown, session.task)
        first = users.setdefault(session.area or 0, session)
        if first is not session:
            message = f"{name_task(first)} records into the same area"
            yield _violation(state, about, message, shown, session.task, first.task)


@_rule(
    "D2",
    "an object's reference count is its file, its task, and its remote sessions",
    guaranteed_by="kcov_df_put()",
    consequence="The object leaks, or is freed while it is used.",
    needs=Part.DEVICES,
)
def _check_refcount(state: State) -> Violations:
    for _, kcov, fields in _objects(state):
        refcount = fields.refcount
        if refcount is None or refcount == kcov.counted:
            continue
        shown = values(refcount=refcount, counted=kcov.counted)
        message = f"refcount is {refcount}, found {kcov.counted} references"
        found = _violation(state, _name_object(fields.address), message, shown, anybody=True)
        has_file = any(reference.file for reference in kcov.references)
        is_hidden = refcount > kcov.counted and not has_file
        if is_hidden and found.certainty is Certainty.CERTAIN:
            found = replace(found, certainty=Certainty.UNSURE, reason=_IN_FLIGHT)
        yield found


@_rule(
    "D3",
    "an object with a remote handle is in the hash once, under that handle; one without is not "
    "in it",
    guaranteed_by="kcov_df_remote_lock",
    consequence="Sections record for an object that was freed, or not at all.",
    needs=Part.DEVICES,
)
def _check_handles(state: State) -> Violations:
    for device, _, fields in _objects(state):
        handle = device.published.get(fields.address)
        if handle is None:
            continue
        found = [entry.handle for entry in device.handles if entry.kcov == fields.address]
        if found != ([handle] if handle else []):
            listed = ", ".join(hex(one or 0) for one in found) or "none"
            message = f"remote_handle is {handle:#x}, but the hash has {listed} for it"
            yield _violation(
                state, _name_object(fields.address), message, values(remote_handle=Hex(handle))
            )


@_rule(
    "D4",
    "an object with a remote handle is not enabled for a task",
    guaranteed_by="kcov_dataflow's ioctl",
    consequence="The task and remote sections write the buffer at once.",
    needs=Part.DEVICES,
)
def _check_one_writer(state: State) -> Violations:
    for device, _, fields in _objects(state):
        handle, task = device.published.get(fields.address), fields.task
        if handle and task:
            message = f"it has handle {handle:#x} and is enabled for {task:#x}"
            yield _violation(
                state,
                _name_object(fields.address),
                message,
                values(remote_handle=Hex(handle), t=Hex(task)),
            )


@_rule(
    "D5",
    "the number of free areas is the length of their list",
    guaranteed_by="kcov_df_remote_lock",
    consequence="Areas leak, or the list is damaged.",
    needs=Part.DEVICES,
)
def _check_free_areas(state: State) -> Violations:
    for device in _devices(state):
        length = len(device.idle_areas)
        if device.idle_count is not None and device.idle_count != length:
            message = f"{_SECTIONS.idle_count} is {device.idle_count}, the list has {length}"
            yield _violation(
                state,
                _SECTIONS.idle_list,
                message,
                values(**{_SECTIONS.idle_count: device.idle_count}),
            )


@_rule(
    "D6",
    "the task that an object is enabled for traces data flow for it",
    guaranteed_by="kcov_dataflow's ioctl",
    consequence="Nothing is recorded, and nobody else can enable the object.",
    needs=Part.DEVICES | Part.TASKS,
)
def _check_enabled_task(state: State) -> Violations:
    for device, _, fields in _objects(state):
        task, about = fields.task, _name_object(fields.address)
        if not task:
            continue
        mine = (session.kcov for session in device.sessions if session.task == task)
        # None may be this object.
        if any(kcov in (fields.address, None) for kcov in mine):
            continue
        owner = state.task_by_address.get(task)
        if owner is None:
            yield _violation(
                state, about, f"its t {task:#x} is on no task list", values(t=Hex(task))
            )
            continue
        message = f"it is enabled for {name_task(owner)}, which does not trace for it"
        yield _violation(state, about, message, values(t=Hex(task)), task)


@_rule(
    "D7",
    "every buffer and area that the device allocated belongs to an object, a section or the "
    "list of free areas",
    guaranteed_by="kcov_df_put(), kcov_df_remote_stop()",
    consequence="The memory stays allocated until the next boot.",
    needs=Part.DEVICES | Part.TASKS | Part.VMALLOC,
)
def _check_leaks(state: State) -> Violations:
    doubt_of_area = doubt_of_buffer = state.doubt(Part.DEVICES | Part.TASKS)
    if doubt_of_area[0] is Certainty.CERTAIN:
        doubt_of_buffer = Certainty.UNSURE, _IN_FLIGHT
    for device in _devices(state):
        for area in _SECTIONS.find_areas(state, device):
            if area.state == "unclaimed":
                message = (
                    f"{_SECTIONS.allocator}() allocated it, but no section uses it and it is not "
                    f"free: it is leaked"
                )
                shown = values(area=Hex(area.address), size=area.size)
                yield Violation(
                    f"area {area.address:#x}", message, shown, *doubt_of_area, anybody=True
                )
        used = {kcov.fields.area for kcov in device.objects.values() if kcov.fields is not None}
        for buffer in state.allocated_by(DEVICE.allocator):
            if buffer.start not in used:
                message = (
                    f"{buffer.caller}() allocated it with {buffer.size} bytes, but no object "
                    f"refers to it"
                )
                shown = values(area=Hex(buffer.start), size=buffer.size)
                yield Violation(
                    f"buffer {buffer.start:#x}", message, shown, *doubt_of_buffer, anybody=True
                )


@_rule(
    "D8",
    "a free area is a vmalloc area of 2^20 words, is listed once, and is not in use",
    guaranteed_by="kcov_df_remote_lock",
    consequence="Two sections, or a section and another owner, write into the same memory.",
    needs=Part.DEVICES | Part.TASKS | Part.VMALLOC,
)
def _check_free_memory(state: State) -> Violations:
    allocated = {area.start: area for area in state.allocated_by(_SECTIONS.allocator)}
    for device in _devices(state):
        users = {session.area: session for session in device.sessions}
        for address, times in Counter(device.idle_areas).items():
            about, shown = f"area {address:#x}", values(area=Hex(address))
            user = users.get(address)
            if user is not None:
                yield _violation(
                    state, about, f"it is free, but {name_task(user)} uses it", shown, user.task
                )
            if times > 1:
                yield _violation(state, about, f"it is listed {times} times", shown)
            if state.vmalloc is None:
                continue
            found = allocated.get(address)
            if found is None:
                message = f"it is free, but {_SECTIONS.allocator}() did not allocate it"
                yield _violation(state, about, message, shown)
            elif found.size < 8 * _SECTIONS.area_words:
                message = f"it is free, but has {found.size} bytes, not {8 * _SECTIONS.area_words}"
                yield _violation(state, about, message, (*shown, ("size", str(found.size))))


def _encode(
    target: Target, facts: BufferFacts, encoding: Encoding
) -> tuple[Encoding, Sequence[str]]:
    """Note that the second posting does not subtract the KASLR offset."""
    del facts
    if encoding.codec == EARLY_CODEC:
        encoding = replace(encoding, base=-target.kaslr_offset)
    return encoding, ()


OWN_FILE: Final = Variant(
    "kcov_dataflow in its own file (2026)",
    recognized_by="`kcov_df` in `task_struct`",
    also_shown="the device's objects, handles, sessions, areas and records; rules T14 and D1 to D8",
    tested_on="kernel `dataflow`, imitation `d2`",
    features=frozenset({DATAFLOW, OBJECTS}),
    marks=tuple((TASK, name) for name in _OF_OBJECTS),
)
WITHOUT_HANDLES: Final = Variant(
    "kcov_dataflow in its own file, without remote handles (2026)",
    recognized_by="`kcov_df_seq`, but no `kcov_df` in `task_struct`",
    also_shown="the device's objects, sessions and records",
    tested_on="a kernel made in memory",
    features=frozenset({DATAFLOW, EARLY}),
    marks=tuple((TASK, name) for name in _OF_FILE),
)

SERIES: Final = Series(
    name="kcov_dataflow",
    feature=DATAFLOW,
    variants=(OWN_FILE, WITHOUT_HANDLES),
    members=tuple(
        SeriesMember(TASK, (name,), expected=False) for name in (*_OF_OBJECTS, *_OF_FILE, *_OF_ALL)
    ),
    modes=(Mode(MODE, CODEC, REQUEST), Mode(EARLY_MODE, EARLY_CODEC)),
    encode=_encode,
    devices=(DEVICE, EARLY_DEVICE),
    rules=(
        _check_dataflow,
        _check_remote_area,
        _check_refcount,
        _check_handles,
        _check_one_writer,
        _check_free_areas,
        _check_enabled_task,
        _check_leaks,
        _check_free_memory,
    ),
    functions=("kcov_df_", "kcov_dataflow_"),
    rule_groups={"D": "Data flow: the device of kcov_dataflow"},
)
