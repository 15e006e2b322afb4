# SPDX-License-Identifier: LGPL-2.1-or-later
"""kdump-compressed dumps, their notes and their missing pages; and flattened dumps.

makedumpfile defines the format (IMPLEMENTATION, diskdump_mod.h). A dump has a block with ``struct
disk_dump_header``, the sub-header, two bitmaps, a descriptor for each page that is set in the
second bitmap, and the pages.

A flattened dump is a stream of pieces of a dump, each with its offset. QEMU before 8.2 and
``makedumpfile -F`` write it. To read it in place takes an index of the pieces, one for each page.
To make that takes minutes for a large dump (60 us a piece): so the dump is reassembled once.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
import sys
import zlib
from array import array
from typing import BinaryIO, Final, NamedTuple

from kcovdbg.elf.header import VMCOREINFO, make_note
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.input_file import read_extents

_HEADER_SIZE: Final = 464
_VERSION: Final = 8
# Offset of block_size, sub_hdr_size and bitmap_blocks, which follow the strings of utsname, a
# timestamp and the status.
_BLOCK_SIZE: Final = 428
# struct kdump_sub_header of 64-bit machines: phys_base, dump_level, split, start_pfn, end_pfn,
# offset_vmcoreinfo, size_vmcoreinfo (version 3 on), offset_note, size_note (version 4 on).
_SUB_HEADER_SIZE: Final = 64
_OFFSET_VMCOREINFO: Final = 32
# struct page_desc: offset and size of the page's data, flags, page flags.
_DESCRIPTOR_SIZE: Final = 24
_DESCRIPTORS_AT_ONCE: Final = 1 << 16
# DUMP_DH_COMPRESSED_ZLIB.
_ZLIB: Final = 1
# Pages that are kept after a read; a page of QEMU's dumps has up to 64 KiB.
_KEPT_PAGES: Final = 64
# Bytes of the bitmap whose set bits are counted at once.
_PART: Final = 512


class MissingPages(NamedTuple):
    """The pages whose data a dump lacks, because its file was cut or never completed."""

    missing: int
    total: int
    runs: tuple[tuple[int, int], ...]
    """(offset, bytes) of their descriptors in the file."""
    end: int
    """Offset of the end of the table of descriptors, in bytes."""


class KdumpFile:
    """A kdump-compressed dump.

    :param file: the dump, at any position.
    :param name: its name in messages.
    :raises TargetError: when it is truncated or damaged; the methods raise it as well.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        start = self._read_at(0, _HEADER_SIZE)
        (version,) = struct.unpack_from("<I", start, _VERSION)
        # A version is a small number in the right byte order.
        self._order = "<" if 0 < version < 0x10000 else ">"
        self._version: int = struct.unpack_from(self._order + "I", start, _VERSION)[0]
        sizes = struct.unpack_from(self._order + "III", start, _BLOCK_SIZE)
        self._block: int = sizes[0]
        sub_blocks: int = sizes[1]
        bitmap_blocks: int = sizes[2]
        is_valid = 512 <= self._block <= 1 << 20
        if not is_valid or sub_blocks > 1 << 20 or bitmap_blocks > 1 << 32:
            raise self._damaged("invalid sizes in its header")
        # Half of the blocks are the second bitmap.
        self._bitmap_size = bitmap_blocks * self._block // 2
        self._descriptors = (1 + sub_blocks + bitmap_blocks) * self._block
        self._page = functools.lru_cache(_KEPT_PAGES)(self._unpack_page)

    def _damaged(self, problem: str) -> TargetError:
        return TargetError(
            f"{self._name} is truncated or damaged: {problem}",
            hint="copy it again, or take another dump",
        )

    def _read_at(self, offset: int, size: int) -> bytes:
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except (OverflowError, ValueError, OSError, MemoryError):
            raise self._damaged(f"no {size:#x} bytes at offset {offset:#x}") from None
        if len(data) != size:
            raise self._damaged(f"it ends before offset {offset + size:#x}")
        return data

    def find_missing(self) -> MissingPages:
        """Return the pages whose data the file lacks."""
        total = self._count_descriptors()
        size = self._file.seek(0, os.SEEK_END)
        end = self._descriptors + total * _DESCRIPTOR_SIZE
        runs: list[tuple[int, int]] = []
        for first in range(0, total, _DESCRIPTORS_AT_ONCE):
            number = min(_DESCRIPTORS_AT_ONCE, total - first)
            position = self._descriptors + first * _DESCRIPTOR_SIZE
            if position >= size:
                runs.append((position, end - position))
                break
            for index in self._find_incomplete(position, number, size):
                offset = position + index * _DESCRIPTOR_SIZE
                if runs and sum(runs[-1]) == offset:
                    runs[-1] = (runs[-1][0], runs[-1][1] + _DESCRIPTOR_SIZE)
                else:
                    runs.append((offset, _DESCRIPTOR_SIZE))
        missing = sum(length for _, length in runs) // _DESCRIPTOR_SIZE
        return MissingPages(missing, total, tuple(runs), end)

    def _count_descriptors(self) -> int:
        """Return the number of descriptors: one for each page in the second bitmap."""
        if self._descriptors > self._file.seek(0, os.SEEK_END):
            raise self._damaged(f"it ends before offset {self._descriptors:#x}")
        bitmap = self._descriptors - self._bitmap_size
        pages = 0
        # A reassembled dump may have terabytes of holes.
        for _, piece in read_extents(self._file, bitmap, self._descriptors):
            pages += int.from_bytes(piece, "little").bit_count()
        if not pages:
            raise self._damaged("it has no memory")
        return pages

    def _find_incomplete(self, position: int, number: int, size: int) -> list[int]:
        """Return the indexes of the descriptors whose page is not, or not wholly, in the file.

        :param position: offset of the first descriptor.
        :param number: how many descriptors to look at.
        :param size: size of the file in bytes.
        """
        self._file.seek(position)
        data = self._file.read(number * _DESCRIPTOR_SIZE)
        present = len(data) // _DESCRIPTOR_SIZE
        words = array("Q", data[: present * _DESCRIPTOR_SIZE])
        if (self._order == "<") != (sys.byteorder == "little"):
            words.byteswap()
        offsets = words[::3]
        # A page takes at most a block. So most dumps need no look at each page.
        if present == number and min(offsets) and max(offsets) + self._block <= size:
            return []
        shift = 0 if self._order == "<" else 32
        lengths = (word >> shift & 0xFFFF_FFFF for word in words[1::3])
        found = [
            index
            for index, (offset, length) in enumerate(zip(offsets, lengths, strict=True))
            if not offset or not length or offset + length > size
        ]
        return [*found, *range(present, number)]

    def read_physical(self, address: int, size: int) -> bytes:
        """Read physical memory of a dump that libkdumpfile cannot read.

        :raises ReadError: when the dump lacks a part of it.
        :raises TargetError: when pages are compressed by another method than zlib.
        """
        data = b""
        while len(data) < size:
            number, offset = divmod(address + len(data), self._block)
            data += self._page(number)[offset : offset + size - len(data)]
        return data

    @functools.cached_property
    def _bitmap(self) -> bytes:
        """The second bitmap, which has the pages of the dump."""
        return self._read_at(self._descriptors - self._bitmap_size, self._bitmap_size)

    @functools.cached_property
    def _pages_before(self) -> tuple[int, ...]:
        """The number of pages before each part of the bitmap."""
        starts = range(0, self._bitmap_size, _PART)
        parts = (self._bitmap[start : start + _PART] for start in starts)
        counts = (int.from_bytes(part, "little").bit_count() for part in parts)
        return (0, *itertools.accumulate(counts))

    def _unpack_page(self, number: int) -> bytes:
        missing = ReadError(f"the dump has no page {number:#x}", number * self._block)
        byte, bit = divmod(number, 8)
        if not 0 <= byte < len(self._bitmap) or not self._bitmap[byte] >> bit & 1:
            raise missing
        part = byte // _PART
        in_part = int.from_bytes(self._bitmap[part * _PART : byte + 1], "little")
        earlier = in_part & (1 << number - 8 * part * _PART) - 1
        index = self._pages_before[part] + earlier.bit_count()
        position = self._descriptors + index * _DESCRIPTOR_SIZE
        offset, length, flags = struct.unpack_from(
            self._order + "QII", self._read_at(position, _DESCRIPTOR_SIZE)
        )
        if not offset or not 0 < length <= self._block:
            raise missing
        data = self._read_at(offset, length)
        if flags & ~_ZLIB:
            raise TargetError(
                f"{self._name}: pages are compressed by another method than zlib",
                hint="dump again, as ELF or with -z",
            )
        try:
            page = zlib.decompress(data) if flags & _ZLIB else data
        except zlib.error:
            raise missing from None
        if len(page) != self._block:
            raise missing
        return page

    def read_notes(self) -> bytes:
        """Return the ELF notes; dumps of old versions have VMCOREINFO alone, or none."""
        sub_header = self._read_at(self._block, _SUB_HEADER_SIZE)
        offset, size, note_offset, note_size = struct.unpack_from(
            self._order + "QQQQ", sub_header, _OFFSET_VMCOREINFO
        )
        if self._version >= 4 and note_size:
            return self._read_at(note_offset, note_size)
        if self._version >= 3 and size:
            return make_note(VMCOREINFO, 0, self._read_at(offset, size), self._order)
        return b""


# struct makedumpfile_header: signature, type and version, big-endian on all machines, and padding
# up to MAX_SIZE_MDF_HEADER.
_HEADER: Final = 4096
_SIGNATURE_SIZE: Final = 16
_PIECE: Final = struct.Struct(">qq")
_END: Final = -1
_COPIED: Final = 1 << 20
# No dump is as large: greater offsets are damage.
_MAX_OFFSET: Final = 64 << 40


class FlattenedError(ValueError):
    """The stream is damaged."""


def reassemble(source: BinaryIO, target: BinaryIO) -> str | None:
    """Reassemble a flattened dump. Of a stream that is cut, the complete pieces are written.

    :param source: the stream, at its start; it need not be seekable.
    :param target: an empty file. Pages of zeros, which the stream leaves out, become holes.
    :return: the problem of a stream that is cut; None for a whole one.
    :raises FlattenedError: when the stream is damaged.
    """
    header = source.read(_HEADER)
    if len(header) < _HEADER:
        return _cut(len(header))
    kind, version = struct.unpack_from(">qq", header, _SIGNATURE_SIZE)
    if (kind, version) != (1, 1):
        raise FlattenedError(f"unknown type {kind} or version {version} of the flattened format")
    position = _HEADER
    end = 0
    # The position in the target: a seek is needed only for a piece that is out of order.
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
            raise FlattenedError(
                f"invalid piece at {position:#x}: {size} bytes for offset {offset:#x}"
            )
        position += _PIECE.size
        if offset != current:
            target.seek(offset)
        remaining = size
        while remaining:
            data = source.read(min(remaining, _COPIED))
            if not data:
                problem = _cut(position)
                break
            target.write(data)
            position += len(data)
            remaining -= len(data)
        current = offset + size - remaining
        # If nothing of the piece arrived, the hole before it may not be zeros: do not extend the
        # file.
        if remaining < size:
            end = max(end, current)
    target.flush()
    os.ftruncate(target.fileno(), end)
    return problem


def _cut(position: int) -> str:
    return f"it ends at {position:#x}, before its end mark"
