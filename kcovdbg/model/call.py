# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls in a trace with entry and exit records (KCOV_TRACE_PC_EXT)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CallKind(str, Enum):
    """How much of a call is in the buffer."""

    CALL = "call"
    """From its entry to its exit."""
    BEGUN_EARLIER = "begun-earlier"
    """Its entry was before the buffer's first record: it shows by its exit only."""
    UNFINISHED = "unfinished"
    """The buffer ends within it."""


class Call(NamedTuple):
    """One call of a function."""

    depth: int
    """0 for the outermost ones that the buffer knows of."""
    kind: CallKind
    pc: int
    """Of its entry, or of its exit when it began earlier."""
    first: int
    """Index of its first record."""
    last: int
    """Index of its last one."""
    points: int
    """Records between, those of calls within not counted."""


class Edge(NamedTuple):
    """Where a call opens or closes on an axis of records: record ``i`` takes the place from ``i`` to ``i + 1``."""

    at: int
    is_open: bool
    call: Call
