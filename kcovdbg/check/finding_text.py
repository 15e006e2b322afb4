# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words for the findings of a check, for text and for pages."""

from __future__ import annotations

from typing import NamedTuple

from kcovdbg.check.runner import Report, find_rule
from kcovdbg.model.finding import Finding, Severity
from kcovdbg.model.kcov import amount_text
from kcovdbg.model.rule import Rule


class FindingText(NamedTuple):
    """The words for a finding."""

    rule: str
    """The rule's sentence."""
    values: str
    """The values that disagree."""
    certainty: str
    """How certain it is, and why."""
    causes: tuple[str, ...]
    """The known bugs that can be the cause."""


def rule_of(finding: Finding) -> Rule:
    """Return the rule that a finding violates."""
    rule = find_rule(finding.rule)
    assert rule is not None
    return rule


def word_finding(finding: Finding) -> FindingText:
    """Return the words for a finding."""
    certainty = finding.certainty.value
    if finding.reason:
        certainty = f"{certainty}: {finding.reason}"
    return FindingText(
        f"{finding.rule}: {rule_of(finding).sentence}",
        "  ".join(finding.value_texts),
        certainty,
        tuple(
            f"known bug, {cause.certainty.value} ({cause.reason}): {cause}"
            for cause in finding.causes
        ),
    )


def count_findings(report: Report) -> str:
    """Return how many violations and other findings there are, and what could not be judged."""
    found = "no violations"
    if report.violations:
        found = amount_text(report.violations, "violation")
    is_least = False
    others = -report.violations
    for finding in report.findings:
        is_least = is_least or finding.is_least
        if finding.severity is not Severity.UNKNOWN:
            others += finding.more or 1
    if is_least:
        found = f"at least {found}"
    if others:
        found += f", {amount_text(others, 'other finding')}"
    return f"{found}; {report.unjudged_text}" if report.unjudged else found
