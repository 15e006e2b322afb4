# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of a location table: both ways to make them, against what a reader of the table looks up."""

from array import array
from bisect import bisect_left
from contextlib import contextmanager
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.compiled_module import has_native
from kcovdbg.model.frame_columns import MAX_DEPTH
from kcovdbg.symbols import table_rows
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.table_rows import BUCKET_SHIFT, make_columns, merge_kinds

WAYS = [False, pytest.param(True, marks=pytest.mark.skipif(not has_native(), reason="needs the compiled module"))]
BASE = 0xFFFF800081000000
# The last one is no kernel's that is at this base.
PCS = st.lists(st.integers(BASE - 4, BASE + 5000) | st.just(BASE + (1 << 32)), unique=True).map(sorted)


@contextmanager
def use(is_compiled):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_rows, "has_native", lambda: is_compiled)
        yield


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
    assert list(columns.offset) == [pcs[index] - BASE for index in inside]
    for row, index in enumerate(inside):
        bucket = columns.offset[row] >> BUCKET_SHIFT
        assert bisect_left(columns.offset, columns.offset[row], *columns.bucket[bucket : bucket + 2]) == row
        assert row < columns.bucket[bucket + 1]
        word, depth = columns.chain[row], depths[chains[index]]
        assert (word & 7, word >> 3 & 0x1FFF, word >> 16) == (kinds[index], depth, ends[chains[index]] - depth)
    assert columns.bucket[-1] == len(inside)


@pytest.mark.parametrize("is_compiled", WAYS)
def test_few(is_compiled):
    with use(is_compiled):
        assert merge_kinds([([], PointKind.PC)]) == (array("Q"), b"")
        assert make_columns([], [], [], BASE, array("I")) == (array("I"), array("Q"), array("I", [0]))
        columns = make_columns([BASE], [PointKind.CMP], [1], BASE, array("I", [2, MAX_DEPTH + 9]))
        assert columns.chain[0] == 2 << 16 | MAX_DEPTH << 3 | PointKind.CMP


@pytest.mark.parametrize("is_compiled", WAYS)
@given(columns=st.lists(PCS, max_size=len(PointKind)))
def test_merge(is_compiled, columns):
    with use(is_compiled):
        check_merge(columns)


@pytest.mark.parametrize("is_compiled", WAYS)
@given(pcs=PCS, depths=st.lists(st.integers(0, 4), min_size=1))
def test_columns(is_compiled, pcs, depths):
    with use(is_compiled):
        check_columns(pcs, depths)
