# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mappings of user address spaces, over any target, and the maple trees that hold them, walked with bounds.

Maple trees came with Linux kernel commit 54a611b60590 ("Maple Tree: add new data structure") (in v6.1).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.abi.address import word_mask
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.target.lists import follow_chain
from kcovdbg.target.pointer import check_pointer, read_pointer, strip_tag
from kcovdbg.target.protocol import Target, Vma
from kcovdbg.target.struct_layout import BlockLayout

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


_VMA: Final = "struct vm_area_struct"
# Above any sysctl vm.max_map_count in practice (65530 by default).
_MAX_VMAS: Final = 1 << 24


class MappingWalk:
    """Mappings of user address spaces.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info lacks their types.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._vma = BlockLayout(
            target, _VMA, {name: (name,) for name in ("vm_start", "vm_end", "vm_pgoff", "vm_flags", "vm_file", "vm_next")}
        )
        for name in self._vma.names:
            if name != "vm_next":
                self._vma.offset(name)
        self._for_each_address: Callable[[int], Iterator[int]]
        try:
            # Since Linux kernel commit 763ecb035029 ("mm: remove the vma linked list") (in v6.1).
            tree = target.member("struct mm_struct", "mm_mt").offset
        except MissingTypeError:
            first = target.member("struct mm_struct", "mmap").offset
            following = self._vma.offset("vm_next")
            self._for_each_address = lambda mm: self._for_each_in_list(mm + first, following)
        else:
            self._for_each_address = lambda mm: self._for_each_in_tree(mm + tree)

    def for_each_vma(self, mm: int) -> Iterator[Vma]:
        """Yield the mappings, by address.

        :param mm: ``struct mm_struct *``.
        :raises ReadError: when they cannot be read further.
        """
        last = 0
        for address in self._for_each_address(mm):
            check_pointer(self._target, address, _VMA)
            start, end, pgoff, flags, file, _ = self._vma.read(self._target, address)
            if not last <= start < end:
                raise ReadError(f"the mappings of mm {mm:#x} are out of order", address)
            last = end
            yield Vma(start, end, pgoff, flags, file)

    @cached_property
    def _trees(self) -> MapleTrees:
        return MapleTrees(self._target)

    def _for_each_in_tree(self, tree: int) -> Iterator[int]:
        try:
            trees = self._trees
        except MissingTypeError as error:
            raise ReadError(str(error), tree) from None
        yield from trees.for_each_entry(tree)

    def _for_each_in_list(self, head: int, following: int) -> Iterator[int]:
        def read(address: int, _: int) -> tuple[int, int]:
            check_pointer(self._target, address, _VMA)
            return address, read_pointer(self._target, address + following)

        problem = yield from follow_chain(read_pointer(self._target, head), 0, read, _MAX_VMAS)
        if problem is not None:
            raise ReadError(f"could not read the list of mappings: {problem}", head)


def find_mappings(target: Target) -> MappingWalk | None:
    """Return the walk over a target's mappings, None when the debug info lacks their types."""
    try:
        return MappingWalk(target)
    except MissingTypeError:
        return None
