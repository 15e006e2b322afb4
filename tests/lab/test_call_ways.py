# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``why`` says of code that did not run: functions that only some of the calls reached are
asked about with the others'.

What was executed, by QEMU's log, is the truth about branches and calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.records.line_states import WHOLE, BlockState, Quality, TraceRecords
from kcovdbg.symbols.blocks import read_linked
from kcovdbg.symbols.call_graph import CallGraph
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import make_table
from kcovdbg.why.call_ways import Way, WayFinder
from kcovdbg.why.joined_code import WholeCode
from kcovdbg.why.uncovered_code import BlockNode, UncoveredRanking
from tests.lab.execution_truth import Call
from tests.lab.kernel import Kernel
from tests.lab.test_executed_lines import Truth, has_records_from_outside, truth

__all__ = ["truth"]

_Calls = Sequence[tuple[Call, list[int]]]
# Where lines behind branches are looked for.
_LOOKED_AT = ("fs/", "net/", "kernel/", "mm/")
# Least shares of functions whose right way is the first one, or among three, in percent over all
# splits of the calls: of those that direct calls led to by QEMU's log, and of all. Boots differ by
# up to seven points. The last calls are of a module, and reach code that no others do.
_LEAST = {"direct": (52, 78), "all": (42, 66)}
# Largest share of functions to which neither calls nor pointers lead.
_UNEXPLAINED = 0.02


def calls_of(truth: Truth) -> _Calls:
    """Return the calls all of whose records the log explains."""
    return [
        (call, own)
        for call, own in truth.calls
        if not has_records_from_outside(call.records, truth.find_logged(call))
    ]


def make_finder(truth: Truth, graph: CallGraph, calls: _Calls) -> WayFinder:
    counts = Counter(record for call, _ in calls for record in call.records)
    trace = TraceRecords(counts, WHOLE & ~Quality.ENABLES, frozenset({PointKind.PC}))
    # Ways need no table: the blocks are those of the log's truth.
    code = WholeCode([], [graph])
    code.finders, code.starts = [truth.finder], [0, len(graph)]
    return WayFinder(code, trace)


@pytest.fixture(scope="module")
def graph(kernel: Kernel) -> CallGraph:
    with ElfFile(kernel.vmlinux) as elf:
        return CallGraph(read_linked(elf, elf.symbols))


def is_right(way: Way, later: WayFinder) -> bool:
    """Return whether what stood in the way was passed by later calls."""
    if way.site is None:
        return way.path[0] in later.executed
    if way.guard is None or way.guard.first is None:
        return False
    found = later.find_blocks(way.path[0])
    index = found.find_index(way.guard.first.address)
    assert index is not None
    return found.blocks[index].state is BlockState.EXECUTED


class _Ranked(NamedTuple):
    """A function that only the calls asked about reached."""

    rank: int | None
    """Of the right way to it; None where none is."""
    is_direct: bool
    """Whether direct calls led to it: else a pointer did."""


def test_functions_that_only_other_calls_reached(truth: Truth, graph: CallGraph) -> None:
    calls = calls_of(truth)
    middle = len(calls) // 2
    halves = {"every second": (calls[::2], calls[1::2]), "halves": (calls[:middle], calls[middle:])}
    pooled: list[_Ranked] = []
    for name, (left, right) in halves.items():
        for known, asked in ((left, right), (right, left)):
            ranked = rank_ways(truth, graph, known, asked)
            pooled += ranked
            print(f"{name}: {describe([one.rank for one in ranked])}")
    groups = {
        "direct": [one.rank for one in pooled if one.is_direct],
        "all": [one.rank for one in pooled],
    }
    for group, ranks in groups.items():
        print(f"{group}: {describe(ranks)}")
    for group, (first, of_three) in _LEAST.items():
        assert share(groups[group], 1) >= first
        assert share(groups[group], 3) >= of_three


def rank_ways(truth: Truth, graph: CallGraph, known: _Calls, asked: _Calls) -> list[_Ranked]:
    """Return the functions that only the calls asked about reached, as far as ways were found."""
    earlier, later = make_finder(truth, graph, known), make_finder(truth, graph, asked)
    executed = {address for _, own in known for address in own}
    # The end of an interrupt is recorded in the task that it interrupted.
    logged = set[int]().union(*(truth.find_logged(call) for call, _ in known))
    executed_later = {address for _, own in asked for address in own}
    found: list[_Ranked] = []
    unexplained: list[str] = []
    for function in sorted(later.executed - earlier.executed):
        ways = earlier.find_ways(function)
        judged = [way for way in ways.ways if way.site is None or way.guard is not None]
        for way in judged:
            check_claims(truth, graph, earlier, way, executed, logged)
        if judged:
            rank = next((rank for rank, way in enumerate(judged) if is_right(way, later)), None)
            is_direct = is_called_directly(graph, earlier, function, executed_later)
            found.append(_Ranked(rank, is_direct))
        elif not ways.pointed and not ways.ways:
            unexplained.append(graph.name(function))
    # Assembly code or a static call leads to a few.
    assert len(unexplained) <= _UNEXPLAINED * len(found), unexplained
    return found


def is_called_directly(
    graph: CallGraph, earlier: WayFinder, function: int, executed: Collection[int]
) -> bool:
    """Return whether direct calls that were executed lead to a function, from one that had run
    earlier or from a system call.
    """
    seen = {function}
    todo = [function]
    while todo:
        callee = todo.pop()
        if callee in graph.system_calls:
            return True
        for site in graph.find_callers(callee):
            if site.address not in executed:
                continue
            if site.caller in earlier.executed:
                return True
            if site.caller not in seen:
                seen.add(site.caller)
                todo.append(site.caller)
    return False


def share(ranks: Sequence[int | None], most: int) -> float:
    return 100 * sum(rank is not None and rank < most for rank in ranks) / len(ranks)


def describe(ranks: Sequence[int | None]) -> str:
    none = 100 * ranks.count(None) / len(ranks)
    shares = ", ".join(f"{share(ranks, most):.0f} % of {most}" for most in (1, 3, 10))
    return f"{len(ranks)} functions: {shares}, {none:.0f} % none"


def check_claims(
    truth: Truth,
    graph: CallGraph,
    finder: WayFinder,
    way: Way,
    executed: Collection[int],
    logged: Collection[int],
) -> None:
    """Compare what a way claims with the instructions that were executed.

    :param executed: by the task.
    :param logged: those of interrupts as well.
    """
    for caller, callee in zip(way.path, way.path[1:], strict=False):
        assert any(site.caller == caller for site in graph.find_callers(callee))
    if way.site is None:
        # A system call whose code has no point at its start may have been made: that is unknown.
        if finder.find_blocks(way.path[0]).was_not_entered:
            assert all(start not in executed for start, _ in truth.parts[way.path[0]])
        return
    assert way.path[0] in finder.executed
    assert way.guard is not None
    assert way.guard.branches
    for branch in way.guard.branches:
        assert branch.block.address in logged
        assert branch.never is None or branch.never.address not in executed
    assert way.guard.first is None or way.guard.first.address not in executed


def test_no_function_that_was_executed_is_called_not_executed(
    truth: Truth, graph: CallGraph
) -> None:
    calls = truth.calls[::2]
    finder = make_finder(truth, graph, calls)
    executed = {address for _, own in calls for address in own}
    starts = {start for parts in truth.parts.values() for start, _ in parts}
    wrong = []
    for start in starts & executed:
        function = truth.finder.find_function(start)
        assert function is not None
        found = finder.find_blocks(function)
        index = found.find_index(start)
        if index is not None and found.blocks[index].state is BlockState.NOT_EXECUTED:
            wrong.append(graph.name(function))
    assert wrong == []


def test_lines_behind_a_place_need_it(
    truth: Truth, graph: CallGraph, kernel: Kernel, tmp_path: Path
) -> None:
    """No call runs a line of all that lies behind a block or function, unless it runs that."""
    with ElfFile(kernel.vmlinux) as elf:
        make_table(elf).write(tmp_path / "table")
    table = LocationTable(tmp_path / "table")
    assert table.blocks is not None
    files = [file for file in table.blocks.files if file.startswith(_LOOKED_AT)]
    early = truth.calls[::2]
    counts = Counter(record for call, _ in early for record in call.records)
    trace = TraceRecords(counts, WHOLE & ~Quality.ENABLES, frozenset({PointKind.PC}))
    code = WholeCode([table], [graph])
    code.finders = [truth.finder]
    ranking = UncoveredRanking(code, trace, WayFinder(code, trace))
    behind = ranking.find_lines_behind(files, ranking.find_functions(files))
    node_of = {line: node for node, lines in behind.items() if node != -1 for line in lines}
    assert len(node_of) > 10_000
    checked = 0
    wrong = []
    for call, own in truth.calls[1::2]:
        executed = set(own)
        functions = truth.functions_of(executed)
        # Functions without points as well: lines may lie behind one.
        ran = {truth.finder.find_function(address) for address in executed}
        for line, was_executed in truth.lines_of(functions, executed).items():
            if not was_executed or line not in node_of:
                continue
            node = node_of[line]
            has_run = node in ran
            if isinstance(node, BlockNode):
                blocks = truth.finder.find_blocks(trace, node.function).blocks
                has_run = blocks[node.number].address in executed
            checked += 1
            if not has_run:
                wrong.append((call.text, line, node))
    assert checked > 100
    assert wrong == []


def test_what_system_calls_reach(truth: Truth, graph: CallGraph) -> None:
    """Every function that a call ran may be reached, and not every function of the kernel."""
    executed: set[int] = set()
    for _, own in truth.calls:
        executed.update(truth.functions_of(set(own)))
    assert len(executed) > 1000
    missing = [graph.name(function) for function in executed - graph.reachable]
    print(f"{len(graph.reachable)} of {len(graph)} functions are reachable")
    assert missing == []
    assert len(graph.reachable) < 0.97 * len(graph)
