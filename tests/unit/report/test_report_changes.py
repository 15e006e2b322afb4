# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words about the lines of a patch: a build that has no point on a line does not tell whether it ran."""

import re

import pytest

from kcovdbg.records.coverage import LineCoverage
from kcovdbg.report.listing import Change, ChangeLine, change_markup

COVERED = LineCoverage("a.c", 1, 7, 1, 1)
NOT_COVERED = LineCoverage("a.c", 1, 0, 1, 0)


def words(before, after, left, right):
    """Return the words about one line, with its coverage before and after."""
    line = ChangeLine(1 if before else None, 1 if after else None, "text")
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
