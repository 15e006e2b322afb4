# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes docs/check-rules.md from the table of rules: python -m tests.unit.check_rules_document > docs/check-rules.md."""

from kcovdbg.analysis.check.bugs import describe, find_bugs
from kcovdbg.analysis.check.looking import RULES

GROUPS = {
    "K": "Objects: `struct kcov`",
    "T": "Tasks: `task_struct.kcov_*`",
    "S": "Saved state of interrupted sessions",
    "R": "Remote handles: `kcov_remote_map`",
    "A": "Areas of sections: `kcov_remote_areas`",
    "B": "What is in buffers",
    "M": "Hash maps of UNIQ_PC, UNIQ_EDGE and UNIQ_CMP",
    "U": "Bitmaps of KCOV_UNIQUE_ENABLE",
    "F": "Records with a type: KCOV_TRACE_PC_EXT",
    "X": "Between the parts",
}
INTRODUCTION = """\
<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->
<!-- Made by: python -m tests.unit.check_rules_document > docs/check-rules.md -->
# The rules of check

What `check` holds KCOV's state against. The severity is that of a finding as it stands; a lock that is held or a task inside of
KCOV makes it `transient`, a running kernel `racing` (see [checking.md](checking.md)). *By* is the kernel function that sees to
it. Known bugs are named where they leave a state that the rule sees. `check --explain RULE` says the same.
"""


def make_document():
    """Return the document's text."""
    parts = [INTRODUCTION]
    for letter, title in GROUPS.items():
        parts.append(f"\n## {title}\n")
        for rule in RULES:
            if rule.name[0] != letter:
                continue
            parts.append(f"\n**{rule.name}** {rule.sentence}.\n\n")
            parts.append(f"- severity: {rule.severity.value}\n- kernels: {rule.eras}\n- by: {rule.guarantee}\n")
            if rule.detail:
                parts.append(f"- legal: {rule.detail}\n")
            parts += [f"- known bug: {describe(bug)}\n" for bug in find_bugs(rule.name)]
    return "".join(parts)


if __name__ == "__main__":
    print(make_document(), end="")
