# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generations of mainline's KCOV, its types, and the features that distinguish generations.

A generation is recognised by members (:mod:`kcovdbg.walk.layout`), never by a release number:
stable kernels carry newer layouts than newer releases. Posted series declare features of their own
in :mod:`kcovdbg.series`.
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
"""Prefix of its enumerators."""


class Feature(str, Enum):
    """A fact about a kernel's KCOV that code asks for."""

    COMPARISONS = "comparisons"
    """The TRACE_CMP mode exists (ded97d2c2b2c, v4.15); whether it was compiled in is
    CONFIG_KCOV_ENABLE_COMPARISONS.
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
    """Each CPU has one area for softirq sections; otherwise they come from a list."""
    AREA_LISTS = "area-lists"
    """Two lists of areas: 0 for tasks, 1 for softirqs."""
    MODE_REMOTE = "mode-remote"
    """The owner of a KCOV_REMOTE_ENABLE has a mode of its own (01c8f9806bde, v6.10)."""
    OWNER_MEMBER = "kcov-remote-member"
    """The owner has a pointer of its own, so that a task can have a local and a remote session
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
"""Mainline's generations; a posted series with a layout of its own declares its row itself."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The row of the table of generations that a kernel belongs to, and the posted series in it."""

    era: str
    """Name of the row: ``E9a``; ``E5-E6`` if types do not show which of the two."""
    variants: tuple[str, ...] = ()
    """Posted series."""
    features: frozenset[str] = frozenset()
    """Features of mainline (:mod:`kcovdbg.abi.generations`) and of posted series
    (:mod:`kcovdbg.series`).
    """
    unrecognised: tuple[str, ...] = ()
    """Members and enumerators that look like KCOV's, but no known generation or series has them."""
    missing: tuple[str, ...] = ()
    """Members, enumerators and structures that kernels of this generation have, but this debug info
    lacks.
    """

    @property
    def names_modes(self) -> bool:
        """Whether the debug info has every mode that kernels of this generation have."""
        return not any(MODE_PREFIX in name.upper() for name in self.missing)

    def has(self, feature: str) -> bool:
        """Return whether the kernel has a feature."""
        return feature in self.features
