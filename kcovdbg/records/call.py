# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls in a trace with entry and exit records."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CallKind(str, Enum):
    """Which part of a call is in the buffer."""

    CALL = "call"
    """All of it, from entry to exit."""
    BEGUN_EARLIER = "begun-earlier"
    """Its exit only: the entry was before the first record."""
    UNFINISHED = "unfinished"
    """Its entry only: the buffer ends within it."""


class Call(NamedTuple):
    """One call of a function."""

    depth: int
    """0 for the outermost calls in the buffer."""
    kind: CallKind
    pc: int
    """PC of its entry, or of its exit if it began earlier."""
    first: int
    """Index of its first record."""
    last: int
    """Index of its last record."""
    points: int
    """Records between, without those of nested calls."""


class Edge(NamedTuple):
    """Begin or end of a call on an axis of records, where record ``i`` is between ``i`` and ``i + 1``."""

    at: int
    is_open: bool
    call: Call
