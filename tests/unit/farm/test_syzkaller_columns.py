# SPDX-License-Identifier: LGPL-2.1-or-later
"""The columns of ``syzkaller``: what check could not judge is neither a violation nor none."""

from pathlib import Path

import pytest

from kcovdbg.farm.batch_run import LineOutcome, Outcome
from kcovdbg.farm.syzkaller_command import _Row, _violations
from tests.support.stub import make_stub


@pytest.mark.parametrize(("status", "violations"), [(0, False), (1, True), (3, None)])
def test_violations(status, violations):
    outcome = Outcome("vmcore", lines=(LineOutcome("info", 0, 1), LineOutcome("check", status, 0)))
    row = make_stub(_Row, outcome=outcome, answers=Path("answers"))
    assert _violations(row) is violations


def test_no_check():
    assert _violations(make_stub(_Row, outcome=Outcome("vmcore"))) is None
    failed = Outcome("vmcore", lines=(LineOutcome("check", 2, 0, "it failed"),))
    assert _violations(make_stub(_Row, outcome=failed)) is None
