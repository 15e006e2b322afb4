# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a check found."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Severity(str, Enum):
    """How bad a finding is."""

    ERROR = "error"
    """The kernel can't bring this about by itself: a bug of the kernel, or damage."""
    WARNING = "warning"
    """User space can bring it about, or another tree's KCOV."""
    TRANSIENT = "transient"
    """Whoever holds a lock, or is inside a function of KCOV, may be about to put it right."""
    RACING = "racing"
    """A live kernel changed it while it was looked at."""
    ADVICE = "advice"
    """Legal, and hardly what anybody wants."""

    @property
    def is_violation(self) -> bool:
        """Whether something is wrong for sure."""
        return self in (Severity.ERROR, Severity.WARNING)


class Certainty(str, Enum):
    """How sure a finding is."""

    CERTAIN = "certain"
    """All that it rests on was read."""
    LIKELY = "likely"
    """There is another explanation, which is rare."""
    UNSURE = "unsure"
    """Something that would explain it couldn't be read."""


class Cause(NamedTuple):
    """A known bug that leaves what was found."""

    bug: str
    fixed: str
    """Where: a release, or a date with the stable releases that took the fix."""
    certainty: Certainty
    """How much speaks for it: likely or unsure. No state proves which code has run."""
    reason: str
    """Why it isn't surer."""

    def __str__(self) -> str:
        return f"{self.bug} (fixed: {self.fixed})"


class Finding(NamedTuple):
    """One violated invariant, or how many more there are of a rule."""

    rule: str
    severity: Severity
    object: str
    """What it is about: ``kcov 0xffff…``, ``task 41 (syz-executor)``."""
    message: str
    values: tuple[tuple[str, str], ...] = ()
    """What disagrees, or decides: names and values."""
    certainty: Certainty = Certainty.CERTAIN
    reason: str | None = None
    """Why it isn't certain, or only transient."""
    causes: tuple[Cause, ...] = ()
    """The known bugs with this signature, the likeliest first."""
    more: int = 0
    """Where it isn't 0, this stands for so many of the rule that are left out."""
    is_least: bool = False
    """Whether there may be more than that: nobody has counted further."""

    @property
    def cause(self) -> str | None:
        """The known bugs in one line."""
        return "; or ".join(map(str, self.causes)) or None
