# SPDX-License-Identifier: LGPL-2.1-or-later
"""kdump-compressed dumps: their notes and their missing pages; and dumps in makedumpfile's
flattened format.

The format is that of makedumpfile (IMPLEMENTATION, diskdump_mod.h): a block with ``struct
disk_dump_header``, the sub-header, the bitmaps, a descriptor for each page that is set in the
second bitmap, the pages.

makedumpfile's flattened format is a dump as a stream of pieces, each with its offset in the dump.
QEMU before 8.2 and ``makedumpfile -F`` write kdump-compressed dumps in it. Reading one in place
needs an index of its pieces, one for each page, which takes minutes for a large dump each time (60
us a piece): it is reassembled once instead.
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
# After six strings of utsname, a timestamp and the status: block_size, sub_hdr_size, bitmap_blocks.
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
# A page of QEMU's dumps takes 64 KiB.
_KEPT_PAGES: Final = 64
# Bytes of the bitmap that are counted at once.
_PART: Final = 512


class MissingPages(NamedTuple):
    """The pages of a dump that its file does not have, as it was cut or never completed."""

    missing: int
    total: int
    runs: tuple[tuple[int, int], ...]
    """(offset, bytes) of their descriptors in the file."""
    end: int
    """Offset of the end of the table of descriptors, in bytes."""


class KdumpFile:
    """A kdump-compressed dump.

    :param file: the dump; it may be at any position.
    :param name: what messages call it.
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
        self._block: int
        self._sub_blocks: int
        self._bitmap_blocks: int
        self._page = functools.lru_cache(_KEPT_PAGES)(self._unpack_page)
        self._present: bytes | None = None
        self._before: tuple[int, ...] = ()
        self._block, self._sub_blocks, self._bitmap_blocks = struct.unpack_from(
            self._order + "III", start, _BLOCK_SIZE
        )
        is_valid = 512 <= self._block <= 1 << 20
        if not is_valid or self._sub_blocks > 1 << 20 or self._bitmap_blocks > 1 << 32:
            raise self._damaged("invalid sizes in its header")
        self._descriptors = (1 + self._sub_blocks + self._bitmap_blocks) * self._block

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
        """Return the pages that the file does not have the data of."""
        start, total = self._find_descriptors()
        size = self._file.seek(0, os.SEEK_END)
        runs: list[tuple[int, int]] = []
        for first in range(0, total, _DESCRIPTORS_AT_ONCE):
            number = min(_DESCRIPTORS_AT_ONCE, total - first)
            if start + first * _DESCRIPTOR_SIZE >= size:
                runs.append((start + first * _DESCRIPTOR_SIZE, (total - first) * _DESCRIPTOR_SIZE))
                break
            for index in self._find_incomplete(start + first * _DESCRIPTOR_SIZE, number, size):
                offset = start + (first + index) * _DESCRIPTOR_SIZE
                if runs and sum(runs[-1]) == offset:
                    runs[-1] = (runs[-1][0], runs[-1][1] + _DESCRIPTOR_SIZE)
                else:
                    runs.append((offset, _DESCRIPTOR_SIZE))
        missing = sum(length for _, length in runs) // _DESCRIPTOR_SIZE
        return MissingPages(missing, total, tuple(runs), start + total * _DESCRIPTOR_SIZE)

    def _find_descriptors(self) -> tuple[int, int]:
        """Return the position and the number of the descriptors: one for each page in the second
        bitmap.
        """
        position = self._descriptors
        start = position - self._bitmap_blocks * self._block // 2
        if position > self._file.seek(0, os.SEEK_END):
            raise self._damaged(f"it ends before offset {position:#x}")
        pages = 0
        # There may be terabytes of holes in a dump that was reassembled.
        for _, piece in read_extents(self._file, start, position):
            pages += int.from_bytes(piece, "little").bit_count()
        if not pages:
            raise self._damaged("it has no memory")
        return position, pages

    def _find_incomplete(self, position: int, number: int, size: int) -> list[int]:
        """Return which of the descriptors at a position have no data in a file of so many bytes."""
        self._file.seek(position)
        data = self._file.read(number * _DESCRIPTOR_SIZE)
        present = len(data) // _DESCRIPTOR_SIZE
        words = array("Q", data[: present * _DESCRIPTOR_SIZE])
        if (self._order == "<") != (sys.byteorder == "little"):
            words.byteswap()
        offsets = words[::3]
        # A page never takes more than a block. Whole chunks of most dumps need no look at each
        # page.
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
        """Read physical memory, for dumps that libkdumpfile cannot read.

        :raises ReadError: when the dump does not have all of it.
        :raises TargetError: when its pages are compressed otherwise than by zlib.
        """
        data = b""
        while len(data) < size:
            number, offset = divmod(address + len(data), self._block)
            data += self._page(number)[offset : offset + size - len(data)]
        return data

    def _unpack_page(self, number: int) -> bytes:
        missing = ReadError(f"the dump has no page {number:#x}", number * self._block)
        if self._present is None:
            # The second half of the bitmap says which pages the dump has.
            size = self._bitmap_blocks * self._block // 2
            self._present = self._read_at((1 + self._sub_blocks) * self._block + size, size)
            # The number of pages before each part of the bitmap.
            parts = (self._present[start : start + _PART] for start in range(0, size, _PART))
            counts = (int.from_bytes(part, "little").bit_count() for part in parts)
            self._before = (0, *itertools.accumulate(counts))
        byte, bit = divmod(number, 8)
        if not 0 <= byte < len(self._present) or not self._present[byte] >> bit & 1:
            raise missing
        part = byte // _PART
        in_part = int.from_bytes(self._present[part * _PART : byte + 1], "little")
        earlier = in_part & (1 << number - 8 * part * _PART) - 1
        index = self._before[part] + earlier.bit_count()
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
        """Return the ELF notes; a version without notes has VMCOREINFO alone, or nothing."""
        sub_header = self._read_at(self._block, _SUB_HEADER_SIZE)
        offset, size, note_offset, note_size = struct.unpack_from(
            self._order + "QQQQ", sub_header, _OFFSET_VMCOREINFO
        )
        if self._version >= 4 and note_size:
            return self._read_at(note_offset, note_size)
        if self._version >= 3 and size:
            return make_note(VMCOREINFO, 0, self._read_at(offset, size), self._order)
        return b""


# struct makedumpfile_header: signature, type, version, padded to MAX_SIZE_MDF_HEADER; always
# big-endian.
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
    """Reassemble a flattened dump. A stream that is cut gives its complete pieces.

    :param source: at its start, with the format's signature; need not be seekable.
    :param target: an empty file. Pages of zeros, which the stream leaves out, become holes.
    :return: position of the cut in the stream; None for a whole one.
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
        # A hole before a piece that did not arrive may not be zeros: do not extend the file.
        if remaining < size:
            end = max(end, current)
    target.flush()
    os.ftruncate(target.fileno(), end)
    return problem


def _cut(position: int) -> str:
    return f"it ends at {position:#x}, before its end mark"
