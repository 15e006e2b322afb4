# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables, call graphs and block states of a kernel's image and of its modules as one. Functions
are numbered: those of modules follow those of the image.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

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
from kcovdbg.symbols.blocks import BlockColumns
from kcovdbg.symbols.call_graph import CallGraph, CallSite, PointerPlace
from kcovdbg.symbols.coverage_points import POINT_KINDS, PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable


class CodePart(NamedTuple):
    """The code of the image or of a module."""

    table: LocationTable
    graph: CallGraph
    finder: StateFinder


class JoinedGraph:
    """The calls between the functions of the image and of modules.

    Modules call exported functions by name. The image calls those of modules through pointers only.

    :param parts: the image first.
    """

    def __init__(self, parts: Sequence[CodePart]) -> None:
        self._graphs = [part.graph for part in parts]
        self.starts = [0]
        """The number of the first function of each part, and one more than that of the last."""
        for graph in self._graphs:
            self.starts.append(self.starts[-1] + len(graph))
        self.system_calls = self._graphs[0].system_calls
        self._callers: dict[int, list[tuple[int, int]]] = {}
        """The numbers of a function in other parts, each after the number of the part."""
        for number, graph in enumerate(self._graphs):
            for name, external in graph.externals.items():
                function = self._find_exported(name)
                if function is not None:
                    self._callers.setdefault(function, []).append((number, external))

    def __len__(self) -> int:
        """Return the number of functions."""
        return self.starts[-1]

    def _find_exported(self, name: str) -> int | None:
        for graph, start in zip(self._graphs, self.starts, strict=False):
            function = graph.find_named(name)
            if function is not None:
                return start + function
        return None

    def split(self, function: int) -> tuple[int, int]:
        """Return the number of the part that has a function, and the function's own number."""
        part = bisect_right(self.starts, function) - 1
        return part, function - self.starts[part]

    def _list_places(self, function: int) -> Iterator[tuple[int, int]]:
        """Yield the function's numbers in all parts that may refer to it."""
        yield self.split(function)
        yield from self._callers.get(function, ())

    def function_at(self, address: int) -> int | None:
        """Return the number of the function that an address is in, None where it is in none."""
        for graph, start in zip(self._graphs, self.starts, strict=False):
            function = graph.function_at(address)
            if function is not None:
                return start + function
        return None

    def name(self, function: int) -> str:
        """Return the symbol of a function."""
        part, own = self.split(function)
        return self._graphs[part].name(own)

    def data_at(self, address: int) -> ElfSymbol | None:
        """Return the symbol of the data that a word is in, None where none has it."""
        for graph in self._graphs:
            symbol = graph.data_at(address)
            if symbol is not None:
                return symbol
        return None

    def find_callers(self, function: int) -> Iterator[CallSite]:
        """Yield the direct calls and tail calls of a function."""
        for part, own in self._list_places(function):
            for site in self._graphs[part].find_callers(own):
                yield site._replace(caller=self.starts[part] + site.caller)

    def find_pointers(self, function: int) -> Iterator[PointerPlace]:
        """Yield the places that have the address of a function."""
        for part, own in self._list_places(function):
            for place in self._graphs[part].find_pointers(own):
                if place.function is not None:
                    place = place._replace(function=self.starts[part] + place.function)
                yield place

    def has_pointers(self, function: int) -> bool:
        """Return whether a place has the address of a function."""
        return next(self.find_pointers(function), None) is not None


class JoinedFinder:
    """Finds states of blocks and lines of the image and of modules.

    :param parts: the image first.
    :param graph: of these.
    """

    def __init__(self, parts: Sequence[CodePart], graph: JoinedGraph) -> None:
        self._parts = parts
        self._graph = graph
        self._last: tuple[TraceRecords, Sequence[TraceRecords]] | None = None

    def _split_trace(self, trace: TraceRecords) -> Sequence[TraceRecords]:
        """Return what a trace has of each part."""
        if self._last is None or self._last[0] is not trace:
            modules = (select_code_records(trace, part.table) for part in self._parts[1:])
            self._last = trace, (trace, *modules)
        return self._last[1]

    def find_function(self, address: int) -> int | None:
        """Return the number of the function that an address is in, None where it is in none."""
        return self._graph.function_at(address)

    def find_executed(self, pcs: Iterable[int]) -> Sequence[int]:
        """Return the numbers of the functions that have records."""
        recorded = list(pcs)
        found: list[int] = []
        for part, start in zip(self._parts, self._graph.starts, strict=False):
            found += (start + own for own in part.finder.find_executed(recorded))
        return found

    def find_blocks(self, trace: TraceRecords, function: int) -> FunctionBlocks:
        """Return the blocks of a function with their states."""
        part, own = self._graph.split(function)
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
            index, number = self._graph.split(function)
            own[index].append(number)
        lines = NO_CODE_LINES
        for index, records in enumerate(self._split_trace(trace)):
            if functions is not None and index not in own:
                continue
            wanted = None if functions is None else own[index]
            states = self._parts[index].finder.find_columns(records, wanted)
            lines = join_code_columns(lines, find_code_columns(states, files))
        return lines.rows()


class JoinedTable:
    """Points and functions of the image and of modules.

    :param parts: the image first.
    """

    def __init__(self, parts: Sequence[CodePart]) -> None:
        self._tables = [part.table for part in parts]

    def find(
        self,
        kinds: Iterable[PointKind] = POINT_KINDS,
        *,
        function: str | None = None,
        files: Iterable[str] = (),
    ) -> array[int]:
        """Return the points of a function, or of some files, ascending."""
        kinds, files = list(kinds), list(files)
        found = array("Q")
        for table in self._tables:
            found += table.find(kinds, function=function, files=files)
        return array("Q", sorted(found))

    def get_rows(self, pcs: Iterable[int]) -> list[tuple[int, tuple[Frame, ...]] | None]:
        """Return the kind and the frames of points; None for what is none."""
        pcs = list(pcs)
        columns = [table.get_rows(pcs) for table in self._tables]
        return [next(filter(None, rows), None) for rows in zip(*columns, strict=True)]

    def functions_named(self, name: str) -> list[FunctionSymbol]:
        """Return the symbols of a function and of its clones."""
        found: list[FunctionSymbol] = []
        for table in self._tables:
            found += table.functions_named(name)
        return found

    def functions(self) -> Iterator[FunctionSymbol]:
        """Yield the symbols of all functions."""
        for table in self._tables:
            yield from table.functions()

    def units(self) -> set[str]:
        """Return the source files of all compilation units."""
        found: set[str] = set()
        for table in self._tables:
            found |= table.units()
        return found

    def explain_lack(self, file: str) -> str:
        """Return what code of a file is not known; empty for a file that no module has."""
        for module in self._tables[1:]:
            if module.blocks is not None and file in module.blocks.files:
                return "its modules may have had some in .init.text, which the kernel frees"
        return ""

    @property
    def blocks(self) -> BlockColumns | None:
        """The blocks of the image, with the source files of all code."""
        image = self._tables[0].blocks
        files: dict[str, None] = {}
        for table in self._tables:
            if table.blocks is not None:
                files |= dict.fromkeys(table.blocks.files)
        return None if image is None else image._replace(files=tuple(files))


AnyTable: TypeAlias = LocationTable | JoinedTable
AnyGraph: TypeAlias = CallGraph | JoinedGraph
AnyFinder: TypeAlias = StateFinder | JoinedFinder


class WholeCode(NamedTuple):
    """The code of a kernel: of its image alone, or with modules."""

    table: AnyTable
    graph: AnyGraph
    finder: AnyFinder


def join_parts(image: CodePart, modules: Sequence[CodePart]) -> WholeCode:
    """Return the code of an image and of modules as one."""
    if not modules:
        return WholeCode(*image)
    parts = [image, *modules]
    graph = JoinedGraph(parts)
    return WholeCode(JoinedTable(parts), graph, JoinedFinder(parts, graph))
