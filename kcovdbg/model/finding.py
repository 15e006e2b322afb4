# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of ``check``."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Severity(str, Enum):
    """Severity of a finding."""

    ERROR = "error"
    """The kernel cannot do this by design: a bug of the kernel, or damage."""
    WARNING = "warning"
    """User space, or another tree's KCOV, can cause it."""
    TRANSIENT = "transient"
    """The holder of a lock, or a task inside a function of KCOV, may be about to resolve it."""
    RACING = "racing"
    """A live kernel changed it during the check."""
    ADVICE = "advice"
    """Legal, but probably unintended."""
    INFO = "info"
    """Unknown to kcovdbg, and no violation."""
    UNKNOWN = "unknown"
    """Not judged, as data of the rule could not be read; no violation."""

    @property
    def is_violation(self) -> bool:
        """Whether an invariant is violated."""
        return self in (Severity.ERROR, Severity.WARNING)


class Certainty(str, Enum):
    """Certainty of a finding."""

    CERTAIN = "certain"
    """All data of the rule was read."""
    LIKELY = "likely"
    """There is another, rare explanation."""
    UNSURE = "unsure"
    """Something else, such as user space or incomplete debug info, may explain it."""
    UNKNOWN = "unknown"
    """Data of the rule could not be read."""


class Cause(NamedTuple):
    """A known bug that may have left the state of a finding."""

    bug: str
    fixed: str
    """The first release without it, or a date with the stable releases that took the fix."""
    certainty: Certainty
    """LIKELY or UNSURE: no state proves which code has run."""
    reason: str
    """Reason for the limited certainty."""

    def __str__(self) -> str:
        return f"{self.bug} (fixed: {self.fixed})"


class Finding(NamedTuple):
    """One violated invariant, or the number of further violations of a rule."""

    rule: str
    severity: Severity
    object: str
    """The subject: ``kcov 0xffff…``, ``task 41 (syz-executor)``."""
    message: str
    values: tuple[tuple[str, str], ...] = ()
    """Names and values that disagree."""
    certainty: Certainty = Certainty.CERTAIN
    reason: str | None = None
    """Reason why it is not certain, or only transient."""
    causes: tuple[Cause, ...] = ()
    """The known bugs that leave this state, the likeliest first."""
    more: int = 0
    """How many violations of the rule are left out here; 0 for a violation itself."""
    is_least: bool = False
    """Whether there may be more of them, because counting stopped."""

    @property
    def value_texts(self) -> tuple[str, ...]:
        """The values with their names: ``refcount=1``."""
        return tuple(map("{0[0]}={0[1]}".format, self.values))

    @property
    def cause(self) -> str | None:
        """The known bugs in one line."""
        return "; or ".join(map(str, self.causes)) or None
