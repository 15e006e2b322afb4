# SPDX-License-Identifier: LGPL-2.1-or-later
"""Maple trees, ``struct maple_tree``, walked with bounds.

They came with Linux kernel commit 54a611b60590 ("Maple Tree: add new data structure") (in v6.1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.address import word_mask
from kcovdbg.errors import ReadError
from kcovdbg.target.pointer import check_pointer, read_pointer, strip_tag
from kcovdbg.target.protocol import Target

# include/linux/maple_tree.h and lib/maple_tree.c; debug info has no macros.
_NODE_ALIGNMENT: Final = 256
_MAX_HEIGHT: Final = 31
_TYPE_SHIFT: Final = 3
_TYPE_MASK: Final = 0xF
# enum maple_type. maple_dense has no user.
_LEAF: Final = 1
_RANGE: Final = 2
_ALLOCATING_RANGE: Final = 3

# include/linux/xarray.h: values and internal entries in the low bits of an entry.
_ENTRY_MASK: Final = 3
_INTERNAL: Final = 2
_LAST_RESERVED: Final = 4096


class _NodeShape(NamedTuple):
    """Offsets of the pivots and slots in a type of node."""

    pivots: int
    """Offset in bytes."""
    pivot_count: int
    slots: int
    """Offset in bytes."""
    slot_count: int


class MapleTrees:
    """The maple trees of a kernel.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info has no maple trees.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._root = target.member("struct maple_tree", "ma_root").offset
        self._node_size = target.type_size("struct maple_node")
        leaf = self._find_shape("mr64")
        self._shapes = {_LEAF: leaf, _RANGE: leaf, _ALLOCATING_RANGE: self._find_shape("ma64")}
        self._words = struct.Struct(f"{'>' if target.big_endian else '<'}{self._node_size // target.word_size}{_code(target)}")

    def _find_shape(self, name: str) -> _NodeShape:
        pivot = self._target.member("struct maple_node", f"{name}.pivot")
        slot = self._target.member("struct maple_node", f"{name}.slot")
        return _NodeShape(pivot.offset, pivot.length or 0, slot.offset, slot.length or 0)

    def for_each_entry(self, tree: int) -> Iterator[int]:
        """Yield the pointers in a tree by their index, each once.

        :param tree: ``struct maple_tree *``.
        :raises ReadError: when it cannot be read further, or is not a maple tree.
        """
        size = self._target.word_size
        root = read_pointer(self._target, tree + self._root)
        if _is_node(root):
            yield from self._walk(root, 0, word_mask(size), 1)
        elif _is_pointer(root):
            # A tree of one entry at index 0 has no node.
            yield root

    def _walk(self, entry: int, first: int, last: int, height: int) -> Iterator[int]:
        """Yield the pointers below a node that covers the indices from ``first`` to ``last``.

        Ranges of nodes that are inside each other and become smaller, and the limit of the height, end any cycle.
        """
        node, kind = entry & -_NODE_ALIGNMENT, entry >> _TYPE_SHIFT & _TYPE_MASK
        if height > _MAX_HEIGHT:
            raise ReadError(f"a maple tree has more than {_MAX_HEIGHT} levels", node)
        check_pointer(self._target, node, "struct maple_node")
        shape = self._shapes.get(kind)
        if shape is None:
            raise ReadError(f"the maple node {node:#x} has the unknown type {kind}", node)
        size = self._target.word_size
        words = self._words.unpack(self._target.read(node, self._node_size))
        start = first
        for index in range(shape.slot_count):
            end = words[shape.pivots // size + index] if index < shape.pivot_count else last
            # A pivot of 0 beyond the first one is unused: the slot before the unused ones goes to the end of the node's range.
            if end == 0 and index:
                end = last
            if not start <= end <= last:
                raise ReadError(f"the pivots of the maple node {node:#x} are out of order", node)
            slot = strip_tag(self._target, words[shape.slots // size + index])
            if kind != _LEAF:
                if (start, end) == (first, last) and height > 1:
                    raise ReadError(f"the maple node {node:#x} has a single child", node)
                yield from self._walk(slot, start, end, height + 1)
            elif _is_pointer(slot):
                yield slot
            if end == last:
                return
            start = end + 1


def _code(target: Target) -> str:
    return "Q" if target.word_size == 8 else "I"


def _is_node(entry: int) -> bool:
    return entry & _ENTRY_MASK == _INTERNAL and entry > _LAST_RESERVED


def _is_pointer(entry: int) -> bool:
    return entry != 0 and entry & _ENTRY_MASK == 0
