# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/check-rules.md says what the table of rules says."""

from pathlib import Path

from kcovdbg.analysis.check.bugs import BUGS
from kcovdbg.analysis.check.looking import RULES
from tests.unit.check_rules_document import GROUPS, make_document

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_document_is_that_of_the_table():
    hint = "python -m tests.unit.check_rules_document > docs/check-rules.md"
    assert (DOCS / "check-rules.md").read_text() == make_document(), hint


def test_nothing_is_left_out():
    text = make_document()
    assert {rule.name[0] for rule in RULES} == GROUPS.keys()
    for rule in RULES:
        assert f"**{rule.name}** {rule.sentence}." in text
    for bug in BUGS:
        assert bug.title in text


def test_checking_names_as_many_rules():
    assert f"against {len(RULES)} invariants" in (DOCS / "checking.md").read_text()
