# SPDX-License-Identifier: LGPL-2.1-or-later
"""The C loops give what their definitions say, in a few lines of Python."""

import random
import sys
from array import array
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcovdbg import compiled_module
from kcovdbg.errors import CapabilityError
from kcovdbg.records.alignment import Block, align_records, find_blocks
from kcovdbg.records.native_loops import NO_ID, Numbering, narrow

TEXT = (0xFFFFFFFF81000000, 0xFFFFFFFF81010000)
IN_TEXT = st.integers(TEXT[0], TEXT[1] - 1)
PCS = (
    IN_TEXT
    | st.integers(TEXT[0], TEXT[0] + 130)
    | st.integers(0, 2**64 - 1)
    | st.sampled_from([0, 2**64 - 1, *TEXT, TEXT[1] + 1])
)


@settings(deadline=None)
@given(buffers=st.lists(st.lists(PCS), max_size=3), extra=PCS)
def test_numbers(buffers, extra):
    numbering = Numbering(TEXT)
    # What was there before must leave no trace.
    numbering.number(array("Q", [*range(TEXT[0], TEXT[1], 977), 5, extra]))
    words = [array("Q", pcs) for pcs in buffers]
    flat = [pc for pcs in buffers for pc in pcs]
    distinct = sorted(set(flat))
    assert numbering.number(*words).tolist() == distinct
    assert numbering.counts(*words).tolist() == [Counter(flat)[pc] for pc in distinct]
    for pcs, buffer in zip(buffers, words, strict=True):
        assert numbering.ids(buffer).tolist() == [distinct.index(pc) for pc in pcs]
    unknown = numbering.ids(array("Q", [extra])).tolist()
    assert unknown == [distinct.index(extra) if extra in distinct else NO_ID]


def test_long_buffers_and_short_ones_together():
    rng = random.Random(4)
    pcs = [
        rng.choice([rng.randrange(*TEXT), rng.randrange(2**64), TEXT[0] + 7])
        for _ in range(140_000)
    ]
    numbering = Numbering(TEXT)
    buffers = [array("Q", pcs), array("Q", [TEXT[0] + 1, 3])]
    for _ in range(2):
        assert numbering.number(*buffers).tolist() == sorted({*pcs, TEXT[0] + 1, 3})
        assert numbering.number(*reversed(buffers)).tolist() == sorted({*pcs, TEXT[0] + 1, 3})
        assert numbering.number(buffers[1]).tolist() == [3, TEXT[0] + 1]
    assert numbering.number().tolist() == []


@pytest.mark.parametrize("text", [(0, 0), TEXT, (5, 4), (0, 2**64), (2**64 - 99, 2**64 + 99)])
def test_any_text(text):
    numbering = Numbering(text)
    assert numbering.number(array("Q", [9, 2**64 - 1, 9, TEXT[0]])).tolist() == [
        9,
        TEXT[0],
        2**64 - 1,
    ]


def test_32_bit_words():
    numbering = Numbering(TEXT)
    words = array("I", [0x81000010, 0x81000000, 0x81000010])
    assert numbering.number(words).tolist() == [0x81000000, 0x81000010]
    assert numbering.ids(words).tolist() == [1, 0, 1]
    assert numbering.counts(words, array("Q", [TEXT[0]])).tolist() == [1, 2]
    assert numbering.number(words, array("Q", TEXT)).tolist() == [0x81000000, 0x81000010, *TEXT]


def longest_common(left, right):
    row = [0] * (len(right) + 1)
    for a in left:
        before = row
        row = [0]
        for index, b in enumerate(right):
            row.append(before[index] + 1 if a == b else max(before[index + 1], row[index]))
    return row[-1]


def check(left, right, blocks):
    at_left = at_right = -1
    for a, b, size in blocks:
        assert size > 0
        assert a >= max(at_left, 0)
        assert b >= max(at_right, 0)
        assert (a, b) != (at_left, at_right), "joined"
        assert left[a : a + size] == right[b : b + size]
        at_left, at_right = a + size, b + size
    assert at_left <= len(left)
    assert at_right <= len(right)
    return sum(block.length for block in blocks)


IDS = st.lists(st.integers(0, 5), max_size=40)


@given(
    words=st.lists(st.integers(0, 2**32 - 1) | st.sampled_from((0, 255, 256, 65535, 65536))),
    large=st.integers(0, 2**64 - 1),
)
def test_narrow_words(words, large):
    for given_words in (array("I", words), array("Q", words), array("Q", [*words, large])):
        found = narrow(given_words)
        assert list(found) == list(given_words)
        bits = max(given_words, default=0).bit_length()
        assert 8 * found.itemsize == min(size for size in (8, 16, 32, 64) if size >= bits)


@settings(deadline=None, max_examples=300)
@given(left=IDS, right=IDS, grouped=st.booleans(), budget=st.sampled_from([0, 1, 100, 10**9]))
def test_blocks(left, right, grouped, budget):
    left, right = array("I", left), array("I", right)
    groups = array("I", [0, 0, 1, 1, 2, 3]) if grouped else None
    found = find_blocks(left, right, groups, budget=budget)
    common = check(left, right, found.blocks)
    if not grouped and not found.is_coarse:
        assert common == longest_common(left, right)
    if budget == 10**9:
        assert not found.is_coarse


@pytest.mark.parametrize("seed", range(4))
def test_alignments_of_what_is_unlike_are_cut_short(seed):
    rng = random.Random(seed)
    left, right = (array("I", [rng.randrange(50) for _ in range(30_000)]) for _ in range(2))
    found = find_blocks(left, right)
    assert found.is_coarse
    assert check(left, right, found.blocks) > 6_000
    found = find_blocks(left, right, array("I", range(50)), budget=1_000_000)
    assert found.is_coarse
    check(left, right, found.blocks)


def test_near_equal_traces():
    rng = random.Random(1)
    loop = [rng.randrange(900) for _ in range(3000)]
    left = array("I", loop * 4)
    right = left[:2000] + array("I", [900, 901, 902]) + left[2000:9000] + left[9100:]
    groups = array("I", [index // 7 for index in range(903)])
    assert check(left, right, find_blocks(left, right, groups).blocks) == len(left) - 100
    assert find_blocks(left, left).blocks == (Block(0, 0, len(left)),)
    assert find_blocks(array("I"), left).blocks == ()


@settings(deadline=None)
@given(left=st.lists(PCS, max_size=60), right=st.lists(PCS, max_size=60))
def test_alignments_are_of_addresses(left, right):
    for one, other in ((left, right), (left, left), (left, left[3:] + right[:2])):
        found = align_records(one, other)
        assert check(one, other, found.blocks) == found.common == longest_common(one, other)
        assert (found.left, found.right, found.is_coarse) == (len(one), len(other), False)


def test_unlike_traces_are_aligned_by_function_and_coarse():
    rng = random.Random(3)
    left, right = ([rng.randrange(1 << 20) for _ in range(200_000)] for _ in range(2))
    found = align_records(left, right)
    check(left, right, found.blocks)
    assert found.is_coarse


def test_refusals():
    with pytest.raises(ValueError, match="group"):
        find_blocks(array("I", [3]), array("I"), array("I", [0, 0]))


def test_a_module_that_cannot_be_loaded_is_an_error_with_a_hint(monkeypatch):
    """One that was compiled for another machine lies where ours would."""
    monkeypatch.setitem(sys.modules, "kcovdbg._native", None)
    compiled_module.load_native.cache_clear()
    try:
        with pytest.raises(CapabilityError) as refused:
            align_records([1, 2, 3], [1, 3])
        assert refused.value.hint
    finally:
        compiled_module.load_native.cache_clear()


def test_columns_of_other_lengths_or_items_are_refused():
    """No C function is given them."""
    for code, values, count in (
        ("Q", array("Q", [1]), 2),
        ("I", array("Q", [1]), 1),
        ("B", b"ab", 1),
        ("Q", array("I", [1, 2]), 2),
    ):
        with pytest.raises(ValueError, match="items"):
            compiled_module.column(code, values, count)
