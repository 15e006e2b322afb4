# SPDX-License-Identifier: LGPL-2.1-or-later
"""The states of lines and blocks in a kernel's image and in its modules, as of one code."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from kcovdbg.records.line_states import (
    NO_CODE_LINES,
    CodeColumns,
    FunctionBlocks,
    TraceRecords,
    find_code_columns,
    join_code_columns,
    make_finder,
    select_code_records,
)
from kcovdbg.symbols.location_table import LocationTable


class CodeStates:
    """Finds the states of lines and blocks. Functions are numbered: those of a module follow those
    of the image and of the modules before it.

    :param tables: the table of the image, then those of modules.
    :raises CapabilityError: when the table of the image has no blocks.
    """

    def __init__(self, tables: Sequence[LocationTable]) -> None:
        self.tables = tables
        self.finders = list(map(make_finder, tables))
        self.starts = list(accumulate(map(len, self.finders), initial=0))
        """The number of the first function of each table, and one more than that of the last."""
        self._last: tuple[TraceRecords, Sequence[TraceRecords]] | None = None

    def split(self, function: int) -> tuple[int, int]:
        """Return the index of a function's table, and the function's number in the table."""
        index = bisect_right(self.starts, function) - 1
        return index, function - self.starts[index]

    def function_at(self, address: int) -> int | None:
        """Return the number of the function that an address is in, None where it is in none."""
        for finder, start in zip(self.finders, self.starts, strict=False):
            function = finder.find_function(address)
            if function is not None:
                return start + function
        return None

    def find_executed(self, pcs: Iterable[int]) -> list[int]:
        """Return the numbers of the functions that have a point among PCs, ascending."""
        recorded = list(pcs)
        found: list[int] = []
        for finder, start in zip(self.finders, self.starts, strict=False):
            found += (start + own for own in finder.find_executed(recorded))
        return found

    def _split_trace(self, trace: TraceRecords) -> Sequence[TraceRecords]:
        """Return the records of a trace for each table."""
        if self._last is None or self._last[0] is not trace:
            modules = (select_code_records(trace, table) for table in self.tables[1:])
            self._last = trace, (trace, *modules)
        return self._last[1]

    def find_blocks(self, trace: TraceRecords, function: int) -> FunctionBlocks:
        """Return the blocks of a function with their states."""
        index, own = self.split(function)
        return self.finders[index].find_blocks(self._split_trace(trace)[index], own)

    def find_lines(
        self,
        trace: TraceRecords,
        functions: Iterable[int] | None = None,
        files: Collection[str] | None = None,
        *,
        with_others: bool = True,
    ) -> tuple[CodeColumns, int]:
        """Return the lines of some functions with their states, and the number of functions whose
        code the records contradict.

        :param functions: numbers of functions; None for all.
        :param files: names as in debug info: only lines of these files; None for lines of all.
        :param with_others: as for :meth:`.StateFinder.find_lines`.
        """
        wanted: Mapping[int, list[int]] | None = None
        if functions is not None:
            wanted = defaultdict(list)
            for function in functions:
                index, own = self.split(function)
                wanted[index].append(own)
        lines = NO_CODE_LINES
        contradictions = 0
        for index, records in enumerate(self._split_trace(trace)):
            chosen = None if wanted is None else wanted[index]
            if chosen is None or chosen:
                states = self.finders[index].find_columns(records, chosen, with_others=with_others)
                lines = join_code_columns(lines, find_code_columns(states, files))
                contradictions += states.contradictions
        return lines, contradictions
