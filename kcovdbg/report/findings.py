# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of ``check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kcovdbg.model.finding import Finding
from kcovdbg.console.html_markup import text


def findings_markup(findings: Sequence[Finding], applied: int, sentence_of: Callable[[str], str]) -> Iterator[str]:
    """Yield the findings.

    :param applied: the number of rules that were applied.
    :param sentence_of: from a rule's name to its sentence.
    """
    violations = sum(finding.more or 1 for finding in findings if finding.severity.is_violation)
    said = "none violated" if not violations else "1 violation" if violations == 1 else f"{violations} violations"
    said = f"at least {said}" if any(finding.is_least for finding in findings) else said
    yield f"<p>{applied} {'rule' if applied == 1 else 'rules'}: {said}.</p>"
    for finding in findings:
        yield f'<article class="finding {text(finding.severity.value)}">'
        yield (
            f'<p><strong class="s-{text(finding.severity.value)}">{text(finding.severity.value)}</strong> '
            f"<strong>{text(finding.rule)}</strong> {text(finding.object)}: {text(finding.message)}</p>"
        )
        yield f'<p class="place">{text(finding.rule)}: {text(sentence_of(finding.rule))}</p>'
        sure = finding.certainty.value + (f": {finding.reason}" if finding.reason else "")
        values = "  ".join(f"{name}={value}" for name, value in finding.values)
        yield f"<p>{text(sure)}{f' <code>{text(values)}</code>' if values else ''}</p>"
        for cause in finding.causes:
            yield f"<p>Known bug, {text(f'{cause.certainty.value} ({cause.reason}): {cause}')}</p>"
        yield "</article>"
