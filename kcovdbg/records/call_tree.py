# SPDX-License-Identifier: LGPL-2.1-or-later
"""The call tree of a buffer with entry and exit records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import RecordKind
from kcovdbg.model.buffer import Buffer


class CallKind(str, Enum):
    """The part of a call that is in the buffer."""

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


class Event(NamedTuple):
    """One record of a call tree."""

    number: int
    """Index of the record."""
    kind: RecordKind
    pc: int


def find_events(buffer: Buffer) -> Iterator[Event]:
    """Iterate over the readable records that have an address."""
    encoding = buffer.encoding
    missing = {index for gap in buffer.gaps for index in range(gap.first, gap.first + gap.length)}
    decoded: dict[int, tuple[RecordKind, int | None]] = {}
    for index, word in enumerate(record.pc_words(buffer.words, encoding)):
        found = decoded.get(word)
        if found is None:
            found = decoded[word] = record.pc_of_word(word, encoding)
        kind, pc = found
        if pc is not None and index not in missing:
            yield Event(index, kind, pc)


def build_calls(events: Iterable[Event]) -> list[Call]:
    """Return the calls of a trace, in the order of their first records.

    Each exit closes the innermost open call. An exit without an open call belongs to a function that was running when the
    trace began: its call encloses all records before. Calls that are still open at the end are closed there.
    """
    # [pc, first, last, points, depth relative to the start] of each call.
    calls: list[list[int]] = []
    kinds: list[CallKind] = []
    stack: list[int] = []
    level = lowest = 0
    begun: list[tuple[int, int, int]] = []
    outside = 0
    last = -1
    start: int | None = None
    for index, kind, pc in events:
        last = index
        start = index if start is None else start
        if kind is RecordKind.ENTRY:
            stack.append(len(calls))
            calls.append([pc, index, index, 0, level])
            kinds.append(CallKind.UNFINISHED)
            level += 1
        elif kind is RecordKind.EXIT:
            level -= 1
            if stack:
                call = stack.pop()
                calls[call][2] = index
                kinds[call] = CallKind.CALL
            else:
                lowest = level
                begun.append((pc, index, outside))
                outside = 0
        elif stack:
            calls[stack[-1]][3] += 1
        else:
            outside += 1
    for call in stack:
        calls[call][2] = last
    found = [
        Call(depth - lowest, kind, pc, first, end, points)
        for (pc, first, end, points, depth), kind in zip(calls, kinds, strict=True)
    ]
    # The function that exits last is the outermost one.
    earlier = [
        Call(depth, CallKind.BEGUN_EARLIER, pc, start or 0, index, points)
        for depth, (pc, index, points) in enumerate(reversed(begun))
    ]
    return earlier + found


def find_edges(calls: Iterable[Call]) -> Iterator[Edge]:
    """Iterate over the starts and ends of calls, in order and properly nested.

    :param calls: from :func:`build_calls`.
    """
    stack: list[Call] = []
    for call in calls:
        while len(stack) > call.depth:
            inner = stack.pop()
            yield Edge(inner.last + 1, False, inner)
        stack.append(call)
        yield Edge(call.first, True, call)
    while stack:
        inner = stack.pop()
        yield Edge(inner.last + 1, False, inner)


def own_records(call: Call) -> int:
    """Return the number of a call's own records in the buffer: its entry, its exit, and points outside calls that it makes."""
    entry_and_exit = 2 if call.kind is CallKind.CALL else 1
    return call.points + entry_and_exit
