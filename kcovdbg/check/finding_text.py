# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words for the findings of a check, for text and for pages."""

from __future__ import annotations

from typing import NamedTuple

from kcovdbg.check.runner import Report, find_rule
from kcovdbg.model.finding import Finding, Severity


class FindingText(NamedTuple):
    """The words for a finding; an empty text for what it has not."""

    rule: str
    """The rule's sentence."""
    values: str
    """The values that disagree."""
    certainty: str
    """How certain it is, and why."""
    causes: tuple[str, ...]
    """The known bugs that can be the cause."""


def word_finding(finding: Finding) -> FindingText:
    """Return the words for a finding."""
    rule = find_rule(finding.rule)
    assert rule is not None
    certainty = finding.certainty.value
    if finding.reason:
        certainty = f"{certainty}: {finding.reason}"
    return FindingText(
        f"{finding.rule}: {rule.sentence}",
        "  ".join(f"{name}={value}" for name, value in finding.values),
        certainty,
        tuple(
            f"known bug, {cause.certainty.value} ({cause.reason}): {cause}"
            for cause in finding.causes
        ),
    )


def count_findings(report: Report) -> str:
    """Return how many violations and other findings there are, and what could not be judged."""
    found = count_noun(report.violations, "violation")
    if any(finding.is_least for finding in report.findings):
        found = f"at least {found}"
    counted = [finding for finding in report.findings if finding.severity is not Severity.UNKNOWN]
    others = sum(finding.more or 1 for finding in counted) - report.violations
    if others:
        found += f", {count_noun(others, 'other finding')}"
    return f"{found}; {report.unjudged_text}" if report.unjudged else found


def count_noun(count: int, noun: str) -> str:
    """Return a number with a noun."""
    if count == 1:
        return f"1 {noun}"
    return f"{count or 'no'} {noun}s"
