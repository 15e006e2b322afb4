# SPDX-License-Identifier: LGPL-2.1-or-later
"""A buffer, or two side by side, as rows that are drawn one at a time: for the screen and for text."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.record import Comparison
from kcovdbg.analysis.aligning import align
from kcovdbg.analysis.counting import pc_sequence
from kcovdbg.analysis.naming import Names
from kcovdbg.analysis.rows import (
    ChosenRows,
    ContentRows,
    IndexRows,
    Mark,
    Row,
    Rows,
    SingleRows,
    filter_rows,
    fold_equal,
    fold_groups,
)
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Location
from kcovdbg.render.renderable import Fragment, Line
from kcovdbg.render.side_by_side import GUTTER, columns, fit, join, pair, panel_width
from kcovdbg.render.wording import frame_text, function_text, title
from kcovdbg.symbols.source import SourceTree

_MASK: Final = (1 << 64) - 1
# In a pane narrower than this names have more to tell than addresses, which the detail shows.
_WIDE: Final = 96
_KIND_SIGNS: Final = {record.Kind.ENTRY: "→", record.Kind.EXIT: "←", record.Kind.EDGE: "~"}


class Side:
    """One buffer of a view.

    :param buffer: what it shows.
    :param names: of recorded PCs.
    """

    def __init__(self, buffer: Buffer, names: Names) -> None:
        self.buffer = buffer
        self.names = names
        self.title = title(buffer)
        self._digits = len(str(max(buffer.count - 1, 0)))
        self._missing = [range(gap.first, gap.first + gap.length) for gap in buffer.gaps]

    def __len__(self) -> int:
        return self.buffer.count

    def record(self, index: int) -> record.Record:
        """Decode a record."""
        return record.decode_record(self.buffer.words, index, self.buffer.encoding)

    def location(self, index: int) -> Location | None:
        """Return where a record is; None where it has no address or couldn't be read."""
        found = self.record(index)
        if found.pc is None or found.kind is record.Kind.EDGE or self.is_missing(index):
            return None
        return self.names[found.pc]

    def is_missing(self, index: int) -> bool:
        """Tell whether the record couldn't be read."""
        return any(index in span for span in self._missing)

    def line(self, index: int, width: int, rounds: int = 1, *, fill: bool = False) -> list[Fragment]:
        """Show a record in so many columns.

        :param rounds: how many records are folded into it.
        :param fill: whether blanks fill the columns that it doesn't need.
        """
        found = self.record(index)
        number = ("number", str(index), self._digits)
        times = [("remark", f"×{rounds}", 8)] if rounds > 1 else []
        if self.is_missing(index):
            return columns([number, *times, ("error", "can't be read: its page is missing", 0)], width, fill=fill)
        if found.pc is None:
            return columns([number, *times, ("warning", f"{found.word:#x}" if found.word else "zero", 0)], width, fill=fill)
        address = found.pc + self.buffer.kaslr_offset & _MASK
        location = self.location(index)
        function = f"{address:#x}" if location is None or not location.frames else function_text(location)
        sign = _KIND_SIGNS.get(found.kind)
        parts = [number, *times]
        if width >= _WIDE:
            parts.append(("address", f"{address:x}", 16))
        if sign is not None:
            parts.append(("mode", sign, 1))
        if found.comparison is not None:
            parts.append(("", self._operands(found.comparison), min(30, max(width // 4, 8))))
        parts.append(("symbol", function, 0))
        place = frame_text(location.frames[0]) if location is not None and location.frames else ""
        parts.append(("path", place or (location.remark or "" if location is not None else ""), 0))
        return columns(parts, width, fill=fill)

    def _operands(self, comparison: Comparison) -> str:
        sign = "const " if comparison.const else ""
        first = record.signed_value(comparison.arg1, comparison.size)
        second = record.signed_value(comparison.arg2, comparison.size)
        return f"{sign}{8 * comparison.size}: {_short(first)} {_short(second)}"


def _short(value: int) -> str:
    return str(value) if -1000 < value < 1000 else f"{value:#x}"


class View:
    """A view of one buffer or two.

    :param left: the buffer, or the left one of two.
    :param right: the right one, if any.
    :param by_index: pair records by their index instead of aligning the traces: one buffer seen in two ways.
    :param source: finds source files.
    :param remarks: of the command that made it.
    :param renew: makes the view of what is there now; None of what doesn't change. May raise KcovdbgError.
    """

    def __init__(
        self,
        left: Side,
        right: Side | None = None,
        *,
        by_index: bool = False,
        source: SourceTree | None = None,
        remarks: Sequence[str] = (),
        renew: Callable[[], View] | None = None,
    ) -> None:
        self.left, self.right = left, right
        self.renew = renew
        self.source = source
        self.remarks = list(remarks)
        for side in filter(None, (left, right)):
            self.remarks += [remark if right is None else f"{side.buffer.name}: {remark}" for remark in side.buffer.remarks]
        self.rows: Rows
        if right is None:
            self.rows = SingleRows(len(left))
        elif by_index:
            width = left.buffer.encoding.record_words
            if width == right.buffer.encoding.record_words:
                self.rows = IndexRows(left.buffer.words, right.buffer.words, width)
            else:
                self.rows = IndexRows(_words(left.buffer), _words(right.buffer))
        else:
            alignment = align(pc_sequence(left.buffer), pc_sequence(right.buffer))
            if alignment.coarse:
                self.remarks.append("the traces are too unlike to be aligned throughout")
            self.rows = ContentRows(alignment)

    def line(self, row: Row, width: int, *, fill: bool = True) -> list[Fragment]:
        """Show a row in so many columns.

        :param fill: False to leave a short line short.
        """
        if self.right is None:
            return self.left.line(row.left or 0, width, row.rounds, fill=fill)
        if row.rounds > 1 and row.mark is Mark.EQUAL:
            return fit((("remark", f"  {row.rounds} equal records, from {row.left} and {row.right} on"),), width)
        side = panel_width(width)
        rest = width - side - GUTTER
        left = fit((), side) if row.left is None else self.left.line(row.left, side, row.rounds, fill=True)
        right = fit((), rest, fill=fill) if row.right is None else self.right.line(row.right, rest, row.rounds, fill=fill)
        return join(left, row.mark.value, right)

    def heading(self, width: int) -> list[Fragment]:
        """Show what stands in the columns."""
        left = (("header", self.left.title),)
        if self.right is None:
            return fit(left, width)
        return pair(left, " ", (("header", self.right.title),), width)

    def location(self, row: Row) -> Location | None:
        """Return where a row's record is: the left one's, where it has one."""
        if row.left is not None:
            return self.left.location(row.left)
        return None if self.right is None or row.right is None else self.right.location(row.right)

    def detail(self, row: Row) -> list[Line]:
        """Show all frames of a row's record, and all that its line had no room for."""
        lines: list[Line] = []
        for side, index in ((self.left, row.left), (self.right, row.right)):
            if side is None or index is None:
                continue
            found = side.record(index)
            text = f"{side.buffer.name} [{index}] {found.word:#x}"
            if found.pc is not None and side.buffer.kaslr_offset:
                text += f" at {found.pc + side.buffer.kaslr_offset & _MASK:#x}"
            if found.comparison is not None:
                compared = found.comparison
                text += (
                    f"  {compared.size} bytes{', constant' if compared.const else ''}: {compared.arg1:#x} "
                    f"({record.signed_value(compared.arg1, compared.size)}), {compared.arg2:#x} "
                    f"({record.signed_value(compared.arg2, compared.size)})"
                )
            lines.append((("", text),))
            location = side.location(index)
            for depth, frame in enumerate(location.frames if location is not None else ()):
                prefix = "  " if depth == 0 else "  ← "
                lines.append((("", prefix), ("symbol", frame.function or "?"), ("", "  "), ("path", frame_text(frame))))
        return lines

    def folded(self) -> Rows:
        """Return the rows with what is alike folded: equal records of two traces, runs of one function of one."""
        if isinstance(self.rows, ContentRows):
            return fold_equal(self.rows)
        if not isinstance(self.rows, SingleRows):
            return self.rows
        pcs = pc_sequence(self.left.buffer)
        self.left.names.learn(pc for pc in set(pcs) if pc)
        numbers: dict[object, int] = {}
        groups: dict[int, int] = {}
        for pc in set(pcs):
            frames = self.left.names[pc].frames if pc else ()
            key: object = (frames[-1].function, frames[-1].file) if frames else pc
            groups[pc] = numbers.setdefault(key, len(numbers))
        return fold_groups(self.rows, array("I", map(groups.__getitem__, pcs)))

    def matching(self, wanted: Callable[[Location, int], bool]) -> tuple[Callable[[int], bool], Callable[[int], bool]]:
        """Return functions from an index on the left and on the right to whether its record is wanted.

        Each distinct address is looked at once.

        :param wanted: from a location and a PC.
        """

        def on(side: Side | None) -> Callable[[int], bool]:
            if side is None:
                return lambda _index: False
            words = _words(side.buffer)
            pcs = record.pcs_of_words(set(words), side.buffer.encoding)
            side.names.learn(pcs.values())
            chosen = {word for word, pc in pcs.items() if wanted(side.names[pc], pc)}
            return lambda index: words[index] in chosen

        return on(self.left), on(self.right)

    def filtered(self, rows: Rows, wanted: Callable[[Location, int], bool]) -> ChosenRows:
        """Return the rows of which either side is wanted."""
        return filter_rows(rows, *self.matching(wanted))


def _words(buffer: Buffer) -> Sequence[int]:
    return record.pc_words(buffer.words, buffer.encoding)
