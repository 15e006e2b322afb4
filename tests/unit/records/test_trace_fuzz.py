# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trace files of any content are read consistently or refused in one line; written ones are read back."""

import json
from array import array

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kcovdbg.abi import record
from kcovdbg.abi.record import CMP, PC
from kcovdbg.collect.trace_writer import make_header, text_bytes, write_trace
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.pc_convention import list_points
from kcovdbg.records.pc_list import ReadingOptions, TraceKernel
from kcovdbg.records.trace_file import read_trace, side_path
from kcovdbg.series.trace_pc_ext import PC_EXT

FOLDER = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}
KERNEL = TraceKernel(machine="x86_64", find_points=lambda: [list_points([0xFFFFFFFF81000005])])
WORDS = st.lists(st.integers(0, (1 << 64) - 1), max_size=40)
PCS = st.lists(st.integers(0xFFFFFFFF80000000, 0xFFFFFFFFFFFFFF00), min_size=1, max_size=40)
LINES = st.lists(
    st.one_of(
        st.from_regex(rb"\s*(0[xX])?[0-9a-fA-F]{1,18}\s*(#.*)?", fullmatch=True),
        st.binary(max_size=12),
        st.sampled_from([b"# comment", b"", b"   ", b"0x", b"0xffffffff81000005:0x2", b"-1", b"\xef\xbb\xbf0x1"]),
    ),
    max_size=20,
)


def make(words, codec=PC, mode="TRACE_PC"):
    encoding = record.make_encoding(codec, 8)
    count = len(words) // encoding.record_words
    return Buffer("41", encoding, array("Q", words[: count * encoding.record_words]), count, count, size=512, mode=mode)


def read(path, kernel=None, **options):
    """Read a file; it may be refused in one line."""
    refused = None
    try:
        found = read_trace(path, kernel, ReadingOptions(**options))
    except KcovdbgError as error:
        refused = str(error)
    if refused is not None:
        assert "\n" not in refused
        return None
    assert len(found.words) == found.count * found.encoding.record_words
    for index in range(found.count):
        record.decode_record(found.words, index, found.encoding)
    assert all("\n" not in remark for remark in found.remarks)
    return found


@settings(max_examples=150, **FOLDER)
@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.sampled_from(["auto", "raw", "call"]))
@example([b"0xffffffffffffffff"], b"\n", "call")
@example([b"ffffffffffffffffff", b"0x10"], b"\n", "call")
def test_any_text(tmp_path, lines, end, pc):
    path = tmp_path / "text"
    path.write_bytes(end.join(lines))
    found = read(path, KERNEL, pc=pc)
    assert found is None or all(word < 1 << 64 for word in found.words)


@settings(max_examples=150, **FOLDER)
@given(
    st.binary(max_size=200),
    st.one_of(
        st.none(),
        st.dictionaries(
            st.sampled_from(["format", "mode", "word_size", "byteorder", "size", "count", "pid", "argv", "kaslr_offset"]),
            st.one_of(st.integers(-5, 1 << 65), st.text(max_size=8), st.sampled_from(["TRACE_CMP", "big", 1, 4, 8]), st.none()),
        ),
    ),
)
def test_any_bytes_with_any_side_file(tmp_path, data, side):
    path = tmp_path / "a.kcov"
    path.write_bytes(data)
    if side is None:
        side_path(path).unlink(missing_ok=True)
    else:
        side_path(path).write_text(json.dumps({"format": 1, **side}))
    read(path)


@settings(max_examples=100, **FOLDER)
@given(PCS, st.booleans())
def test_text_is_read_back(tmp_path, pcs, is_syzkaller):
    path = tmp_path / "text"
    path.write_bytes(text_bytes(make(pcs), call_length=5 if is_syzkaller else 0, is_syzkaller=is_syzkaller))
    found = read(path, KERNEL, pc="call" if is_syzkaller else "raw")
    assert list(found.words) == (sorted(set(pcs)) if is_syzkaller else pcs)


@settings(max_examples=100, **FOLDER)
@given(
    WORDS,
    st.sampled_from([(PC, "TRACE_PC"), (CMP, "TRACE_CMP"), (PC_EXT, "TRACE_PC_EXT")]),
)
def test_traces_are_read_back(tmp_path, words, kind):
    path = tmp_path / "a.kcov"
    buffer = make(words, *kind)
    write_trace(path, buffer, make_header(buffer))
    found = read(path)
    assert (list(found.words), found.mode) == (list(buffer.words), kind[1])


def test_a_call_before_the_first_address_is_none():
    """It is left out, rather than written as a negative number."""
    assert text_bytes(make([3, 0xFFFFFFFF81000005]), call_length=5) == b"0xffffffff81000000\n"
