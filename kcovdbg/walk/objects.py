# SPDX-License-Identifier: LGPL-2.1-or-later
"""``struct kcov``: one object per open of /sys/kernel/debug/kcov."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK
from kcovdbg.abi.generations import KCOV
from kcovdbg.abi.mode import is_known, is_tracing
from kcovdbg.abi.record import CMP, PC
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.series import table
from kcovdbg.target.pointer import check_pointer, read_word
from kcovdbg.target.protocol import Target
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol
from kcovdbg.walk.layout import Layout


def _require_layout(layout: Layout) -> BlockLayout:
    if layout.kcov is None:
        raise MissingTypeError(
            f"the debug info has no {KCOV}", hint="kernel/kcov.c must be built with debug info"
        )
    return layout.kcov


def decode_kcov(layout: Layout, address: int, block: bytes) -> KcovFields:
    """Decode the block that holds a ``struct kcov``'s members.

    :raises MissingTypeError: if the debug info has no ``struct kcov``.
    """
    found = _require_layout(layout)
    refcount, lock, mode, size, area, task, remote, remote_size, sequence, *posted = found.decode(
        block
    )
    member = found.members["lock"]
    if member is not None and not isinstance(lock, bytes):
        lock = lock.to_bytes(member.size, "little", signed=member.signed)
    is_locked = member is not None and layout.is_lock_held(lock)
    collects = None if remote is None else bool(remote)
    return KcovFields(
        address,
        refcount,
        is_locked,
        mode,
        size,
        area,
        task,
        collects,
        remote_size,
        sequence,
        *posted,
    )


def read_kcov(target: Target, layout: Layout, address: int) -> KcovFields:
    """Read one object.

    :param address: ``struct kcov *``.
    :raises ReadError: if it cannot be read, or is no kernel address.
    :raises MissingTypeError: if the debug info has no ``struct kcov``.
    """
    check_pointer(target, address, KCOV)
    found = _require_layout(layout)
    return decode_kcov(layout, address, target.read(address + found.start, found.span))


def read_count(target: Target, layout: Layout, area: int, mode: str | None = None) -> int:
    """Read the count word of a buffer, as stored.

    User space can write the count of an object's own buffer.

    :param area: address of the count word: ``kcov->area`` or ``task->kcov_area``, or what lies
        behind a prefix.
    :param mode: as :meth:`Layout.mode_name` names it; comparisons have 64-bit words on 32-bit
        kernels as well.
    :raises ReadError: if it cannot be read, or is no kernel address.
    """
    check_pointer(target, area, "buffer", layout.buffer_word)
    codec = table.codec_of_mode(mode, layout.generation.features)
    encoding = record.make_encoding(codec, target.word_size, target.big_endian)
    return record.decode_word(target.read(area, encoding.word_size), encoding)


def find_capacity(
    layout: Layout, mode: str | None, size: int | None, trace_size: int | None = None
) -> int | None:
    """Return how many records fit into a buffer, None if there is no buffer or it is not known.

    :param mode: as :meth:`Layout.mode_name` names it. The kernel does not keep the last mode of an
        object that is not enabled: PC records are assumed.
    :param size: in words.
    :param trace_size: in words, in kernels whose buffers may have a prefix.
    """
    if not size:
        return None
    if layout.traits.has_prefix:
        if trace_size is None and any(
            mode in series.prefix_modes for series in layout.traits.series
        ):
            return None
        size = min(size, trace_size or size)
    return table.codec_of_mode(mode, layout.generation.features).capacity(size, layout.buffer_word)


def find_implausible(target: Target, layout: Layout, fields: KcovFields) -> str | None:
    """Return what shows that memory is not, or no longer, a ``struct kcov``; None if nothing
    does.
    """
    low, high = target.kernel_range
    if fields.refcount is not None and not 0 < fields.refcount < 1 << 30:
        return f"its refcount is {fields.refcount}"
    if fields.area and (not low <= fields.area <= high or fields.area % PAGE_SIZE):
        return f"its area {fields.area:#x} is no buffer's address"
    if fields.task and (not low <= fields.task <= high or fields.task % target.word_size):
        return f"its t {fields.task:#x} is no task's address"
    if (
        fields.mode is not None
        and layout.modes
        and not is_known(layout.object_mode_name(fields.mode))
    ):
        return f"its mode is {fields.mode:#x}"
    return None


_REACH: Final = 1 << 31


def find_recorded_code(target: Target) -> tuple[int, int] | None:
    """Return the first and the last address that code may have in records: without the KASLR
    offset.

    :return: None if the kernel has no symbol ``_stext``.
    """
    symbol = find_kernel_symbol(target, "_stext")
    if symbol is None:
        return None
    start = symbol.address - target.kaslr_offset
    # Modules lie above the kernel's text on x86 and below it on arm64: anything within 2 GiB may be
    # code. On s390x the text is linked to 1 MiB, and what is below is no code.
    low = start if start < _REACH else start - _REACH
    return low, min(WORD_MASK, start + _REACH)


BITMAP_LEFT: Final = (
    "buffer may start with a bitmap, whose size the kernel does not keep after a session"
)


def may_be_bitmap(
    target: Target, layout: Layout, mode: str | None, start: int, count: int, capacity: int | None
) -> bool:
    """Return whether the count of a buffer may be a word of a bitmap that an ended session left
    (kcov-abi.md 6).

    :param start: address of the count word.
    :param count: as stored.
    :raises ReadError: if the words of the first record cannot be read.
    """
    if not layout.traits.has_prefix or not count or (mode is not None and is_tracing(mode)):
        return False
    if capacity is not None and count > capacity:
        return True
    code = find_recorded_code(target)
    if code is None:
        return True
    # Of a trace, the first record is an address of code, or ends with one.
    low, high = code
    sizes = ((codec, codec.word_size or layout.buffer_word) for codec in (PC, CMP))
    firsts = [read_word(target, start + size * (1 + codec.pc_word), size) for codec, size in sizes]
    return not any(low <= address <= high for address in firsts)


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill level of a buffer; None where it is unknown."""

    count: int | None = None
    """The count word, as stored."""
    full: bool | None = None
    problems: tuple[str, ...] = ()
    """Why the count cannot be read."""
    is_blank: bool = False
    """Whether the count and the word after it are 0: probably nothing was ever recorded."""
    capacity: int | None = None
    """In records; also of a buffer whose count is unknown."""
    full_because: str | None = None
    """Why nothing more is recorded although there is room."""


def find_fill(
    target: Target,
    layout: Layout,
    area: int | None,
    size: int | None,
    mode: str | None,
    trace: int | None = None,
    trace_size: int | None = None,
    kcov: int | None = None,
) -> Fill:
    """Read a buffer's count word, and decide whether the buffer is full.

    :param area: ``kcov->area`` or ``task->kcov_area``.
    :param size: in words.
    :param mode: as :meth:`Layout.mode_name` names it.
    :param trace: address of the count word, in kernels whose buffers may have a prefix.
    :param kcov: the object that it is or collects for.
    """
    has_name = mode is not None and is_known(mode)
    # How many records fit depends on the mode: comparisons take four times the room.
    capacity = find_capacity(layout, mode, size, trace_size) if has_name else None
    unknown = Fill(capacity=capacity)
    if not area:
        return unknown
    depends = layout.traits.is_laid_out_by_mode or (target.word_size, target.big_endian) == (
        4,
        True,
    )
    if not has_name and (depends or not layout.modes):
        # The place and the width of the count depend on the mode.
        return unknown
    second = layout.traits.second_buffer
    is_second = second is not None and mode in second.alone
    start = area
    try:
        if layout.traits.has_prefix:
            if trace is None:
                return unknown
            if not area <= trace < area + max(size or 1, 1) * layout.buffer_word:
                return replace(
                    unknown, problems=(f"buffer {area:#x}: its trace {trace:#x} is outside of it",)
                )
            start = trace
        elif second is not None and is_second:
            if not kcov:
                return unknown
            start = second.find(target, kcov)
        count = read_count(target, layout, start, mode)
        if may_be_bitmap(target, layout, mode, start, count, capacity):
            return replace(unknown, problems=(BITMAP_LEFT,))
        is_blank = count == 0 and not any(target.read(start, 2 * layout.buffer_word))
    except (ReadError, MissingTypeError) as error:
        return replace(unknown, problems=(f"buffer {area:#x}: {error}",))
    fill = Fill(
        count, None if capacity is None else count >= capacity, is_blank=is_blank, capacity=capacity
    )
    limit = layout.traits.record_limit
    if limit is None or fill.full is not False or not (mode and kcov and size):
        return fill
    try:
        reached = limit.is_reached(target, kcov, mode, size)
    except (ReadError, MissingTypeError) as error:
        return replace(
            fill,
            full=None,
            problems=(f"buffer {area:#x}: it is unknown whether more is recorded: {error}",),
        )
    return replace(fill, full=True, full_because=limit.reason) if reached else fill
