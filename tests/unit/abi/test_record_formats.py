# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every record format against words laid out by hand as kernel/kcov.c does, and against random
ones.
"""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.abi import record
from kcovdbg.abi.record import CMP, PC, RecordKind, make_encoding
from kcovdbg.series import table
from kcovdbg.series.draft_2016 import PC_32
from kcovdbg.series.trace_pc_ext import PC_EXT
from kcovdbg.series.unique_maps import EDGE

WORDS = st.integers(0, (1 << 64) - 1)
CODECS = st.sampled_from([PC, CMP, PC_32, PC_EXT, EDGE])
ORDERS = [(8, False), (8, True), (4, False), (4, True)]


def pack(words, size, big_endian):
    return struct.pack(
        f"{'>' if big_endian else '<'}{len(words)}{'Q' if size == 8 else 'I'}", *words
    )


@pytest.mark.parametrize(("word_size", "big_endian"), ORDERS)
def test_pcs(word_size, big_endian):
    words = [0x81000005, 0, 0xC0DE1234]
    encoding = make_encoding(PC, word_size, big_endian)
    assert encoding.records_offset == word_size
    decoded = record.decode_words(pack(words, word_size, big_endian) + b"\1\2", encoding)
    assert list(decoded) == words
    assert [record.decode_record(decoded, index, encoding) for index in range(3)] == [
        record.Record(0, RecordKind.PC, 0x81000005, 0x81000005),
        record.Record(1, RecordKind.PC, 0, None),
        record.Record(2, RecordKind.PC, 0xC0DE1234, 0xC0DE1234),
    ]


@pytest.mark.parametrize(("word_size", "big_endian"), ORDERS)
def test_comparisons_have_64_bit_words_everywhere(word_size, big_endian):
    encoding = make_encoding(CMP, word_size, big_endian)
    assert (encoding.word_size, encoding.records_offset, encoding.record_size) == (8, 8, 32)
    # include/uapi/linux/kcov.h: KCOV_CMP_CONST is bit 0, KCOV_CMP_SIZE(n) is n << 1.
    words = [
        1 | 2 << 1,
        0x2A,
        0xFFFFFFFF,
        0xFFFFFFFF81000005,
        0 | 0 << 1,
        1,
        2,
        0xFFFFFFFF81000015,
        9,
        9,
    ]
    decoded = record.decode_words(pack(words, 8, big_endian), encoding)
    first, second = (record.decode_record(decoded, index, encoding) for index in range(2))
    assert first[:4] == (0, RecordKind.CMP, words[3], words[3])
    assert first.comparison == (5, 4, True, 0x2A, 0xFFFFFFFF)
    assert second.comparison == (0, 1, False, 1, 2)
    assert list(record.pc_words(decoded, encoding)) == [words[3], words[7]]
    with pytest.raises(IndexError):
        record.decode_record(decoded, 2, encoding)


@pytest.mark.parametrize(
    ("size", "word_size", "capacity"),
    # floor((size * sizeof(long) / 8 - 1) / 4), kcov-abi.md 3.3.
    [
        (2, 8, 0),
        (5, 8, 1),
        (8, 8, 1),
        (9, 8, 2),
        (65536, 8, 16383),
        (10, 4, 1),
        (9, 4, 0),
        (18, 4, 2),
    ],
)
def test_capacity(size, word_size, capacity):
    assert CMP.capacity(size, word_size) == capacity
    assert PC.capacity(65536, 8) == 65535
    encoding = replace(make_encoding(PC, 8), prefix_words=1024)
    assert encoding.capacity(4096, 8) == 3071


@pytest.mark.parametrize(
    ("mode", "features", "expected"),
    [
        ("TRACE_PC", (), PC),
        ("TRACE_CMP", (), CMP),
        ("INIT", (), PC),
        (None, (), PC),
        ("TRACE", ("32-bit-words",), PC_32),
        # A flag of the object says whether it is the other format.
        ("TRACE_PC", ("ext-records",), PC),
        ("TRACE_UNIQ_PC", ("unique-maps",), PC),
        ("TRACE_UNIQ_EDGE", ("unique-maps",), EDGE),
        ("TRACE_UNIQ_CMP", ("unique-maps",), CMP),
        ("TRACE_UNIQ_PC|TRACE_UNIQ_EDGE", ("unique-maps",), PC),
        ("UNIQUE_PC", ("kcov-state", "unique-bitmap"), PC),
    ],
)
def test_codec_of_mode(mode, features, expected):
    assert table.codec_of_mode(mode, features) is expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("TRACE_PC", PC),
        ("CMP", CMP),
        ("PC_EXT", PC_EXT),
        ("TRACE_PC_EXT", PC_EXT),
        ("UNIQ_EDGE", EDGE),
        ("TRACE_UNIQ_CMP", CMP),
        # A trace file always has a count, also of a kernel's bitmap.
        ("UNIQUE_PC", PC),
        ("NONE_OF_THESE", PC),
        (None, PC),
    ],
)
def test_codec_of_trace_file(mode, expected):
    assert table.codec_of_trace(mode) is expected


def test_2016_words_imply_their_upper_half():
    encoding = make_encoding(PC_32, 8)
    assert encoding.word_size == 4
    decoded = record.decode_words(struct.pack("<2I", 0x81234567, 0), encoding)
    first = record.Record(0, RecordKind.PC, 0x81234567, 0xFFFFFFFF81234567)
    assert record.decode_record(decoded, 0, encoding) == first
    assert record.decode_record(decoded, 1, encoding).pc is None


@pytest.mark.parametrize("pc", [0xFFFFFFFF81234567, 0xFFFF800080012345, 0xFFFFFFFFC0001234])
def test_extended_records(pc):
    # The series' kcov_add_pc_record(): type | (ip & KCOV_RECORD_IP_MASK); NORMAL keeps the
    # address's own ones.
    encoding = make_encoding(PC_EXT, 8)
    low = pc & 0x00FFFFFFFFFFFFFF
    assert record.pc_of_word(pc, encoding) == (RecordKind.PC, pc)
    assert record.pc_of_word(low, encoding) == (RecordKind.ENTRY, pc)
    assert record.pc_of_word(0x1 << 60 | low, encoding) == (RecordKind.EXIT, pc)
    assert record.pc_of_word(0x3 << 60 | low, encoding) == (RecordKind.UNKNOWN, None)


def test_edges_tell_the_page():
    word = 0xFFFFFFFF81234000 | 0x678
    assert record.pc_of_word(word, make_encoding(EDGE, 8)) == (RecordKind.EDGE, word)
    found = record.decode_record([word], 0, make_encoding(EDGE, 8))
    assert found.partial is not None
    assert "0xffffffff81234000" in found.partial.function
    assert "0x678" in found.partial.place
    assert not found.has_address


@pytest.mark.parametrize(
    ("value", "size", "signed", "text"),
    [
        (0x2A, 1, 42, "*"),
        (0xFF, 1, -1, None),
        (0xFFFF, 2, -1, None),
        (0x7FFFFFFF, 4, 0x7FFFFFFF, None),
        (0x80000000, 4, -(1 << 31), None),
        (0x74736574, 4, 0x74736574, "test"),
        (0x00636261, 4, 0x636261, "abc"),
        (0x61, 4, 0x61, None),
        (
            int.from_bytes(b"rootfs\0\0", "little"),
            8,
            int.from_bytes(b"rootfs\0\0", "little"),
            "rootfs",
        ),
        ((1 << 64) - 1, 8, -1, None),
    ],
)
def test_operands(value, size, signed, text):
    assert record.signed_value(value, size) == signed
    assert record.operand_text(value, size) == text


def test_guessing():
    low, high = 0xFFFFFFFF80000000, 0xFFFFFFFFFF000000
    pc = 0xFFFFFFFF81000005
    entries = [pc & (1 << 56) - 1, pc, pc & (1 << 56) - 1 | 1 << 60]
    for words, count, expected in (
        ([pc] * 5, 5, PC),
        ([5, 1, 2, pc] * 3, 3, CMP),
        (entries, 3, PC_EXT),
        ([1, 2, 3, 4, 5], 5, None),
        ([], 0, None),
    ):
        assert record.guess_codec(words, count, low, high, table.guessable_codecs()) is expected
    assert record.guess_codec(entries, 3, low, high, table.guessable_codecs(())) is None


@given(
    codec=CODECS,
    data=st.binary(max_size=300),
    order=st.sampled_from(ORDERS),
    bitmap=st.integers(0, 8),
)
def test_random_bytes_at_every_decoder(codec, data, order, bitmap):
    word_size, big_endian = order
    encoding = replace(make_encoding(codec, word_size, big_endian), prefix_words=bitmap)
    encoding = replace(encoding, base=0xFFFFFFFF81000000)
    words = record.decode_words(data, encoding)
    assert len(words) == len(data) // encoding.word_size
    count = len(words) // encoding.record_words
    assert len(record.pc_words(words, encoding)) == count
    limit = 1 << 64
    for index in range(count):
        found = record.decode_record(words, index, encoding)
        assert found.number == index
        assert found.pc is None or 0 < found.pc < limit
        assert isinstance(found.kind, RecordKind)
        if found.comparison is not None:
            compared = found.comparison
            assert compared.size in (1, 2, 4, 8)
            assert -(1 << 63) <= record.signed_value(compared.arg1, compared.size) < 1 << 63
            record.operand_text(compared.arg2, compared.size, big_endian)
    assert record.count_bits(data) == sum(byte.bit_count() for byte in data)
    record.guess_codec(words, len(words), 0, limit - 1, table.guessable_codecs())
    assert encoding.capacity(len(words), word_size) >= 0
    if data:
        assert 0 <= record.decode_word(data, encoding) < limit


@given(st.lists(WORDS, max_size=40), CODECS)
def test_batches_agree_with_single_words(words, codec):
    encoding = make_encoding(codec, 8)
    batch = record.pcs_of_words(set(words), encoding)
    assert batch == {
        word: pc for word in words if (pc := record.pc_of_word(word, encoding)[1]) is not None
    }
