# SPDX-License-Identifier: LGPL-2.1-or-later
"""Known bugs of KCOV and of its callers that leave state which violates rules (kcov-abi.md 12)."""

from __future__ import annotations

from typing import Final

from kcovdbg.model.finding import Cause, Certainty
from kcovdbg.model.rule import KnownBug
from kcovdbg.model.state import KernelFacts
from kcovdbg.series import table

BUGS: Final = (
    KnownBug(
        "a task enables two objects, and the first one is lost",
        "v4.16",
        ("T1", "T10", "X4"),
        ("E0", "E1", "E2"),
        marks=("T10", "X4"),
    ),
    KnownBug(
        "an interrupt, or a fault in a context switch, sees a task's fields half initialized",
        "v4.18",
        ("T3",),
        ("E0", "E1", "E2"),
    ),
    KnownBug(
        "kcov_remote_start() reads the object after dropping its reference",
        "v5.8",
        ("K1",),
        ("E3",),
    ),
    KnownBug(
        "a softirq that started no section calls kcov_remote_stop()", "v5.8", ("T7", "S2"), ("E4",)
    ),
    KnownBug(
        "lost remote references: a softirq section interrupts the owner of a KCOV_REMOTE_ENABLE, "
        "whose state is not saved because its mode is 0; its handles stay registered forever, and "
        "registering them again fails with EEXIST",
        "v6.10 (back-ported to stable kernels, such as 6.1.96)",
        ("K5", "K6", "T1", "T4", "R5", "X3"),
        ("E4", "E5-E6"),
        marks=("K6", "T4", "X3"),
    ),
    KnownBug(
        "on PREEMPT_RT a softirq section is preempted, and another one on the CPU uses the "
        "same area and saved state",
        "August 2026 (6.1.185, 6.12.106)",
        ("S1", "S2", "S3", "T2", "T5", "T7", "T12"),
        ("E4", "E5-E6", "E7", "E8"),
        marks=("S1", "S2"),
        needs_rt=True,
    ),
    KnownBug(
        "a URB is completed in another context, so that a section starts inside another one",
        "v5.10; again v6.11, after USB moved to a workqueue",
        ("T6", "T7", "T12"),
        ("E4", "E5-E6", "E7"),
    ),
    KnownBug(
        "mac80211 runs its receive section in the context of a user task that has KCOV enabled: "
        "the section does not begin, but its end ends the task's session and makes its buffer a "
        "free area (syzbot: WARNING in kcov_remote_start (6))",
        "not yet",
        ("K10", "T1", "T6", "A2", "B1"),
        ("E7", "E8", "E9a", "E9b"),
        marks=("K10", "A2"),
    ),
    KnownBug(
        "nci_rx_work() of NFC leaves a section open because it checks the wrong kcov",
        "v6.10",
        ("T12",),
        ("E3", "E4", "E5-E6"),
    ),
    KnownBug(
        "a count that user space wrote passes the bounds check of comparisons, and the kernel "
        "writes outside of the buffer",
        "autumn 2026 (6.12.117)",
        ("B2",),
        ("E2", "E3", "E4", "E5-E6", "E7", "E8", "E9a", "E9b"),
    ),
    KnownBug(
        "the count of a merged section is visible before its records",
        "v6.18",
        ("B4",),
        ("E3", "E4", "E5-E6", "E7"),
    ),
)


def find_bugs(rule: str, kernel: KernelFacts | None = None) -> tuple[KnownBug, ...]:
    """Return the known bugs that violate a rule.

    :param kernel: a kernel that may have them; None for bugs of all kernels.
    """
    bugs = list(BUGS)
    for series in table.SERIES:
        bugs += series.bugs
    if kernel is not None:
        bugs = [bug for bug in bugs if _may_have(kernel, bug)]
    return tuple(bug for bug in bugs if rule in bug.rules)


def _may_have(kernel: KernelFacts, bug: KnownBug) -> bool:
    if bug.needs is not None and not kernel.has(bug.needs):
        return False
    if bug.needs_rt and not kernel.is_rt:
        return False
    return kernel.generation.era in bug.eras


def find_causes(rule: str, kernel: KernelFacts, certainty: Certainty) -> tuple[Cause, ...]:
    """Return the known bugs that may have caused a finding, the likeliest first.

    :param certainty: the certainty of the finding.
    """
    causes = []
    for bug in find_bugs(rule, kernel):
        if certainty is not Certainty.CERTAIN:
            doubt, reason = Certainty.UNSURE, "the finding itself is not certain"
        elif rule in bug.marks:
            doubt, reason = Certainty.LIKELY, "no other known bug leaves this state"
        else:
            doubt, reason = Certainty.UNSURE, f"other bugs and damage also violate {rule}"
        causes.append(Cause(bug.title, bug.fixed, doubt, reason))
    return tuple(sorted(causes, key=lambda cause: cause.certainty is not Certainty.LIKELY))
