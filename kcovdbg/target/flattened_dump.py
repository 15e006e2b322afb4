# SPDX-License-Identifier: LGPL-2.1-or-later
"""makedumpfile's flattened format: a dump as a stream of pieces, each with its offset in the dump.

QEMU before 8.2 and ``makedumpfile -F`` write kdump-compressed dumps in it. Reading one in place needs an index of its pieces,
one for each page, which takes minutes for a large dump each time (60 us a piece): it is reassembled once instead.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, Final, NamedTuple

MAGIC: Final = b"makedumpfile\0\0\0\0"
# struct makedumpfile_header: signature, type, version, padded to MAX_SIZE_MDF_HEADER; always big-endian.
_HEADER: Final = 4096
_PIECE: Final = struct.Struct(">qq")
_END: Final = -1
_CHUNK: Final = 1 << 20
# No dump is as large: greater offsets are damage.
_MAX_OFFSET: Final = 64 << 40


class FlattenedError(ValueError):
    """The stream is damaged."""


class Reassembled(NamedTuple):
    """The result of reading a stream."""

    size: int
    """Of the dump, in bytes."""
    problem: str | None
    """Where the stream was cut; None for a whole one."""


def reassemble(source: BinaryIO, target: BinaryIO) -> Reassembled:
    """Reassemble a flattened dump.

    :param source: at its start; need not be seekable.
    :param target: an empty file. Pages of zeros, which the stream leaves out, become holes.
    :return: of a stream that ends before its end mark, its complete pieces.
    :raises FlattenedError: when the stream is damaged.
    """
    header = source.read(_HEADER)
    if not header.startswith(MAGIC):
        raise FlattenedError("not in makedumpfile's flattened format")
    if len(header) < _HEADER:
        return Reassembled(0, _cut(len(header)))
    kind, version = struct.unpack_from(">qq", header, len(MAGIC))
    if (kind, version) != (1, 1):
        raise FlattenedError(f"unknown type {kind} or version {version} of the flattened format")
    position = _HEADER
    end = 0
    # The position in the target, to seek only when pieces are out of order.
    current = 0
    problem = None
    while problem is None:
        head = source.read(_PIECE.size)
        if len(head) < _PIECE.size:
            problem = _cut(position + len(head))
            break
        offset, size = _PIECE.unpack(head)
        if offset == size == _END:
            break
        if offset < 0 or size <= 0 or offset + size > _MAX_OFFSET:
            raise FlattenedError(f"invalid piece at {position:#x}: {size} bytes for offset {offset:#x}")
        position += _PIECE.size
        if offset != current:
            target.seek(offset)
        remaining = size
        while remaining:
            data = source.read(min(remaining, _CHUNK))
            if not data:
                problem = _cut(position)
                break
            target.write(data)
            position += len(data)
            remaining -= len(data)
        current = offset + size - remaining
        # Before a piece of which nothing arrived there may be a hole: it is not known to be zeros.
        if remaining < size:
            end = max(end, current)
    target.flush()
    os.ftruncate(target.fileno(), end)
    return Reassembled(end, problem)


def _cut(position: int) -> str:
    return f"it ends at {position:#x}, before its end mark"
