# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the calls of a trace that has entry and exit records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import islice
from typing import NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import RecordKind
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.records.pc_locations import LocationCache


class CallKind(str, Enum):
    """The part of a call that is in the buffer."""

    CALL = "call"
    """All of it, from entry to exit."""
    BEGUN_EARLIER = "begun-earlier"
    """Its exit only: the entry was before the first record."""
    UNFINISHED = "unfinished"
    """Its entry only: the buffer ends within it."""


@dataclass(slots=True)
class Call:
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
    points: int = 0
    """Records between, without records of nested calls."""

    @property
    def total(self) -> int:
        """Its records, including records of nested calls."""
        return self.last - self.first + 1


def find_events(buffer: Buffer, end: int | None = None) -> Iterator[tuple[int, RecordKind, int]]:
    """Iterate over the readable records that have an address: their indexes, kinds and PCs.

    :param end: index of the first record that is left out; None for all records.
    """
    missing = buffer.missing
    decode = cache(lambda word: record.pc_of_word(word, buffer.encoding))
    words = buffer.pc_words
    for index, word in enumerate(islice(words, end)):
        kind, pc = decode(word)
        if pc is not None and index not in missing:
            yield index, kind, pc


def has_calls(buffer: Buffer) -> bool:
    """Return whether a buffer has a record of an entry or exit that could be read."""
    if not buffer.encoding.codec.has_calls:
        return False
    return any(kind in (RecordKind.ENTRY, RecordKind.EXIT) for _, kind, _ in find_events(buffer))


def build_calls(events: Iterable[tuple[int, RecordKind, int]]) -> list[Call]:
    """Return the calls of a trace, in the order of their first records.

    Each exit closes the innermost open call. An exit without an open call belongs to a function
    that was running when the trace began: its call encloses all records before. Calls that are
    still open at the end are closed there.
    """
    calls: list[Call] = []
    begun: list[Call] = []
    stack: list[Call] = []
    level = outside = last = 0
    start: int | None = None
    for index, kind, pc in events:
        last = index
        start = index if start is None else start
        if kind is RecordKind.ENTRY:
            stack.append(Call(level, CallKind.UNFINISHED, pc, index, index))
            calls.append(stack[-1])
            level += 1
        elif kind is RecordKind.EXIT:
            level -= 1
            if stack:
                call = stack.pop()
                call.kind, call.last = CallKind.CALL, index
            else:
                begun.append(Call(level, CallKind.BEGUN_EARLIER, pc, start, index, outside))
                outside = 0
        elif stack:
            stack[-1].points += 1
        else:
            outside += 1
    for call in stack:
        call.last = last
    # The function that exits last is the outermost one.
    calls = [*reversed(begun), *calls]
    for call in calls:
        call.depth += len(begun)
    return calls


class LocatedCall(NamedTuple):
    """A call, and the function that was called."""

    call: Call
    location: Location
    is_inlined: bool
    """Whether the function was inlined into its caller, whose symbol it has."""

    @property
    def total(self) -> int:
        """Records of the call, including records of nested calls."""
        return self.call.total

    @property
    def function(self) -> str | None:
        """The name of the function; an inlined one has its caller's name without debug info."""
        if self.is_inlined:
            return self.location.innermost.function
        return self.location.outermost.function


def locate_calls(calls: Iterable[Call], names: LocationCache) -> Iterator[LocatedCall]:
    """Iterate over calls with their functions.

    :param calls: calls with all their callers, in the order of their first records.
    """
    callers: list[LocatedCall] = []
    for call in calls:
        location = names[call.pc]
        del callers[call.depth :]
        caller = callers[-1] if callers else None
        # A function that calls itself has one entry; two entries within one symbol are of two
        # functions.
        is_inlined = (
            caller is not None
            and CallKind.BEGUN_EARLIER not in (call.kind, caller.call.kind)
            and caller.location.symbol is not None
            and location.symbol == caller.location.symbol
            and caller.call.pc != call.pc
        )
        located = LocatedCall(call, location, is_inlined)
        callers.append(located)
        yield located
