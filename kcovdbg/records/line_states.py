# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide which lines of source a trace executed. Every output about lines relies on this module.

docs/executed-lines.md has the definitions, the rules, and the conditions under which each is sound.
The computation is native/block_states.c.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum, IntFlag
from functools import cache
from itertools import compress
from typing import Any, Final, NamedTuple

from kcovdbg.abi.record import EXACT
from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.errors import CapabilityError
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.pc_counts import PcCounts, as_counts, count_pcs
from kcovdbg.symbols.blocks import BlockColumns, BlockFlag, FunctionFlag
from kcovdbg.symbols.coverage_points import PointKind, recorded_kinds
from kcovdbg.symbols.location_table import LocationTable

# C returns this for a number that is unknown, and when it lacks memory.
_NONE: Final = (1 << 64) - 1
# KCOVDBG_MAX_LINE and KCOVDBG_ROW_CODE.
_LINE: Final = 0xFFFFF
_HAS_CODE: Final = 0x40000000
# The mode whose buffers have a record of each execution.
_PLAIN_MODE: Final = "TRACE_PC"


class Quality(IntFlag):
    """What is known about a trace, as the rules for lines need it."""

    COMPLETE = 1
    """A point without a record was not executed: no overflow, no filter, no mode that records each
    point once in a while.
    """
    COUNTED = 2
    """Each execution of a point has a record, unlike in a set of PCs."""
    ENDED = 4
    """The task had returned to user space when it ended: every call returned."""
    PLACED = 8
    """The task is inside the kernel, and its whole stack is known."""
    ENABLES = 16
    """The system call that enabled KCOV, or that disabled it, may have records."""
    EXACT = 32
    """Records are addresses of executed instructions, in any function. If the trace is complete as
    well, it comes with a list of all instructions that may have been executed.
    """


WHOLE: Final = Quality.COMPLETE | Quality.COUNTED | Quality.ENDED | Quality.ENABLES
"""The quality of a buffer that was read after its task returned to user space."""
SET: Final = Quality.COMPLETE | Quality.ENDED | Quality.ENABLES
"""The quality of a set of PCs, of one run or of many that all returned."""
INCOMPLETE: Final = Quality.ENDED | Quality.ENABLES
"""The quality of a trace that overflowed, of unique PCs or of a filtered set."""
OPEN: Final = Quality.COMPLETE | Quality.COUNTED | Quality.ENABLES
"""The quality of the buffer of a task that is inside the kernel, and whose stack is unknown."""


EXECUTED_CODE: Final = Quality.ENDED | Quality.EXACT
"""The quality of a list of executed addresses; other code may have been executed as well."""
ALL_EXECUTED_CODE: Final = EXECUTED_CODE | Quality.COMPLETE
"""The quality of a list of executed addresses that comes with a list of all addresses that may have
been executed.
"""


class LineState(IntEnum):
    """The state of a line; as in native/block_states.h."""

    NO_CODE = 0
    EXECUTED = 1
    PARTLY = 2
    """Executed, but not all of its code."""
    NOT_EXECUTED = 3
    NOT_INSTRUMENTED = 4
    """All of its code is in functions without points."""
    UNDECIDED = 5
    """Unknown: no record names its code, and none follows from the others."""
    MOVED = 6
    """Unknown: some of its code was executed, but none that begins a statement, since the compiler
    moved or merged code.
    """
    EDGES = 7
    """Unknown: not all edges of its function are known, or the records contradict them."""
    OUTSIDE = 8
    """Unknown: its code with points was not executed, but functions without points have code of the
    line as well.
    """

    @property
    def is_unknown(self) -> bool:
        """Whether it is unknown whether the line was executed."""
        return self >= LineState.UNDECIDED

    @property
    def is_decided(self) -> bool:
        """Whether it is known whether the line was executed."""
        return self in (LineState.EXECUTED, LineState.PARTLY, LineState.NOT_EXECUTED)

    @property
    def was_executed(self) -> bool:
        """Whether it was executed, wholly or partly."""
        return self in (LineState.EXECUTED, LineState.PARTLY)


def flag_states(is_wanted: Callable[[LineState], bool]) -> bytes:
    """Return a table for :meth:`bytes.translate`: 1 for wanted states of lines, otherwise 0."""
    return bytes(map(is_wanted, LineState)).ljust(256, b"\0")


class BlockState(IntEnum):
    """The state of a block; as in native/block_states.h."""

    UNKNOWN = 0
    NOT_EXECUTED = 1
    EXECUTED = 2
    STOPPED = 3
    """Executed up to some instruction, where the task is."""


class Place(NamedTuple):
    """Where a task is inside the kernel: addresses as in the image."""

    positions: Sequence[int]
    """The next instruction, and the instructions that exceptions on the stack interrupted."""
    stack: Sequence[int]
    """The return addresses of all frames."""


class TraceRecords(NamedTuple):
    """The part of a trace on which states depend."""

    counts: Mapping[int, int]
    """PC as recorded -> number of records; with :attr:`Quality.EXACT` a PC is the address behind
    the executed one.
    """
    quality: Quality
    kinds: frozenset[PointKind]
    """The kinds of points that it can have records of."""
    place: Place | None = None
    """Where the task is, with :attr:`Quality.PLACED`."""
    last: int | None = None
    """The last PC of an open trace without a place; None where the order is unknown."""
    listed: Sequence[int] = ()
    """With :attr:`Quality.EXACT` and :attr:`Quality.COMPLETE`: addresses of all instructions that
    may have been executed.
    """


class CodeLine(NamedTuple):
    """A line that has code."""

    line: int
    state: LineState
    hits: int
    """The largest number of records of its code; 1 if only other records show that it was executed.
    """


class FunctionState(IntEnum):
    """Whether a function was executed; as in native/block_states.h."""

    UNKNOWN = 0
    NOT_EXECUTED = 1
    EXECUTED = 2
    NOT_INSTRUMENTED = 3


class BranchState(IntEnum):
    """Whether a branch was executed; as in native/block_states.h."""

    UNKNOWN = 0
    """Which of its two sides were taken is unknown."""
    NOT_EXECUTED = 1
    EXECUTED = 2


class StateColumns(NamedTuple):
    """Lines, functions and branches with their states, in columns: a kernel has a million of
    them.
    """

    names: Sequence[str]
    """The names of the files."""
    line_file: array[int]
    """The file of each line that has code, ascending, by number; lines of a file ascend."""
    line: array[int]
    line_state: bytearray
    """The :class:`LineState` of each line."""
    line_hits: array[int]
    """As :attr:`CodeLine.hits`."""
    entry_state: bytearray
    """For each part of the code, the :class:`FunctionState` of its function, which may have two."""
    entry_hits: array[int]
    """How often the function was entered at the start of the part; 1 if only other records show
    that it was executed.
    """
    entry_file: array[int]
    """The file of the start of each part; a number beyond :attr:`names` if it is unknown."""
    entry_line: array[int]
    branch_function: array[int]
    """For each block that is left in one of two ways, the number of its function, ascending; the
    blocks of a function are in the order of their addresses.
    """
    branch_file: array[int]
    branch_line: array[int]
    branch_state: bytearray
    """The :class:`BranchState` of each branch."""
    branch_hits: array[int]
    """Two for each branch: how often the block was left to the next block, and to the other one; 1
    if only other records show it.
    """
    contradictions: int
    """Number of functions whose records contradict their edges. Only their lines with recorded
    points are known.
    """
    unknown_edges: int
    """Number of functions that have records and unknown edges."""
    unmatched: int
    """Number of PCs that are no points."""


class CodeColumns(NamedTuple):
    """The lines that have code of their own, of all files."""

    spans: Mapping[str, range]
    """Where the lines of each file are in the columns."""
    lines: Sequence[int]
    """Ascending in each file."""
    states: bytes | bytearray
    """The :class:`LineState` of each line."""
    hits: Sequence[int]
    """As :attr:`CodeLine.hits`."""

    def rows(self) -> dict[str, Sequence[CodeLine]]:
        """Return the lines by file."""
        return {name: self.rows_of(name) for name in self.spans}

    def rows_of(self, name: str) -> list[CodeLine]:
        """Return the lines of a file."""
        span = self.spans[name]
        part = slice(span.start, span.stop)
        states = map(LineState, self.states[part])
        return list(map(CodeLine, self.lines[part], states, self.hits[part]))


NO_CODE_LINES: Final = CodeColumns({}, array("I"), b"", array("Q"))


def find_code_columns(states: StateColumns, files: Collection[str] | None) -> CodeColumns:
    """Return the lines of states by file.

    :param files: names as in debug info: only lines of these files; None for lines of all.
    """
    spans: dict[str, range] = {}
    start = 0
    while start < len(states.line_file):
        number = states.line_file[start]
        end = bisect_left(states.line_file, number + 1, start)
        if number < len(states.names):
            name = states.names[number]
            if files is None or name in files:
                spans[name] = range(start, end)
        start = end
    return CodeColumns(spans, states.line, states.line_state, states.line_hits)


class CodeBlock(NamedTuple):
    """A block of a function: code that runs from its first to its last instruction if it starts at
    all.
    """

    address: int
    """As in the image."""
    size: int
    flags: BlockFlag
    state: BlockState
    records: int | None
    """The number of records of its points, or the number that other records show; None if it is
    unknown.
    """
    successors: Sequence[int]
    """Indexes of blocks."""
    lines: Sequence[tuple[str, int]]
    """File and line of its code; the line of its branch, if it has one, is last."""
    calls: Sequence[tuple[str, int]]
    """File and line of the calls whose code was inlined into it."""


# Converting numbers of C to the same few members takes longer than finding them again.
_make_flags: Final = cache(BlockFlag)
_make_state: Final = cache(BlockState)


class FunctionBlocks(NamedTuple):
    """The blocks of a function, including its cold part, by address."""

    flags: FunctionFlag
    blocks: Sequence[CodeBlock]
    is_contradicted: bool
    """Whether the records contradict the edges: then states come from recorded points alone."""

    @property
    def has_known_edges(self) -> bool:
        """Whether all edges are known, and no record contradicts them."""
        return not self.is_contradicted and not self.flags & FunctionFlag.VOID

    @property
    def was_not_entered(self) -> bool:
        """Whether it is known that no entry was executed."""
        states = {block.state for block in self.blocks if block.flags & BlockFlag.ENTRY}
        return states == {BlockState.NOT_EXECUTED}

    def find_index(self, address: int) -> int | None:
        """Return the index of the block that an address is in; None where it is in none."""
        for index, block in enumerate(self.blocks):
            if block.address <= address < block.address + block.size:
                return index
        return None


class StateFinder:
    """Finds states of the blocks and lines of an image.

    :param blocks: the blocks of the image.
    :param offsets: its points and other recorded PCs, from the base of the blocks, ascending.
    :param kinds: words whose lowest 3 bits are the kind of each.
    """

    def __init__(self, blocks: BlockColumns, offsets: Sequence[int], kinds: Sequence[int]) -> None:
        ffi, _ = load_native()
        self._blocks = blocks
        parts = len(blocks.part_start)
        # Pointers are valid as long as these are kept.
        self._given = {
            "part_start": column("I", blocks.part_start),
            "part_size": column("I", blocks.part_size, parts),
            "part_function": column("I", blocks.part_function, parts),
            "part_count": parts,
            "code_end": column("Q", blocks.code_end),
            "function_count": len(blocks.code_end),
            "code": ffi.from_buffer("uint8_t[]", blocks.code),
            "code_size": len(blocks.code),
        }
        self._encoded = ffi.new("struct kcovdbg_encoded *", self._given)
        self._points = {
            "points": column("I", offsets),
            "chains": column("Q", kinds, len(offsets)),
            "point_count": len(offsets),
        }
        self._last_states: tuple[TraceRecords, Any] | None = None

    def __len__(self) -> int:
        """Return the number of functions."""
        return len(self._blocks.code_end)

    def _offsets(self, addresses: Iterable[int]) -> list[int]:
        base = self._blocks.base
        return sorted(address - base for address in addresses if 0 <= address - base < 1 << 32)

    def _describe(self, trace: TraceRecords) -> Any:
        """Return a trace for C."""
        ffi, _ = load_native()
        base = self._blocks.base
        if trace.quality & Quality.EXACT:
            base += EXACT.lead
        counts = as_counts(trace.counts).within(base, base + (1 << 32))
        if not all(counts.records):
            counts = counts.select(bytes(map(bool, counts.records)))
        recorded = array("I", map(base.__rsub__, counts.pcs))
        listed = array("I", self._offsets(set(trace.listed)))
        given = {
            **self._points,
            "kinds": sum(1 << kind for kind in trace.kinds),
            "records": column("I", recorded),
            "counts": column("Q", counts.records, len(recorded)),
            "record_count": len(recorded),
            "quality": trace.quality,
            "last": _NONE,
            "listed": column("I", listed),
            "listed_count": len(listed),
        }
        if trace.last is not None:
            given["last"] = (trace.last - base) % (1 << 64)
        if trace.place is None:
            given["quality"] &= ~Quality.PLACED
        else:
            stack, positions = map(self._offsets, (trace.place.stack, trace.place.positions))
            given["stack"] = ffi.new("uint32_t[]", stack)
            given["stack_count"] = len(stack)
            given["positions"] = ffi.new("uint32_t[]", positions)
            given["position_count"] = len(positions)
        # The destructor keeps what the trace refers to.
        return ffi.gc(ffi.new("struct kcovdbg_trace *", given), lambda _, _kept=given: None)

    def _run(
        self, trace: TraceRecords, functions: Sequence[int] | None, *, with_others: bool = False
    ) -> Any:
        ffi, lib = load_native()
        given = self._describe(trace)
        wanted = ffi.NULL if functions is None else ffi.new("uint32_t[]", functions)
        count = 0 if functions is None else len(functions)
        states = lib.kcovdbg_states_new(self._encoded, given, wanted, count, with_others)
        if states == ffi.NULL:
            raise MemoryError
        # The destructor keeps what the states refer to.
        return ffi.gc(
            states, lambda pointer, _kept=(given, wanted): lib.kcovdbg_states_free(pointer)
        )

    def find_lines(
        self,
        trace: TraceRecords,
        functions: Sequence[int] | None = None,
        *,
        with_others: bool = True,
        files: Collection[str] | None = None,
    ) -> Mapping[str, Sequence[CodeLine]]:
        """Return the lines of some functions, of all by default: by file, as in debug info; lines
        of a file ascend.

        :param functions: numbers of functions.
        :param with_others: whether code counts that other functions have of these lines, as of
            functions inlined in both.
        :param files: names as in debug info: only lines of these files; None for lines of all.
        """
        states = self.find_columns(trace, functions, with_others=with_others)
        return find_code_columns(states, files).rows()

    def find_columns(
        self,
        trace: TraceRecords,
        functions: Sequence[int] | None = None,
        *,
        with_others: bool = True,
    ) -> StateColumns:
        """Return the lines of some functions, of all by default, and these functions and their
        branches.

        :param functions: as for :meth:`find_lines`.
        :param with_others: as for :meth:`find_lines`.
        """
        ffi, lib = load_native()
        states = self._run(trace, functions, with_others=with_others)
        totals = ffi.new("struct kcovdbg_state_totals *")
        lib.kcovdbg_states_totals(states, totals)
        lines, parts, branches = totals.lines, len(self._blocks.part_start), totals.branches
        found = StateColumns(
            names=self._blocks.files,
            line_file=zeros("I", lines),
            line=zeros("I", lines),
            line_state=bytearray(lines),
            line_hits=zeros("Q", lines),
            entry_state=bytearray(parts),
            entry_hits=zeros("Q", parts),
            entry_file=zeros("I", parts),
            entry_line=zeros("I", parts),
            branch_function=zeros("I", branches),
            branch_file=zeros("I", branches),
            branch_line=zeros("I", branches),
            branch_state=bytearray(branches),
            branch_hits=zeros("Q", 2 * branches),
            contradictions=totals.contradictions,
            unknown_edges=totals.unknown_edges,
            unmatched=totals.unmatched,
        )
        lib.kcovdbg_states_lines(
            states,
            column("I", found.line_file),
            column("I", found.line),
            column("B", found.line_state),
            column("Q", found.line_hits),
        )
        lib.kcovdbg_states_functions(
            states,
            column("B", found.entry_state),
            column("Q", found.entry_hits),
            column("I", found.entry_file),
            column("I", found.entry_line),
        )
        lib.kcovdbg_states_branches(
            states,
            column("I", found.branch_function),
            column("I", found.branch_file),
            column("I", found.branch_line),
            column("B", found.branch_state),
            column("Q", found.branch_hits),
        )
        return found

    def find_executed(self, pcs: Iterable[int]) -> list[int]:
        """Return the numbers of the functions that have a point among PCs, ascending."""
        _, lib = load_native()
        ordered = pcs.pcs if isinstance(pcs, PcCounts) else array("Q", sorted(pcs))
        blocks = self._blocks
        count = len(blocks.part_start)
        marks = bytearray(count)
        lib.kcovdbg_mark_parts(
            blocks.base,
            column("I", blocks.part_start),
            column("I", blocks.part_size, count),
            count,
            column("Q", ordered),
            len(ordered),
            column("B", marks),
        )
        return sorted(set(compress(blocks.part_function, marks)))

    def find_starts(self) -> array[int]:
        """Return where the blocks of all functions begin, ascending: offsets from the base of the
        blocks.
        """
        ffi, lib = load_native()
        count = lib.kcovdbg_block_starts(self._encoded, ffi.NULL, 0)
        if count == _NONE:
            raise MemoryError
        starts = zeros("I", count)
        if lib.kcovdbg_block_starts(self._encoded, column("I", starts, count), count) != count:
            raise MemoryError
        return array("I", sorted(starts))

    def find_function(self, address: int) -> int | None:
        """Return the number of the function that an address is in, None where it is in none."""
        blocks = self._blocks
        offset = address - blocks.base
        index = bisect_left(blocks.part_start, offset + 1) - 1
        if index < 0 or offset >= blocks.part_start[index] + blocks.part_size[index]:
            return None
        return blocks.part_function[index]

    def find_blocks(self, trace: TraceRecords, function: int) -> FunctionBlocks:
        """Return the blocks of a function, by its number."""
        ffi, lib = load_native()
        # The states that all functions share are found once for a trace.
        if self._last_states is None or self._last_states[0] is not trace:
            self._last_states = trace, self._run(trace, [])
        states = self._last_states[1]
        found = ffi.new("struct kcovdbg_function_blocks *")
        if lib.kcovdbg_states_blocks(states, function, found):
            raise MemoryError
        count = found.block_count
        columns = (
            *(found.starts, found.sizes, found.block_flags, found.states),
            *(found.records, found.edge_ends, found.line_ends, found.call_ends),
        )
        rows = zip(*(_list_numbers(values, 0, count) for values in columns), strict=True)
        base, files = self._blocks.base, self._blocks.files
        blocks: list[CodeBlock] = []
        edge = line = call = 0
        for start, size, flags, state, records, edge_end, line_end, call_end in rows:
            # The line of a branch can be there twice: it goes to the end.
            lines: dict[tuple[str, int], None] = {}
            numbers = _list_numbers(found.line_files, line, line_end)
            words = _list_numbers(found.lines, line, line_end)
            for number, word in zip(numbers, words, strict=True):
                if word & _HAS_CODE and number < len(files):
                    key = files[number], word & _LINE
                    lines.pop(key, None)
                    lines[key] = None
            numbers = _list_numbers(found.call_files, call, call_end)
            words = _list_numbers(found.calls, call, call_end)
            calls = [
                (files[number], word & _LINE)
                for number, word in zip(numbers, words, strict=True)
                if number < len(files)
            ]
            blocks.append(
                CodeBlock(
                    base + start,
                    size,
                    _make_flags(flags),
                    _make_state(state),
                    None if records == _NONE else records,
                    tuple(_list_numbers(found.edges, edge, edge_end)),
                    tuple(lines),
                    tuple(calls),
                )
            )
            edge, line, call = edge_end, line_end, call_end
        return FunctionBlocks(FunctionFlag(found.flags), blocks, bool(found.is_contradicted))


def _list_numbers(values: Any, first: int, end: int) -> Sequence[int]:
    """Return numbers of an array in C, which is NULL where it has none."""
    if first == end:
        return ()
    ffi, _ = load_native()
    numbers: list[int] = ffi.unpack(values + first, end - first)
    return numbers


def quality_of(buffer: Buffer) -> Quality:
    """Return what is known about a buffer if the place of its task is unknown.

    The task of a buffer in the memory of a kernel may be inside the kernel; a trace in a file ended
    in user space. Modes other than TRACE_PC need not record each execution of each point: their
    buffers count as incomplete. So do lists with few points of the kernel: the other PCs may be
    damaged records of points.
    """
    if buffer.encoding.codec.is_exact:
        if buffer.listed_code is None:
            return EXECUTED_CODE
        return ALL_EXECUTED_CODE
    is_plain = (
        buffer.mode in (None, _PLAIN_MODE)
        and not buffer.encoding.codec.has_operands
        and buffer.bits_set is None
    )
    is_strange = buffer.fit is not None and buffer.fit.is_low
    if (
        not is_plain
        or is_strange
        or buffer.full
        or buffer.was_full
        or buffer.is_incomplete
        or buffer.gaps
    ):
        if buffer.is_open:
            return INCOMPLETE & ~Quality.ENDED
        return INCOMPLETE
    if buffer.is_open:
        return OPEN
    # A list without an order has each PC once.
    return WHOLE if buffer.order.is_known else SET


def read_records(buffer: Buffer, place: Place | None = None) -> TraceRecords:
    """Return a buffer as a trace.

    :param place: where its task is, from its stack; None if the task is in user space, or its stack
        is unknown.
    """
    quality = quality_of(buffer)
    last = None
    if quality & Quality.COMPLETE and not quality & Quality.ENDED:
        if place is not None:
            quality |= Quality.PLACED
        elif buffer.count:
            last = buffer.pc_words[-1]
    kinds = recorded_kinds(buffer.encoding.codec)
    return TraceRecords(count_pcs(buffer), quality, kinds, place, last, buffer.listed_code or ())


def make_finder(table: LocationTable) -> StateFinder:
    """Return a finder of states for the image that a table is of.

    :raises CapabilityError: when the table has no blocks.
    """
    if table.blocks is None:
        raise CapabilityError(
            "executed lines are unknown: the branches in this kernel's code were not understood"
        )
    columns = table.columns
    return StateFinder(table.blocks, columns.offset, columns.chain)


def select_code_records(trace: TraceRecords, table: LocationTable) -> TraceRecords:
    """Return the records of a trace that are in the code of a table, such as a module's."""
    lead = EXACT.lead if trace.quality & Quality.EXACT else 0
    counts: dict[int, int] = {}
    for text in table.text_ranges():
        first, last = text.start + lead, text.end + lead
        counts.update((pc, many) for pc, many in trace.counts.items() if first < pc <= last)
    return trace._replace(counts=counts)


def join_code_columns(one: CodeColumns, other: CodeColumns) -> CodeColumns:
    """Return the lines of the kernel's image and of a module, which share lines of headers."""
    if not one.spans:
        return other
    spans = dict(one.spans)
    lines, states, hits = array("I", one.lines), bytearray(one.states), array("Q", one.hits)
    for name in other.spans:
        rows = other.rows_of(name)
        if name in spans:
            rows = _join_rows(one.rows_of(name), rows)
        spans[name] = range(len(lines), len(lines) + len(rows))
        for row in rows:
            lines.append(row.line)
            states.append(row.state)
            hits.append(row.hits)
    return CodeColumns(spans, lines, states, hits)


def _join_rows(rows: Iterable[CodeLine], more: Iterable[CodeLine]) -> list[CodeLine]:
    """Join the lines of a file that has code in two places."""
    joined = {row.line: row for row in rows}
    for other in more:
        one = joined.get(other.line, other)
        state = join_line_states({one.state, other.state})
        joined[other.line] = CodeLine(one.line, state, max(one.hits, other.hits))
    return [joined[line] for line in sorted(joined)]


def join_line_states(states: Collection[LineState]) -> LineState:
    """Return the state of a line, given the states of its code in several places."""
    if len(states) == 1:
        return next(iter(states))
    if any(state.was_executed for state in states):
        partly = LineState.PARTLY in states or LineState.NOT_EXECUTED in states
        return LineState.PARTLY if partly else LineState.EXECUTED
    unknown = [state for state in states if state.is_unknown]
    # Nothing is known of code without points.
    return min(unknown, default=LineState.OUTSIDE)
