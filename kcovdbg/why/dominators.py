# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dominators: the nodes of a graph that are on every path from its start to another node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class DominatorTree(Generic[Node]):
    """The nodes that paths from a start lead to, each below the last node on every path to it.

    By "A Simple, Fast Dominance Algorithm" of Cooper, Harvey and Kennedy.

    :param start: a node.
    :param successors: the nodes that follow each node; a node without any may be left out.
    """

    def __init__(self, start: Node, successors: Mapping[Node, Iterable[Node]]) -> None:
        self._start: Final = start
        order = _order_by_depth(start, successors)
        self._number = {node: place for place, node in enumerate(order)}
        before: defaultdict[Node, list[Node]] = defaultdict(list)
        for node in order:
            for to in successors.get(node, ()):
                before[to].append(node)
        self._parent = {start: start}
        has_changed = True
        while has_changed:
            has_changed = False
            for node in reversed(order[:-1]):
                known = [previous for previous in before[node] if previous in self._parent]
                nearest = known[0]
                for previous in known[1:]:
                    nearest = self.find_common(nearest, previous)
                if self._parent.get(node) != nearest:
                    self._parent[node] = nearest
                    has_changed = True

    def __contains__(self, node: Node) -> bool:
        return node in self._parent

    def find_common(self, one: Node, other: Node) -> Node:
        """Return the last node that is on every path to both of two nodes."""
        number, parent = self._number, self._parent
        while one != other:
            if number[one] < number[other]:
                one = parent[one]
            else:
                other = parent[other]
        return one

    def find_path(self, node: Node) -> Sequence[Node]:
        """Return the nodes on every path to a node, as they follow, without the start; the node is
        the last one.
        """
        path = []
        while node != self._start:
            path.append(node)
            node = self._parent[node]
        return path[::-1]


def _order_by_depth(start: Node, successors: Mapping[Node, Iterable[Node]]) -> Sequence[Node]:
    """Return the nodes that paths from the start lead to, in postorder: each after the nodes that a
    depth-first search first reached through it.
    """
    order: list[Node] = []
    seen = {start}
    stack = [(start, iter(successors.get(start, ())))]
    while stack:
        node, rest = stack[-1]
        following = next((to for to in rest if to not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(successors.get(following, ()))))
    return order
