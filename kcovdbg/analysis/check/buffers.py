# SPDX-License-Identifier: LGPL-2.1-or-later
"""B: what holds for what is in a buffer.

User space can write its buffer, count and records; kernel-private ones are taken at their word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.abi.record import RecordFormat
from kcovdbg.analysis.check.areas import OVERLAY
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_kcov, name_task, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.errors import MissingSymbolError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.finding import Certainty, Severity

_WORD: Final = 1 << 64
# Modules lie within 2 GiB of the kernel's text, above it or below.
_REACH: Final = 1 << 31
_BY_USER: Final = "user space can write its buffer"
_NAMED: Final = 4


class Contents(NamedTuple):
    """A buffer and whose it is."""

    about: str
    buffer: Buffer
    kcovs: tuple[int, ...]
    tasks: tuple[int, ...]

    @property
    def is_private(self) -> bool:
        return bool(self.tasks)


def _user_buffers(evidence: Evidence) -> Iterator[Contents]:
    """Read the buffers of objects that are in their first session: nothing in them is left over from another mode."""
    for address, kcov in evidence.objects.items():
        fields = kcov.fields
        if fields is None or not fields.area or not fields.size or not evidence.is_enabled(fields):
            continue
        if fields.sequence != 1 or not kcov.count:
            # Older kernels don't count sessions.
            continue
        # A record is four words at most; a count that user space wrote says nothing.
        buffer = evidence.buffer(f"kcov:{address:#x}", min(fields.size, 4 * kcov.count + 1))
        if buffer is not None:
            yield Contents(name_kcov(address), buffer, (address,), ())


def _private_buffers(evidence: Evidence) -> Iterator[Contents]:
    """Read the areas of sections."""
    for session in evidence.sessions:
        if not session.area or not session.size or not evidence.is_section(session):
            continue
        fields = session.task.fields
        if session.is_saved:
            name = (
                f"saved:{fields.cpu}"
                if session.task.saved is None or session.task.saved.where == "cpu"
                else f"saved:t{fields.pid}"
            )
        else:
            name = f"area:{session.area:#x}"
        counted = session.task.count if not session.is_saved else None
        buffer = evidence.buffer(name, session.size if counted is None else min(session.size, 4 * counted + 1))
        if buffer is not None and buffer.address == session.area:
            yield Contents(f"area {session.area:#x} of {name_task(fields)}", buffer, (session.kcov,), (fields.address,))


def read_buffers(evidence: Evidence) -> Iterator[Contents]:
    """Read what is enabled, and what sections collect into."""
    yield from _user_buffers(evidence)
    yield from _private_buffers(evidence)


def _is_cmp(mode: str | None) -> bool:
    return record.format_of_mode(mode) in (RecordFormat.CMP, RecordFormat.UNIQ_CMP)


def check_count(evidence: Evidence) -> Iterator[Violation]:
    """B1."""
    for address, kcov in evidence.objects.items():
        if kcov.count is None or kcov.fields is None or not kcov.fields.size or _is_cmp(kcov.mode):
            continue
        if evidence.has(Feature.UNIQUE_BITMAP) and not evidence.is_enabled(kcov.fields) and kcov.fields.sequence != 1:
            # A session has ended, and where the count was before it there may be the start of its bitmap.
            continue
        # Of an object that isn't enabled the last mode isn't known: more PCs than comparisons fit.
        capacity = kcov.capacity if kcov.capacity is not None else kcov.fields.size - 1
        if kcov.count > capacity:
            yield Violation(
                name_kcov(address),
                f"its buffer's count is {kcov.count:#x}, {capacity} records fit",
                values(count=Hex(kcov.count), capacity=capacity),
                Certainty.LIKELY,
                "user space can write it, and then nothing is wrong with the kernel",
                kcovs=(address,),
            )


def check_comparison_count(evidence: Evidence) -> Iterator[Violation]:
    """B2."""
    for address, kcov in evidence.objects.items():
        if kcov.count is None or kcov.capacity is None or kcov.fields is None or not _is_cmp(kcov.mode):
            continue
        if kcov.count <= kcov.capacity:
            continue
        size = (kcov.fields.size or 0) * evidence.layout.buffer_word
        # The bound of kernels before autumn 2026: (1 + 4 * count + 4) * 8 bytes, as it wraps.
        end = (1 + record.CMP_WORDS * kcov.count + record.CMP_WORDS) * 8 % _WORD
        wraps = end <= size
        yield Violation(
            name_kcov(address),
            f"its buffer's count is {kcov.count:#x}, {kcov.capacity} comparisons fit"
            + (": kernels up to autumn 2026 write outside of the buffer with that" if wraps else ""),
            values(count=Hex(kcov.count), capacity=kcov.capacity, end=Hex(end), bytes=size),
            Certainty.LIKELY,
            "user space can write it, and then nothing is wrong with the kernel yet",
            kcovs=(address,),
            severity=Severity.ERROR if wraps else None,
        )


def check_private_count(evidence: Evidence) -> Iterator[Violation]:
    """B3."""
    for found in _private_buffers(evidence):
        buffer = found.buffer
        if buffer.stored_count is not None and buffer.capacity is not None and buffer.stored_count > buffer.capacity:
            yield Violation(
                found.about,
                f"its count is {buffer.stored_count:#x}, {buffer.capacity} records fit, and only the kernel writes it",
                values(count=Hex(buffer.stored_count), capacity=buffer.capacity),
                kcovs=found.kcovs,
                tasks=found.tasks,
            )


def judge(found: Contents) -> tuple[Certainty, str | None, Severity | None]:
    """Say how sure it is that what is in a buffer is wrong, why it isn't, and how bad that is where the rule doesn't tell."""
    return (Certainty.CERTAIN, None, None) if found.is_private else (Certainty.UNSURE, _BY_USER, Severity.WARNING)


def check_addresses(evidence: Evidence) -> Iterator[Violation]:
    """B4."""
    target = evidence.target
    try:
        start = target.symbol("_stext").address
    except MissingSymbolError:
        return
    offset = target.kaslr_offset
    if target.word_size != 8:
        # A 32-bit kernel's modules may be anywhere in it.
        low, high = target.kernel_range[0] - offset, target.kernel_range[1]
    else:
        low, high = max(0, start - offset - _REACH), start - offset + _REACH
    for found in read_buffers(evidence):
        buffer = found.buffer
        if buffer.encoding.format not in (RecordFormat.PC, RecordFormat.CMP, RecordFormat.UNIQ_PC, RecordFormat.UNIQ_CMP):
            continue
        words = find_written(found)
        if not words or (min(words) >= low and max(words) <= high):
            continue
        missing = {number for gap in buffer.gaps for number in range(gap.first, gap.first + gap.length)}
        wrong = [number for number, word in enumerate(words) if not low <= word <= high and number not in missing]
        if wrong:
            certainty, reason, severity = judge(found)
            shown = ", ".join(f"{number}: {words[number]:#x}" for number in wrong[:_NAMED])
            yield Violation(
                found.about,
                f"{len(wrong)} of {buffer.count} records aren't of code, the first is number {wrong[0]}: {words[wrong[0]]:#x}",
                values(records=shown, text=Hex(start - offset)),
                certainty,
                reason,
                kcovs=found.kcovs,
                tasks=found.tasks,
                severity=severity,
            )


def find_written(found: Contents) -> Sequence[int]:
    """Return the address words of the records that are whole: the count is raised before the last one is written."""
    buffer = found.buffer
    return record.pc_words(buffer.words, buffer.encoding)[: max(buffer.count - 1, 0)]


def _comparisons(evidence: Evidence) -> Iterator[tuple[Contents, int, record.Comparison]]:
    for found in read_buffers(evidence):
        buffer = found.buffer
        if buffer.encoding.format not in (RecordFormat.CMP, RecordFormat.UNIQ_CMP):
            continue
        missing = {number for gap in buffer.gaps for number in range(gap.first, gap.first + gap.length)}
        for number in range(max(buffer.count - 1, 0)):
            decoded = record.decode_record(buffer.words, number, buffer.encoding).comparison
            if decoded is not None and number not in missing:
                yield found, number, decoded


def check_types(evidence: Evidence) -> Iterator[Violation]:
    """B5."""
    told: set[str] = set()
    for found, number, comparison in _comparisons(evidence):
        if comparison.type >= 8 and found.about not in told:
            told.add(found.about)
            certainty, reason, severity = judge(found)
            yield Violation(
                found.about,
                f"comparison {number} is of type {comparison.type:#x}: a size and whether it was with a constant, so below 8",
                values(record=number, type=Hex(comparison.type)),
                certainty,
                reason,
                kcovs=found.kcovs,
                tasks=found.tasks,
                severity=severity,
            )


def check_operands(evidence: Evidence) -> Iterator[Violation]:
    """B6."""
    told: set[str] = set()
    for found, number, comparison in _comparisons(evidence):
        if comparison.type >= 8 or found.about in told:
            continue
        for name, value in (("arg1", comparison.arg1), ("arg2", comparison.arg2)):
            bits = 8 * comparison.size
            # The labels of a switch may be extended by their sign.
            if value >> bits and value >> bits - 1 != (1 << 64 - bits + 1) - 1:
                told.add(found.about)
                certainty, reason, severity = judge(found)
                yield Violation(
                    found.about,
                    f"comparison {number} is of {comparison.size} bytes, and {name} is {value:#x}",
                    values(record=number, size=comparison.size, **{name: Hex(value)}),
                    certainty,
                    reason,
                    kcovs=found.kcovs,
                    tasks=found.tasks,
                    severity=severity,
                )
                break


_COMPARISONS: Final = frozenset({Feature.COMPARISONS})

RULES: Final = (
    Rule(
        "B1",
        "a buffer's count isn't larger than what fits",
        check_count,
        "__sanitizer_cov_trace_pc(), kcov_move_area()",
        Severity.WARNING,
        excludes=frozenset({Feature.TEXT_BITMAP}),
        detail="A full buffer's count is what fits: nothing tells how much was dropped.",
    ),
    Rule(
        "B2",
        "a buffer's count of comparisons isn't larger than what fits",
        check_comparison_count,
        "write_comp_data(), kcov_move_area()",
        Severity.WARNING,
        eras="v4.15 and later",
        needs=_COMPARISONS,
    ),
    Rule(
        "B3",
        "a section's count isn't larger than what fits into its area",
        check_private_count,
        "__sanitizer_cov_trace_pc(), write_comp_data()",
        eras="v5.5 and later",
        needs=frozenset({Feature.REMOTE}),
        detail="User space can't write it.",
    ),
    Rule(
        "B4",
        "records hold addresses of code",
        check_addresses,
        "__sanitizer_cov_trace_pc(), write_comp_data()",
        detail=(
            "The last one may be old, as the count is raised before it is written. Of objects in their second session or later "
            "nothing is said: what an earlier mode recorded may be left."
        ),
    ),
    Rule(
        "B5",
        "a comparison's type is below 8",
        check_types,
        "write_comp_data()",
        eras="v4.15 and later",
        needs=_COMPARISONS,
    ),
    Rule(
        "B6",
        "a comparison's operands fit its size",
        check_operands,
        "__sanitizer_cov_trace_cmp1() and others",
        eras="v4.15 and later",
        needs=_COMPARISONS,
        detail="Labels of a switch may be extended by their sign.",
    ),
    OVERLAY,
)
