# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mappings of user address spaces, over any target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.target.lists import follow_chain
from kcovdbg.target.maple_tree import MapleTrees
from kcovdbg.target.pointer import check_pointer, read_pointer
from kcovdbg.target.protocol import Target, Vma
from kcovdbg.target.struct_layout import BlockLayout

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
