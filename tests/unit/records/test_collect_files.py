# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces are written whole or not at all, and read back as they were; text of other tools both
ways.
"""

import errno
import os
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from kcovdbg.abi import record
from kcovdbg.abi.record import CMP, PC
from kcovdbg.collect.requests import Step, explain_errno, explain_not_followed
from kcovdbg.collect.trace_writer import (
    make_header,
    text_bytes,
    trace_bytes,
    write_text_file,
    write_trace,
)
from kcovdbg.errors import CollectError, KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.pc_convention import list_points
from kcovdbg.records.pc_file import NotATraceError
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.pc_options import ReadingOptions
from kcovdbg.records.side_file import read_header
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.series.trace_pc_ext import PC_EXT

PCS = [0xFFFFFFFF81000005 + 16 * index for index in range(50)]


def make(words=PCS, mode="TRACE_PC", codec=PC, big_endian=False):
    encoding = record.make_encoding(codec, 8, big_endian)
    count = len(words) // encoding.record_words
    return Buffer(
        "41",
        encoding,
        array("Q", words),
        count,
        count,
        511,
        size=512,
        mode=mode,
        pid=41,
        comm="a\nb",
    )


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(("mode", "codec"), [("TRACE_PC", PC), ("TRACE_CMP", CMP)])
def test_round_trip(tmp_path, big_endian, mode, codec):
    path = tmp_path / "a.kcov"
    buffer = make(PCS[:48], mode, codec, big_endian)
    header = make_header(
        buffer, argv=("ls", "/"), pid=40, release="6.12", build_id="aa", kaslr_offset=0x1000
    )
    write_trace(path, buffer, header)
    found = read_trace(path)
    assert (list(found.words), found.count, found.encoding) == (
        PCS[:48],
        buffer.count,
        buffer.encoding,
    )
    assert read_header(path) == header
    assert (header.pid, header.tid, header.comm, header.kaslr_offset) == (40, 41, "a\nb", 0x1000)
    assert not found.remarks
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.kcov", "a.kcov.json"]


@pytest.mark.parametrize(
    ("mode", "codec", "named"), [("TRACE_PC", PC_EXT, "TRACE_PC_EXT"), ("INIT", CMP, "TRACE_CMP")]
)
def test_the_side_file_names_the_format_of_the_records(tmp_path, mode, codec, named):
    """In a dump, a flag beside the mode may tell the format, or a guess where the buffer is not
    enabled.
    """
    buffer = make(PCS[:48], mode, codec)
    write_trace(tmp_path / "a.kcov", buffer, make_header(buffer))
    found = read_trace(tmp_path / "a.kcov")
    assert (found.mode, found.encoding.codec, list(found.words)) == (named, codec, PCS[:48])


def test_nothing_is_left_of_what_failed(tmp_path, monkeypatch):
    path = tmp_path / "a.kcov"
    buffer = make()
    monkeypatch.setattr(
        "os.fsync",
        lambda _fd: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")),
    )
    with pytest.raises(CollectError, match="No space left") as caught:
        write_trace(path, buffer, make_header(buffer))
    assert caught.value.status == 125
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CollectError, match=os.strerror(errno.ENOENT)):
        write_trace(tmp_path / "none" / "a.kcov", buffer, make_header(buffer))


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_a_trace_never_stands_beside_another_ones_side_file(tmp_path, monkeypatch, failing, kind):
    """If any of the renames fails, the older trace is still complete; without an older one, nothing
    is left.
    """
    path = tmp_path / "a.kcov"
    plain = os.rename
    for older in (None, make(PCS[:7])):
        calls = []
        if older is not None:
            write_trace(path, older, make_header(older, release="older"))
        was = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}

        def fail(name, target, *, calls=calls, **folders):
            calls.append(name)
            if len(calls) == failing + 1:
                raise kind(errno.EIO, "Input/output error")
            return plain(name, target, **folders)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fail)
            with pytest.raises(CollectError if kind is OSError else kind):
                write_trace(path, make(), make_header(make(), release="newer"))
        assert len(calls) > failing
        assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == was


def test_directories_are_refused_and_pipes_written_through(tmp_path):
    with pytest.raises(CollectError, match=f"^{tmp_path}: "):
        write_text_file(tmp_path, text_bytes(make()))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    buffer = make()
    with ThreadPoolExecutor(1) as pool:
        for write in (
            lambda: write_text_file(pipe, text_bytes(buffer)),
            lambda: write_trace(pipe, buffer, make_header(buffer)),
        ):
            read = pool.submit(pipe.read_bytes)
            written = write()
            content = read.result(timeout=10)
            assert pipe.is_fifo()
            assert content in (text_bytes(buffer), trace_bytes(buffer))
    # A pipe has no side file.
    assert written is False
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_a_link_to_its_trace_and_side_file(tmp_path):
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "link.kcov", tmp_path / "real" / "a.kcov"
    link.symlink_to(real)
    for words in (PCS[:3], PCS):
        buffer = make(words)
        assert write_trace(link, buffer, make_header(buffer, release="6.12"))
        assert link.is_symlink()
        for path in (link, real):
            assert list(read_trace(path).words) == words
            assert read_header(path).release == "6.12"
    assert sorted(entry.name for entry in real.parent.iterdir()) == ["a.kcov", "a.kcov.json"]


def test_text_of_kcovtrace_and_of_syzkaller(tmp_path):
    buffer = make([*PCS[::-1], PCS[0]])
    (tmp_path / "raw").write_bytes(text_bytes(buffer))
    (tmp_path / "syz").write_bytes(text_bytes(buffer, call_length=5, is_syzkaller=True))
    assert (tmp_path / "raw").read_text().splitlines()[0] == f"{PCS[-1]:#x}"
    assert (tmp_path / "syz").read_text().splitlines() == [f"{pc - 5:#x}" for pc in PCS]
    kernel = TraceKernel(
        machine="x86_64", find_points=lambda: [list_points([*PCS, 0xFFFFFFFF82000000])]
    )
    raw, syz = (read_trace(tmp_path / name, kernel) for name in ("raw", "syz"))
    assert list(raw.words) == [*PCS[::-1], PCS[0]]
    assert list(syz.words) == PCS
    assert "100%" in raw.remarks[0]
    assert "100%" in syz.remarks[0]
    assert (
        list(read_trace(tmp_path / "raw", kernel, ReadingOptions(pc="call")).words)[-1]
        == PCS[0] + 5
    )
    assert "--pc call" in read_trace(tmp_path / "syz").remarks[0]
    assert not read_trace(tmp_path / "syz", options=ReadingOptions(pc="raw")).remarks
    others = TraceKernel(machine="x86_64", find_points=lambda: [list_points([1 << 63])])
    with pytest.raises(NotATraceError):
        read_trace(tmp_path / "raw", others)
    with pytest.raises(KcovdbgError, match="--pc call"):
        read_trace(tmp_path / "syz", TraceKernel(machine="vax"), ReadingOptions(pc="call"))


def test_a_call_before_the_first_address_is_none():
    """It is left out, rather than written as a negative number."""
    assert text_bytes(make([3, 0xFFFFFFFF81000005]), call_length=5) == b"0xffffffff81000000\n"


def test_who_holds_a_handle():
    taken = explain_errno(
        Step.REMOTE_ENABLE,
        errno.EEXIST,
        handles=[1 << 56 | 2, 0x42],
        find_holder=lambda h: "task 7" if h == 0x42 else None,
    )
    assert str(taken) == "handle common:0x42: task 7"
    unknown = str(explain_errno(Step.REMOTE_ENABLE, errno.EEXIST, handles=[1 << 56 | 2, 0x42]))
    assert "usb:2, common:0x42" in unknown
    twice = str(explain_errno(Step.REMOTE_ENABLE, errno.EEXIST, handles=[1 << 56 | 2] * 2))
    assert "usb:2" in twice
    assert "EEXIST" not in twice
    assert "0x10000000002" in str(
        explain_errno(Step.REMOTE_ENABLE, errno.EINVAL, handles=[1 << 40 | 2])
    )
    assert "257" in str(explain_errno(Step.REMOTE_ENABLE, errno.EINVAL, handles=range(257)))


def test_every_step_has_words_for_any_errno():
    for step in Step:
        for number in (errno.EIO, 524, errno.EPERM):
            assert str(explain_errno(step, number, command="ls"))
            assert explain_not_followed(step, number)
    assert explain_errno(Step.EXEC, errno.ENOENT, command="ls").status == 127
    assert explain_errno(Step.EXEC, errno.ENOEXEC, command="ls").status == 126
