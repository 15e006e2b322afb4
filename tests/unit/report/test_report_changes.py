# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that a patch changes, and words about them: a build that has no point on a line does
not tell whether it ran.
"""

import difflib
import random
import re

import pytest

from kcovdbg.records.coverage import LineCoverage
from kcovdbg.records.line_states import LineState
from kcovdbg.report.changes import Change, ChangedLine, change_markup, diff_hunks

STATES = {
    "executed": LineState.EXECUTED,
    "not executed": LineState.NOT_EXECUTED,
    "unknown": LineState.MOVED,
    "no code": None,
}


def cover(state):
    return None if state is None else LineCoverage("a.c", 1, state, 7, 1, 0)


def change_of(before, after, left, right):
    """Return a change of one line, with its state before and after."""
    line = ChangedLine(1 if before else None, 1 if after else None, "text")
    left, right = cover(left), cover(right)
    return Change("a.c", ((line,),), {1: left} if left else {}, {1: right} if right else {})


def words(*given):
    markup = "".join(change_markup(change_of(*given), is_open=True))
    return re.search(r'class="covered">(.*?)<', markup)[1]


def test_lines_of_both_builds():
    told = {
        (left, right): words(True, True, STATES[left], STATES[right])
        for left in STATES
        for right in STATES
    }
    # What is known differs, and so do the words.
    assert len(set(told.values())) == len(told)
    assert told["no code", "no code"] == ""
    for (left, right), text in told.items():
        if left != right:
            assert text == f"{left} before, {right} after"


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_lines_of_one_build(state):
    told = words(True, False, state, None), words(False, True, None, state)
    expected = {
        LineState.EXECUTED: ("executed before", "executed after"),
        LineState.NOT_EXECUTED: ("never executed", "never executed"),
        LineState.MOVED: ("unknown", "unknown"),
        None: ("", ""),
    }
    assert told == expected[state]


def test_unknown_lines_are_counted_apart():
    counts = change_of(True, False, LineState.MOVED, None).counts
    assert (counts.removed, counts.executed_before, counts.never, counts.unknown) == (1, 0, 0, 1)
    counts = change_of(False, True, None, LineState.NOT_EXECUTED).counts
    assert (counts.added, counts.executed_after, counts.never, counts.unknown) == (1, 0, 1, 0)
    # Lines that both builds have are no change.
    assert change_of(True, True, LineState.EXECUTED, LineState.EXECUTED).counts.never == 0


@pytest.mark.parametrize("seed", range(20))
def test_hunks_are_those_of_a_unified_diff(seed):
    dice = random.Random(seed)
    old = [f"line {dice.randrange(400)}" for _ in range(120)]
    new = [line for line in old if dice.random() > 0.05]
    for _ in range(dice.randrange(6)):
        new.insert(dice.randrange(len(new)), f"new {dice.randrange(1000)}")
    hunks = list(diff_hunks(old, new))
    rebuilt = list(old)
    for line in reversed([line for hunk in hunks for line in hunk]):
        if line.after is None:
            del rebuilt[line.before - 1]
    for line in [line for hunk in hunks for line in hunk]:
        if line.before is None:
            rebuilt.insert(line.after - 1, line.text)
    assert rebuilt == new
    expected = [line for line in difflib.unified_diff(old, new, n=3) if line.startswith("@@")]
    assert len(hunks) == len(expected)
    assert sum(map(len, hunks)) <= sum(1 for _ in difflib.unified_diff(old, new, n=3)) + 6
