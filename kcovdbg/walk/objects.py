# SPDX-License-Identifier: LGPL-2.1-or-later
"""``struct kcov``: one object per open of /sys/kernel/debug/kcov."""

from __future__ import annotations

from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.abi.mode import is_known
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.target import Target
from kcovdbg.walk.layout import KCOV, Layout
from kcovdbg.walk.pointer import check_pointer, read_word

PAGE: Final = 4096
"""Of the smallest; buffers start with one."""


def decode_kcov(layout: Layout, address: int, block: bytes) -> KcovFields:
    """Decode the block that holds a ``struct kcov``'s members.

    :raises MissingTypeError: when the debug info has no ``struct kcov``.
    """
    if layout.kcov is None:
        raise MissingTypeError(f"the debug info has no {KCOV}", hint="kernel/kcov.c must be built with debug info")
    refcount, lock, mode, size, area, task, remote, remote_size, sequence, trace, trace_size = layout.kcov.decode(block)
    member = layout.kcov.members["lock"]
    if member is None:
        raw_lock = b""
    else:
        raw_lock = lock if isinstance(lock, bytes) else lock.to_bytes(member.size, "little", signed=member.signed)
    collects = None if remote is None else bool(remote)
    return KcovFields(address, refcount, raw_lock, mode, size, area, task, collects, remote_size, sequence, trace, trace_size)


def read_kcov(target: Target, layout: Layout, address: int) -> KcovFields:
    """Read one object.

    :param address: ``struct kcov *``.
    :raises ReadError: when it can't be read, or is no kernel address.
    :raises MissingTypeError: when the debug info has no ``struct kcov``.
    """
    check_pointer(target, address, KCOV)
    if layout.kcov is None:
        raise MissingTypeError(f"the debug info has no {KCOV}", hint="kernel/kcov.c must be built with debug info")
    return decode_kcov(layout, address, target.read(address + layout.kcov.start, layout.kcov.span))


def read_count(target: Target, layout: Layout, area: int, mode: str | None = None) -> int:
    """Read the count word of a buffer.

    User space can write the word of an object's own buffer: it is shown as it stands, and clamped where records are read.

    :param area: ``kcov->area`` or ``task->kcov_area``; where a bitmap precedes the count, what lies behind it.
    :param mode: as :meth:`Layout.mode_name` names it; comparisons have 64-bit words on 32-bit kernels too.
    :raises ReadError: when it can't be read, or is no kernel address.
    """
    check_pointer(target, area, "buffer", layout.buffer_word)
    chosen = record.format_of_mode(mode, layout.generation.features)
    encoding = record.make_encoding(chosen, target.word_size, target.big_endian)
    return record.decode_word(target.read(area, encoding.word_size), encoding)


def has_count(layout: Layout, mode: str | None) -> bool:
    """Tell whether a buffer says how much is in it: one that is a bitmap of the kernel's text doesn't."""
    return record.format_of_mode(mode, layout.generation.features) is not record.RecordFormat.TEXT_BITMAP


def find_capacity(layout: Layout, mode: str | None, size: int | None, trace_size: int | None = None) -> int | None:
    """Return how many records fit into a buffer, None where it has none.

    :param mode: as :meth:`Layout.mode_name` names it; an object that isn't enabled holds what its last mode recorded, which
        nothing remembers, so that PC records are assumed.
    :param size: in words.
    :param trace_size: in words, where this kernel has buffers with a bitmap.
    """
    if not size:
        return None
    chosen = record.format_of_mode(mode, layout.generation.features)
    if layout.generation.has(Feature.UNIQUE_BITMAP):
        if trace_size is None and chosen is record.RecordFormat.UNIQUE_BITMAP:
            return None
        size = min(size, trace_size or size)
    return record.find_capacity(chosen, size, layout.buffer_word)


def find_edges(target: Target, kcov: int) -> int:
    """Return where an object keeps edges (January 2025 series): ``kcov->map_edge->area``.

    :param kcov: ``struct kcov *``.
    :raises ReadError: when it can't be read.
    :raises MissingTypeError: when the debug info lacks the members.
    """
    pointer = read_word(target, kcov + target.member(KCOV, "map_edge").offset)
    check_pointer(target, pointer, "struct kcov_map")
    return read_word(target, pointer + target.member("struct kcov_map", "area").offset)


def find_map_areas(target: Target, kcov: int) -> set[int]:
    """Return all that an object of the January 2025 series allocates: for addresses and for edges a buffer and entries each.

    :param kcov: ``struct kcov *``.
    """
    found: set[int] = set()
    for member in ("map", "map_edge"):
        try:
            pointer = read_word(target, kcov + target.member(KCOV, member).offset)
            check_pointer(target, pointer, "struct kcov_map")
            found |= {read_word(target, pointer + target.member("struct kcov_map", name).offset) for name in ("mem", "area")}
        except (ReadError, MissingTypeError):
            continue
    return found


def find_implausible(target: Target, layout: Layout, fields: KcovFields) -> str | None:
    """Say what shows that memory isn't a ``struct kcov``, or not any more; None where nothing does."""
    low, high = target.kernel_range
    if fields.refcount is not None and not 0 < fields.refcount < 1 << 30:
        return f"its refcount is {fields.refcount}"
    if fields.area and (not low <= fields.area <= high or fields.area % PAGE):
        return f"its area {fields.area:#x} is no buffer's address"
    if fields.task and (not low <= fields.task <= high or fields.task % target.word_size):
        return f"its t {fields.task:#x} is no task's address"
    if fields.mode is not None and layout.modes and not is_known(layout.object_mode_name(fields.mode)):
        return f"its mode is {fields.mode:#x}"
    return None


def looks_like_kcov(target: Target, fields: KcovFields, area: int) -> bool:
    """Tell whether memory found in a slab cache is the object that owns a buffer (kcov-abi.md 10.7)."""
    low, high = target.kernel_range
    return (
        fields.area == area
        and 0 < (fields.refcount or 0) < 1 << 20
        and bool(fields.size) == bool(fields.mode)
        and (not fields.task or low <= fields.task <= high)
        and (fields.sequence is None or fields.sequence >= 1)
    )


def find_fill(
    target: Target,
    layout: Layout,
    area: int | None,
    size: int | None,
    mode: str | None,
    errors: list[str],
    trace: int | None = None,
    trace_size: int | None = None,
    kcov: int | None = None,
) -> tuple[int | None, bool | None]:
    """Read a buffer's count word, and tell whether it is full.

    :param area: ``kcov->area`` or ``task->kcov_area``.
    :param size: in words.
    :param mode: as :meth:`Layout.mode_name` names it.
    :param errors: takes why it can't be read.
    :param trace: where it is, in kernels whose buffers may have a bitmap before it.
    :param kcov: the object that it is or collects for.
    :return: the count, and whether the buffer is full.
    """
    if not area or not has_count(layout, mode):
        return None, None
    if (mode is None or not is_known(mode)) and (
        not layout.modes
        or layout.generation.has(Feature.UNIQUE_MAPS)
        or layout.generation.has(Feature.TEXT_BITMAP)
        or (target.word_size, target.big_endian) == (4, True)
    ):
        # Where the count is, how long it is and whether there is one depends on the mode.
        return None, None
    if mode == "TRACE_UNIQ_EDGE" and not kcov:
        return None, None
    start = area
    try:
        if layout.generation.has(Feature.UNIQUE_BITMAP):
            if trace is None:
                return None, None
            if not area <= trace < area + max(size or 1, 1) * layout.buffer_word:
                errors.append(f"buffer {area:#x}: its trace {trace:#x} isn't in it")
                return None, None
            start = trace
        elif mode == "TRACE_UNIQ_EDGE" and kcov:
            start = find_edges(target, kcov)
        count = read_count(target, layout, start, mode)
    except (ReadError, MissingTypeError) as error:
        errors.append(f"buffer {area:#x}: {error}")
        return None, None
    if mode is None or not is_known(mode):
        # Comparisons take four times the room.
        return count, None
    capacity = find_capacity(layout, mode, size, trace_size)
    return count, None if capacity is None else count >= capacity
