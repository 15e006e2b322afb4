# SPDX-License-Identifier: LGPL-2.1-or-later
"""An invariant as data, and what its function reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcovdbg.abi.era import Feature
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.generation import Generation

if TYPE_CHECKING:
    from kcovdbg.analysis.check.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Violation:
    """What a rule's function found."""

    object: str
    message: str
    values: tuple[tuple[str, str], ...] = ()
    certainty: Certainty = Certainty.CERTAIN
    reason: str | None = None
    kcovs: tuple[int, ...] = ()
    """Objects whose lock protects what disagrees."""
    tasks: tuple[int, ...] = ()
    """Tasks, ``struct task_struct *``, that change it by themselves."""
    remote_lock: bool = False
    """Whether ``kcov_remote_lock`` protects it."""
    anybody: bool = False
    """Whether any task inside a function of KCOV may be about to put it right: it may hold what isn't linked."""
    most: int = 1
    """How many tasks it would take."""
    severity: Severity | None = None
    """Where it isn't the rule's."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One invariant."""

    name: str
    """``K1``: the letter says what it is about."""
    sentence: str
    """What holds."""
    check: Callable[[Evidence], Iterable[Violation]]
    guarantee: str
    """The kernel functions that see to it."""
    severity: Severity = Severity.ERROR
    eras: str = "all"
    """For readers; what decides is ``needs`` and ``excludes``."""
    needs: frozenset[Feature] = frozenset()
    excludes: frozenset[Feature] = frozenset()
    about_leaks: bool = False
    """Whether it looks for what was lost: then objects that only slab memory shows are what it is about."""
    detail: str = ""
    """What is legal although it looks odd, and why."""

    def applies(self, generation: Generation) -> bool:
        """Tell whether a generation of KCOV keeps the rule."""
        return all(generation.has(feature) for feature in self.needs) and not any(
            generation.has(feature) for feature in self.excludes
        )
