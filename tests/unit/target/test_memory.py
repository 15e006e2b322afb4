# SPDX-License-Identifier: LGPL-2.1-or-later
"""The target made up in memory fails as real ones do."""

import pytest

from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.target.protocol import Member, Symbol, Target
from tests.support.memory_target import MemoryTarget, Structure

BASE = 0xFFFF_8880_0000_0000


@pytest.fixture
def target():
    return MemoryTarget(
        types={
            "struct outer": Structure(
                32,
                {
                    "first": Member(0, 4, "unsigned int"),
                    "inner": Member(8, 8, "struct inner"),
                    "flag": Member(4, 4, "unsigned int", bit_offset=3, bit_size=2),
                    "delta": Member(16, 4, "int", signed=True),
                },
                anonymous=[(24, "struct hidden")],
            ),
            "struct inner": Structure(8, {"counter": Member(4, 4, "int", signed=True)}),
            "struct hidden": Structure(8, {"deep": Member(2, 2, "short")}),
        },
        enums={"enum mode": {"OFF": 0, "ON": 1}},
        symbols={"thing": Symbol("thing", BASE, 32)},
        per_cpu_addresses={"runqueues": {0: BASE + 0x1000}},
    )


def test_it_is_a_target(target):
    checked: Target = target
    assert checked.word_size == 8


def test_read_goes_over_touching_segments(target):
    target.segments = {BASE: bytearray(b"abcd"), BASE + 4: bytearray(b"efgh")}
    assert target.read(BASE + 2, 4) == b"cdef"
    assert target.read(BASE, 8) == b"abcdefgh"


def test_read_names_the_first_bad_address(target):
    target.segments = {BASE: bytearray(8)}
    with pytest.raises(ReadError) as caught:
        target.read(BASE + 4, 8)
    assert caught.value.address == BASE + 8
    target.holes = [(BASE + 2, BASE + 4)]
    with pytest.raises(ReadError) as caught:
        target.read(BASE, 8)
    assert caught.value.address == BASE + 2
    assert target.read(BASE + 4, 4) == bytes(4)


def test_members_are_found_by_path_and_in_anonymous_ones(target):
    assert target.member("struct outer", "inner.counter").offset == 12
    assert target.member("struct outer", "deep").offset == 26
    assert target.member_names("struct outer") == ("first", "inner", "flag", "delta", "deep")
    for path in ("none", "inner.none", "first.none", "none.counter"):
        with pytest.raises(MissingTypeError, match=r"struct outer has no member"):
            target.member("struct outer", path)
    with pytest.raises(MissingTypeError, match="the debug info has no struct other"):
        target.member("struct other", "x")


def test_put_writes_what_members_say(target):
    target.put(BASE, "struct outer", {"first": 5, "inner.counter": -1, "flag": 2, "deep": 0x1234})
    data = target.read(BASE, 32)
    assert data[:4] == b"\5\0\0\0"
    assert data[4] == 2 << 3
    assert data[12:16] == b"\xff" * 4
    assert data[26:28] == b"\x34\x12"
    target.put(BASE, "struct outer", {"flag": 1})
    assert target.read(BASE + 4, 1) == bytes([1 << 3])


def test_what_is_missing(target):
    with pytest.raises(MissingSymbolError):
        target.symbol("other")
    with pytest.raises(MissingSymbolError):
        target.per_cpu("runqueues", 1)
    with pytest.raises(MissingSymbolError):
        target.variable_type("other")
    with pytest.raises(MissingTypeError):
        target.enumerators("enum other")
    assert target.symbol_name(BASE + 31) == "thing"
    assert target.symbol_name(BASE + 32) is None
