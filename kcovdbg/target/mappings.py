# SPDX-License-Identifier: LGPL-2.1-or-later
"""Walks of the mappings of user address spaces, of the maple trees that hold these, and of the
kernel's vmalloc areas. Damaged structures end a walk.

Maple trees came with Linux kernel commit 54a611b60590 ("Maple Tree: add new data structure") (in
v6.1).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.address import word_mask
from kcovdbg.errors import ReadError
from kcovdbg.model.memory import VmallocArea
from kcovdbg.target.pointer import (
    Links,
    check_pointer,
    finish,
    follow_chain,
    follow_list,
    read_pointer,
    read_word,
    read_words,
    strip_tag,
)
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol, find_member
from kcovdbg.target.target import Target, Vma

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


class _NodeArrays(NamedTuple):
    """The places of a maple node's arrays among its words."""

    pivots: slice
    """The last index of each slot; the last slot may have none."""
    slots: slice


class MapleTrees:
    """The maple trees of a kernel.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info has no maple trees.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._root = target.member("struct maple_tree", "ma_root").offset
        self._node_words = target.type_size("struct maple_node") // target.word_size
        plain = self._find_arrays("mr64")
        self._arrays = {
            _LEAF: plain,
            _RANGE: plain,
            _ALLOCATING_RANGE: self._find_arrays("ma64"),
        }

    def _find_arrays(self, name: str) -> _NodeArrays:
        """Return the arrays of a node.

        :param name: the member of ``struct maple_node`` for a type of nodes.
        """
        return _NodeArrays(self._find_array(f"{name}.pivot"), self._find_array(f"{name}.slot"))

    def _find_array(self, path: str) -> slice:
        member = self._target.member("struct maple_node", path)
        first = member.offset // self._target.word_size
        return slice(first, first + (member.length or 0))

    def for_each_entry(self, tree: int) -> Iterator[int]:
        """Yield the pointers in a tree in the order of their indices, each once.

        :param tree: ``struct maple_tree *``.
        :raises ReadError: when a node is unreadable or damaged.
        """
        root = read_pointer(self._target, tree + self._root)
        if _is_node(root):
            yield from self._walk(root, 0, word_mask(self._target.word_size), 1)
        elif _is_pointer(root):
            # A tree of one entry at index 0 has no node.
            yield root

    def _walk(self, link: int, first: int, last: int, height: int) -> Iterator[int]:
        """Yield the pointers below a node that covers the indices from ``first`` to ``last``.

        The range of a child must be smaller than its parent's, and the height is limited: so a
        cycle ends.

        :param link: the node's address and its type.
        """
        node = link & -_NODE_ALIGNMENT
        kind = link >> _TYPE_SHIFT & _TYPE_MASK
        if height > _MAX_HEIGHT:
            raise ReadError(f"a maple tree has more than {_MAX_HEIGHT} levels", node)
        check_pointer(self._target, node, "struct maple_node")
        arrays = self._arrays.get(kind)
        if arrays is None:
            raise ReadError(f"the maple node {node:#x} has the unknown type {kind}", node)
        words = read_words(self._target, node, self._node_words)
        pivots = words[arrays.pivots]
        start = first
        for index, entry in enumerate(words[arrays.slots]):
            end = last
            # A pivot of 0 after the first one is unused: its slot is the node's last one.
            if index < len(pivots) and (pivots[index] or index == 0):
                end = pivots[index]
            if not start <= end <= last:
                raise ReadError(f"the pivots of the maple node {node:#x} are out of order", node)
            slot = strip_tag(self._target, entry)
            if kind != _LEAF:
                if (start, end) == (first, last) and height > 1:
                    raise ReadError(f"the maple node {node:#x} has a single child", node)
                yield from self._walk(slot, start, end, height + 1)
            elif _is_pointer(slot):
                yield slot
            # Slots after the last one are unused.
            if end == last:
                return
            start = end + 1


def _is_node(entry: int) -> bool:
    return entry & _ENTRY_MASK == _INTERNAL and entry > _LAST_RESERVED


def _is_pointer(entry: int) -> bool:
    return entry != 0 and entry & _ENTRY_MASK == 0


_VMA: Final = "struct vm_area_struct"
# Above any sysctl vm.max_map_count in practice (65530 by default).
_MAX_VMAS: Final = 1 << 24


class MappingWalk:
    """The walk of the mappings of a user address space.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info lacks types of mappings.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        members = "vm_start vm_end vm_pgoff vm_flags vm_file vm_next"
        self._vma = BlockLayout(target, _VMA, members).require("vm_next")
        # Since Linux kernel commit 763ecb035029 ("mm: remove the vma linked list") (in v6.1).
        self._tree = find_member(target, "struct mm_struct", ("mm_mt",))
        if self._tree is not None:
            self._trees = MapleTrees(target)
        else:
            self._list = target.member("struct mm_struct", "mmap")

    def for_each_vma(self, mm: int) -> Iterator[Vma]:
        if self._tree is not None:
            addresses = self._trees.for_each_entry(mm + self._tree.offset)
        else:
            addresses = self._for_each_in_list(mm + self._list.offset)
        last = 0
        for address in addresses:
            check_pointer(self._target, address, _VMA)
            start, end, pgoff, flags, file, _ = self._vma.read(self._target, address)
            if not last <= start < end:
                raise ReadError(f"the mappings of mm {mm:#x} are out of order", address)
            last = end
            yield Vma(start, end, pgoff, flags, file)

    def _for_each_in_list(self, head: int) -> Iterator[int]:
        next_offset = self._vma.offset("vm_next")

        def read(address: int, _: int) -> tuple[int, int]:
            check_pointer(self._target, address, _VMA)
            return address, read_pointer(self._target, address + next_offset)

        problem = yield from follow_chain(read_pointer(self._target, head), 0, read, _MAX_VMAS)
        if problem is not None:
            raise ReadError(f"could not read the list of mappings: {problem}", head)


_VMAP_AREA: Final = "struct vmap_area"
_VM_STRUCT: Final = "struct vm_struct"
# include/linux/vmalloc.h; debug info has no macros.
_VM_USERMAP: Final = 0x08
_VM_NO_GUARD: Final = 0x40
# A machine with 1 TiB of memory in small areas has fewer.
_MAX_AREAS: Final = 1 << 24
# The kernel makes at most one node for each CPU.
_MAX_NODES: Final = 1 << 16


class _Area(NamedTuple):
    """Members of ``struct vm_struct``."""

    address: int
    size: int
    """Size in bytes, with the guard page."""
    requested_size: int | None
    """Size in bytes; 0 or None on kernels that do not store it."""
    caller: int
    """An address in the function that allocated the area."""
    flags: int
    pages: int
    """Address of the array of the area's pages. A large array is a vmalloc area as well."""


class VmallocWalk:
    """The walk of the lists of vmalloc areas.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info lacks types of vmalloc areas.
    :raises MissingSymbolError: when the kernel has no lists of vmalloc areas.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._area = BlockLayout(target, _VMAP_AREA, "list.next list.prev vm").require()
        # requested_size came with "mm: vmalloc: support more granular vrealloc() sizing" (in v6.15,
        # and in stable kernels since 6.12).
        members = "addr size requested_size caller flags pages"
        self._vm = BlockLayout(target, _VM_STRUCT, members).require("requested_size")
        # Since Linux kernel commit d093602919ad ("mm: vmalloc: remove global vmap_area_root
        # rb-tree") (in v6.9).
        self._nodes = find_kernel_symbol(target, "vmap_nodes")
        if self._nodes is None:
            self._list = target.symbol("vmap_area_list").address
        else:
            self._count = target.symbol("nr_vmap_nodes").address
            self._node_size = target.type_size("struct vmap_node")
            self._busy = target.member("struct vmap_node", "busy.head").offset

    def for_each_vmalloc_area(self) -> Iterator[VmallocArea]:
        found: list[_Area] = []
        problem: ReadError | None = None
        try:
            for head in self._find_heads():
                areas, broken = finish(self._for_each_in_list(head))
                found += (area for area in areas if area is not None)
                if broken is not None and problem is None:
                    problem = ReadError(f"could not read the list of vmalloc areas: {broken}", head)
        except ReadError as error:
            problem = error
        page_arrays = {area.pages for area in found}
        for area in found:
            guard = 0 if area.flags & _VM_NO_GUARD else self._target.page_size
            size = area.requested_size or area.size - guard
            name = self._target.symbol_name(area.caller) or f"{area.caller:#x}"
            has_user_pages = bool(area.flags & _VM_USERMAP)
            is_page_array = area.address in page_arrays
            yield VmallocArea(area.address, size, name, has_user_pages, is_page_array)
        if problem is not None:
            raise problem

    def _find_heads(self) -> Iterator[int]:
        if self._nodes is None:
            yield self._list
            return
        count = read_word(self._target, self._count, 4)
        if not 0 < count <= _MAX_NODES:
            raise ReadError(f"nr_vmap_nodes is {count}", self._count)
        nodes = read_pointer(self._target, self._nodes.address)
        check_pointer(self._target, nodes, "struct vmap_node")
        for index in range(count):
            yield nodes + index * self._node_size + self._busy

    def _for_each_in_list(self, head: int) -> Generator[_Area | None, None, str | None]:
        """Yield the areas of one list, None for one of vm_map_ram(), which has no ``vm_struct``.

        :return: why the list is incomplete, None when it is complete.
        """
        link_offset = self._area.offset("list.next")

        def read(link: int) -> tuple[_Area | None, Links]:
            address = link - link_offset
            check_pointer(self._target, address, _VMAP_AREA)
            following, before, vm = self._area.read(self._target, address)
            links = Links(following, before)
            if not vm:
                return None, links
            check_pointer(self._target, vm, _VM_STRUCT)
            return _Area(*self._vm.read(self._target, vm)), links

        return (yield from follow_list(self._target, head, read, _MAX_AREAS))
