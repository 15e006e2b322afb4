# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which points belong to one function of a trace."""

from __future__ import annotations

from kcovdbg.model.location import Frame
from kcovdbg.records.function_trace import find_runs, group_by_function, list_functions


def frame(function: str | None, file: str | None) -> Frame:
    return Frame(function, file, 1, None)


def test_a_line_of_a_header_is_in_its_function() -> None:
    frames = {
        0x10: frame("mntput_no_expire", "fs/namespace.c"),
        0x14: frame("mntput_no_expire", "include/linux/rcupdate.h"),
        0x18: frame("mntput_no_expire", "fs/namespace.c"),
    }
    groups = group_by_function(frames)
    assert set(groups.values()) == {("mntput_no_expire", "fs/namespace.c")}
    (step,) = list_functions(find_runs([0x14, 0x10, 0x18], groups.__getitem__))
    assert (step.records, step.rounds) == (3, 1)


def test_functions_of_one_name_stay_apart() -> None:
    frames = {
        0x10: frame("show", "a.c"),
        0x14: frame("show", "a.h"),
        0x20: frame("between", "c.c"),
        0x30: frame("show", "b.h"),
        0x34: frame("show", "b.c"),
    }
    groups = group_by_function(frames)
    assert [groups[pc] for pc in (0x10, 0x14, 0x30, 0x34)] == [("show", "a.c")] * 2 + [("show", "b.c")] * 2


def test_a_function_of_a_header() -> None:
    groups = group_by_function({0x10: frame("list_add", "list.h"), 0x14: frame("list_add", "list.h")})
    assert set(groups.values()) == {("list_add", "list.h")}


def test_points_without_a_name_are_alone() -> None:
    groups = group_by_function({0x10: frame(None, None), 0x14: frame(None, None)})
    assert groups == {0x10: 0x10, 0x14: 0x14}
