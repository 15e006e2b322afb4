# SPDX-License-Identifier: LGPL-2.1-or-later
import errno
import json
import os
import struct
import subprocess
import sys
from array import array

import pytest

from kcovdbg.abi.record import CMP
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import read_input
from kcovdbg.records.line_states import Quality, quality_of
from kcovdbg.records.pc_convention import CodeAddresses
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.side_file import read_header, side_path
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.series.trace_pc_ext import PC_EXT

PCS = [0xFFFFFFFF81000005 + 16 * index for index in range(5)]


def write(path, words, order="<", code="Q", **header):
    path.write_bytes(struct.pack(f"{order}{len(words)}{code}", *words))
    if header:
        side = {"format": 1, "word_size": 8, "byteorder": "little", **header}
        side_path(path).write_text(json.dumps(side))
    return path


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(KcovdbgError, match="loop"):
        read_trace(loop)
    # Its first page is not mapped.
    with pytest.raises(OSError, match="self/mem"):
        read_input("/proc/self/mem")


def test_with_side_file(tmp_path):
    path = write(
        tmp_path / "a.kcov",
        [5, *PCS, 0, 0],
        mode="TRACE_PC",
        size=8,
        pid=3,
        tid=4,
        comm="syz",
        count=5,
        kaslr_offset="0x1000",
    )
    buffer = read_trace(path, TraceKernel(kaslr_offset=0x2000))
    assert list(buffer.words) == PCS
    assert (buffer.count, buffer.capacity, buffer.full) == (5, 7, False)
    assert (buffer.pid, buffer.comm, buffer.mode, buffer.name) == (
        4,
        "syz",
        "TRACE_PC",
        f"file:{path}",
    )
    assert buffer.kaslr_offset == 0x2000
    assert buffer.remarks == ()
    assert quality_of(buffer) & Quality.COMPLETE
    assert read_header(path).kaslr_offset == 0x1000


@pytest.mark.parametrize(
    ("mode", "words", "expected"),
    [("KCOV_TRACE_CMP", [1, 5, 1, 2, PCS[0]], CMP), ("trace_pc_ext", [1, PCS[0]], PC_EXT)],
)
def test_modes(tmp_path, mode, words, expected):
    buffer = read_trace(write(tmp_path / "a.kcov", words, mode=mode))
    assert buffer.encoding.codec is expected
    assert buffer.count == 1


def test_big_endian_32_bit(tmp_path):
    path = write(
        tmp_path / "a.kcov",
        [2, 0xC0000005, 0xC0000015],
        ">",
        "I",
        mode="TRACE_PC",
        word_size=4,
        byteorder="big",
    )
    assert list(read_trace(path).words) == [0xC0000005, 0xC0000015]


@pytest.mark.parametrize("has_side_file", [True, False])
def test_32_bit_words_of_a_64_bit_kernel(tmp_path, has_side_file):
    base = PCS[0] & ~0xFFFF
    image = CodeAddresses(base, array("I", (pc - base for pc in PCS)), (base, base + 0x4000))
    header = {"mode": "TRACE_PC", "word_size": 4, "size": 8, "count": 5} if has_side_file else {}
    path = write(
        tmp_path / "a.kcov", [5, *(pc & 0xFFFFFFFF for pc in PCS), 0, 0], code="I", **header
    )
    buffer = read_trace(path, TraceKernel(machine="x86_64", find_points=lambda: [image]))
    assert list(buffer.words) == PCS
    assert any("5 PCs" in remark for remark in buffer.remarks)


def test_raw_words_without_side_file(tmp_path):
    assert list(read_trace(write(tmp_path / "a", [5, *PCS])).words) == PCS
    big = read_trace(write(tmp_path / "b", [5, *PCS], ">"))
    assert list(big.words) == PCS
    comparisons = read_trace(write(tmp_path / "c", [2, 5, 1, 2, PCS[0], 3, 1, 2, PCS[1]]))
    assert comparisons.encoding.codec is CMP
    assert comparisons.count == 2
    entries = read_trace(
        write(tmp_path / "d", [2, PCS[0] & (1 << 56) - 1, PCS[1] & (1 << 56) - 1 | 1 << 60])
    )
    assert entries.encoding.codec is PC_EXT
    assert all("no side file" in buffer.remarks[0] for buffer in (big, comparisons, entries))


def test_damage(tmp_path):
    hostile = read_trace(write(tmp_path / "a.kcov", [(1 << 64) - 1, *PCS], mode="TRACE_PC", size=6))
    assert list(hostile.words) == PCS
    assert "0xffffffffffffffff" in hostile.remarks[0]
    cut = read_trace(write(tmp_path / "b.kcov", [9, *PCS], mode="TRACE_PC", size=64))
    assert cut.count == 5
    assert "0x9" in cut.remarks[0]
    # What has no record may have been in the rest.
    assert cut.is_incomplete
    assert not quality_of(cut) & Quality.COMPLETE
    record_cut = read_trace(
        write(tmp_path / "c.kcov", [2, 5, 1, 2, PCS[0], 5, 1], mode="TRACE_CMP", size=64)
    )
    assert record_cut.count == 1
    assert record_cut.is_incomplete
    full = read_trace(write(tmp_path / "d.kcov", [5, *PCS], mode="TRACE_PC", size=6))
    assert full.full
    assert "full" in full.remarks[0]


def test_other_kernel(tmp_path):
    path = write(tmp_path / "a.kcov", [1, PCS[0]], mode="TRACE_PC", build_id="aa", release="6.1")
    with pytest.raises(KcovdbgError, match=r"another build \(6\.1\)"):
        read_trace(path, TraceKernel("bb"))
    assert not read_trace(path, TraceKernel()).remarks
    assert not read_trace(path, TraceKernel("AA")).remarks


def test_errors(tmp_path):
    (tmp_path / "short").write_bytes(b"\0\1\2")
    for path, problem, hint in (
        (tmp_path / "none", os.strerror(errno.ENOENT), "lists the files there"),
        (tmp_path, os.strerror(errno.EISDIR), "diff"),
        ("/dev/zero", "a device", "a pipe that ends"),
        (tmp_path / "short", "3 bytes", ""),
    ):
        with pytest.raises(KcovdbgError, match=f"^{path}: .*{problem}") as caught:
            read_trace(path)
        assert hint in (caught.value.hint or "")
    path = write(tmp_path / "a.kcov", [1, PCS[0]], mode="x")
    for text in ("{", "[]", '{"format": 2}'):
        side_path(path).write_text(text)
        with pytest.raises(KcovdbgError, match=str(side_path(path))):
            read_trace(path)


def test_a_count_that_looks_like_a_magic_number_is_a_count(tmp_path):
    """With a side file, or where the file has as many records."""
    (tmp_path / "a").write_bytes(b"\x7fELF" + bytes(5000))
    (tmp_path / "a.json").write_text('{"format": 1, "mode": "TRACE_PC"}')
    assert read_trace(tmp_path / "a").count


@pytest.mark.parametrize("program", ["gzip", "xz", "zstd"])
@pytest.mark.parametrize("end", [b"", b"\0" * 5000, b"\n", b"no frame" * 999])
def test_compressed_data_ends_where_no_frame_follows(tmp_path, program, end):
    lines = [f"{0xFFFFFFFF81000000 + 16 * number:#x}\n".encode() for number in range(3000)]
    packed = [
        subprocess.run(
            [program, "-c"], input=b"".join(part), capture_output=True, check=True
        ).stdout
        for part in (lines[:2000], lines[2000:])
    ]
    (tmp_path / "list").write_bytes(b"".join(packed) + end)
    assert read_trace(tmp_path / "list").count == len(lines)


@pytest.mark.parametrize("program", ["gzip", "xz", "zstd"])
def test_a_bomb_is_refused_before_it_takes_much_memory(tmp_path, program):
    path = tmp_path / "bomb"
    script = f"head -c 256M /dev/zero | {program} -1 -c > {path}"
    subprocess.run(["sh", "-c", script], check=True)
    code = f"""
import resource
from kcovdbg.errors import LimitError
from kcovdbg.limits import set_limits
from kcovdbg.records.trace_reader import read_trace
set_limits({{"trace-size": 64 << 20}})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_trace({str(path)!r})
except LimitError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 128 << 10, "in KiB"
