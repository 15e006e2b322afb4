# SPDX-License-Identifier: LGPL-2.1-or-later
"""B, continued: what holds for what posted series write into buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.abi.record import Kind, RecordFormat
from kcovdbg.analysis.check.buffers import find_written, judge, read_buffers
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_kcov, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.errors import KcovdbgError, MissingSymbolError
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.walk.block import BlockLayout, find_member
from kcovdbg.walk.layout import KCOV

_REACH: Final = 1 << 31
_ONES: Final = 0xFF << 56
# The uppermost byte of a record with a type: a block's address has all ones there.
_TYPES: Final = {0xFF: Kind.PC, 0x00: Kind.ENTRY, 0x10: Kind.EXIT}
_BY_USER: Final = "user space can write its buffer"
# A bit of the bitmap stands for so many bytes of text.
_STEP: Final = 4
_LOW: Final = 0xFFFFFFFF


def check_types(evidence: Evidence) -> Iterator[Violation]:
    """B9."""
    target = evidence.target
    try:
        start = target.symbol("_stext").address - target.kaslr_offset
    except MissingSymbolError:
        return
    for found in read_buffers(evidence):
        if found.buffer.encoding.format is not RecordFormat.PC_EXT or target.word_size != 8:
            continue
        missing = {number for gap in found.buffer.gaps for number in range(gap.first, gap.first + gap.length)}
        wrong = [
            (number, word)
            for number, word in enumerate(find_written(found))
            if number not in missing and (word >> 56 not in _TYPES or not abs((word | _ONES) - start) < _REACH)
        ]
        if wrong:
            certainty, reason, severity = judge(found)
            number, word = wrong[0]
            what = "has a type that there is none of" if word >> 56 not in _TYPES else "isn't of code"
            yield Violation(
                found.about,
                f"{len(wrong)} of {found.buffer.count} records are none of this format: number {number}, {word:#x}, {what}",
                values(record=number, word=Hex(word), text=Hex(start)),
                certainty,
                reason,
                kcovs=found.kcovs,
                tasks=found.tasks,
                severity=severity,
            )


def check_text(evidence: Evidence) -> Iterator[Violation]:
    """B10."""
    target = evidence.target
    try:
        start, end = (target.symbol(name).address - target.kaslr_offset for name in ("_stext", "_etext"))
    except MissingSymbolError:
        return
    if end <= start:
        return
    for address, item in evidence.objects.items():
        fields = item.fields
        if fields is None or not fields.size or not fields.area or evidence.mode_of(fields) != "UNIQUE_PC":
            continue
        about, room = name_kcov(address), 8 * _STEP * evidence.bytes_of(fields.size)
        if room < end - start:
            yield Violation(
                about,
                f"its bitmap is for {room} bytes of text, there are {end - start}: the kernel writes behind its end",
                values(size=fields.size, text=end - start),
                kcovs=(address,),
            )
        buffer = evidence.buffer(f"kcov:{address:#x}", fields.size)
        beyond = [pc for pc in (() if buffer is None else buffer.words) if pc >= end]
        if beyond:
            yield Violation(
                about,
                f"its bitmap marks {len(beyond)} places behind the text, the first {beyond[0]:#x}",
                values(pc=Hex(beyond[0]), end=Hex(end)),
                Certainty.UNSURE,
                _BY_USER,
                kcovs=(address,),
                severity=Severity.WARNING,
            )


def check_range(evidence: Evidence) -> Iterator[Violation]:
    """B11."""
    target = evidence.target
    paths = {"start": ("pc_range.start",), "end": ("pc_range.end",)}
    if any(find_member(target, KCOV, path) is None for path in paths.values()):
        return
    layout = BlockLayout(target, KCOV, paths)
    for found in read_buffers(evidence):
        if found.buffer.encoding.format is not RecordFormat.PC or not found.kcovs:
            continue
        try:
            start, end = layout.read(target, found.kcovs[0])
        except KcovdbgError:
            continue
        missing = {number for gap in found.buffer.gaps for number in range(gap.first, gap.first + gap.length)}
        words = record.pc_words(find_written(found), found.buffer.encoding)
        outside = [word for number, word in enumerate(words) if number not in missing and not start <= word & _LOW <= end]
        # Without a range that is one the kernel records everything.
        if start < end and outside:
            yield Violation(
                found.about,
                f"{len(outside)} of its records lie outside of the range {start:#x} to {end:#x}, the first is {outside[0]:#x}",
                values(start=Hex(start), end=Hex(end), pc=Hex(outside[0])),
                kcovs=found.kcovs,
                tasks=found.tasks,
            )


RULES: Final = (
    Rule(
        "B9",
        "a record with a type is a block, an entry or an exit, and of code",
        check_types,
        "__sanitizer_cov_trace_pc(), __sanitizer_cov_trace_pc_entry(), __sanitizer_cov_trace_pc_exit()",
        eras="posted series of 2026 with KCOV_TRACE_PC_EXT",
        needs=frozenset({Feature.EXT_RECORDS}),
        detail="An exit without an entry before it is legal: its function was entered before the count was reset.",
    ),
    Rule(
        "B10",
        "a bitmap of the text is as long as the text, and marks nothing behind it",
        check_text,
        "kcov_ioctl() (KCOV_INIT_UNIQUE), __sanitizer_cov_trace_pc()",
        eras="posted series of 2021 with KCOV_INIT_UNIQUE",
        needs=frozenset({Feature.TEXT_BITMAP}),
    ),
    Rule(
        "B11",
        "records of an object with a range lie in it",
        check_range,
        "__sanitizer_cov_trace_pc()",
        Severity.ADVICE,
        eras="posted series of 2021 with KCOV_PC_RANGE",
        needs=frozenset({Feature.PC_RANGE}),
        detail="The range may be set while the object is enabled: what was recorded before stays, legally.",
    ),
)
