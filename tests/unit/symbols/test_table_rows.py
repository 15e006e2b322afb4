# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of a location table: against what a reader of the table looks up."""

from array import array
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.model.location import MAX_DEPTH
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.table_rows import BUCKET_SHIFT, make_columns, merge_kinds, sort_rows

BASE = 0xFFFF800081000000
# The last one is no kernel's that is at this base.
PCS = st.lists(st.integers(BASE - 4, BASE + 5000) | st.just(BASE + (1 << 32)), unique=True).map(
    sorted
)


def check_merge(columns):
    kinds = [*PointKind][: len(columns)]
    rows = sorted((pc, kind) for pcs, kind in zip(columns, kinds, strict=True) for pc in pcs)
    merged = merge_kinds([*zip(columns, kinds, strict=True)])
    assert list(zip(*merged, strict=True)) == rows


def check_columns(pcs, depths):
    """Each PC is found in its bucket, with its chain."""
    ends = array("I", accumulate(depths))
    chains = [index % len(depths) for index in range(len(pcs))]
    kinds = [index % 6 for index in range(len(pcs))]
    columns = make_columns(pcs, kinds, chains, BASE, ends)
    inside = [index for index, pc in enumerate(pcs) if 0 <= pc - BASE < 1 << 32]
    assert list(columns["offset"]) == [pcs[index] - BASE for index in inside]
    for row, index in enumerate(inside):
        bucket = columns["offset"][row] >> BUCKET_SHIFT
        assert (
            bisect_left(
                columns["offset"], columns["offset"][row], *columns["bucket"][bucket : bucket + 2]
            )
            == row
        )
        assert row < columns["bucket"][bucket + 1]
        word, depth = columns["chain"][row], depths[chains[index]]
        assert (word & 7, word >> 3 & 0x1FFF, word >> 16) == (
            kinds[index],
            depth,
            ends[chains[index]] - depth,
        )
    assert columns["bucket"][-1] == len(inside)


def test_few():
    assert merge_kinds([([], PointKind.PC)]) == (array("Q"), b"")
    assert make_columns([], [], [], BASE, array("I")) == {
        "offset": array("I"),
        "chain": array("Q"),
        "bucket": array("I", [0]),
    }
    columns = make_columns([BASE], [PointKind.CMP], [1], BASE, array("I", [2, MAX_DEPTH + 9]))
    assert columns["chain"][0] == 2 << 16 | MAX_DEPTH << 3 | PointKind.CMP


@given(columns=st.lists(PCS, max_size=len(PointKind)))
def test_merge(columns):
    check_merge(columns)


@given(pcs=PCS, depths=st.lists(st.integers(0, 4), min_size=1))
def test_columns(pcs, depths):
    check_columns(pcs, depths)


NUMBERS = st.sampled_from((0, 1, 0xFF, 0x100, 0x10001, 0x7F000000, 0xFFFFFFFF))


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
def test_rows_in_order(rows):
    columns = [array("I", [row[at] for row in rows]) for at in range(3)]
    assert [*zip(*sort_rows(*columns), strict=True)] == sorted(set(rows))


def test_what_does_not_fit_is_refused():
    """PCs that do not ascend, and chains that there are not."""
    for pcs, chains, ends in (
        ([BASE + 9, BASE + 3], [0, 0], [1]),
        ([BASE], [1], [1]),
        ([BASE], [1], [3, 2]),
    ):
        with pytest.raises(ValueError, match="out of range"):
            make_columns(pcs, [0] * len(pcs), chains, BASE, array("I", ends))
