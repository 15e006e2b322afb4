# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makedumpfile's flattened format: a dump as a stream of pieces, each with the offset that it belongs to.

QEMU before 8.2 writes kdump-compressed dumps so, and ``makedumpfile -F`` does. Reading one in place needs an index of all its
pieces, which takes minutes to make for a large dump, each time (60 us a piece, a page is one); so it is put together once.
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
# What is read at once.
_CHUNK: Final = 1 << 20
# Offsets beyond this are damage: 8 EiB is what an off_t holds, 64 TiB what Linux file systems commonly do.
_MAX_OFFSET: Final = 64 << 40


class FlattenedError(ValueError):
    """The stream is cut off or damaged; the message says where."""


def reassemble(source: BinaryIO, target: BinaryIO) -> int:
    """Put a flattened dump together.

    :param source: from its start on; needn't be seekable.
    :param target: an empty file. Pages of zeros that the stream leaves out become holes.
    :return: the size of the dump in bytes.
    :raises FlattenedError: when the stream is damaged, or ends before its end mark.
    """
    header = _read(source, _HEADER, 0)
    if not header.startswith(MAGIC):
        raise FlattenedError("it isn't in makedumpfile's flattened format")
    kind, version = struct.unpack_from(">qq", header, len(MAGIC))
    if (kind, version) != (1, 1):
        raise FlattenedError(f"it has type {kind}, version {version} of the flattened format; 1 and 1 are known")
    position = _HEADER
    end = 0
    # Where the target stands, to seek only where pieces aren't in order.
    current = 0
    while True:
        offset, size = _PIECE.unpack(_read(source, _PIECE.size, position))
        if offset == size == _END:
            target.flush()
            os.ftruncate(target.fileno(), end)
            return end
        if offset < 0 or size <= 0 or offset + size > _MAX_OFFSET:
            raise FlattenedError(f"the piece at {position:#x} says to have {size} bytes for offset {offset:#x}")
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
