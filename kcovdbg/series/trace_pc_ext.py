# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_TRACE_PC_EXT: records of function entries and exits, by Jann Horn, March 2026 (kcov-abi.md
7).

Both postings have the same records. A flag says that records have a type. In the first posting, of
11 March, the flag is a member of tasks, objects and CPUs' saved states. In the second, of 18 March,
it is a bit of the mode, KCOV_EXT_FORMAT.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from kcovdbg.abi.generations import KCOV, PERCPU, TASK
from kcovdbg.abi.mode import EnableRequest, Mode, is_tracing
from kcovdbg.abi.record import GUESS_WORDS, Codec, Encoding, RecordKind, make_encoding
from kcovdbg.model.rule import (
    Hex,
    Rule,
    Violation,
    Violations,
    contents_violation,
    kcov_violation,
    session_violation,
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
    read_owned,
)
from kcovdbg.target.struct_layout import BlockLayout, find_member
from kcovdbg.target.target import Target

EXT_RECORDS: Final = "ext-records"
"""Feature: records have a type, which is entry, exit or normal."""
EXT_MEMBER: Final = "ext-member"
"""Feature: the flag is a member, as in the first posting."""

# include/uapi/linux/kcov.h of "kcov: introduce extended PC coverage collection mode".
_TYPE_SHIFT: Final = 60
_IP_ONES: Final = 0xFF << 56
_KINDS: Final = {0xF: RecordKind.PC, 0x0: RecordKind.ENTRY, 0x1: RecordKind.EXIT}
_PATHS: Final = {TASK: "kcov_ext_format", KCOV: "kcov_ext_format", PERCPU: "saved_kcov_ext_format"}
_MODE: Final = "TRACE_PC_EXT"
# The second posting's flag in a mode.
_EXT_FORMAT: Final = 1 << 29
_HOOKS: Final = ("__sanitizer_cov_trace_pc_entry", "__sanitizer_cov_trace_pc_exit")


class _ExtCodec(Codec):
    __slots__ = ()

    def decode_address(self, word: int, encoding: Encoding) -> tuple[RecordKind, int | None]:
        if encoding.word_size != 8:
            return RecordKind.PC, word
        kind = _KINDS.get(word >> _TYPE_SHIFT)
        if kind is None:
            return RecordKind.UNKNOWN, None
        return kind, word | _IP_ONES

    def fits(self, words: Sequence[int], count: int, low: int, high: int) -> bool:
        looked_at = words[: min(count, GUESS_WORDS)]
        return all(low <= word | _IP_ONES <= high and _has_type(word) for word in looked_at)


PC_EXT: Final[Codec] = _ExtCodec(
    "pc-ext", "addresses with entries and exits", has_calls=True, has_plain_pcs=False
)
"""One word per record. The top four bits are its type; the top eight bits of the address are ones.
"""


def _has_type(word: int) -> bool:
    """Return whether a word can be a record with a type. Its top byte is part of the address in a
    normal record; in others, it is the type and four zeros, and the next byte is all ones.
    """
    if word >> _TYPE_SHIFT == 0xF:
        return True
    return word >> 56 in (0x00, 0x10) and word >> 48 & 0xFF == 0xFF


def read_flag(target: Target, type_name: str, address: int) -> int | None:
    """Read the flag of a task, an object, or a CPU's saved state.

    :param type_name: type of the structure at the address.
    :return: 0 or 1, None if the debug info lacks the member.
    :raises ReadError: if it is unreadable.
    """
    path = _PATHS[type_name]
    if find_member(target, type_name, (path,)) is None:
        return None
    (value,) = BlockLayout(target, type_name, path).read(target, address)
    return int(value)


def _read(target: Target, state: State, read_buffer: BufferReader) -> tuple[object, Sequence[str]]:
    del read_buffer
    return read_owned(target, state, read_flag), ()


def _has_mode(target: Target) -> bool:
    """Return whether a kernel has the mode. If the debug info has no modes of user space, the
    callbacks decide, although an earlier patch of the series has these without the mode.
    """
    if target.has_name("KCOV_TRACE_PC_EXT"):
        return True
    return not target.has_name("KCOV_TRACE_PC") and all(map(target.has_name, _HOOKS))


_rule = partial(Rule, since="posted series of 2026 with KCOV_TRACE_PC_EXT", features=(EXT_RECORDS,))
_member_rule = partial(
    Rule, since="first posting of KCOV_TRACE_PC_EXT, 2026", features=(EXT_MEMBER,)
)
_NEEDS: Final = Part.SERIES | READ_PARTS


@_member_rule(
    "F1",
    "records have a type in mode TRACE_PC only",
    guaranteed_by="kcov_ioctl() (KCOV_ENABLE, KCOV_REMOTE_ENABLE), kcov_start()",
    consequence="Readers decode records in the wrong format.",
    needs=_NEEDS,
    detail="An object that is disabled keeps the flag, and so does a task whose section has ended.",
)
def _check_modes(state: State) -> Violations:
    flags: OwnedMembers[int] = state.series[EXT_RECORDS]
    for address, fields in state.kcovs.items():
        kcov = state.objects[address]
        has_other_mode = not fields.mode or (kcov.is_enabled and kcov.mode != _MODE)
        if flags.kcovs.get(address) and has_other_mode:
            message = f"its records have a type, but its mode is {kcov.mode}"
            yield kcov_violation(address, message, values(mode=kcov.mode, kcov_ext_format=1))
    for session in state.sessions:
        if session.is_tracing and session.mode != _MODE and flags.of_session(state, session):
            message = f"its records have a type, but its mode is {session.mode}"
            yield session_violation(state, session, message, values(kcov_ext_format=1))


@_member_rule(
    "F2",
    "a CPU's saved state has the flag for records with a type only while it holds a session",
    guaranteed_by="kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
    consequence="After a softirq the session goes on in the wrong format.",
    needs=_NEEDS,
)
def _check_saved(state: State) -> Violations:
    flags: OwnedMembers[int] = state.series[EXT_RECORDS]
    for cpu, saved in state.cpu_states.items():
        if saved.kcov == 0 and flags.cpus.get(cpu):
            current = state.current.get(cpu, 0)
            yield Violation(
                f"CPU {cpu}",
                "its saved state has no object, but the flag for records with a type",
                values(saved_kcov_ext_format=1),
                tasks=(current,) if current else (),
            )


@_member_rule(
    "F3",
    "the records of a session have a type if, and only if, those of its object have one",
    guaranteed_by="kcov_start()",
    consequence="Readers decode records in the wrong format.",
    needs=_NEEDS,
    detail="A section of an earlier sequence has the format that its object had then.",
)
def _check_copies(state: State) -> Violations:
    flags: OwnedMembers[int] = state.series[EXT_RECORDS]
    for session in state.sessions:
        kcov = state.kcovs.get(session.kcov or 0)
        if kcov is None or not session.is_tracing or session.sequence != kcov.sequence:
            continue
        of_session = flags.of_session(state, session)
        of_object = flags.kcovs.get(kcov.address)
        if of_session is None or of_object is None or of_session == of_object:
            continue
        message = f"its records have no type, but those of kcov {kcov.address:#x} have one"
        if of_session:
            message = f"its records have a type, but those of kcov {kcov.address:#x} have none"
        shown = (
            ("kcov", hex(kcov.address)),
            ("task kcov_ext_format", str(of_session)),
            ("kcov kcov_ext_format", str(of_object)),
        )
        yield session_violation(state, session, message, shown)


# The top byte of a record: of a normal record, where it is part of the address; of an entry; of an
# exit.
_TYPE_BYTES: Final = frozenset({0xFF, 0x00, 0x10})
# Modules are within 2 GiB of the kernel's text.
_REACH: Final = 1 << 31


@_rule(
    "B9",
    "a record with a type is a block, an entry or an exit, and in code",
    guaranteed_by="__sanitizer_cov_trace_pc(), __sanitizer_cov_trace_pc_entry(), "
    "__sanitizer_cov_trace_pc_exit()",
    consequence="Readers that balance entries and exits build a wrong call tree.",
    needs=Part.BUFFERS | Part.TEXT,
    detail="An exit without an entry before it is legal: its function was entered before the count "
    "was reset.",
)
def _check_types(state: State) -> Violations:
    text, _ = state.text
    if text is None or state.kernel.word_size != 8:
        return
    start = text - state.kernel.kaslr_offset
    for contents in state.buffers:
        if contents.buffer.encoding.codec != PC_EXT:
            continue
        missing = contents.buffer.missing
        wrong: list[tuple[int, int, str]] = []
        for number, word in enumerate(contents.written):
            if number in missing:
                continue
            if word >> 56 not in _TYPE_BYTES:
                wrong.append((number, word, "has no known type"))
            elif abs((word | _IP_ONES) - start) >= _REACH:
                wrong.append((number, word, "is not in code"))
        if wrong:
            number, word, problem = wrong[0]
            yield contents_violation(
                contents,
                f"{len(wrong)} of {contents.buffer.count} records are invalid: number "
                f"{number}, {word:#x}, {problem}",
                values(record=number, word=Hex(word), text=Hex(start)),
            )


def _encode(
    target: Target, facts: BufferFacts, encoding: Encoding
) -> tuple[Encoding, Sequence[str]]:
    """Return the format of an object's last session, if it is not enabled: the flag is kept."""
    is_enabled = facts.mode is not None and is_tracing(facts.mode)
    if is_enabled or facts.owner is None or not read_flag(target, *facts.owner):
        return encoding, ()
    return make_encoding(PC_EXT, target.word_size, target.big_endian), ()


V1: Final = Variant(
    "KCOV_TRACE_PC_EXT v1 (2026)",
    recognized_by="`kcov_ext_format`",
    also_shown="entry, exit and normal records; call trees; the format's flag by `check` (F1 - F3, "
    "B9)",
    tested_on="kernel `ext-records`",
    features=frozenset({EXT_RECORDS, EXT_MEMBER}),
    marks=((TASK, _PATHS[TASK]), (KCOV, _PATHS[KCOV])),
)
V2: Final = Variant(
    "KCOV_TRACE_PC_EXT v2 (2026)",
    recognized_by="`KCOV_TRACE_PC_EXT`, or `__sanitizer_cov_trace_pc_exit()`, without "
    "`kcov_ext_format`",
    also_shown="entry, exit and normal records; call trees; records by `check` (B9)",
    tested_on="kernel `ext-format`",
    features=frozenset({EXT_RECORDS}),
    shown_by=_has_mode,
    flagged_modes=(("KCOV_MODE_TRACE_PC_EXT", "KCOV_MODE_TRACE_PC", _EXT_FORMAT),),
)

SERIES: Final = Series(
    name="KCOV_TRACE_PC_EXT",
    feature=EXT_RECORDS,
    variants=(V1, V2),
    members=tuple(
        SeriesMember(type_name, (path,), "mode_flag", EXT_MEMBER)
        for type_name, path in _PATHS.items()
    ),
    modes_by_member={"TRACE_PC": _MODE},
    modes=(
        Mode(_MODE, PC_EXT, EnableRequest(2, EXT_RECORDS, "the extended-record series of 2026")),
    ),
    encode=_encode,
    read=_read,
    rules=(_check_types, _check_modes, _check_saved, _check_copies),
    rule_groups={"F": "Records with a type: KCOV_TRACE_PC_EXT"},
)
