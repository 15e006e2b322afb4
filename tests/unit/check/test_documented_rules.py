# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/check-rules.md has every rule and every known bug. Whether it is current, test_generated.py checks."""

from docs.generate.rule_pages import write_rules
from kcovdbg.check.known_bugs import BUGS
from kcovdbg.check.runner import list_rules


def test_nothing_is_left_out():
    text = write_rules()
    for rule in list_rules():
        assert f"**{rule.name}** {rule.sentence}." in text
        assert rule.consequence
        assert f"- consequence: {rule.consequence}" in text
    for bug in BUGS:
        assert bug.title in text
