# SPDX-License-Identifier: LGPL-2.1-or-later
"""``struct kcov``: one object per open of /sys/kernel/debug/kcov."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK
from kcovdbg.abi.generations import KCOV
from kcovdbg.abi.mode import is_known, is_tracing
from kcovdbg.abi.record import CMP, PC
from kcovdbg.errors import MissingTypeError, PointerError, ReadError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.series import table
from kcovdbg.target.pointer import check_pointer, is_kernel_pointer, read_word
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import Layout


def _require_layout(layout: Layout) -> BlockLayout:
    if layout.kcov is None:
        raise MissingTypeError(
            f"the debug info has no {KCOV}", hint="kernel/kcov.c must be built with debug info"
        )
    return layout.kcov


def decode_kcov(layout: Layout, address: int, block: bytes) -> KcovFields:
    """Decode the members of a ``struct kcov``.

    :param block: the bytes that hold all its members.

    :raises MissingTypeError: if the debug info has no ``struct kcov``.
    """
    found = _require_layout(layout)
    values = dict(zip(found.names, found.decode(block), strict=True))
    lock, task, remote = values.pop("lock"), values.pop("t"), values.pop("remote")
    member = found.members["lock"]
    if member is not None and not isinstance(lock, bytes):
        lock = lock.to_bytes(member.size, "little", signed=member.signed)
    return KcovFields(
        address,
        is_locked=member is not None and layout.is_lock_held(lock),
        task=task,
        remote=None if remote is None else bool(remote),
        **values,
    )


def read_kcov(target: Target, layout: Layout, address: int) -> KcovFields:
    """Read one object.

    :param address: ``struct kcov *``.
    :raises ReadError: if it is unreadable, or is not at a kernel address.
    :raises MissingTypeError: if the debug info has no ``struct kcov``.
    """
    check_pointer(target, address, KCOV)
    found = _require_layout(layout)
    return decode_kcov(layout, address, target.read(address + found.start, found.span))


def check_buffer(target: Target, address: int) -> None:
    """Check that this can be the address of a buffer: it is allocated in whole pages.

    :raises PointerError: when it cannot.
    """
    if not is_kernel_pointer(target, address, PAGE_SIZE):
        raise PointerError(f"{address:#x} is not the address of a buffer", address)


def read_count(target: Target, layout: Layout, area: int, mode: str | None = None) -> int:
    """Read the count word of a buffer, as stored.

    User space can write the count of an object's own buffer.

    :param area: address of the count word: ``kcov->area`` or ``task->kcov_area``, or the address
        after a prefix.
    :param mode: the mode's name; comparisons have 64-bit words on 32-bit kernels as well.
    :raises ReadError: if it is unreadable, or is not at a kernel address.
    """
    check_pointer(target, area, "buffer", layout.buffer_word)
    codec = table.codec_of_mode(mode, layout.generation.features)
    encoding = record.make_encoding(codec, target.word_size, target.big_endian)
    return record.decode_word(target.read(area, encoding.word_size), encoding)


def is_possible_size(layout: Layout, size: int) -> bool:
    """Return whether KCOV_INIT_TRACE accepts a size, in words (kcov-abi.md K3)."""
    return size <= layout.traits.size_limit(layout.buffer_word)


def find_capacity(
    layout: Layout, mode: str | None, size: int | None, trace_size: int | None = None
) -> int | None:
    """Return how many records fit in a buffer, None if there is no buffer or that is unknown.

    :param mode: the mode's name. The kernel does not keep the last mode of an object that is not
        enabled: PC records are assumed.
    :param size: in words.
    :param trace_size: in words, in kernels whose buffers may have a prefix.
    """
    if not size or not is_possible_size(layout, size):
        return None
    if layout.traits.has_prefix:
        if trace_size is None and any(
            mode in series.prefix_modes for series in layout.traits.series
        ):
            return None
        size = min(size, trace_size or size)
    return table.codec_of_mode(mode, layout.generation.features).capacity(size, layout.buffer_word)


def find_implausible(target: Target, layout: Layout, fields: KcovFields) -> str | None:
    """Return why memory is not, or no longer, a ``struct kcov``; None if nothing shows that."""
    if fields.refcount is not None and not 0 < fields.refcount < 1 << 30:
        return f"its refcount is {fields.refcount}"
    if fields.area and not is_kernel_pointer(target, fields.area, PAGE_SIZE):
        return f"its area {fields.area:#x} is no buffer's address"
    if fields.task and not is_kernel_pointer(target, fields.task):
        return f"its t {fields.task:#x} is no task's address"
    mode = fields.mode
    if mode is not None and layout.modes and not is_known(layout.object_mode_name(mode)):
        return f"its mode is {mode:#x}"
    return None


_REACH: Final = 1 << 31


def find_recorded_code(target: Target) -> tuple[int, int] | None:
    """Return the first and the last address of code in records, minus the KASLR offset.

    :return: None if the kernel has no symbol ``_stext``.
    """
    symbol = find_kernel_symbol(target, "_stext")
    if symbol is None:
        return None
    start = symbol.address - target.kaslr_offset
    # Modules are above the kernel's text on x86 and below it on arm64, within 2 GiB. On s390x the
    # text is linked to 1 MiB, and there is no code below it.
    low = start if start < _REACH else start - _REACH
    return low, min(WORD_MASK, start + _REACH)


BITMAP_LEFT: Final = (
    "buffer may start with a bitmap, whose size the kernel does not keep after a session"
)
_UNTOLD_BITMAP: Final = (
    f"{BITMAP_LEFT}: without the symbol _stext, records cannot be told from a bitmap"
)


def find_bitmap_left(
    target: Target, layout: Layout, mode: str | None, start: int, count: int, capacity: int | None
) -> str | None:
    """Return why the count of a buffer may be a word of a bitmap that an ended session has left
    (kcov-abi.md 6); None if it is a count.

    :param start: address of the count word.
    :param count: as stored.
    :raises ReadError: if the words of the first record are unreadable.
    """
    if not layout.traits.has_prefix or not count or (mode is not None and is_tracing(mode)):
        return None
    if capacity is not None and count > capacity:
        return BITMAP_LEFT
    code = find_recorded_code(target)
    if code is None:
        return _UNTOLD_BITMAP
    # The first record of a trace is an address of code, or ends with one.
    low, high = code
    for codec in (PC, CMP):
        size = codec.word_size or layout.buffer_word
        first = read_word(target, start + size * (1 + codec.pc_word), size)
        if low <= first <= high:
            return None
    return BITMAP_LEFT


class BufferMembers(NamedTuple):
    """The members of a task or an object that describe its buffer; None is unknown."""

    area: int | None
    """``kcov->area`` or ``task->kcov_area``."""
    size: int | None
    """Size in words of the kernel."""
    mode: str | None
    """The mode's name."""
    trace: int | None
    """Address of the count word, in kernels whose buffers may have a prefix."""
    trace_size: int | None
    kcov: int | None
    """The object whose buffer it is, or for which a section collects into it."""


def members_of_object(layout: Layout, kcov: KcovFields) -> BufferMembers:
    """Return the members of an object that describe its buffer."""
    mode = layout.mode_of_object(kcov)
    return BufferMembers(kcov.area, kcov.size, mode, kcov.trace, kcov.trace_size, kcov.address)


@dataclass(frozen=True, slots=True)
class Fill:
    """The fill level of a buffer; None is unknown."""

    count: int | None = None
    """The count word, as stored."""
    full: bool | None = None
    problems: tuple[str, ...] = ()
    """Why the count could not be read."""
    is_blank: bool = False
    """As :attr:`Kcov.is_blank`."""
    capacity: int | None = None
    """Capacity in records; it may be known although the count is not."""
    full_because: str | None = None
    """As :attr:`Kcov.full_because`."""


def find_fill(target: Target, layout: Layout, buffer: BufferMembers) -> Fill:
    """Read a buffer's count word, and decide whether the buffer is full."""
    area, size, mode, _, trace_size, _ = buffer
    has_name = mode is not None and is_known(mode)
    # How many records fit depends on the mode: comparisons take four times the room.
    capacity = find_capacity(layout, mode, size, trace_size) if has_name else None
    unknown = Fill(capacity=capacity)
    if not area:
        return unknown
    # Without the mode, the place and the width of the count may be unknown.
    is_by_width = target.word_size == 4 and target.big_endian
    depends = layout.traits.is_laid_out_by_mode or is_by_width or not layout.modes
    if not has_name and depends:
        return unknown
    try:
        check_buffer(target, area)
        start = _find_count(target, layout, area, buffer)
        if start is None:
            return unknown
        count = read_count(target, layout, start, mode)
        bitmap = find_bitmap_left(target, layout, mode, start, count, capacity)
        if bitmap is not None:
            return replace(unknown, problems=(bitmap,))
        is_blank = count == 0 and not any(target.read(start, 2 * layout.buffer_word))
    except (ReadError, MissingTypeError) as error:
        return replace(unknown, problems=(f"buffer {area:#x}: {error}",))
    full = None if capacity is None else count >= capacity
    fill = replace(unknown, count=count, full=full, is_blank=is_blank)
    limit = layout.traits.record_limit
    if limit is None or full is not False or not (mode and buffer.kcov and size):
        return fill
    try:
        if limit.is_reached(target, buffer.kcov, mode, size):
            return replace(fill, full=True, full_because=limit.reason)
    except (ReadError, MissingTypeError) as error:
        problem = f"buffer {area:#x}: it is unknown whether more is recorded: {error}"
        return replace(fill, full=None, problems=(problem,))
    return fill


def _find_count(target: Target, layout: Layout, area: int, buffer: BufferMembers) -> int | None:
    """Return the address of a buffer's count word, None if it is unknown."""
    if layout.traits.has_prefix:
        trace = buffer.trace
        end = area + max(buffer.size or 1, 1) * layout.buffer_word
        if trace is not None and not area <= trace < end:
            raise ReadError(f"its trace {trace:#x} is outside of it", trace)
        return trace
    second = layout.traits.second_buffer
    if second is None or buffer.mode not in second.alone:
        return area
    return second.find(target, buffer.kcov) if buffer.kcov else None
