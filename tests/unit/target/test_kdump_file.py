# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kdump-compressed and flattened dumps, written here as makedumpfile's IMPLEMENTATION describes the
formats.
"""

from __future__ import annotations

import io
import struct
import time
import zlib
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target import dump_file, kdump_file
from kcovdbg.target.dump_file import FLATTENED_MAGIC
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


def flat(pieces, *, end=True, kind=1, version=1):
    data = (FLATTENED_MAGIC + struct.pack(">qq", kind, version)).ljust(4096, b"\0")
    for offset, content in pieces:
        data += struct.pack(">qq", offset, len(content)) + content
    return data + (struct.pack(">qq", -1, -1) if end else b"")


def put_together(data, path):
    with path.open("w+b") as target:
        problem = kdump_file.reassemble(io.BytesIO(data), target)
    return path.read_bytes(), problem


def test_what_is_left_out_is_a_hole(tmp_path):
    path = tmp_path / "dump"
    put_together(flat([(0, b"x"), (1 << 26, b"y")]), path)
    assert path.stat().st_size == (1 << 26) + 1
    assert path.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(
    ("cut", "expected"), [(4095, b""), (4112, b""), (4117, b"first"), (4135, b"first\0\0\0la")]
)
def test_cut_off(tmp_path, cut, expected):
    """Received pieces are at their offsets, and the file ends after the last one."""
    data = flat([(0, b"first"), (8, b"later")])
    content, problem = put_together(data[:cut], tmp_path / "dump")
    assert content == expected
    assert hex(cut) in problem


@pytest.mark.parametrize(
    ("offset", "size"), [(-5, 4), (0, -1), (0, 0), (-1, 0), (1 << 62, 5), (5, (1 << 63) - 1)]
)
def test_impossible_pieces(tmp_path, offset, size):
    data = flat([], end=False) + struct.pack(">qq", offset, size) + b"data"
    with pytest.raises(kdump_file.FlattenedError, match="0x1000"):
        put_together(data, tmp_path / "dump")
    assert (tmp_path / "dump").stat().st_size < 1 << 20


def test_other_versions_are_refused(tmp_path):
    with pytest.raises(kdump_file.FlattenedError, match=r"\b2\b"):
        put_together(flat([], version=2), tmp_path / "dump")


def read_pieces(data):
    """Read pieces in the simplest way: return the content and whether it is complete; None if a
    piece is impossible.
    """
    content = bytearray()
    while len(data) >= 16:
        offset, size = struct.unpack_from(">qq", data)
        if (offset, size) == (-1, -1):
            return bytes(content), True
        if offset < 0 or size <= 0 or offset + size > 64 << 40:
            return None
        piece = data[16 : 16 + size]
        if piece:
            content.extend(bytes(max(0, offset + len(piece) - len(content))))
            content[offset : offset + len(piece)] = piece
        data = data[16 + size :]
    return bytes(content), False


PIECES = st.lists(st.tuples(st.integers(-2, 300), st.binary(max_size=40)), max_size=5)


@given(PIECES, st.booleans(), st.one_of(st.just(b""), st.binary(max_size=60)), st.integers(0, 60))
def test_any_pieces(tmp_path_factory, pieces, end, tail, cut):
    path = tmp_path_factory.mktemp("flat") / "dump"
    data = flat(pieces, end=end) + tail
    data = data[: max(4096, len(data) - cut)]
    expected = read_pieces(data[4096:])
    if expected is None:
        with pytest.raises(kdump_file.FlattenedError):
            put_together(data, path)
    else:
        content, problem = put_together(data, path)
        assert (content, problem is None) == expected
    path.unlink()


@pytest.mark.parametrize("start", [b"", b"warning of ssh\n"])
def test_holes_of_a_flattened_dump_are_not_read(tmp_path, start):
    """A page at 4 TiB in a file of 29 KB: its bitmaps, and what follows text, are holes."""
    header = bytearray(b"KDUMP   ".ljust(4096, b"\0"))
    struct.pack_into("<I", header, 8, 6)
    # Blocks of a page, one sub-header, bitmaps of a tebibyte.
    struct.pack_into("<III", header, 428, 4096, 1, 1 << 28)
    inner = start + bytes(header)
    path = tmp_path / "dump"
    path.write_bytes(flat([(0, inner), (4 << 40, b"\1" * 4096)]))
    before = time.process_time()
    with pytest.raises(TargetError):
        dump_file.unpack_dump(path)
    assert time.process_time() - before < 5
    # Where a text is looked for, as with the release of a kernel.
    with suppress(TargetError):
        assert not dump_file.find_text(dump_file.unpack(path).path, b"no such text")
    assert time.process_time() - before < 10
