# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that a patch changes, and words about them: a build that has no point on a line does
not tell whether it ran.
"""

import difflib
import random
import re

import pytest

from kcovdbg.records.coverage import LineCoverage
from kcovdbg.report.changes import Change, ChangedLine, change_markup, diff_hunks

COVERED = LineCoverage("a.c", 1, 7, 1, 1)
NOT_COVERED = LineCoverage("a.c", 1, 0, 1, 0)


def words(before, after, left, right):
    """Return the words about one line, with its coverage before and after."""
    line = ChangedLine(1 if before else None, 1 if after else None, "text")
    change = Change("a.c", ((line,),), {1: left} if left else {}, {1: right} if right else {})
    return re.search(r'class="covered">(.*?)<', "".join(change_markup(change, is_open=True)))[1]


def test_lines_of_both_builds():
    told = {
        (left, right): words(True, True, left, right)
        for left in (COVERED, NOT_COVERED, None)
        for right in (COVERED, NOT_COVERED, None)
    }
    # What is known differs, and so do the words.
    assert len(set(told.values())) == len(told)
    assert told[None, None] == ""
    for (left, right), text in told.items():
        assert ("no point before" in text) == (left is None and right is not None)
        assert ("no point after" in text) == (right is None and left is not None)


@pytest.mark.parametrize("covered", [True, False])
def test_lines_of_one_build(covered):
    line = COVERED if covered else NOT_COVERED
    assert words(True, False, line, None) == ("covered before" if covered else "never covered")
    assert words(False, True, None, line) == ("covered after" if covered else "never covered")


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
