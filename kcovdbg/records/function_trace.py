# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions of a trace in the order in which they first appear, one by one or as a chain.

A PC trace does not record calls. The chain infers them: a function that appears while it is in the chain was returned to, and
any other one was called by the function before it, unless it is one that nothing else in the kernel calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from kcovdbg.records.loop_folding import FunctionRun
from kcovdbg.model.location import Frame

_HEADER: Final = ".h"


class TraceStep(NamedTuple):
    """A function at one place of the trace."""

    depth: int
    """In the chain, 0 for the outermost."""
    group: object
    """The function."""
    first: int
    """Position in the sequence of its first record."""
    records: int
    """Its own records."""
    total: int
    """Its records and those of the steps below it."""
    rounds: int
    """How often it was entered from the step above."""


@dataclass(slots=True)
class _Node:
    parent: int
    depth: int
    group: object
    first: int
    records: int = 0
    rounds: int = 0


def group_by_function(frames: Mapping[int, Frame]) -> dict[int, object]:
    """Return the function that each PC is in: its name and file, or the PC itself where its name is unknown.

    A function has lines of headers without an inlined frame where compilers merge statements. There the file is that of the
    nearest points of the same name, which is another one for another function of that name.

    :param frames: PC -> its outermost frame.
    """
    groups: dict[int, object] = {}
    for name, points in groupby(sorted(frames), key=lambda pc: frames[pc].function):
        pcs = list(points)
        if name is None:
            groups.update((pc, pc) for pc in pcs)
            continue
        files = {pc: frames[pc].file for pc in pcs}
        own = next((file for file in files.values() if file and not file.endswith(_HEADER)), None)
        for pc, file in files.items():
            groups[pc] = (name, own if own and (file is None or file.endswith(_HEADER)) else file)
    return groups


def list_functions(runs: Iterable[FunctionRun]) -> list[TraceStep]:
    """Return each function once, in the order of first appearance; its rounds are its runs."""
    found: dict[object, _Node] = {}
    for run in runs:
        node = found.setdefault(run.group, _Node(-1, 0, run.group, run.first))
        node.records += run.length
        node.rounds += 1
    return [TraceStep(0, node.group, node.first, node.records, node.records, node.rounds) for node in found.values()]


def chain_functions(
    runs: Iterable[FunctionRun], is_entry: Callable[[int], bool], is_outermost: Callable[[object], bool]
) -> list[TraceStep]:
    """Return the steps of a trace as an indented chain, each before those below it.

    A step that is entered again from the same step above is not repeated: its rounds count, so that loops are folded.

    :param is_entry: returns whether the record at a position is the first point of its function, so that the function was
        entered there and not returned to.
    :param is_outermost: returns whether a group is a function that user space enters.
    """
    nodes: list[_Node] = []
    by_place: dict[tuple[int, Hashable], int] = {}
    path: list[int] = []

    def enter(run: FunctionRun) -> None:
        place = (path[-1] if path else -1, run.group)
        node = by_place.get(place)
        if node is None:
            node = by_place[place] = len(nodes)
            nodes.append(_Node(place[0], len(path), run.group, run.first))
        nodes[node].rounds += 1
        path.append(node)

    for run in runs:
        open_at = next((at for at in range(len(path) - 1, -1, -1) if nodes[path[at]].group == run.group), None)
        if open_at is None:
            if is_outermost(run.group):
                path.clear()
            enter(run)
        elif is_entry(run.first):
            # Entered again: the call before has ended.
            del path[open_at:]
            enter(run)
        else:
            del path[open_at + 1 :]
        nodes[path[-1]].records += run.length
    return _in_order(nodes)


def _in_order(nodes: list[_Node]) -> list[TraceStep]:
    totals = [node.records for node in nodes]
    below: dict[int, list[int]] = {}
    for number in range(len(nodes) - 1, -1, -1):
        # A node comes after the one above it.
        if nodes[number].parent >= 0:
            totals[nodes[number].parent] += totals[number]
        below.setdefault(nodes[number].parent, []).append(number)
    steps: list[TraceStep] = []
    pending = list(below.get(-1, ()))
    while pending:
        number = pending.pop()
        node = nodes[number]
        steps.append(TraceStep(node.depth, node.group, node.first, node.records, totals[number], node.rounds))
        pending += below.get(number, ())
    return steps


def select_largest(steps: list[TraceStep], limit: int) -> list[TraceStep]:
    """Return the steps with the most records, those below included, in their order; what is above a step stays with it."""
    if len(steps) <= limit:
        return steps
    ranked = sorted(range(len(steps)), key=lambda at: (-steps[at].total, at))
    return [steps[at] for at in sorted(ranked[:limit])]
