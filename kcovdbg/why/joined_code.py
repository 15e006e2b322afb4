# SPDX-License-Identifier: LGPL-2.1-or-later
"""The code of a kernel, with the calls in it: of its image and of its modules as one."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from kcovdbg.elf.symbol_table import ElfSymbol
from kcovdbg.model.location import Frame
from kcovdbg.records.code_states import CodeStates
from kcovdbg.symbols.call_graph import CallGraph, CallSite, PointerPlace
from kcovdbg.symbols.coverage_points import POINT_KINDS, PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable


class WholeCode(CodeStates):
    """The points, functions, calls and states of a kernel's code.

    Modules call exported functions by name. The image calls functions of modules through pointers
    only.

    :param tables: the table of the image, then those of modules.
    :param graphs: the calls of the image, then those of the same modules.
    """

    def __init__(self, tables: Sequence[LocationTable], graphs: Sequence[CallGraph]) -> None:
        super().__init__(tables)
        self._graphs = graphs
        # The numbers of a function in other parts, each after the index of the part.
        self._references: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, graph in enumerate(self._graphs):
            for name, external in graph.externals.items():
                function = self._find_exported(name)
                if function is not None:
                    self._references[function].append((index, external))

    def __len__(self) -> int:
        """Return the number of functions."""
        return self.starts[-1]

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
        for table in self.tables:
            found += table.find(kinds, function=function, files=files)
        return array("Q", sorted(found))

    def find_located_points(self, file: str) -> Iterator[tuple[int, Sequence[Frame]]]:
        """Yield the points of a file with their frames."""
        for table in self.tables:
            points = table.find(files=[file])
            for point, row in zip(points, table.get_rows(points), strict=True):
                if row is not None:
                    yield point, row[1]

    def functions(self) -> Iterator[FunctionSymbol]:
        """Yield the symbols of all functions."""
        return chain.from_iterable(table.functions() for table in self.tables)

    def functions_named(self, name: str) -> list[FunctionSymbol]:
        """Return the symbols of a function and of its clones."""
        return [symbol for table in self.tables for symbol in table.functions_named(name)]

    def units(self) -> set[str]:
        """Return the source files of all compilation units."""
        return set[str]().union(*(table.units() for table in self.tables))

    def files(self) -> Iterable[str]:
        """Return the source files of all code, as in debug info."""
        return dict.fromkeys(chain.from_iterable(map(_list_files, self.tables)))

    def explain_lack(self, file: str) -> str:
        """Return what code of a file is not known; empty for a file that no module has."""
        if any(file in _list_files(module) for module in self.tables[1:]):
            return "its modules may have had some in .init.text, which the kernel frees"
        return ""

    # Calls.

    def _find_exported(self, name: str) -> int | None:
        for graph, start in zip(self._graphs, self.starts, strict=False):
            function = graph.find_named(name)
            if function is not None:
                return start + function
        return None

    def _list_graphs(self, function: int) -> Iterator[tuple[CallGraph, int, int]]:
        """Yield the graphs that may have references to a function, each with the number of its
        first function, and with the function's number in it.
        """
        for index, own in (self.split(function), *self._references.get(function, ())):
            yield self._graphs[index], self.starts[index], own

    @property
    def system_calls(self) -> frozenset[int]:
        """The functions that the entry code calls for system calls."""
        return self._graphs[0].system_calls

    def name(self, function: int) -> str:
        """Return the symbol of a function."""
        index, own = self.split(function)
        return self._graphs[index].name(own)

    def data_at(self, address: int) -> ElfSymbol | None:
        """Return the symbol of the data that a word is in, None where none has it."""
        for graph in self._graphs:
            symbol = graph.data_at(address)
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


def _list_files(table: LocationTable) -> Collection[str]:
    return () if table.blocks is None else table.blocks.files
