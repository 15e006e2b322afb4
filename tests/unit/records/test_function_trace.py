# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which points belong to one function of a trace."""

from __future__ import annotations

from collections import Counter

import pytest

from kcovdbg.model.location import Frame
from kcovdbg.records.function_trace import find_runs, group_by_function, list_functions

A, B = ("show", "a.c"), ("show", "b.c")
OTHER = ("between", "c.c")
HEADER = ("list_add", "list.h")


@pytest.mark.parametrize(
    ("places", "groups"),
    [
        # A line of a header is in its function; functions of one name stay apart.
        ([("show", "a.c"), ("show", "rcupdate.h"), ("show", "a.c")], [A, A, A]),
        (
            [("show", "a.c"), ("show", "a.h"), OTHER, ("show", "b.h"), ("show", "b.c")],
            [A, A, OTHER, B, B],
        ),
        ([HEADER, HEADER], [HEADER, HEADER]),
        # Points without a name are alone.
        ([(None, None), (None, None)], [0, 1]),
    ],
)
def test_points_of_one_function(
    places: list[tuple[str | None, str | None]], groups: list[object]
) -> None:
    found = group_by_function({pc: Frame(*place, 1, None) for pc, place in enumerate(places)})
    assert [found[pc] for pc in range(len(places))] == groups
    steps = list_functions(find_runs(range(len(places)), found.__getitem__))
    assert {step.group: step.records for step in steps} == Counter(groups)
