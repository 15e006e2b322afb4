# SPDX-License-Identifier: LGPL-2.1-or-later
"""makedumpfile's flattened format: a dump as a stream of pieces, each with its offset in the dump.

QEMU before 8.2 and ``makedumpfile -F`` write kdump-compressed dumps in it. Reading one in place needs an index of its pieces,
one for each page, which takes minutes for a large dump each time (60 us a piece): it is reassembled once instead.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, Final

MAGIC: Final = b"makedumpfile\0\0\0\0"
# struct makedumpfile_header: signature, type, version, padded to MAX_SIZE_MDF_HEADER; always big-endian.
_HEADER: Final = 4096
_PIECE: Final = struct.Struct(">qq")
_END: Final = -1
_CHUNK: Final = 1 << 20
# No dump is as large: greater offsets are damage.
_MAX_OFFSET: Final = 64 << 40


class FlattenedError(ValueError):
    """The stream is truncated or damaged."""


def reassemble(source: BinaryIO, target: BinaryIO) -> int:
    """Reassemble a flattened dump.

    :param source: at its start; need not be seekable.
    :param target: an empty file. Pages of zeros, which the stream leaves out, become holes.
    :return: the size of the dump in bytes.
    :raises FlattenedError: when the stream is damaged, or ends before its end mark.
    """
    header = _read(source, _HEADER, 0)
    if not header.startswith(MAGIC):
        raise FlattenedError("not in makedumpfile's flattened format")
    kind, version = struct.unpack_from(">qq", header, len(MAGIC))
    if (kind, version) != (1, 1):
        raise FlattenedError(f"unknown type {kind} or version {version} of the flattened format")
    position = _HEADER
    end = 0
    # The position in the target, to seek only when pieces are out of order.
    current = 0
    while True:
        offset, size = _PIECE.unpack(_read(source, _PIECE.size, position))
        if offset == size == _END:
            target.flush()
            os.ftruncate(target.fileno(), end)
            return end
        if offset < 0 or size <= 0 or offset + size > _MAX_OFFSET:
            raise FlattenedError(f"invalid piece at {position:#x}: {size} bytes for offset {offset:#x}")
        position += _PIECE.size
        if offset != current:
            target.seek(offset)
        remaining = size
        while remaining:
            data = _read(source, min(remaining, _CHUNK), position)
            target.write(data)
            position += len(data)
            remaining -= len(data)
        current = offset + size
        end = max(end, current)


def _read(source: BinaryIO, size: int, position: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise FlattenedError(f"it ends at {position + len(data):#x}, before its end mark")
    return data
