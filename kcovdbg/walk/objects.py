# SPDX-License-Identifier: LGPL-2.1-or-later
"""``struct kcov``: one object per open of /sys/kernel/debug/kcov."""

from __future__ import annotations

from kcovdbg.abi import record
from kcovdbg.errors import MissingTypeError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.target import Target
from kcovdbg.walk.layout import KCOV, Layout
from kcovdbg.walk.pointer import check_pointer


def decode_kcov(layout: Layout, address: int, block: bytes) -> KcovFields:
    """Decode the block that holds a ``struct kcov``'s members.

    :raises MissingTypeError: when the debug info has no ``struct kcov``.
    """
    if layout.kcov is None:
        raise MissingTypeError(f"the debug info has no {KCOV}", hint="kernel/kcov.c must be built with debug info")
    refcount, lock, mode, size, area, task, remote, remote_size, sequence = layout.kcov.decode(block)
    member = layout.kcov.members["lock"]
    raw_lock = lock if isinstance(lock, bytes) else (lock or 0).to_bytes(member.size if member is not None else 4, "little")
    return KcovFields(
        address, refcount, raw_lock, mode, size, area, task, None if remote is None else bool(remote), remote_size, sequence
    )


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


def read_count(target: Target, layout: Layout, area: int) -> int:
    """Read the count word of a buffer.

    User space can write the word of an object's own buffer: it is shown as it stands, and clamped where records are read.

    :param area: ``kcov->area`` or ``task->kcov_area``.
    :raises ReadError: when it can't be read, or is no kernel address.
    """
    check_pointer(target, area, "buffer")
    return int.from_bytes(target.read(area, layout.buffer_word), "big" if target.big_endian else "little")


def find_capacity(layout: Layout, mode: str | None, size: int | None) -> int | None:
    """Return how many records fit into a buffer, None where it has none.

    :param mode: as :meth:`Layout.mode_name` names it; an object that isn't enabled holds what its last mode recorded, which
        nothing remembers, so that PC records are assumed.
    :param size: in words.
    """
    if not size:
        return None
    return record.find_capacity(record.format_of_mode(mode), size, layout.buffer_word)


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
