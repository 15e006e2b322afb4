# SPDX-License-Identifier: LGPL-2.1-or-later
"""The code of a kernel: of its image and of its modules as one. Functions are numbered: those of a
module follow those of the image and of the modules before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from kcovdbg.elf.symbol_table import ElfSymbol
from kcovdbg.model.location import Frame
from kcovdbg.records.line_states import (
    NO_CODE_LINES,
    CodeLine,
    FunctionBlocks,
    StateFinder,
    TraceRecords,
    find_code_columns,
    join_code_columns,
    select_code_records,
)
from kcovdbg.symbols.call_graph import CallGraph, CallSite, PointerPlace
from kcovdbg.symbols.coverage_points import POINT_KINDS, PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable


class CodePart(NamedTuple):
    """The code of the image or of a module."""

    table: LocationTable
    graph: CallGraph
    finder: StateFinder


class WholeCode:
    """The points, functions, calls and blocks of a kernel.

    Modules call exported functions by name. The image calls functions of modules through pointers
    only.

    :param parts: the image, then modules.
    """

    def __init__(self, parts: Sequence[CodePart]) -> None:
        self._parts = parts
        # The number of the first function of each part, and one more than that of the last.
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + len(part.graph))
        # The numbers of a function in other parts, each after the number of the part.
        self._references: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, part in enumerate(parts):
            for name, external in part.graph.externals.items():
                function = self._find_exported(name)
                if function is not None:
                    self._references[function].append((number, external))
        self._last: tuple[TraceRecords, Sequence[TraceRecords]] | None = None

    def __len__(self) -> int:
        """Return the number of functions."""
        return self._starts[-1]

    # Points and functions.

    def find_points(
        self,
        kinds: Iterable[PointKind] = POINT_KINDS,
        *,
        function: str | None = None,
        files: Iterable[str] = (),
    ) -> array[int]:
        """Return the points of a function, or of some files, ascending."""
        kinds, files = list(kinds), list(files)
        found = array("Q")
        for part in self._parts:
            found += part.table.find(kinds, function=function, files=files)
        return array("Q", sorted(found))

    def find_located_points(self, file: str) -> Iterator[tuple[int, Sequence[Frame]]]:
        """Yield the points of a file with their frames."""
        for part in self._parts:
            points = part.table.find(files=[file])
            for point, row in zip(points, part.table.get_rows(points), strict=True):
                if row is not None:
                    yield point, row[1]

    def functions(self) -> Iterator[FunctionSymbol]:
        """Yield the symbols of all functions."""
        return chain.from_iterable(part.table.functions() for part in self._parts)

    def functions_named(self, name: str) -> list[FunctionSymbol]:
        """Return the symbols of a function and of its clones."""
        return [symbol for part in self._parts for symbol in part.table.functions_named(name)]

    def units(self) -> set[str]:
        """Return the source files of all compilation units."""
        return set[str]().union(*(part.table.units() for part in self._parts))

    def files(self) -> Iterable[str]:
        """Return the source files of all code, as in debug info."""
        return dict.fromkeys(chain.from_iterable(map(_list_files, self._parts)))

    def explain_lack(self, file: str) -> str:
        """Return what code of a file is not known; empty for a file that no module has."""
        if any(file in _list_files(module) for module in self._parts[1:]):
            return "its modules may have had some in .init.text, which the kernel frees"
        return ""

    # Calls.

    def _find_exported(self, name: str) -> int | None:
        for part, start in zip(self._parts, self._starts, strict=False):
            function = part.graph.find_named(name)
            if function is not None:
                return start + function
        return None

    def _split(self, function: int) -> tuple[int, int]:
        """Return the number of the part that has a function, and the function's own number."""
        part = bisect_right(self._starts, function) - 1
        return part, function - self._starts[part]

    def _list_graphs(self, function: int) -> Iterator[tuple[CallGraph, int, int]]:
        """Yield the graphs that may have references to a function, each with the number of its
        first function, and with the function's number in it.
        """
        for part, own in (self._split(function), *self._references.get(function, ())):
            yield self._parts[part].graph, self._starts[part], own

    @property
    def system_calls(self) -> frozenset[int]:
        """The functions that the entry code calls for system calls."""
        return self._parts[0].graph.system_calls

    def function_at(self, address: int) -> int | None:
        """Return the number of the function that an address is in, None where it is in none."""
        for part, start in zip(self._parts, self._starts, strict=False):
            function = part.graph.function_at(address)
            if function is not None:
                return start + function
        return None

    def name(self, function: int) -> str:
        """Return the symbol of a function."""
        part, own = self._split(function)
        return self._parts[part].graph.name(own)

    def data_at(self, address: int) -> ElfSymbol | None:
        """Return the symbol of the data that a word is in, None where none has it."""
        for part in self._parts:
            symbol = part.graph.data_at(address)
            if symbol is not None:
                return symbol
        return None

    def find_callers(self, function: int) -> Iterator[CallSite]:
        """Yield the direct calls and tail calls of a function."""
        for graph, start, own in self._list_graphs(function):
            for site in graph.find_callers(own):
                # Most are of the image, whose numbers are the same here.
                yield site._replace(caller=start + site.caller) if start else site

    def find_pointers(self, function: int) -> Iterator[PointerPlace]:
        """Yield the places that have the address of a function."""
        for graph, start, own in self._list_graphs(function):
            for place in graph.find_pointers(own):
                if place.function is not None:
                    place = place._replace(function=start + place.function)
                yield place

    def has_pointers(self, function: int) -> bool:
        """Return whether a place has the address of a function."""
        return any(graph.has_pointers(own) for graph, _, own in self._list_graphs(function))

    # Blocks and lines.

    def _split_trace(self, trace: TraceRecords) -> Sequence[TraceRecords]:
        """Return what a trace has of each part."""
        if self._last is None or self._last[0] is not trace:
            modules = (select_code_records(trace, part.table) for part in self._parts[1:])
            self._last = trace, (trace, *modules)
        return self._last[1]

    def find_executed(self, pcs: Iterable[int]) -> Sequence[int]:
        """Return the numbers of the functions that have records."""
        recorded = list(pcs)
        found: list[int] = []
        for part, start in zip(self._parts, self._starts, strict=False):
            found += (start + own for own in part.finder.find_executed(recorded))
        return found

    def find_blocks(self, trace: TraceRecords, function: int) -> FunctionBlocks:
        """Return the blocks of a function with their states."""
        part, own = self._split(function)
        return self._parts[part].finder.find_blocks(self._split_trace(trace)[part], own)

    def find_lines(
        self,
        trace: TraceRecords,
        functions: Sequence[int] | None = None,
        *,
        files: Collection[str] | None = None,
    ) -> Mapping[str, Sequence[CodeLine]]:
        """Return the lines of some functions, of all by default, by file.

        :param files: only lines of these files; None for lines of all.
        """
        own: dict[int, list[int]] = defaultdict(list)
        for function in functions or ():
            index, number = self._split(function)
            own[index].append(number)
        lines = NO_CODE_LINES
        for index, records in enumerate(self._split_trace(trace)):
            if functions is not None and index not in own:
                continue
            wanted = None if functions is None else own[index]
            states = self._parts[index].finder.find_columns(records, wanted)
            lines = join_code_columns(lines, find_code_columns(states, files))
        return lines.rows()


def _list_files(part: CodePart) -> Collection[str]:
    blocks = part.table.blocks
    return () if blocks is None else blocks.files
