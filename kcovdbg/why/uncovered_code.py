# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines that a set of traces did not run, by the branch, system call or pointer that stands before
most of them.

A line lies behind a place if it runs only if the place does: the place is on every path to the
line from code that ran, from system calls, and from functions that pointers lead to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.records.line_states import BlockState, CodeBlock, LineState, TraceRecords
from kcovdbg.symbols.blocks import BlockFlag
from kcovdbg.why.call_ways import WayFinder
from kcovdbg.why.dominators import DominatorTree
from kcovdbg.why.joined_code import WholeCode

_Line: TypeAlias = tuple[str, int]


class Obstacle(Enum):
    """What stands before code."""

    BRANCH = "a branch that never went there"
    SYSTEM_CALL = "a system call that was not made"
    POINTER = "a function that only pointers lead to"
    SEVERAL = "several ways, none of which all of it lies behind"
    NOTHING = "a function that neither calls nor pointers lead to"


class UncoveredCode(NamedTuple):
    """Lines that did not run, with what stands before them."""

    obstacle: Obstacle
    function: int
    """The function with the branch, or the one that was not called."""
    lines: int
    functions: int
    """Number of functions with some of the lines, none of which ran."""
    block: int | None = None
    """The address of the block that a branch never went to; None for other obstacles."""


class BlockNode(NamedTuple):
    """A block that did not run, in a function that did."""

    function: int
    number: int
    """Its index among the blocks of the function."""


# A function that did not run is one node, by its number.
_Node: TypeAlias = BlockNode | int
_START: Final = -1


class UncoveredRanking:
    """Ranks what stands before the lines that did not run.

    :param code: of the kernel.
    :param trace: all traces together.
    :param ways: of the same code and trace.
    """

    def __init__(self, code: WholeCode, trace: TraceRecords, ways: WayFinder) -> None:
        self._code = code
        self._trace = trace
        self._ways = ways
        self._tree = DominatorTree[_Node](_START, self._link())

    def find_lines_behind(
        self, files: Collection[str], functions: Collection[int]
    ) -> Mapping[_Node, Collection[_Line]]:
        """Return the lines of some files that did not run, by the topmost node they lie behind.

        :param files: as in debug info.
        :param functions: those that :meth:`find_functions` finds.
        """
        found, _ = self._code.find_lines(self._trace, None, files)
        uncovered: set[_Line] = set()
        for file, rows in found.rows().items():
            for row in rows:
                if row.state is LineState.NOT_EXECUTED:
                    uncovered.add((file, row.line))
        common: dict[_Line, _Node] = {}
        for node, lines in self._list_lines(functions):
            if node not in self._tree:
                continue
            for line in uncovered.intersection(lines):
                known = common.get(line)
                common[line] = node if known is None else self._tree.find_common(known, node)
        behind: defaultdict[_Node, list[_Line]] = defaultdict(list)
        for line, node in common.items():
            path = self._tree.find_path(node)
            behind[path[0] if path else _START].append(line)
        return behind

    def rank(self, files: Collection[str]) -> Iterator[UncoveredCode]:
        """Yield what stands before uncovered lines of some files, the place with most lines first.

        :param files: as in debug info.
        """
        functions = self.find_functions(files)
        behind = self.find_lines_behind(files, functions)
        counts = self._count_topmost(functions)
        # Places with the same number of lines are ordered by their first lines.
        order = sorted(behind.items(), key=lambda item: (-len(item[1]), min(item[1])))
        for node, lines in order:
            block = None
            if isinstance(node, BlockNode):
                function = node.function
                block = self._ways.find_blocks(function).blocks[node.number].address
            else:
                function = node
            obstacle = self._find_obstacle(node)
            yield UncoveredCode(obstacle, function, len(lines), counts[node], block)

    def _find_obstacle(self, node: _Node) -> Obstacle:
        if node == _START:
            return Obstacle.SEVERAL
        if isinstance(node, BlockNode):
            return Obstacle.BRANCH
        if node in self._code.system_calls:
            return Obstacle.SYSTEM_CALL
        if self._code.has_pointers(node):
            return Obstacle.POINTER
        has_callers = any(True for _ in self._code.find_callers(node))
        return Obstacle.SEVERAL if has_callers else Obstacle.NOTHING

    def _count_topmost(self, functions: Iterable[int]) -> Counter[_Node]:
        """Return how many of some functions lie behind each topmost node."""
        reached = filter(self._tree.__contains__, functions)
        return Counter(self._tree.find_path(function)[0] for function in reached)

    def find_functions(self, files: Collection[str]) -> Collection[int]:
        """Return the functions that did not run and have code of some files."""
        places = [point - 1 for point in self._code.find_points(files=files)]
        plain = {file.removeprefix("./") for file in files}
        places += [
            symbol.address
            for symbol in self._code.functions()
            if symbol.unit is not None and symbol.unit.removeprefix("./") in plain
        ]
        found = set(map(self._code.function_at, places)) - self._ways.executed
        return {one for one in found if one is not None}

    def _list_lines(self, functions: Iterable[int]) -> Iterator[tuple[_Node, Iterable[_Line]]]:
        """Yield the blocks of functions that ran, and some functions that did not, with their
        lines.
        """
        for function in self._ways.executed:
            for index, block in enumerate(self._ways.find_blocks(function).blocks):
                yield BlockNode(function, index), (*block.lines, *block.calls)
        for function in functions:
            blocks = self._ways.find_blocks(function).blocks
            lines: set[_Line] = set()
            for block in blocks:
                lines.update(block.lines, block.calls)
            yield function, lines

    # The graph.

    def _link(self) -> Mapping[_Node, Iterable[_Node]]:
        """Return the nodes that may follow each node. Those that may run without any other node
        follow the start.
        """
        following: defaultdict[_Node, list[_Node]] = defaultdict(list)
        for function in self._ways.executed:
            for block, to in self._list_edges(function):
                following[block].append(to)
        code = self._code
        for function in range(len(code)):
            if function in self._ways.executed:
                continue
            callers = [
                self._node_of(site.caller, site.address) for site in code.find_callers(function)
            ]
            is_root = function in code.system_calls or code.has_pointers(function)
            if is_root or not callers:
                callers.append(_START)
            for caller in dict.fromkeys(callers):
                following[caller].append(function)
        return following

    def _list_edges(self, function: int) -> Iterator[tuple[_Node, _Node]]:
        """Yield the edges to blocks that did not run, in a function that did."""
        found = self._ways.find_blocks(function)
        if not found.has_known_edges:
            return
        for index, block in enumerate(found.blocks):
            node = _node_of_block(function, index, block)
            if node != _START and block.flags & BlockFlag.ENTRY:
                yield _START, node
            for successor in block.successors:
                to = _node_of_block(function, successor, found.blocks[successor])
                if to != _START:
                    yield node, to

    def _node_of(self, function: int, address: int) -> _Node:
        """Return the node of an instruction; the start where it may have run."""
        if function not in self._ways.executed:
            return function
        found = self._ways.find_blocks(function)
        index = found.find_index(address)
        if index is None or not found.has_known_edges:
            return _START
        return _node_of_block(function, index, found.blocks[index])


def _node_of_block(function: int, index: int, block: CodeBlock) -> _Node:
    """Return the node of a block in a function that ran; the start where the block may have run."""
    if block.state is BlockState.NOT_EXECUTED:
        return BlockNode(function, index)
    return _START
