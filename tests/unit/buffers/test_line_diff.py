# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines that some runs executed and others did not: a run of which it is unknown is neither."""

import pytest

from kcovdbg.buffers.line_diff import _count_runs, _find_rows
from kcovdbg.inputs.buffer_sources import BufferCounts
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_sources import KernelSources
from kcovdbg.records.code_states import CodeStates
from kcovdbg.records.line_states import INCOMPLETE, SET, TraceRecords
from kcovdbg.records.run_counts import DiffSide
from kcovdbg.symbols.blocks import BlockFlag
from kcovdbg.symbols.source_tree import SourceTree
from tests.support.stub import make_stub
from tests.unit.records.test_line_states import KINDS, Block, make_finder, point

# The left branch is line 11, the right one line 12; both have points.
BLOCKS = (
    Block((1, 2), BlockFlag.ENTRY, True, ((10, True),)),
    Block((3,), 0, True, ((11, True),)),
    Block((3,), 0, True, ((12, True),)),
    Block((), BlockFlag.EXIT, False, ((13, True),)),
)
LEFT, RIGHT, BOTH, NOTHING = {0, 1}, {0, 2}, {0, 1, 2}, set()


def compare(left, right, files=()):
    """Return the rows of runs, each a set of blocks, and the numbers of common and unknown lines.

    A list is a run whose buffer was full.
    """
    finder = make_finder(BLOCKS)
    code = CodeStates([])
    code.finders, code.starts = [finder], [0, len(finder)]
    functions = code.find_executed([point(0)])

    def read(runs):
        for blocks in runs:
            quality = INCOMPLETE if isinstance(blocks, list) else SET
            trace = TraceRecords({point(block): 2 for block in blocks}, quality, KINDS)
            yield BufferCounts(trace, ())

    sides = (_count_runs(code, functions, lambda runs=runs: read(runs)) for runs in (left, right))
    kernel = make_stub(Kernel, sources=make_stub(KernelSources, tree=SourceTree(())))
    rows, common, unknown = _find_rows(kernel, *sides, files)
    return {row.line: (row.side, row.left_runs, row.right_runs) for row in rows}, common, unknown


@pytest.mark.parametrize(
    ("left", "right", "rows", "common", "unknown"),
    [
        ([LEFT], [LEFT], {}, 3, 0),
        ([LEFT], [RIGHT], {11: (DiffSide.LEFT, 1, 0), 12: (DiffSide.RIGHT, 0, 1)}, 2, 0),
        ([BOTH], [LEFT], {12: (DiffSide.LEFT, 1, 0)}, 3, 0),
        # A function that only one side executed.
        ([NOTHING], [LEFT], dict.fromkeys((10, 11, 13), (DiffSide.RIGHT, 0, 1)), 0, 0),
        (
            [LEFT, BOTH],
            [RIGHT, RIGHT],
            {11: (DiffSide.LEFT, 2, 0), 12: (DiffSide.FLICKER, 1, 2)},
            2,
            0,
        ),
        # Of a full buffer nothing says that a line was not executed.
        ([LEFT], [[0, 2]], {12: (DiffSide.RIGHT, 0, 1)}, 2, 1),
        ([LEFT, RIGHT], [[0]], {11: (DiffSide.FLICKER, 1, 0), 12: (DiffSide.FLICKER, 1, 0)}, 1, 1),
        ([[0]], [[0]], {}, 1, 3),
    ],
)
def test_lines_of_runs(left, right, rows, common, unknown):
    assert compare(left, right) == (rows, common, unknown)


def test_files():
    assert compare([LEFT], [RIGHT], ["other.c"]) == ({}, 0, 0)
    assert compare([LEFT], [RIGHT], ["file.c"])[0]
