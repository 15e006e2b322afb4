# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of a kdump-compressed dump that is written here as makedumpfile's IMPLEMENTATION describes the format."""

from __future__ import annotations

import io
import struct
import zlib
from random import Random

import pytest

from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target.kdump_file import KdumpFile

BLOCK = 4096
# More than one part of the bitmap, with gaps.
NUMBERS = sorted({0, 1, 7, 8, 63, 64, 4095, 4096, 4097, 9000, 32767, *range(5000, 5100)})


def make_dump(order: str = "<", flags: int = 1) -> tuple[bytes, dict[int, bytes]]:
    random = Random(7)
    pages = {number: random.randbytes(64) * (BLOCK // 64) for number in NUMBERS}
    bitmap = bytearray(BLOCK)
    for number in pages:
        bitmap[number // 8] |= 1 << number % 8
    header = bytearray(BLOCK)
    header[:8] = b"KDUMP   "
    struct.pack_into(f"{order}I", header, 8, 6)
    struct.pack_into(f"{order}III", header, 428, BLOCK, 1, 2)
    # Of the first bitmap, all memory that the machine has.
    start = bytes(header) + bytes(BLOCK) + b"\xff" * BLOCK + bytes(bitmap)
    descriptors, data = b"", b""
    place = len(start) + 24 * len(pages)
    for index, page in enumerate(pages.values()):
        # One that does not shrink is stored as it is.
        packed, kind = (page, 0) if index % 3 == 0 else (zlib.compress(page), flags)
        descriptors += struct.pack(f"{order}QIIQ", place + len(data), len(packed), kind, 0)
        data += packed
    return start + descriptors + data, pages


@pytest.mark.parametrize("order", "<>")
def test_pages(order: str) -> None:
    content, pages = make_dump(order)
    dump = KdumpFile(io.BytesIO(content), "dump")
    for number, page in pages.items():
        assert dump.read_physical(number * BLOCK, BLOCK) == page
        assert dump.read_physical(number * BLOCK + 100, 8) == page[100:108]
    assert dump.read_physical(5001 * BLOCK - 4, 8) == pages[5000][-4:] + pages[5001][:4]


@pytest.mark.parametrize("number", [2, 62, 4094, 5100, 32768, 1 << 30])
def test_a_page_that_is_not_there(number: int) -> None:
    dump = KdumpFile(io.BytesIO(make_dump()[0]), "dump")
    with pytest.raises(ReadError):
        dump.read_physical(number * BLOCK, 8)
    # Half of what is asked for is not enough.
    with pytest.raises(ReadError):
        dump.read_physical(8 * BLOCK + BLOCK - 4, 8)


def test_damage() -> None:
    content, pages = make_dump()
    cut = KdumpFile(io.BytesIO(content[: -len(content) // 4]), "dump")
    with pytest.raises((ReadError, TargetError)):
        cut.read_physical(NUMBERS[-1] * BLOCK, 8)
    assert cut.read_physical(0, BLOCK) == pages[0]
    # The second page's data.
    place = struct.unpack_from("<Q", content, 4 * BLOCK + 24)[0]
    damaged = bytearray(content)
    damaged[place : place + 8] = bytes(8)
    with pytest.raises(ReadError):
        KdumpFile(io.BytesIO(damaged), "dump").read_physical(BLOCK, 8)


def test_another_compression() -> None:
    dump = KdumpFile(io.BytesIO(make_dump(flags=4)[0]), "dump")
    assert len(dump.read_physical(0, BLOCK)) == BLOCK
    with pytest.raises(TargetError):
        dump.read_physical(BLOCK, 8)
