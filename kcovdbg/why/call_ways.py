# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways to code that did not run: calls that lead there from functions that ran, and the
branches that stood before these calls.

A way consists of direct calls. A function that is called through a pointer has candidates instead:
the places with its address.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from kcovdbg.records.line_states import BlockState, CodeBlock, FunctionBlocks, TraceRecords
from kcovdbg.symbols.blocks import BlockFlag
from kcovdbg.symbols.call_graph import CallSite
from kcovdbg.why.dominators import DominatorTree
from kcovdbg.why.joined_code import WholeCode

# Ways whose guards are looked at, the nearest first. Helpers such as allocators have hundreds.
_MOST_WAYS: Final = 32
# Limit for the functions that lead to a target: more distant ones explain nothing.
_MOST_FUNCTIONS: Final = 1 << 16
_MOST_CALLERS: Final = 1 << 12
# A way from a branch counts as so much longer, unless its function calls the target itself. In the
# lab, branches before a chain of calls were the cause less often than missing system calls.
_DISTANCE_OF_BRANCH: Final = 2


class Branch(NamedTuple):
    """A block that ran, and one after it that did not."""

    block: CodeBlock
    never: CodeBlock | None
    """The block that did not run; None for a jump to another function."""


class Guard(NamedTuple):
    """What stood before code that did not run, in a function that did."""

    first: CodeBlock | None
    """The first block that did not run and is on every path to the code; None where a block ran and
    the jump at its end did not.
    """
    branches: Sequence[Branch]
    """The edges that lead to the code, from blocks that ran to blocks that did not, by address."""


class Way(NamedTuple):
    """Direct calls that lead to a function that did not run."""

    path: Sequence[int]
    """The function that ran, or a system call, then the functions that are called in turn; the last
    one is the target.
    """
    site: CallSite | None
    """The call in the first function; None for a system call that did not run."""
    guard: Guard | None
    """What stood before the call; None for a system call, and where the call's block ran or its
    state is unknown.
    """


class Ways(NamedTuple):
    """The ways to a function, and pointers to the functions on them."""

    ways: Sequence[Way]
    """The likeliest first."""
    more: int
    """Number of further ways."""
    pointed: Sequence[int]
    """The target and the functions that lead to it, as far as a place has their address, the
    nearest first.
    """


class WayFinder:
    """Finds the ways to code, and which blocks ran.

    :param code: of the kernel.
    :param trace: what ran.
    """

    def __init__(self, code: WholeCode, trace: TraceRecords) -> None:
        self._code = code
        self._trace = trace
        self.executed: Final = frozenset(
            code.find_executed(pc for pc, count in trace.counts.items() if count)
        )
        self._known: dict[int, FunctionBlocks] = {}
        self._found: dict[int, Ways] = {}

    def find_blocks(self, function: int) -> FunctionBlocks:
        """Return the blocks of a function with their states."""
        if function not in self._known:
            self._known[function] = self._code.find_blocks(self._trace, function)
        return self._known[function]

    def find_ways(self, target: int) -> Ways:
        """Return the ways to a function that did not run."""
        if target not in self._found:
            self._found[target] = self._find_ways(target)
        return self._found[target]

    def _find_ways(self, target: int) -> Ways:
        code, executed = self._code, self.executed
        next_function: dict[int, int | None] = {target: None}
        found: list[tuple[int, CallSite | None]] = []
        pointed: list[int] = []
        todo = deque([target])
        while todo:
            function = todo.popleft()
            if function in code.system_calls:
                found.append((function, None))
                continue
            if code.has_pointers(function):
                pointed.append(function)
            for site in code.find_callers(function):
                if site.caller in executed:
                    found.append((function, site))
                elif site.caller not in next_function and len(next_function) < _MOST_FUNCTIONS:
                    next_function[site.caller] = function
                    todo.append(site.caller)

        ways: dict[object, Way] = {}
        for function, call in found[:_MOST_WAYS]:
            path = _follow(next_function, function)
            if call is None:
                ways[function] = Way(path, None, None)
                continue
            guard = self._find_guard_of_call(call)
            # Several calls may be behind one branch.
            key = call if guard is None or guard.first is None else guard.first.address
            ways.setdefault(key, Way([call.caller, *path], call, guard))
        return Ways(order_ways(ways.values()), max(0, len(found) - _MOST_WAYS), pointed)

    def _find_guard_of_call(self, site: CallSite) -> Guard | None:
        """Return what stood before a call of a function that did not run; None where that is
        unknown, or the call ran.
        """
        guard = self.find_guard(site.caller, site.address)
        if guard is not None or not site.is_tail:
            return guard
        # A conditional jump to another function ends a block that runs whether it is taken or not.
        found = self.find_blocks(site.caller)
        index = found.find_index(site.address)
        if index is None or not found.has_known_edges:
            return None
        block = found.blocks[index]
        is_conditional = block.state is BlockState.EXECUTED and block.flags & BlockFlag.FALLS
        is_changed = block.flags & BlockFlag.NO_LINES
        return Guard(None, (Branch(block, None),)) if is_conditional and not is_changed else None

    def find_guard(self, function: int, address: int) -> Guard | None:
        """Return what stood before the block of an address that did not run; None where that is
        unknown, or it ran.
        """
        found = self.find_blocks(function)
        if not found.has_known_edges:
            return None
        index = found.find_index(address)
        if index is None or found.blocks[index].state is not BlockState.NOT_EXECUTED:
            return None
        return _find_guard(found.blocks, index)

    def find_path(self, target: int) -> Sequence[int]:
        """Return a path of direct calls from a system call to a function, the shortest one through
        functions that ran, or else the shortest one.

        :return: empty where there is none.
        """
        return self._search_path(target, self.executed) or self._search_path(target, None)

    def _search_path(self, target: int, functions: Collection[int] | None) -> Sequence[int]:
        code = self._code
        next_function: dict[int, int | None] = {target: None}
        todo = deque([target])
        while todo:
            function = todo.popleft()
            if function in code.system_calls:
                return _follow(next_function, function)
            for site in code.find_callers(function):
                if site.caller not in next_function and (
                    functions is None or site.caller in functions
                ):
                    next_function[site.caller] = function
                    todo.append(site.caller)
        return ()

    def find_all_callers(self, targets: Iterable[int]) -> Sequence[int]:
        """Return functions with those that lead to them by direct calls, the nearest first."""
        found = dict.fromkeys(targets)
        todo = deque(found)
        while todo and len(found) < _MOST_CALLERS:
            for site in self._code.find_callers(todo.popleft()):
                if site.caller not in found:
                    found[site.caller] = None
                    todo.append(site.caller)
        return list(found)


def _follow(next_function: Mapping[int, int | None], function: int | None) -> Sequence[int]:
    """Return a path from a function on."""
    path = []
    while function is not None:
        path.append(function)
        function = next_function[function]
    return path


def order_ways(ways: Iterable[Way]) -> Sequence[Way]:
    """Return ways, the likeliest first.

    Shorter ways are likelier. Of several ways through one callee of the first function, each counts
    a step more than the one before: if the callee was not called, none of them is right. Ways that
    cannot be judged come last.
    """
    through: Counter[int] = Counter()
    ranked: list[tuple[bool, int, Way]] = []
    for way in sorted(ways, key=_count_steps):
        steps = _count_steps(way)
        if len(way.path) > 2:
            callee = way.path[1]
            steps += through[callee]
            through[callee] += 1
        is_unjudged = way.site is not None and way.guard is None
        ranked.append((is_unjudged, steps, way))
    ranked.sort(key=itemgetter(0, 1))
    return [way for _, _, way in ranked]


def _count_steps(way: Way) -> int:
    steps = len(way.path)
    if way.site is not None and steps > 2:
        steps += _DISTANCE_OF_BRANCH
    return steps


def _find_guard(blocks: Sequence[CodeBlock], target: int) -> Guard | None:
    """Return what stands before a block; None where the blocks before it are unknown."""
    before: defaultdict[int, list[int]] = defaultdict(list)
    for index, block in enumerate(blocks):
        for successor in block.successors:
            before[successor].append(index)
    region = {target}
    todo = [target]
    edges: list[tuple[int, int]] = []
    while todo:
        index = todo.pop()
        for previous in before[index]:
            if blocks[previous].state in (BlockState.EXECUTED, BlockState.STOPPED):
                edges.append((previous, index))
            elif previous not in region:
                region.add(previous)
                todo.append(previous)
    start = -1
    following = {start: {index for index in region if blocks[index].flags & BlockFlag.ENTRY}}
    branches: list[Branch] = []
    for index, never in sorted(edges):
        following[start].add(never)
        branch = Branch(blocks[index], blocks[never])
        states = branch.block.state, blocks[never].state
        if states == (BlockState.EXECUTED, BlockState.NOT_EXECUTED):
            branches.append(branch)
    if not branches:
        return None
    for index in region:
        following[index] = region.intersection(blocks[index].successors)
    on_path = map(blocks.__getitem__, DominatorTree(start, following).find_path(target))
    first = next(block for block in on_path if block.state is BlockState.NOT_EXECUTED)
    return Guard(first, branches)
