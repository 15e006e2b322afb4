# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which KCOV a kernel has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Generation:
    """The era of a kernel's KCOV by its members, and what is added to it."""

    era: str
    """As in the table of generations: ``E9a``; ``E5-E6`` where types can't tell."""
    variants: tuple[str, ...] = ()
    """Posted series and trees recognised on top of the era."""
    features: frozenset[str] = frozenset()
    """The facts that code asks for, see :mod:`kcovdbg.abi.era`."""
    unrecognised: tuple[str, ...] = ()
    """Members and enumerators that look like KCOV's and that no known generation has."""
    missing: tuple[str, ...] = ()
    """Members, enumerators and structures that a kernel of this generation has, and that the debug info of this one lacks."""

    def has(self, feature: str) -> bool:
        """Tell whether this kernel has the feature."""
        return feature in self.features
