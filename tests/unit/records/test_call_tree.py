# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of traces with entry and exit records."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.abi.record import RecordKind
from kcovdbg.model.buffer import Gap
from kcovdbg.records.call_tree import CallKind, build_calls, find_events
from kcovdbg.series.trace_pc_ext import PC_EXT
from tests.support.traces import make_buffer, pc


def events(text):
    """Return records: capital letters enter, small ones leave, dots are points."""
    kinds = {".": RecordKind.PC}
    return [
        (
            index,
            kinds.get(letter, RecordKind.ENTRY if letter.isupper() else RecordKind.EXIT),
            pc(ord(letter.upper()) - 64 if letter != "." else 0),
        )
        for index, letter in enumerate(text)
    ]


def show(text):
    return [
        (
            chr(64 + (call.pc - pc(0)) // 256),
            call.depth,
            call.kind.value,
            call.first,
            call.last,
            call.points,
        )
        for call in build_calls(events(text))
    ]


def test_calls():
    assert show("A.B..ba") == [("A", 0, "call", 0, 6, 1), ("B", 1, "call", 2, 5, 2)]
    # b and a were running when it began, c goes on when it ends.
    assert show(".Dd.b..a.C.") == [
        ("A", 0, "begun-earlier", 0, 7, 2),
        ("B", 1, "begun-earlier", 0, 4, 2),
        ("D", 2, "call", 1, 2, 0),
        ("C", 0, "unfinished", 9, 10, 1),
    ]


@given(st.text("ABCabc.", max_size=40))
def test_calls_are_always_balanced(text):
    calls = build_calls(events(text))
    assert sum(call.kind is not CallKind.BEGUN_EARLIER for call in calls) == sum(
        map(str.isupper, text)
    )
    assert sum(call.kind is not CallKind.UNFINISHED for call in calls) == sum(
        map(str.islower, text)
    )
    assert all(0 <= call.first <= call.last < len(text) and call.depth >= 0 for call in calls)
    # Deeper calls are within less deep ones, and calls of one depth do not overlap.
    for call in calls:
        if call.depth:
            assert any(
                other.depth == call.depth - 1
                and other.first <= call.first
                and call.last <= other.last
                for other in calls
            )
    for depth in {call.depth for call in calls}:
        spans = sorted((call.first, call.last) for call in calls if call.depth == depth)
        assert all(one[1] < other[0] for one, other in pairwise(spans))


def test_events_of_a_buffer():
    low = (1 << 56) - 1
    words = [pc(1) & low, 0, 5 << 60, pc(2), pc(1) & low | 1 << 60]
    found = list(find_events(make_buffer(words, codec=PC_EXT, gaps=(Gap(3, 1),))))
    assert found == [(0, RecordKind.ENTRY, pc(1)), (4, RecordKind.EXIT, pc(1))]


def test_events_up_to_a_record():
    low = (1 << 56) - 1
    words = [pc(1) & low, pc(1, 1), pc(1) & low | 1 << 60]
    assert [event[0] for event in find_events(make_buffer(words, codec=PC_EXT), 2)] == [0, 1]
