# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_UNIQUE_ENABLE: "Coverage deduplication for KCOV", by Alexander Potapenko, April to July 2025
(kcov-abi.md 6).

Tasks, objects and CPUs' saved states hold size, area and sequence in a ``struct kcov_state``. In
the unique mode, a buffer starts with a bitmap, which has a bit for each edge that was ever hit. The
trace follows. In the first version, a member ``s`` of ``struct kcov_state`` has most members.
"""

from __future__ import annotations

import contextlib
import errno
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.generations import KCOV, PERCPU, TASK
from kcovdbg.abi.mode import DISABLED, EnableRequest, Ioctl, Mode
from kcovdbg.abi.record import PC, Encoding
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.rule import (
    Hex,
    Rule,
    Violation,
    Violations,
    kcov_violation,
    session_violation,
    task_violation,
    values,
)
from kcovdbg.model.state import Part, State
from kcovdbg.series.declaration import (
    READ_PARTS,
    BufferFacts,
    BufferReader,
    OwnedMembers,
    Series,
    SeriesMember,
    Variant,
    read_known,
    read_owned,
)
from kcovdbg.target.pointer import read_word
from kcovdbg.target.struct_layout import BlockLayout, read_partly
from kcovdbg.target.target import Target

STATE_STRUCT: Final = "kcov-state"
"""Feature: size, area and sequence are in struct kcov_state."""
UNIQUE_BITMAP: Final = "unique-bitmap"
"""Feature: a bitmap and a trace share the buffer."""
UNIQUE_ENABLE_V1: Final = "unique-enable-v1"
"""Feature: the request has the number of the first version."""

STATE: Final = "struct kcov_state"
MODES: Final = frozenset({"UNIQUE_PC", "TRACE_UNIQUE_PC"})
"""The names of its mode in different versions."""
# The member that is a struct kcov_state, by the structure that it is in.
_STATE_MEMBERS: Final = {TASK: "kcov_state", KCOV: "state", PERCPU: "saved_state"}
# Limit for the bytes of guards, four for each edge: the largest kernels have some millions.
_MAX_GUARDS: Final = 1 << 26


def _paths(type_name: str, name: str) -> tuple[str, str]:
    """Return the paths of a member of ``struct kcov_state``, newest version first.

    :param type_name: the structure that the state is in.
    """
    member = _STATE_MEMBERS[type_name]
    return f"{member}.{name}", f"{member}.s.{name}"


class KcovState(NamedTuple):
    """``struct kcov_state`` without its sequence; None is a member that the debug info lacks."""

    size: int | None
    """Size of the whole buffer, in words."""
    area: int | None
    trace_size: int | None
    """Size in words, count word included."""
    trace: int | None
    """``unsigned long *``: the count word."""
    bitmap_size: int | None
    """Size in bits."""
    bitmap: int | None
    """``unsigned long *``."""


def read_kcov_state(target: Target, type_name: str, address: int) -> KcovState:
    """Read the state inside a task, an object, or a CPU's KCOV data.

    :param type_name: type of the structure at the address.
    :raises ReadError: if it is unreadable.
    :raises MissingTypeError: if the debug info lacks the type.
    """
    paths = {name: _paths(type_name, name) for name in KcovState._fields}
    return KcovState(*BlockLayout(target, type_name, paths).read(target, address))


def _read_guards(target: Target) -> array[int] | None:
    """Read the guards of all edges. A guard is the number that its edge got when it was first hit,
    0 before.

    :return: None if the section of guards is empty, or too large to be one.
    :raises MissingSymbolError: if there is no such section: GCC makes none.
    :raises ReadError: if it is unreadable.
    """
    start = target.symbol("__start___sancov_guards").address
    size = target.symbol("__stop___sancov_guards").address - start
    if not 0 < size <= _MAX_GUARDS:
        return None
    encoding = record.make_encoding(PC, 4, target.big_endian)
    return record.decode_words(target.read(start, size), encoding)


class UniqueState(NamedTuple):
    """The states and bitmaps of a kernel that can be read."""

    states: OwnedMembers[KcovState]
    bitmaps: Mapping[int, int]
    """The bitmap of each object, as a number whose bit N stands for edge N."""
    guards: array[int] | None
    highest: int | None
    """``kcov_guard_max_index``, the highest number of an edge."""


def _read(target: Target, state: State, read_buffer: BufferReader) -> tuple[object, Sequence[str]]:
    del read_buffer
    states = read_owned(target, state, read_kcov_state)
    bitmaps = read_known(partial(_read_bitmap, target, state, states.kcovs), states.kcovs)
    guards = highest = None
    with contextlib.suppress(KcovdbgError):
        highest = read_word(target, target.symbol("kcov_guard_max_index").address, 4)
        guards = _read_guards(target)
    return UniqueState(states, bitmaps, guards, highest), ()


def _read_bitmap(
    target: Target, state: State, states: Mapping[int, KcovState], address: int
) -> int | None:
    """Read an object's bitmap, None if it has none or a part of it is missing.

    :param states: the states of objects.
    :param address: ``struct kcov *``.
    """
    found = states[address]
    most_bits = 8 * state.kernel.bytes_of(state.kcovs[address].size or 0)
    if not found.bitmap or not found.bitmap_size or found.bitmap_size > most_bits:
        return None
    data, missing = read_partly(target, found.bitmap, found.bitmap_size // 8, 1)
    if missing:
        return None
    if target.big_endian:
        # Bits are numbered within words.
        size = target.word_size
        words = [data[start : start + size] for start in range(0, len(data), size)]
        data = b"".join(word[::-1] for word in words)
    return int.from_bytes(data, "little")


class _OwnedState(NamedTuple):
    """The state of an object or of a session."""

    about: str
    """The name of its owner in findings."""
    mode: str
    state: KcovState
    kcovs: tuple[int, ...]
    tasks: tuple[int, ...]

    def violation(self, message: str) -> Violation:
        shown: dict[str, object] = {"mode": self.mode}
        for name, value in self.state._asdict().items():
            shown[name] = value if name.endswith("size") else Hex(value or 0)
        return Violation(self.about, message, values(**shown), kcovs=self.kcovs, tasks=self.tasks)


def _unique(state: State) -> UniqueState:
    found: UniqueState = state.series[STATE_STRUCT]
    return found


def _states(state: State) -> Iterator[_OwnedState]:
    """Iterate over the states of all objects and of all sessions that record."""
    found = _unique(state).states
    for address, of_object in found.kcovs.items():
        task = state.kcovs[address].task
        mode = state.objects[address].mode or DISABLED
        yield _OwnedState(name_kcov(address), mode, of_object, (address,), (task,) if task else ())
    for session in state.sessions:
        if not session.is_tracing or session.mode is None or session.kcov is None:
            continue
        of_session = found.of_session(state, session)
        fields = state.task_by_address.get(session.task or 0)
        if of_session is None or fields is None:
            continue
        about = name_task(fields)
        if session.is_saved:
            about += ": its saved session"
        yield _OwnedState(about, session.mode, of_session, (session.kcov,), (fields.address,))


_rule = partial(
    Rule,
    since="posted series of 2025 with KCOV_UNIQUE_ENABLE",
    needs=Part.SERIES | READ_PARTS,
    features=(UNIQUE_BITMAP,),
)


@_rule(
    "U1",
    "the unique mode has a bitmap, at the start of the buffer, and no other mode has one",
    guaranteed_by="kcov_ioctl() (KCOV_UNIQUE_ENABLE), kcov_reset()",
    consequence="Edges are marked outside of the bitmap, or not at all.",
)
def _check_bitmap(state: State) -> Violations:
    for found in _states(state):
        bitmap, bits, area = found.state.bitmap, found.state.bitmap_size, found.state.area
        if found.mode in MODES and bitmap == 0:
            yield found.violation("it records each address once, but has no bitmap to know them by")
        elif found.mode not in MODES and (bitmap or bits):
            yield found.violation(f"it has a bitmap in mode {found.mode}")
        elif bitmap and area is not None and bitmap != area:
            yield found.violation(
                f"its bitmap is at {bitmap:#x}, but its buffer starts at {area:#x}"
            )


@_rule(
    "U2",
    "bitmap and trace share the whole buffer: the trace begins where the bitmap ends",
    guaranteed_by="kcov_ioctl() (KCOV_UNIQUE_ENABLE), kcov_reset()",
    consequence="Bitmap and records overwrite each other, or room is wasted.",
    detail="Without a bitmap the trace is the buffer.",
)
def _check_split(state: State) -> Violations:
    word = 8 * state.kernel.word_size
    for found in _states(state):
        size, area, trace_size, trace, bits, _ = found.state
        if size is None or area is None or trace_size is None or trace is None or bits is None:
            continue
        words = bits // word
        expected = area + state.kernel.bytes_of(words)
        if bits % word:
            yield found.violation(f"its bitmap has {bits} bits, which is no whole number of words")
        elif words + trace_size != size:
            yield found.violation(
                f"its bitmap takes {words} words and its trace {trace_size}, but the buffer "
                f"has {size}"
            )
        elif trace != expected:
            yield found.violation(
                f"its trace is at {trace:#x}, but its bitmap ends at {expected:#x}"
            )


@_rule(
    "U3",
    "a local session has its object's trace and bitmap, and a task without an object has neither",
    guaranteed_by="kcov_start(), kcov_stop()",
    consequence="The task marks edges in another buffer, or past the end of its own.",
)
def _check_copies(state: State) -> Violations:
    found = _unique(state).states
    names = ("trace", "trace_size", "bitmap", "bitmap_size")
    for session in state.sessions:
        if session.kcov is None or not session.is_local or not session.is_tracing:
            continue
        of_session = found.of_session(state, session)
        of_object = found.kcovs.get(session.kcov)
        if of_session is None or of_object is None:
            continue
        for name in names:
            copy, original = getattr(of_session, name), getattr(of_object, name)
            if copy is None or original is None or copy == original:
                continue
            if not name.endswith("size"):
                copy, original = Hex(copy), Hex(original)
            shown = (
                ("kcov", hex(session.kcov)),
                (f"task {name}", str(copy)),
                (f"kcov {name}", str(original)),
            )
            message = (
                f"it traces itself with {name} {copy}, but kcov {session.kcov:#x} has {original}"
            )
            yield session_violation(state, session, message, shown)
    for fields in state.task_fields:
        of_task = found.tasks.get(fields.address)
        if fields.kcov != 0 or of_task is None:
            continue
        left = {name: Hex(getattr(of_task, name)) for name in names if getattr(of_task, name)}
        if left:
            yield task_violation(
                fields, f"it has no kcov, but {' and '.join(left)}", values(**left)
            )


@_rule(
    "U4",
    "a bitmap marks edges that have a number: from 1 to kcov_guard_max_index",
    severity=Severity.WARNING,
    guaranteed_by="__sanitizer_cov_trace_pc_guard()",
    consequence="Marks name no edge: the coverage is wrong.",
)
def _check_marks(state: State) -> Violations:
    found = _unique(state)
    for address, bits in found.bitmaps.items():
        last = bits.bit_length() - 1
        if bits & 1:
            message = "its bitmap marks edge 0, but numbers begin with 1"
        elif found.highest is not None and last > found.highest:
            message = f"its bitmap marks edge {last}, but {found.highest} have a number"
        else:
            continue
        highest = "unknown" if found.highest is None else found.highest
        shown = values(marked=bits.bit_count(), kcov_guard_max_index=highest)
        reason = "user space can write its buffer"
        yield kcov_violation(address, message, shown, Certainty.UNSURE, reason)


@_rule(
    "U5",
    "for each edge that a bitmap marks there is a record",
    severity=Severity.ADVICE,
    guaranteed_by="__sanitizer_cov_trace_pc_guard()",
    consequence="Coverage in the bitmap has no place in the order of records.",
    detail=(
        "There are more records than marks if numbers are beyond the bitmap. There are fewer if "
        "user space reset the count and not the bitmap: legal, but those edges are never recorded "
        "again. KCOV_RESET_TRACE resets both."
    ),
)
def _check_recorded(state: State) -> Violations:
    for address, bits in _unique(state).bitmaps.items():
        kcov, marked = state.objects[address], bits.bit_count()
        if kcov.count is None or kcov.full or kcov.count >= marked:
            continue
        yield kcov_violation(
            address,
            f"its bitmap marks {marked} edges, but {kcov.count} records were kept: the others "
            f"are not recorded again",
            values(marked=marked, count=kcov.count),
        )


@_rule(
    "U6",
    "each edge has a number of its own, at most kcov_guard_max_index",
    guaranteed_by="__sanitizer_cov_trace_pc_guard()",
    consequence="Two edges share a mark: one of them is never recorded.",
    detail="The number of an edge that was not hit yet is 0. Only compilers that keep guards in a "
    "section of their own count.",
)
def _check_guards(state: State) -> Violations:
    found = _unique(state)
    if found.highest is None:
        return
    highest = found.highest
    numbered = [number for number in found.guards or () if number]
    beyond = [number for number in numbered if number > highest]
    if beyond:
        yield Violation(
            "guards",
            f"{len(beyond)} edges have numbers beyond {highest}, the first {beyond[0]}",
            values(kcov_guard_max_index=highest, number=beyond[0]),
        )
    shared = len(numbered) - len(set(numbered))
    if shared:
        [(number, times)] = Counter(numbered).most_common(1)
        yield Violation(
            "guards",
            f"{shared} edges share their number with another one, so a bitmap cannot "
            f"distinguish them: {times} have {number}",
            values(number=number, numbered=len(numbered)),
        )


def _encode(
    target: Target, facts: BufferFacts, encoding: Encoding
) -> tuple[Encoding, Sequence[str]]:
    """Return the encoding with the size of the bitmap, which lies before the trace."""
    if facts.owner is None:
        return encoding, ()
    state = read_kcov_state(target, *facts.owner)
    size = 0
    if state.bitmap_size is not None:
        size = state.bitmap_size // 8
    elif state.trace:
        size = state.trace - facts.address
    words = size // target.word_size
    if words <= 0:
        return encoding, ()
    if facts.size is None or words < facts.size:
        return replace(encoding, prefix_words=words), ()
    remark = f"bitmap of {words} words does not fit the buffer of {facts.size} words; ignored"
    return encoding, (remark,)


def _request(feature: str, date: str, ioctl: Ioctl, reset: Ioctl | None = None) -> EnableRequest:
    return EnableRequest(
        feature=feature,
        since=f"the deduplication series of {date}",
        ioctl=ioctl,
        records_once=True,
        reset=reset,
        # More than one bit for each word of the trace.
        prefix_words=lambda size: max(1, size // 32),
        errors={
            ("ENABLE", "prefix"): (
                "KCOV_UNIQUE_ENABLE: EINVAL: a buffer of {size} words has no room for a bitmap "
                "and records",
                "use a larger one: --buffer-size",
            ),
            ("ENABLE", errno.ENOTTY): (
                "KCOV_UNIQUE_ENABLE: ENOTTY: unknown request",
                "only kernels with the deduplication series have it",
            ),
        },
    )


def _list_members() -> Iterator[SeriesMember]:
    yield SeriesMember(TASK, ("kcov_state.mode",), "kcov_mode", UNIQUE_ENABLE_V1)
    yield SeriesMember(KCOV, ("state.mode",), "mode", UNIQUE_ENABLE_V1)
    for type_name, prefix in ((TASK, "kcov_"), (KCOV, ""), (PERCPU, "saved_")):
        for name in ("size", "area", "sequence"):
            yield SeriesMember(type_name, _paths(type_name, name), prefix + name)
    for type_name in (TASK, KCOV):
        for name in ("trace", "trace_size"):
            yield SeriesMember(type_name, _paths(type_name, name), name, UNIQUE_BITMAP)
        for name in ("bitmap", "bitmap_size"):
            yield SeriesMember(type_name, _paths(type_name, name), feature=UNIQUE_BITMAP)


V1: Final = Variant(
    "KCOV_UNIQUE_ENABLE v1 (2025)",
    recognized_by="`kcov_state` with a member `s`",
    also_shown="bitmap and trace in one buffer",
    tested_on="imitation `p1`",
    features=frozenset({STATE_STRUCT, UNIQUE_BITMAP, UNIQUE_ENABLE_V1}),
    marks=((STATE, "s"), (STATE, "mode")),
    enumerators=("KCOV_MODE_TRACE_UNIQUE_PC",),
)
V2: Final = Variant(
    "KCOV_UNIQUE_ENABLE v2-v4 (2025)",
    recognized_by="`kcov_state` with `bitmap`",
    also_shown="bitmap and trace in one buffer; both by `check` (U1 - U6)",
    tested_on="kernel `unique-bitmap`",
    not_shown="which edge a bit stands for",
    features=frozenset({STATE_STRUCT, UNIQUE_BITMAP}),
    marks=((STATE, "bitmap"), (STATE, "bitmap_size")),
    enumerators=("KCOV_MODE_UNIQUE_PC",),
)
STATE_ONLY: Final = Variant(
    "struct kcov_state without KCOV_UNIQUE_ENABLE (2025)",
    recognized_by="`kcov_state` without `bitmap`",
    also_shown="",
    tested_on="in memory only",
    features=frozenset({STATE_STRUCT}),
    marks=((TASK, "kcov_state"), (KCOV, "state")),
)

SERIES: Final = Series(
    name="KCOV_UNIQUE_ENABLE",
    feature=STATE_STRUCT,
    variants=(V1, V2, STATE_ONLY),
    members=tuple(_list_members()),
    enumerators=("KCOV_MODE_INVALID", "KCOV_MODE_UNIQUE_PC", "KCOV_MODE_TRACE_UNIQUE_PC"),
    modes=(
        # A kernel with the first version has the feature of later ones as well: the first version
        # comes first. Its request has the other direction.
        Mode("UNIQUE_PC", PC, _request(UNIQUE_ENABLE_V1, "April 2025", Ioctl(103, "r", 8))),
        # KCOV_UNIQUE_ENABLE and KCOV_RESET_TRACE.
        Mode("UNIQUE_PC", PC, _request(UNIQUE_BITMAP, "July 2025", Ioctl(103, "w", 8), Ioctl(104))),
        Mode("TRACE_UNIQUE_PC", PC),
    ),
    encode=_encode,
    read=_read,
    rules=(
        _check_bitmap,
        _check_split,
        _check_copies,
        _check_marks,
        _check_recorded,
        _check_guards,
    ),
    rule_groups={"U": "Bitmaps of KCOV_UNIQUE_ENABLE"},
    prefix_feature=UNIQUE_BITMAP,
    leaves_saved_state=True,
    functions=("kcov_unique_",),
    prefix_modes=MODES,
)
