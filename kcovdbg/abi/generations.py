# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generations of mainline's KCOV, its types, and the features that distinguish generations.

Members show a generation (:mod:`kcovdbg.walk.layout`), never a release number: stable kernels have
newer layouts than newer releases. Posted series declare further features in :mod:`kcovdbg.series`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

TASK: Final = "struct task_struct"
KCOV: Final = "struct kcov"
REMOTE: Final = "struct kcov_remote"
AREA: Final = "struct kcov_remote_area"
PERCPU: Final = "struct kcov_percpu_data"
MODE: Final = "enum kcov_mode"
MODE_PREFIX: Final = "KCOV_MODE_"
"""Prefix of the enumerators of ``enum kcov_mode``."""


class Feature(str, Enum):
    """A fact about a kernel's KCOV that distinguishes generations."""

    COMPARISONS = "comparisons"
    """The TRACE_CMP mode exists (ded97d2c2b2c, v4.15), although
    CONFIG_KCOV_ENABLE_COMPARISONS may be off.
    """
    CTXSW_FLAG = "ctxsw-flag"
    """One bit of a task's mode is a flag, in mainline bit 30 (0ed557aa8139, v4.18)."""
    REMOTE = "remote"
    """Remote handles and areas (eec028c9386e, v5.5)."""
    SOFTIRQ = "softirq"
    """Remote sections in softirqs (5ff3b30ab57d, v5.8)."""
    SAVED_PER_CPU = "saved-per-cpu"
    """An interrupted session is saved in ``kcov_percpu_data``."""
    SAVED_IN_TASK = "saved-in-task"
    """An interrupted session is saved in ``task_struct``."""
    IRQ_AREA_PER_CPU = "irq-area-per-cpu"
    """Each CPU has one area for softirq sections; otherwise areas come from a list."""
    AREA_LISTS = "area-lists"
    """Two lists of areas: 0 for tasks, 1 for softirqs."""
    MODE_REMOTE = "mode-remote"
    """A mode marks the owner of a KCOV_REMOTE_ENABLE (01c8f9806bde, v6.10)."""
    OWNER_MEMBER = "kcov-remote-member"
    """A pointer marks the owner, so that a task can have a local and a remote session
    (1d9c9493692e, v7.2).
    """


class Era(NamedTuple):
    """One row of the table of generations."""

    name: str
    kernels: str
    summary: str


ERAS: Final = (
    Era("E1", "v4.6 - v4.14", "one trace mode"),
    Era("E2", "v4.15 - v5.4", "comparisons"),
    Era("E3", "v5.5 - v5.7", "remote handles, sections of tasks"),
    Era("E4", "v5.8 - v5.15", "softirq sections, saved state and area per CPU"),
    Era("E5-E6", "v5.16 - v6.9", "the same under a local lock; types do not show which of the two"),
    Era("E7", "v6.10 - v7.1, and stable kernels with the back-port", "KCOV_MODE_REMOTE"),
    Era("E8", "v7.2", "kcov_remote in the task: a local and a remote session at once"),
    Era(
        "E9a",
        "stable kernels since August 2026 (6.1.185, 6.12.106)",
        "saved state in the task, two lists of areas",
    ),
    Era(
        "E9b",
        "v7.3, and stable v7.2 kernels (7.2.12)",
        "saved state in the task, two lists of areas, kcov_remote",
    ),
)
"""Mainline's generations. A posted series may declare a further row."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A kernel's row of the table of generations, and its posted series."""

    era: str
    """Name of the row, such as ``E9a``."""
    variants: tuple[str, ...] = ()
    """Posted series."""
    features: frozenset[str] = frozenset()
    """Features of mainline (:mod:`kcovdbg.abi.generations`) and of posted series
    (:mod:`kcovdbg.series`).
    """
    unrecognised: tuple[str, ...] = ()
    """Members and enumerators that look like KCOV's, but are of no known generation or series."""
    missing: tuple[str, ...] = ()
    """Members, enumerators and structures of this generation that the debug info lacks."""

    @property
    def names_modes(self) -> bool:
        """Whether the debug info has all modes of this generation."""
        return not any(MODE_PREFIX in name.upper() for name in self.missing)

    def has(self, feature: str) -> bool:
        """Return whether the kernel has a feature."""
        return feature in self.features
