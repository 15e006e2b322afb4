# SPDX-License-Identifier: LGPL-2.1-or-later
"""The generation of a kernel's KCOV."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Generation:
    """The row of the table of generations that a kernel belongs to, and the posted series in it."""

    era: str
    """Name of the row: ``E9a``; ``E5-E6`` if types do not show which of the two."""
    variants: tuple[str, ...] = ()
    """Posted series."""
    features: frozenset[str] = frozenset()
    """Features of mainline (:mod:`kcovdbg.abi.generations`) and of posted series (:mod:`kcovdbg.series`)."""
    unrecognised: tuple[str, ...] = ()
    """Members and enumerators that look like KCOV's, but no known generation or series has them."""
    missing: tuple[str, ...] = ()
    """Members, enumerators and structures that kernels of this generation have, but this debug info lacks."""

    def has(self, feature: str) -> bool:
        """Return whether the kernel has a feature."""
        return feature in self.features
