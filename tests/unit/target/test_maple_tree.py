# SPDX-License-Identifier: LGPL-2.1-or-later
"""Maple trees made by hand, and damaged."""

import struct

import pytest

from kcovdbg.errors import ReadError
from kcovdbg.target.mappings import MapleTrees
from kcovdbg.target.target import Member
from tests.support.kernels.declare import Declarations
from tests.support.memory_target import MemoryTarget, Structure

NODES = 0xFFFF_8880_0000_0000
ROOT = 0xFFFF_8880_0001_0000
ENTRIES = 0xFFFF_8880_0100_0000
LAST = (1 << 64) - 1
LEAF, RANGE, ALLOCATING = 1, 2, 3
# Offsets of pivots and slots, as lib/maple_tree.c lays nodes out on 64-bit machines.
SLOTS = {LEAF: 128, RANGE: 128, ALLOCATING: 80}


TYPES = """
struct maple_tree { long lock; void *ma_root; };
struct maple_range_64 { long pivot[15]; void *slot[16]; };
struct maple_arange_64 { long pivot[9]; void *slot[10]; };
"""


class Tree:
    """A tree whose nodes are written one by one."""

    def __init__(self):
        node = {
            "mr64": Member(8, 248, "struct maple_range_64"),
            "ma64": Member(8, 248, "struct maple_arange_64"),
        }
        self.target = MemoryTarget(
            types={
                **Declarations().declare(TYPES).types,
                "struct maple_node": Structure(256, node),
            },
            segments={NODES: bytearray(64 * 256), ROOT: bytearray(16)},
        )
        self.set_root(0)

    def set_root(self, entry):
        struct.pack_into("<Q", self.target.segments[ROOT], 8, entry)

    def node(self, index, kind, pivots, slots):
        start = index * 256
        struct.pack_into(f"<{len(pivots)}Q", self.target.segments[NODES], start + 8, *pivots)
        struct.pack_into(
            f"<{len(slots)}Q", self.target.segments[NODES], start + SLOTS[kind], *slots
        )
        return NODES + start | kind << 3 | 4

    def entries(self):
        return list(MapleTrees(self.target).for_each_entry(ROOT))


def two_levels():
    tree = Tree()
    first = tree.node(1, LEAF, [99, 199, 299], [0, ENTRIES, ENTRIES + 256, 0])
    second = tree.node(2, LEAF, [399], [ENTRIES + 512, 0])
    tree.set_root(tree.node(0, ALLOCATING, [349], [first, second]) | 2)
    return tree


def test_entries_by_index():
    assert two_levels().entries() == [ENTRIES, ENTRIES + 256, ENTRIES + 512]


def test_trees_without_nodes():
    tree = Tree()
    assert tree.entries() == []
    tree.set_root(ENTRIES)
    assert tree.entries() == [ENTRIES]
    # XA_ZERO_ENTRY and values are not pointers.
    tree.set_root(1030)
    assert tree.entries() == []


def test_full_leaf_ends_where_its_node_does():
    tree = Tree()
    slots = [ENTRIES + 256 * index for index in range(16)]
    tree.set_root(tree.node(0, LEAF, [10 * index + 9 for index in range(15)], slots) | 2)
    assert tree.entries() == slots


@pytest.mark.parametrize(
    ("kind", "pivots", "slots"),
    [
        # Of a node that leads to itself, to the one above, and to itself alone.
        (RANGE, [49], [NODES + 256 | RANGE << 3 | 4] * 2),
        (RANGE, [49], [NODES | RANGE << 3 | 4] * 2),
        (RANGE, [99], [NODES + 256 | RANGE << 3 | 4, 0]),
        # Pivots out of order, and a child that is no address.
        (LEAF, [200, 100], [ENTRIES, ENTRIES, 0]),
        (RANGE, [99], [0x1234_5678, 0]),
    ],
)
def test_damaged_nodes(kind, pivots, slots):
    tree = Tree()
    inner = tree.node(1, kind, pivots, slots)
    tree.set_root(tree.node(0, RANGE, [99, 199], [inner, inner, inner]) | 2)
    with pytest.raises(ReadError):
        tree.entries()


@pytest.mark.parametrize("kind", [0, 4, 15])
def test_unknown_type(kind):
    tree = Tree()
    tree.set_root(NODES | kind << 3 | 6)
    with pytest.raises(ReadError, match=str(kind)):
        tree.entries()


def test_missing_node_keeps_what_came_before():
    tree = two_levels()
    tree.target.holes.append((NODES + 512, NODES + 768))
    found = []
    entries = MapleTrees(tree.target).for_each_entry(ROOT)
    with pytest.raises(ReadError):
        found.extend(entries)
    assert found == [ENTRIES, ENTRIES + 256]
