# SPDX-License-Identifier: LGPL-2.1-or-later
"""Suggestions for mistyped words."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known words that are similar to this one, None where there are none."""
    import difflib

    known = tuple(known)
    near = [name for name in known if len(word) >= 2 and name.startswith(word)]
    near += [name for name in difflib.get_close_matches(word, known, n=3, cutoff=0.65) if name not in near]
    return f"did you mean {' or '.join(near[:3])}?" if near else None
