# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trace files of any content are read consistently or refused in one line."""

import json

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kcovdbg.abi import record
from kcovdbg.errors import KcovdbgError
from kcovdbg.records.pc_convention import list_points
from kcovdbg.records.pc_list import NO_KERNEL, TraceKernel
from kcovdbg.records.pc_options import ReadingOptions
from kcovdbg.records.side_file import side_path
from kcovdbg.records.trace_reader import read_trace

FOLDER = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}
KERNEL = TraceKernel(machine="x86_64", find_points=lambda: [list_points([0xFFFFFFFF81000005])])
LINES = st.lists(
    st.one_of(
        st.from_regex(rb"\s*(0[xX])?[0-9a-fA-F]{1,18}\s*(#.*)?", fullmatch=True),
        st.binary(max_size=12),
        st.sampled_from(
            [b"# comment", b"", b"   ", b"0x", b"0xffffffff81000005:0x2", b"-1", b"\xef\xbb\xbf0x1"]
        ),
    ),
    max_size=20,
)


def read(path, kernel=NO_KERNEL, **options):
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
            st.sampled_from(
                [
                    "format",
                    "mode",
                    "word_size",
                    "byteorder",
                    "size",
                    "count",
                    "pid",
                    "argv",
                    "kaslr_offset",
                ]
            ),
            st.one_of(
                st.integers(-5, 1 << 65),
                st.text(max_size=8),
                st.sampled_from(["TRACE_CMP", "big", 1, 4, 8]),
                st.none(),
            ),
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
