# SPDX-License-Identifier: LGPL-2.1-or-later
"""The C loops give what the Python ones give, and both give what the definition says."""

import random
import struct
import sys
from array import array
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcovdbg.analysis import hot
from kcovdbg.analysis.hot import NO_ID, Numbering, Words, align, find_ordinals, has_native
from kcovdbg.analysis.pcset import HAS_ROARING, PcUniverse, find_stable

WAYS = [False, pytest.param(True, marks=pytest.mark.skipif(not has_native(), reason="needs the compiled module"))]
TEXT = (0xFFFFFFFF81000000, 0xFFFFFFFF81010000)
IN_TEXT = st.integers(TEXT[0], TEXT[1] - 1)
PCS = (
    IN_TEXT
    | st.integers(TEXT[0], TEXT[0] + 130)
    | st.integers(0, 2**64 - 1)
    | st.sampled_from([0, 2**64 - 1, *TEXT, TEXT[1] + 1])
)


def pack(pcs, order="<"):
    return struct.pack(f"{order}{len(pcs)}Q", *pcs)


@pytest.mark.parametrize("native", WAYS)
@settings(deadline=None)
@given(buffers=st.lists(st.lists(PCS), max_size=3), big=st.booleans(), extra=PCS)
def test_numbers(native, buffers, big, extra):
    numbering = Numbering(TEXT, native=native)
    # What was there before must leave no trace.
    numbering.number(Words(pack([*range(TEXT[0], TEXT[1], 977), 5, extra])))
    words = [Words(pack(pcs, ">" if big else "<"), big_endian=big) for pcs in buffers]
    flat = [pc for pcs in buffers for pc in pcs]
    distinct = sorted(set(flat))
    assert numbering.number(*words).tolist() == distinct
    assert numbering.counts(*words).tolist() == [Counter(flat)[pc] for pc in distinct]
    for pcs, buffer in zip(buffers, words, strict=True):
        assert numbering.ids(buffer).tolist() == [distinct.index(pc) for pc in pcs]
    unknown = numbering.ids(Words(pack([extra]))).tolist()
    assert unknown == [distinct.index(extra) if extra in distinct else NO_ID]


@pytest.mark.parametrize("native", WAYS)
def test_long_buffers_and_short_ones_together(native):
    rng = random.Random(4)
    pcs = [rng.choice([rng.randrange(*TEXT), rng.randrange(2**64), TEXT[0] + 7]) for _ in range(140_000)]
    numbering = Numbering(TEXT, native=native)
    buffers = [Words(pack(pcs)), Words(pack([TEXT[0] + 1, 3]))]
    for _ in range(2):
        assert numbering.number(*buffers).tolist() == sorted({*pcs, TEXT[0] + 1, 3})
        assert numbering.number(*reversed(buffers)).tolist() == sorted({*pcs, TEXT[0] + 1, 3})
        assert numbering.number(buffers[1]).tolist() == [3, TEXT[0] + 1]
    assert numbering.number().tolist() == []


@pytest.mark.parametrize("native", WAYS)
@pytest.mark.parametrize("text", [(0, 0), TEXT, (5, 4), (0, 2**64), (2**64 - 99, 2**64 + 99)])
def test_any_text(native, text):
    numbering = Numbering(text, native=native)
    assert numbering.number(Words(pack([9, 2**64 - 1, 9, TEXT[0]]))).tolist() == [9, TEXT[0], 2**64 - 1]


@pytest.mark.parametrize("native", WAYS)
def test_word_forms(native):
    numbering = Numbering(TEXT, native=native)

    def number(*args, **kwargs):
        words = Words(*args, **{"big_endian": False, **kwargs})
        return numbering.number(words).tolist(), numbering.ids(words).tolist()

    half = struct.pack("<3I", 0x81000010, 0x81000000, 0x81000010)
    assert number(half, word_size=4) == ([0x81000000, 0x81000010], [1, 0, 1])
    assert number(half, word_size=4, or_bits=0xFFFFFFFF << 32)[0] == [TEXT[0], TEXT[0] + 16]
    assert number(half[::-1], word_size=4, big_endian=True)[0] == [0x81000000, 0x81000010][::1] or sys.byteorder == "big"
    # Comparisons: the fourth word of four; the last record is cut short.
    records = struct.pack("<4Q", 1, 2, 3, TEXT[0]) + struct.pack("<4Q", 1, 2, 3, 8) + struct.pack("<3Q", 1, 2, 3) + b"xx"
    assert number(records, first=24, stride=32) == ([8, TEXT[0]], [1, 0])
    for size in range(9):
        assert number(bytes(size))[0] == ([0] if size == 8 else [])
    # Not aligned, and read-only.
    assert number(memoryview(b"x" + pack([TEXT[0] + 3]))[1:])[0] == [TEXT[0] + 3]
    assert number(array("Q", [7, 7]), big_endian=sys.byteorder == "big")[0] == [7]


@pytest.mark.parametrize("native", WAYS)
@settings(deadline=None)
@given(pcs=st.sets(PCS), known=st.sets(PCS))
def test_ordinals(native, pcs, known):
    pcs, known = sorted({*pcs, *list(known)[::2]}), sorted(known)
    found = find_ordinals(array("Q", pcs), array("Q", known), native=native)
    assert found.tolist() == [known.index(pc) if pc in known else NO_ID for pc in pcs]


def longest_common(left, right):
    row = [0] * (len(right) + 1)
    for a in left:
        before = row
        row = [0]
        for index, b in enumerate(right):
            row.append(before[index] + 1 if a == b else max(before[index + 1], row[index]))
    return row[-1]


def check(left, right, alignment):
    at_left = at_right = -1
    for a, b, size in alignment.blocks:
        assert size > 0
        assert a >= max(at_left, 0)
        assert b >= max(at_right, 0)
        assert (a, b) != (at_left, at_right), "joined"
        assert left[a : a + size] == right[b : b + size]
        at_left, at_right = a + size, b + size
    assert at_left <= len(left)
    assert at_right <= len(right)
    return sum(block[2] for block in alignment.blocks)


IDS = st.lists(st.integers(0, 5), max_size=40)


@pytest.mark.parametrize("native", WAYS)
@settings(deadline=None, max_examples=300)
@given(left=IDS, right=IDS, grouped=st.booleans(), budget=st.sampled_from([0, 1, 100, 10**9]))
def test_alignments(native, left, right, grouped, budget):
    left, right = array("I", left), array("I", right)
    groups = array("I", [0, 0, 1, 1, 2, 3]) if grouped else None
    alignment = align(left, right, groups, budget=budget, native=native)
    common = check(left, right, alignment)
    if native and not grouped and not alignment.is_coarse:
        assert common == longest_common(left, right)
    if native and budget == 10**9:
        assert not alignment.is_coarse


@pytest.mark.skipif(not has_native(), reason="needs the compiled module")
@pytest.mark.parametrize("seed", range(4))
def test_alignments_of_what_is_unlike_are_cut_short(seed):
    rng = random.Random(seed)
    left, right = (array("I", [rng.randrange(50) for _ in range(30_000)]) for _ in range(2))
    whole = align(left, right)
    assert whole.is_coarse
    assert check(left, right, whole) > 6_000
    small = align(left, right, array("I", range(50)), budget=1_000_000)
    assert small.is_coarse
    check(left, right, small)


@pytest.mark.parametrize("native", WAYS)
def test_near_equal_traces(native):
    rng = random.Random(1)
    loop = [rng.randrange(900) for _ in range(3000)]
    left = array("I", loop * 4)
    right = left[:2000] + array("I", [900, 901, 902]) + left[2000:9000] + left[9100:]
    groups = array("I", [index // 7 for index in range(903)])
    alignment = align(left, right, groups, native=native)
    assert check(left, right, alignment) == len(left) - 100
    assert align(left, left, native=native) == ([(0, 0, len(left))], False)
    assert align(array("I"), left, native=native) == ([], False)


def test_refusals():
    with pytest.raises(ValueError, match="group"):
        align(array("I", [3]), array("I"), array("I", [0, 0]))


@pytest.mark.parametrize(
    "roaring", [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_ROARING, reason="needs pyroaring"))]
)
@settings(deadline=None)
@given(points=st.sets(IN_TEXT), a=st.sets(PCS), b=st.sets(PCS))
def test_sets(roaring, points, a, b):
    universe = PcUniverse(array("Q", sorted(points)), roaring=roaring)
    shared = {*list(points)[::2], *list(a)[::3]}
    a, b = {*a, *shared}, {*b, *shared}
    left, right = (universe.make_set(array("Q", sorted(pcs))) for pcs in (a, b))
    assert left.pcs().tolist() == sorted(a)
    for mine, python in ((left & right, a & b), (left | right, a | b), (left - right, a - b), (left ^ right, a ^ b)):
        assert mine.pcs().tolist() == sorted(python)
        assert len(mine) == len(python)
        assert mine == universe.make_set(array("Q", sorted(python)))
    assert (left == right) == (a == b)
    stable, flicker = find_stable([left, right, left])
    assert (set(stable), set(flicker)) == (a & b, a ^ b)
    with pytest.raises(ValueError, match="builds"):
        left & PcUniverse(array("Q"), roaring=roaring).make_set(array("Q"))


def test_a_module_that_can_t_be_loaded_is_none(monkeypatch):
    """One that was compiled for another machine lies where ours would."""
    monkeypatch.setitem(sys.modules, "kcovdbg._native", None)
    hot.has_native.cache_clear()
    hot._native.cache_clear()
    try:
        assert not has_native()
        assert align(array("I", [1, 2, 3]), array("I", [1, 3])).blocks == [(0, 0, 1), (2, 1, 1)]
    finally:
        hot.has_native.cache_clear()
        hot._native.cache_clear()
