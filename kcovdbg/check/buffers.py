# SPDX-License-Identifier: LGPL-2.1-or-later
"""B: invariants of the contents of buffers.

User space can write its own buffers, count and records; only the kernel writes the areas of
sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.generations import Feature
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import name_task
from kcovdbg.model.memory import VmallocArea
from kcovdbg.model.rule import (
    Hex,
    Rule,
    Violations,
    area_violation,
    contents_violation,
    kcov_violation,
    values,
)
from kcovdbg.model.state import BufferContents, BufferMapping, NextMapping, Part, Source, State
from kcovdbg.series import table

_WORD: Final = 1 << 64
# Modules are within 2 GiB of the kernel's text.
_REACH: Final = 1 << 31
# Limit for the records that are shown.
_SHOWN: Final = 4


def _holds_comparisons(mode: str | None) -> bool:
    return table.codec_of_trace(mode).has_operands


@Rule(
    "B1",
    "a buffer's count is at most its capacity",
    severity=Severity.WARNING,
    guaranteed_by="__sanitizer_cov_trace_pc(), kcov_move_area()",
    consequence="Nothing is recorded until user space resets the count; a reader that trusts the "
    "count reads past the buffer.",
    needs=Part.OBJECTS,
    rests_on=(Source.COUNTS,),
    detail="The count of a full buffer is its capacity: how many records were dropped is unknown.",
)
def _check_count(state: State) -> Violations:
    for kcov, fields in state.readable:
        if kcov.count is None or not fields.size or _holds_comparisons(kcov.mode):
            continue
        if state.kernel.has_prefix and not kcov.is_enabled and fields.sequence != 1:
            # A session has ended, which may have had its prefix where the count is read.
            continue
        capacity = kcov.capacity
        if capacity is None:
            # The last mode is unknown. More PCs than comparisons fit.
            capacity = fields.size - 1
        if kcov.count > capacity:
            size = state.kernel.bytes_of(fields.size)
            reason = (
                "user space can write it, and the kernel does when it takes the buffer for a free "
                "area (K10)"
            )
            if record.find_wrapped_place(kcov.count - 1, size) is not None:
                # The last comparison may have been written behind an impossible count.
                reason = "a kernel before autumn 2026 goes on behind an impossible count (B2)"
            yield kcov_violation(
                fields.address,
                f"its buffer's count is {kcov.count:#x}, but {capacity} records fit",
                values(count=Hex(kcov.count), capacity=capacity),
                Certainty.LIKELY,
                reason,
            )


@Rule(
    "B2",
    "a buffer's count of comparisons is at most its capacity",
    severity=Severity.WARNING,
    guaranteed_by="write_comp_data(), kcov_move_area()",
    consequence=(
        "Nothing is recorded until user space resets the count; kernels before autumn 2026 may go "
        "on, in the buffer or in front of it."
    ),
    needs=Part.OBJECTS,
    rests_on=(Source.COUNTS,),
    features=(Feature.COMPARISONS,),
)
def _check_comparison_count(state: State) -> Violations:
    for kcov, fields in state.readable:
        if kcov.count is None or kcov.capacity is None or not _holds_comparisons(kcov.mode):
            continue
        if kcov.count <= kcov.capacity:
            continue
        size = state.kernel.bytes_of(fields.size or 0)
        message = f"its buffer's count is {kcov.count:#x}, but {kcov.capacity} comparisons fit"
        severity = None
        place = record.find_wrapped_place(kcov.count, size)
        if place is not None and place < 0:
            message += ": kernels before autumn 2026 write the next one in front of the buffer"
            severity = Severity.ERROR
        elif place is not None:
            message += f": kernels before autumn 2026 write the next one at offset {place:#x}"
        reason = "user space can write it; then the kernel is not at fault yet"
        # KCOV_ENABLE does not reset the count.
        if kcov.count < (fields.size or 0):
            reason = (
                "so many PCs fit: user space may have changed the mode without resetting the count"
            )
        shown = values(count=Hex(kcov.count), capacity=kcov.capacity, bytes=size)
        yield kcov_violation(
            fields.address, message, shown, Certainty.LIKELY, reason, severity=severity
        )


@Rule(
    "B3",
    "a section's count is at most the capacity of its area",
    guaranteed_by="__sanitizer_cov_trace_pc(), write_comp_data()",
    consequence="When the section ends, memory behind its area may be merged into its owner's "
    "buffer.",
    needs=Part.BUFFERS,
    features=(Feature.REMOTE,),
    detail="User space cannot write it.",
)
def _check_private_count(state: State) -> Violations:
    for contents in state.buffers:
        count, capacity = contents.buffer.stored_count, contents.buffer.capacity
        if contents.section is None or count is None or capacity is None:
            continue
        if count > capacity:
            message = (
                f"its count is {count:#x}, but {capacity} records fit, and only the kernel writes "
                f"it"
            )
            yield contents_violation(contents, message, values(count=Hex(count), capacity=capacity))


def _find_b4_obstacle(state: State) -> str | None:
    if state.proof_problem is None:
        return "B12 checks more"
    if state.text[0] is None:
        return "the kernel has no symbol _stext"
    return None


@Rule(
    "B4",
    "records hold addresses of code",
    guaranteed_by="__sanitizer_cov_trace_pc(), write_comp_data()",
    consequence="The record is fake coverage: it names no function, and a fuzzer may keep an input "
    "for it.",
    needs=Part.BUFFERS | Part.TEXT | Part.PROOF,
    obstacle=_find_b4_obstacle,
    detail=(
        "The last record may be stale, because the count is raised before it is written. Objects "
        "in their second session or later are not checked: records of an earlier mode may be left. "
        "Where code is readable, B12 applies instead."
    ),
)
def _check_addresses(state: State) -> Violations:
    kernel = state.kernel
    start, _ = state.text
    assert start is not None
    start -= kernel.kaslr_offset
    if kernel.word_size == 8:
        low, high = start - _REACH, start + _REACH
    else:
        # The modules of a 32-bit kernel may be anywhere in its range.
        low, high = kernel.kernel_range[0] - kernel.kaslr_offset, kernel.kernel_range[1]
    for contents in state.buffers:
        buffer, words = contents.buffer, contents.written
        if low < 0 and words and max(words) > high:
            # On s390x the image is linked to 1 MiB, and modules are below it: minus the KASLR
            # offset, their PCs are negative.
            words = [word - _WORD if word >> 63 else word for word in words]
        if not buffer.encoding.codec.has_plain_pcs or not words:
            continue
        if min(words) >= low and max(words) <= high:
            continue
        missing = buffer.missing
        wrong = [
            f"{number}: {contents.written[number]:#x}"
            for number, word in enumerate(words)
            if not low <= word <= high and number not in missing
        ]
        if wrong:
            yield contents_violation(
                contents,
                f"{len(wrong)} of {buffer.count} records are not addresses of code, first number "
                f"{wrong[0]}",
                values(records=", ".join(wrong[:_SHOWN]), text=Hex(start)),
            )


def _comparisons(contents: BufferContents) -> Iterator[tuple[int, record.Comparison]]:
    """Yield the comparisons of a buffer that could be read, each with its number."""
    buffer = contents.buffer
    if not buffer.encoding.codec.has_operands:
        return
    missing = buffer.missing
    for number in range(max(buffer.count - 1, 0)):
        decoded = buffer.decode(number).comparison
        if decoded is not None and number not in missing:
            yield number, decoded


@Rule(
    "B5",
    "a comparison's type is below 8",
    guaranteed_by="write_comp_data()",
    consequence="Readers decode the comparison with the wrong size, or refuse it.",
    needs=Part.BUFFERS,
    features=(Feature.COMPARISONS,),
)
def _check_types(state: State) -> Violations:
    for contents in state.buffers:
        for number, comparison in _comparisons(contents):
            if comparison.type >= 8:
                yield contents_violation(
                    contents,
                    f"comparison {number} has type {comparison.type:#x}, but a type has three "
                    f"bits: the size of its operands, and whether one of them is a constant",
                    values(record=number, type=Hex(comparison.type)),
                )
                break


@Rule(
    "B6",
    "a comparison's operands fit its size",
    guaranteed_by="__sanitizer_cov_trace_cmp1() and others",
    consequence="A fuzzer takes hints from operands that the kernel never compared.",
    needs=Part.BUFFERS,
    features=(Feature.COMPARISONS,),
    detail="The labels of a switch may be sign-extended.",
)
def _check_operands(state: State) -> Violations:
    for contents in state.buffers:
        for number, comparison in _comparisons(contents):
            name = _find_wide_operand(comparison)
            if name is not None:
                size, value = comparison.size, getattr(comparison, name)
                message = f"comparison {number} is of {size} bytes, but {name} is {value:#x}"
                shown = values(record=number, size=size, **{name: Hex(value)})
                yield contents_violation(contents, message, shown)
                break


def _find_wide_operand(comparison: record.Comparison) -> str | None:
    """Return the name of the first operand that does not fit the comparison's size, None if both
    fit or the size is unknown.
    """
    if comparison.type >= 8:
        return None
    for name in ("arg1", "arg2"):
        value = getattr(comparison, name)
        is_zero_extended = value < 1 << 8 * comparison.size
        signed = record.signed_value(value, comparison.size)
        if not is_zero_extended and signed % _WORD != value:
            return name
    return None


@Rule(
    "B8",
    "the first bytes of a free area are its list entry and the size that it was allocated with",
    guaranteed_by="kcov_remote_area_put()",
    consequence="A section takes an area of the wrong size, or follows a damaged list.",
    needs=Part.CACHED_AREAS | Part.VMALLOC,
    features=(Feature.REMOTE,),
    detail="They are not a count of records.",
)
def _check_overlay(state: State) -> Violations:
    if state.vmalloc is None:
        return
    kernel = state.kernel
    for area in state.cached_areas:
        found = state.vmalloc.get(area.address)
        if found is None or area.size is None:
            continue
        needed = max(kernel.page_align(kernel.bytes_of(area.size)), kernel.page_size)
        # Some kernels count the guard page.
        if needed < kernel.page_align(found.size) - kernel.page_size:
            yield area_violation(
                area.address,
                f"its list entry says {area.size} words, but it was allocated for "
                f"{kernel.words_in(found)}: the entry was overwritten",
                values(size=area.size, allocated=found.size),
            )


@Rule(
    "B12",
    "a record is a coverage point of this build: a call of the sanitizer's callback ends at "
    "its address",
    guaranteed_by="__sanitizer_cov_trace_pc(), write_comp_data()",
    consequence="The record is fake coverage: a fuzzer may keep an input for code that it never "
    "ran.",
    needs=Part.TASKS | Part.BUFFERS | Part.PROOF,
    obstacle=lambda state: state.proof_problem,
    detail=(
        "A function may end in a jump to the callback; then the return address of its own call is "
        "recorded. The last record may be stale, because the count is raised before it is written. "
        "In later sessions of an object, buffers with comparisons of an earlier one are not "
        "checked. Unreadable code is not compared: code of unloaded modules, or code that a dump "
        "lacks."
    ),
)
def _check_points(state: State) -> Violations:
    for wrong in state.wrong_records:
        number, word = wrong.first[0]
        mapped = [_describe_mapping(state, mapping) for mapping in wrong.mappings]
        neighbors = wrong.neighbors.items()
        shown = values(
            records=_describe_records(wrong.first),
            before=_describe_records(pair for pair in neighbors if pair[0] < number),
            after=_describe_records(pair for pair in neighbors if pair[0] > number),
            offset=Hex(wrong.offset),
            mapped="; ".join((*mapped, *wrong.problems)),
            vmalloc__before=_describe_area(wrong.vmalloc[0]),
            vmalloc__after=_describe_area(wrong.vmalloc[1]),
        )
        yield contents_violation(
            wrong.contents,
            f"{wrong.count} of {wrong.contents.buffer.count} records are not coverage points of "
            f"this build, first number {number}: {word:#x} ({wrong.problem})",
            tuple((name, value) for name, value in shown if value),
        )


def _describe_records(records: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{number}: {word:#x}" for number, word in records)


def _describe_mapping(state: State, mapping: BufferMapping) -> str:
    pid = mapping.pid
    leaders = (task for task in state.task_fields if task.tgid == pid and task.pid == pid)
    leader = next(leaders, None)
    name = f"process {pid}" if leader is None else name_task(leader)
    access = "writable" if mapping.writable else "read-only"
    return (
        f"{access} by {name} at {mapping.start:#x}-{mapping.end:#x} from offset "
        f"{mapping.offset:#x}, directly before it {_describe_neighbor(mapping.before)}, directly "
        f"after it {_describe_neighbor(mapping.after)}"
    )


def _describe_neighbor(mapping: NextMapping | None) -> str:
    if mapping is None:
        return "nothing"
    access = "writable" if mapping.writable else "read-only"
    return f"{mapping.name} ({access}, {mapping.start:#x}-{mapping.end:#x})"


def _describe_area(area: VmallocArea | None) -> str:
    if area is None:
        return ""
    return f"{area.start:#x}, {area.size:#x} bytes, of {area.allocator}()"
