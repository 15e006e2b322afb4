# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bugs of KCOV and its users that leave a state which a rule sees (kcov-abi.md 12)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from kcovdbg.abi.era import Feature
from kcovdbg.model.finding import Cause, Certainty
from kcovdbg.model.generation import Generation


class Bug(NamedTuple):
    """A known bug."""

    title: str
    fixed: str
    rules: Collection[str]
    """By which it shows."""
    eras: Collection[str]
    """Whose kernels may have it."""
    marks: Collection[str] = ()
    """Those of the rules that no other known bug violates on such a kernel."""
    needs_rt: bool = False
    needs: Feature | None = None
    """Which kernels of these eras have it: those with a posted series."""


BUGS: Final = (
    Bug(
        "one task enables two kcovs: the older one is lost",
        "v4.16",
        ("T1", "T10", "X4"),
        ("E0", "E1", "E2"),
        marks=("T10", "X4"),
    ),
    Bug(
        "an interrupt, or a fault in a context switch, sees a task's fields half initialised",
        "v4.18",
        ("T3",),
        ("E0", "E1", "E2"),
    ),
    Bug("kcov_remote_start() reads the object after it dropped its reference", "v5.8", ("K1",), ("E3",)),
    Bug("kcov_remote_stop() in a softirq that never started a section", "v5.8", ("T7", "S2"), ("E4",)),
    Bug(
        "lost remote references: a softirq section interrupts the owner of a KCOV_REMOTE_ENABLE, whose state isn't saved, as "
        "its mode is 0; its handles stay registered for ever, and others get EEXIST",
        "v6.10 (stable kernels took it, 6.1.96 for instance)",
        ("K5", "K6", "T1", "T4", "R5", "X3"),
        ("E4", "E5-E6"),
        marks=("K6", "T4", "X3"),
    ),
    Bug(
        "on PREEMPT_RT a softirq section is preempted and another one of the CPU uses its area and its saved state",
        "August 2026 (6.1.185, 6.12.106)",
        ("S1", "S2", "S3", "T2", "T5", "T7", "T12"),
        ("E4", "E5-E6", "E7", "E8"),
        marks=("S1", "S2"),
        needs_rt=True,
    ),
    Bug(
        "a USB request is given back in a context of its own: a section begins inside another one",
        "v5.10; since USB moved to a workqueue again until v6.11",
        ("T6", "T7", "T12"),
        ("E4", "E5-E6", "E7"),
    ),
    Bug(
        "mac80211 runs its receive section in the context of a user task that has KCOV enabled (syzbot: WARNING in "
        "kcov_remote_start (6))",
        "not yet",
        ("T6",),
        ("E7", "E8", "E9a", "E9b"),
    ),
    Bug(
        "nfc's nci_rx_work() leaves a section open, as it checks the wrong kcov",
        "v6.10",
        ("T12",),
        ("E3", "E4", "E5-E6"),
    ),
    Bug(
        "a count that user space wrote passes the bound of comparisons: the kernel writes outside of the buffer",
        "autumn 2026 (6.12.117)",
        ("B2",),
        ("E2", "E3", "E4", "E5-E6", "E7", "E8", "E9a", "E9b"),
    ),
    Bug(
        "the count of a merged section becomes visible before its records",
        "v6.18",
        ("B4",),
        ("E3", "E4", "E5-E6", "E7"),
    ),
    Bug(
        "a second KCOV_INIT_TRACE replaces an object's maps before it is refused: the first ones leak, and the new buffers "
        "have another size than the object",
        "not in its postings of January 2025",
        ("K4", "M2", "X2"),
        ("E7",),
        needs=Feature.UNIQUE_MAPS,
    ),
    Bug(
        "KCOV_INIT_TRACE runs out of memory and leaves a map that is half made",
        "not in its postings of January 2025",
        ("K4", "M1"),
        ("E7",),
        needs=Feature.UNIQUE_MAPS,
    ),
    Bug(
        "KCOV_REMOTE_ENABLE takes unique modes: sections of several tasks change one map without a lock",
        "not in its postings of January 2025",
        ("M3", "M4"),
        ("E7",),
        needs=Feature.UNIQUE_MAPS,
    ),
)


def find_bugs(rule: str, generation: Generation | None = None, *, is_rt: bool | None = None) -> tuple[Bug, ...]:
    """Return the known bugs that show by a rule.

    :param generation: of the kernel; None for those of any.
    :param is_rt: whether the kernel is a PREEMPT_RT one; None where that isn't known.
    """
    return tuple(
        bug
        for bug in BUGS
        if rule in bug.rules
        and (generation is None or (generation.era in bug.eras and (bug.needs is None or generation.has(bug.needs))))
        and not (bug.needs_rt and (is_rt is False or (is_rt is None and generation is not None)))
    )


def find_causes(bugs: Iterable[Bug], rule: str, certainty: Certainty) -> tuple[Cause, ...]:
    """Say how sure it is that each of some bugs is the cause of a finding; the likeliest first.

    :param bugs: as :func:`find_bugs` returns them.
    :param certainty: of the finding.
    """
    causes = []
    for bug in bugs:
        if certainty is not Certainty.CERTAIN:
            doubt, reason = Certainty.UNSURE, "what was found isn't certain itself"
        elif rule in bug.marks:
            doubt, reason = Certainty.LIKELY, "no other known bug leaves this"
        else:
            doubt, reason = Certainty.UNSURE, f"other bugs and damage violate {rule}, too"
        causes.append(Cause(bug.title, bug.fixed, doubt, reason))
    return tuple(sorted(causes, key=lambda cause: cause.certainty is not Certainty.LIKELY))


def describe(bug: Bug) -> str:
    """Say in one line what it is and where it was fixed."""
    return f"{bug.title} (fixed: {bug.fixed})"
