# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines with points, joined with those that have code."""

from array import array

import pytest

from kcovdbg.model.location import FrameColumns
from kcovdbg.records.coverage import (
    HAS_DECIDED,
    HAS_UNKNOWN,
    NO_POINT_LINES,
    LineCoverage,
    PointLines,
    join_code,
    number_lines,
)
from kcovdbg.records.line_states import NO_CODE_LINES, CodeColumns, LineState, join_code_columns
from kcovdbg.records.native_loops import NO_ID
from kcovdbg.records.source_coverage import FunctionCoverage, SourceCoverage, add_executed

EXECUTED, PARTLY, NOT_EXECUTED = LineState.EXECUTED, LineState.PARTLY, LineState.NOT_EXECUTED
UNDECIDED, OUTSIDE, NOT_INSTRUMENTED = (
    LineState.UNDECIDED,
    LineState.OUTSIDE,
    LineState.NOT_INSTRUMENTED,
)


def make_columns(kind, codes, files):
    """Return columns of files: name -> line -> what else it has."""
    spans, rows = {}, []
    for name, lines in files.items():
        spans[name] = range(len(rows), len(rows) + len(lines))
        rows += [(line, *others) for line, others in lines.items()]
    columns = zip(*rows, strict=True)
    return kind(spans, *(array(code, column) for code, column in zip(codes, columns, strict=True)))


def points_of(**files):
    """Of each line its hits, points and covered points."""
    return make_columns(PointLines, "IQII", files)


def code_of(**files):
    """Of each line its state and hits."""
    return make_columns(CodeColumns, "IBQ", files)


def rows_of(joined):
    return [row for file in joined.files() for row in file.rows()]


@pytest.mark.parametrize(
    ("points", "code", "expected"),
    [
        ((5, 2, 2), None, (EXECUTED, 5, 2, 2)),
        ((5, 2, 1), None, (PARTLY, 5, 2, 1)),
        ((0, 2, 0), None, (UNDECIDED, 0, 2, 0)),
        (None, (NOT_EXECUTED, 0), (NOT_EXECUTED, 0, 0, 0)),
        (None, (EXECUTED, 3), (EXECUTED, 3, 0, 0)),
        ((5, 2, 2), (EXECUTED, 9), (EXECUTED, 9, 2, 2)),
        ((5, 2, 2), (EXECUTED, 1), (EXECUTED, 5, 2, 2)),
        # Code that was inlined there was executed.
        ((5, 2, 1), (NOT_EXECUTED, 0), (PARTLY, 5, 2, 1)),
        ((0, 2, 0), (OUTSIDE, 7), (OUTSIDE, 0, 2, 0)),
        # After all, it has no points.
        ((0, 0, 0), (NOT_EXECUTED, 0), (NOT_EXECUTED, 0, 0, 0)),
        ((0, 0, 0), None, None),
    ],
)
def test_a_line(points, code, expected):
    of_points = NO_POINT_LINES if points is None else points_of(f={7: points})
    of_code = NO_CODE_LINES if code is None else code_of(f={7: code})
    files = join_code(of_points, of_code, {})
    assert rows_of(files) == ([] if expected is None else [LineCoverage("f", 7, *expected)])


def test_files_and_lines_ascend():
    points = points_of(b={2: (1, 1, 1), 9: (1, 1, 1)}, c={1: (1, 1, 1)})
    code = code_of(c={3: (EXECUTED, 1)}, a={5: (EXECUTED, 1)}, b={4: (EXECUTED, 1)})
    places = [(row.file, row.line) for row in rows_of(join_code(points, code, {}))]
    assert places == [("a", 5), ("b", 2), ("b", 4), ("b", 9), ("c", 1), ("c", 3)]


def test_lines_of_functions():
    code = code_of(
        a={2: (EXECUTED, 9), 4: (NOT_EXECUTED, 0), 5: (EXECUTED, 3), 6: (EXECUTED, 4)},
        b={1: (UNDECIDED, 7), 12: (NOT_INSTRUMENTED, 0), 15: (NOT_EXECUTED, 0), 16: (OUTSIDE, 0)},
    )
    starts = {"a": {4, 3, 7}, "b": {1, 11, 13}}
    joined = join_code(NO_POINT_LINES, code, starts)
    found = zip(joined.function_lines, joined.function_hits, strict=True)
    both = HAS_DECIDED | HAS_UNKNOWN
    assert list(found) == [
        *((0, 0), (HAS_DECIDED, 3), (0, 0)),
        *((HAS_UNKNOWN, 0), (0, 0), (both, 0)),
    ]


def test_frames_without_a_line_are_of_none():
    files, lines = array("I", (2, 1, 2, 3, 1)), array("I", (9, 0, 7, 0, 9))
    nothing = array("I", bytes(20))
    frames = FrameColumns(nothing, nothing, files, lines, nothing, (None, "b", "./a", "b.c"))
    names = {1: "b", 2: "a", 3: None}
    spans, numbered, of_frame = number_lines(frames, names, unwanted=(2,))
    lines = {name: list(numbered[span.start : span.stop]) for name, span in spans.items()}
    assert lines == {"a": [9], "b": [9]}
    assert list(of_frame) == [0, NO_ID, NO_ID, NO_ID, 1]


def test_lines_of_a_module():
    image = code_of(a={1: (EXECUTED, 1), 3: (NOT_EXECUTED, 0)})
    module = code_of(a={2: (EXECUTED, 4), 3: (EXECUTED, 2)}, b={1: (NOT_EXECUTED, 0)})
    joined = join_code_columns(image, module)
    assert {
        name: [(row.line, row.state, row.hits) for row in rows]
        for name, rows in joined.rows().items()
    } == {
        "a": [(1, EXECUTED, 1), (2, EXECUTED, 4), (3, PARTLY, 2)],
        "b": [(1, NOT_EXECUTED, 0)],
    }


def test_line_that_ran_in_a_module_is_not_unknown():
    functions = [FunctionCoverage("f", 1, None), FunctionCoverage("g", 9, None)]
    image = SourceCoverage(
        "a.c", array("I", [3]), array("Q", [0]), functions, (), array("I", [5, 9])
    )
    (found,) = add_executed([image], {"./a.c": {3: 1, 5: 2}})
    assert (list(found.lines), list(found.hits)) == ([3, 5], [1, 2])
    assert list(found.unknown_lines) == [9]
    assert [function.hits for function in found.all_functions] == [1, None]
