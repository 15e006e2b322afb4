# SPDX-License-Identifier: LGPL-2.1-or-later
"""Views of buffers by name, for the screen and for text: one, two side by side, or the user's side
beside the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.address import address_of
from kcovdbg.buffers.trace_coverage import LineFinder
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.compare.trace_builds import TraceSide, compare_builds, read_sides
from kcovdbg.console.context import Context
from kcovdbg.console.full_screen import GUTTER, columns, fit, fit_title, join, panel_width
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Fragment, Line
from kcovdbg.console.syscall_remarks import recorded_syscall_remarks, syscall_remarks
from kcovdbg.console.wording import (
    COARSE,
    UNREADABLE,
    buffer_title,
    frame_fragments,
    record_text,
    short_comparison_text,
)
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.buffer_sources import (
    FD,
    find_buffer,
    name_remarks,
    order_remarks,
    read_both_views,
    read_trace_records,
    require_comparable,
    require_named_names,
)
from kcovdbg.inputs.code_names import check_code
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import LocatedRecord, Location
from kcovdbg.records.alignment import Mark, ViewRow, ViewRows, align_by_index, align_records
from kcovdbg.records.line_states import CodeLine
from kcovdbg.records.located_records import PcFilter, find_indices, locate_record, select_records
from kcovdbg.records.pc_counts import count_pcs, pc_sequence
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.symbols.source_tree import SourceTree
from kcovdbg.target.local_kernel import is_this_machine

# A narrower pane leaves addresses to the detail, to have room for names.
_WIDE: Final = 96


FileStates = Callable[[str], Mapping[int, CodeLine]]
"""Returns the lines of a file that have code, by number."""


class TracePane:
    """One buffer of a view.

    :param buffer: the buffer.
    :param names: locations of recorded PCs.
    :param not_function: patterns of functions whose records are left out.
    :param tree: the source files of its kernel.
    :param find_states: returns the lines of a file that have code, by number.
    """

    def __init__(
        self,
        buffer: Buffer,
        names: LocationCache,
        not_function: Sequence[str] = (),
        *,
        tree: SourceTree | None = None,
        find_states: FileStates = lambda _file: {},
    ) -> None:
        self.tree = tree
        self.find_states = find_states
        self.names = names = names.of(buffer)
        self.title = buffer_title(buffer)
        self._digits = len(str(max(buffer.count - 1, 0)))
        self._numbers: Sequence[int] | None = None
        if not_function:
            names.prefetch(pc_sequence(buffer))
            self._numbers = find_indices(buffer, PcFilter(names, None, None, not_function))
            self.title += f", {len(self._numbers)} shown"
            buffer = select_records(buffer, self._numbers)
        self.buffer = buffer
        self._missing = buffer.missing

    def __len__(self) -> int:
        return self.buffer.count

    def number(self, index: int) -> int:
        """Return the index in the buffer of a record that is shown."""
        return index if self._numbers is None else self._numbers[index]

    def located(self, index: int) -> LocatedRecord:
        """Decode a record and return it with its location."""
        return locate_record(self.buffer, self.names, self.buffer.decode(index))

    def location(self, index: int) -> Location | None:
        """Return where a record is; None where it has no address or could not be read."""
        return None if self.is_missing(index) else self.located(index).location

    def is_missing(self, index: int) -> bool:
        """Return whether the record could not be read."""
        return index in self._missing

    def line(
        self, index: int, width: int, rounds: int = 1, *, fill: bool = False
    ) -> list[Fragment]:
        """Return a record in so many columns.

        :param rounds: how many records are folded into it.
        :param fill: whether to fill the line with blanks.
        """
        parts: list[tuple[str, str, int]] = [("number", str(self.number(index)), self._digits)]
        if rounds > 1:
            parts.append(("remark", f"×{rounds}", 8))
        if self.is_missing(index):
            return columns([*parts, ("error", UNREADABLE.function, 0)], width, fill=fill)
        row = self.located(index)
        text = record_text(row)
        if row.address is None:
            return columns([*parts, ("warning", text.function, 0)], width, fill=fill)
        if width >= _WIDE:
            parts.append(("address", f"{row.address:x}", 16))
        if text.sign:
            parts.append(("mode", text.sign, 1))
        if row.record.comparison is not None:
            parts.append(
                ("", short_comparison_text(row.record.comparison), min(30, max(width // 4, 8)))
            )
        parts += [("symbol", text.function, 0), ("path", text.place, 0)]
        return columns(parts, width, fill=fill)


class TraceView:
    """A view of one buffer or two.

    :param left: the buffer, or the left one of two.
    :param right: the right one, if any.
    :param by_index: pair records by index instead of aligning the traces: for two readings of one
        buffer.
    :param comparison: compares records of two builds; None for one buffer.
    :param remarks: remarks of the command that made it.
    :param renew: reads the buffers again and returns a new view; None where they do not change. May
        raise KcovdbgError.
    """

    def __init__(
        self,
        left: TracePane,
        right: TracePane | None = None,
        *,
        by_index: bool = False,
        comparison: BuildComparison | None = None,
        remarks: Sequence[str] = (),
        renew: Callable[[], TraceView] | None = None,
    ) -> None:
        self.left, self.right = left, right
        self.renew = renew
        comparison = comparison or BuildComparison()
        self._has_one_build = comparison.match is None
        if right is None:
            self.remarks = [*remarks, *left.buffer.remarks]
            self.rows = ViewRows.of_one(len(left))
            return
        buffers = left.buffer, right.buffer
        self.remarks = list(remarks)
        sides: list[Sequence[int]] = []
        for side, buffer in enumerate(buffers):
            self.remarks += name_remarks(buffer.name, buffer.remarks)
            sides.append(comparison.number_records(side, pc_sequence(buffer)))
        if not by_index:
            alignment = align_records(*sides)
        elif self._has_one_build:
            alignment = align_by_index(*_find_words(*buffers))
        else:
            alignment = align_by_index(sides[0], sides[1])
        if alignment.is_coarse:
            self.remarks.append(COARSE)
        self.rows = ViewRows(alignment)

    @property
    def _sides(self) -> Sequence[TracePane]:
        return (self.left,) if self.right is None else (self.left, self.right)

    def _records(self, row: ViewRow) -> Iterator[tuple[TracePane, int]]:
        """Yield the records of a row, left first."""
        for side, index in zip(self._sides, (row.left, row.right), strict=False):
            if index is not None:
                yield side, index

    def _side_of(self, row: ViewRow) -> TracePane:
        """Return the trace of a row's record, or of the left one of its two records."""
        return self.left if self.right is None or row.left is not None else self.right

    def source(self, row: ViewRow) -> SourceTree | None:
        """Return the source files for a row: of the left trace, if the row has a record of it."""
        return self._side_of(row).tree

    def find_states(self, row: ViewRow, file: str) -> list[Mapping[int, CodeLine]]:
        """Return the states of a file's lines, for each trace of the build that the file is of.

        :param row: the row whose source is shown.
        """
        sides = self._sides if self._has_one_build else (self._side_of(row),)
        return [side.find_states(file) for side in sides]

    def line(self, row: ViewRow, width: int, *, fill: bool = True) -> list[Fragment]:
        """Return a row in so many columns.

        :param fill: False to leave a short line short.
        """
        if self.right is None:
            return self.left.line(row.left or 0, width, row.rounds, fill=fill)
        if row.rounds > 1 and row.mark is Mark.EQUAL:
            starts = f"{self.left.number(row.left or 0)} and {self.right.number(row.right or 0)}"
            return fit((("remark", f"  {row.rounds} equal records from {starts} on"),), width)
        side = panel_width(width)
        rest = width - side - GUTTER
        left, right = fit((), side), fit((), rest, fill=fill)
        if row.left is not None:
            left = self.left.line(row.left, side, row.rounds, fill=True)
        if row.right is not None:
            right = self.right.line(row.right, rest, row.rounds, fill=fill)
        return join(left, row.mark.value, right)

    def heading(self, width: int) -> list[Fragment]:
        """Return the heading of the columns."""
        if self.right is None:
            return fit((("header", fit_title(self.left.title, width)),), width)
        side = panel_width(width)
        left = (("header", fit_title(self.left.title, side)),)
        right = (("header", fit_title(self.right.title, side)),)
        return join(fit(left, side), " ", fit(right, max(width - side - GUTTER, 0)))

    def row_pcs(self, row: ViewRow) -> tuple[int, ...]:
        """Return the PCs of a row's records, left first."""
        found = (side.buffer.decode(index).pc for side, index in self._records(row))
        return tuple(filter(None, found))

    def addresses(self, pc: int) -> tuple[str, ...]:
        """Return the spellings of a PC: as recorded, and with the KASLR offset of each side."""
        offsets = {0, *(side.buffer.kaslr_offset for side in self._sides)}
        return tuple(f"{address_of(pc, offset):#x}" for offset in sorted(offsets))

    def location(self, row: ViewRow) -> Location | None:
        """Return the location of a row's record, or of the left one of its two records."""
        for side, index in self._records(row):
            return side.location(index)
        return None

    def detail(self, at: ViewRow) -> list[Line]:
        """Return the words, operands and all frames of a row's records."""
        lines: list[Line] = []
        for side, index in self._records(at):
            row = side.located(index)
            text = f"{side.buffer.name} [{side.number(index)}] {row.record.word:#x}"
            if row.address is not None and side.buffer.kaslr_offset:
                text += f" at {row.address:#x}"
            operands = record_text(row, big_endian=side.buffer.encoding.big_endian).operands
            if operands and not side.is_missing(index):
                text += f"  {operands}"
            lines.append((("", text),))
            location = side.location(index)
            prefix = "  "
            if location is None:
                continue
            for frame in location.frames:
                lines.append((("", prefix), *frame_fragments(frame)))
                prefix = "  ← "
        return lines

    def folded(self) -> ViewRows:
        """Return the rows with equal records of two traces folded, or runs of one function in
        one.
        """
        if self.right is not None:
            return self.rows.fold_equal()
        pcs = pc_sequence(self.left.buffer)
        self.left.names.prefetch(pcs)
        groups: dict[int, object] = {0: 0}
        for pc in {*pcs} - {0}:
            location = self.left.names[pc]
            groups[pc] = location.outermost[:2] if location.frames else pc
        return self.rows.fold_groups(map(groups.__getitem__, pcs))

    def matching(self, wanted: Callable[[Location, int], bool]) -> Callable[[ViewRow], bool]:
        """Return a test whether one of a row's records is wanted. Each distinct address is tested
        once, before this returns.

        :param wanted: from a location and a PC.
        """
        words: list[Sequence[int]] = []
        chosen: list[set[int]] = []
        for side in self._sides:
            words.append(side.buffer.pc_words)
            pcs = record.pcs_of_words(set(words[-1]), side.buffer.encoding)
            side.names.prefetch(pcs.values())
            chosen.append({word for word, pc in pcs.items() if wanted(side.names[pc], pc)})

        def matches(row: ViewRow) -> bool:
            sides = zip((row.left, row.right), words, chosen, strict=False)
            return any(index is not None and its[index] in found for index, its, found in sides)

        return matches


def _find_words(left: Buffer, right: Buffer) -> tuple[Sequence[int], Sequence[int], int]:
    """Return the words of two buffers to compare by index, and the number of words of a record."""
    width = left.encoding.record_words
    if width == right.encoding.record_words and not left.encoding.codec.is_variable:
        return left.words, right.words, width
    return left.pc_words, right.pc_words, 1


def make_view(
    context: Context,
    what: str,
    other: str | None,
    not_function: Sequence[str] = (),
    *,
    by_index: bool = False,
) -> TraceView:
    """Read the buffers and make a view of them.

    :param not_function: patterns of functions whose records are left out.
    :raises KcovdbgError: when one cannot be read.
    """
    if other is None and what.startswith(FD):
        target = context.kernel.memory.optional_target
        if target is not None and is_this_machine(target):
            return _make_live_view(context, what, not_function)
    whats = [what]
    if other is not None:
        whats.append(other)
    sides, assumptions = read_sides(context, whats)
    kernels = [side.kernel for side in sides]
    check_code([kernel.names.locations for kernel in kernels], not_function)
    remarks: list[str] = []
    for buffer, kernel in sides:
        names = kernel.names.locations
        pcs = pc_sequence(buffer)
        require_named_names(context.inputs, names.of(buffer), pcs, f"view {buffer.name}")
        remarks += syscall_remarks(context, buffer)
        own = [*recorded_syscall_remarks(names, pcs), *order_remarks(buffer)]
        remarks += own if other is None else name_remarks(buffer.name, own)
    buffers = [side.buffer for side in sides]
    require_comparable("view", buffers)
    # A task may have both buffers.
    remarks = [*dict.fromkeys(remarks), *assumptions]
    comparison = None
    if other is not None:
        by_index = by_index or buffers[0].address == buffers[1].address is not None
        comparison = compare_builds(context, kernels, map(count_pcs, buffers))
        remarks += comparison.remarks()
    return TraceView(
        *(_make_pane(context, side, not_function) for side in sides),
        by_index=by_index,
        comparison=comparison,
        remarks=remarks,
    )


def _make_live_view(context: Context, what: str, not_function: Sequence[str]) -> TraceView:
    """Make a view of a buffer as its process sees it beside the kernel's view; of the kernel's view
    alone if the process's cannot be read.
    """
    check_code([context.names], not_function)
    try:
        return _read_both_views(context, what, not_function)
    except KcovdbgError as error:
        remarks = [f"kernel's view only: {error}", *context.kernel.names.remarks]
    side = TraceSide(find_buffer(context.inputs, what), context.kernel)
    return TraceView(_make_pane(context, side, not_function), remarks=remarks)


def _make_pane(context: Context, side: TraceSide, not_function: Sequence[str]) -> TracePane:
    """Return a buffer for a view; states of its lines are found when they are asked for."""
    buffer, kernel = side
    table = kernel.names.awaited_table

    @cache
    def find(file: str) -> Mapping[int, CodeLine]:
        finder = LineFinder(kernel, partial(find_point_table, context, kernel))
        return finder.find_file(read_trace_records(context.inputs, buffer), file)

    def find_at_hand(file: str) -> Mapping[int, CodeLine]:
        # Nobody waits for a table inside a view.
        if table is not None and table.is_awaited:
            return {}
        return find(file)

    return TracePane(
        buffer,
        kernel.names.locations,
        not_function,
        tree=kernel.sources.tree,
        find_states=find_at_hand,
    )


def _read_both_views(context: Context, what: str, not_function: Sequence[str]) -> TraceView:
    """Make a view of the user's and the kernel's side of a buffer."""
    compared = read_both_views(context.inputs, what)
    found = [f"FINDING: {finding}" for finding in compared.findings]
    if not found:
        found.append("the user's view and the kernel's are equal")
    kernel = context.kernel
    return TraceView(
        _make_pane(context, TraceSide(compared.user, kernel), not_function),
        _make_pane(context, TraceSide(compared.kernel, kernel), not_function),
        by_index=True,
        remarks=[*found, *context.kernel.names.remarks],
        renew=lambda: _read_both_views(context.renew(), what, not_function),
    )


def make_followed_view(context: Context, what: str) -> TraceView:
    """Read a buffer of a kernel that runs and make a view that follows it: it is read again while
    it is shown.

    :raises KcovdbgError: when it cannot be read.
    """
    view = make_view(context.renew(), what, None)
    view.renew = lambda: make_followed_view(context, what)
    return view
