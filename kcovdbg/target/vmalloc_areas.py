# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's vmalloc areas, with the functions that allocated them, over any target."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.memory import VmallocArea
from kcovdbg.target.lists import Links, follow_list
from kcovdbg.target.pointer import check_pointer, read_pointer
from kcovdbg.target.protocol import Symbol, Target
from kcovdbg.target.struct_layout import BlockLayout

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
    address: int
    size: int
    """In bytes, with the guard page."""
    requested_size: int | None
    """In bytes; 0 or None on kernels that do not store it."""
    caller: int
    flags: int
    pages: int
    page_count: int

    @property
    def guard_pages(self) -> int:
        return 0 if self.flags & _VM_NO_GUARD else 1

    @property
    def page_size(self) -> int:
        """In bytes; 0 for an area without pages of its own."""
        size, rest = divmod(self.size, self.page_count + self.guard_pages) if self.page_count else (0, 0)
        return 0 if rest else size


class VmallocWalk:
    """The lists of vmalloc areas.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info lacks their types.
    :raises MissingSymbolError: when the kernel has no such lists.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._area = BlockLayout(target, _VMAP_AREA, {"next": ("list.next",), "prev": ("list.prev",), "vm": ("vm",)})
        for name in self._area.names:
            self._area.offset(name)
        names = ("addr", "size", "requested_size", "caller", "flags", "pages", "nr_pages")
        self._vm = BlockLayout(target, _VM_STRUCT, {name: (name,) for name in names})
        for name in names:
            # It came with "mm: vmalloc: support more granular vrealloc() sizing" (in v6.15, and in stable kernels since 6.12).
            if name != "requested_size":
                self._vm.offset(name)
        try:
            # Since Linux kernel commit d093602919ad ("mm: vmalloc: remove global vmap_area_root rb-tree") (in v6.9).
            self._nodes: Symbol | None = target.symbol("vmap_nodes")
        except MissingSymbolError:
            self._nodes = None
            self._list = target.symbol("vmap_area_list").address
        else:
            self._count = target.symbol("nr_vmap_nodes").address
            self._node_size = target.type_size("struct vmap_node")
            self._busy = target.member("struct vmap_node", "busy.head").offset

    def for_each_vmalloc_area(self) -> Iterator[VmallocArea]:
        """Yield all areas that have a ``struct vm_struct``.

        :raises ReadError: when they cannot be read further.
        """
        found: list[_Area] = []
        problem: ReadError | None = None
        try:
            found.extend(self._for_each_area())
        except ReadError as error:
            problem = error
        page_size = next((area.page_size for area in found if area.page_size), PAGE_SIZE)
        arrays = {area.pages for area in found}
        for area in found:
            size = area.requested_size or area.size - area.guard_pages * page_size
            name = self._target.symbol_name(area.caller) or f"{area.caller:#x}"
            yield VmallocArea(area.address, size, name, bool(area.flags & _VM_USERMAP), area.address in arrays)
        if problem is not None:
            raise problem

    def _for_each_area(self) -> Iterator[_Area]:
        broken: ReadError | None = None
        for head in self._find_heads():
            problem = yield from self._for_each_in_list(head)
            if problem is not None:
                broken = broken or ReadError(f"could not read the list of vmalloc areas: {problem}", head)
        if broken is not None:
            raise broken

    def _find_heads(self) -> Iterator[int]:
        if self._nodes is None:
            yield self._list
            return
        count = int.from_bytes(self._target.read(self._count, 4), "big" if self._target.big_endian else "little")
        if not 0 < count <= _MAX_NODES:
            raise ReadError(f"nr_vmap_nodes is {count}", self._count)
        nodes = read_pointer(self._target, self._nodes.address)
        check_pointer(self._target, nodes, "struct vmap_node")
        for index in range(count):
            yield nodes + index * self._node_size + self._busy

    def _for_each_in_list(self, head: int) -> Generator[_Area, None, str | None]:
        """Yield the areas of one list; return why it is incomplete, None when it is complete."""
        word = self._target.word_size
        link_offset = self._area.offset("next")

        def read(link: int) -> tuple[int, Links]:
            address = link - link_offset
            check_pointer(self._target, address, _VMAP_AREA)
            following, before, vm = self._area.read(self._target, address)
            return vm, Links(following, before)

        ends = Links(read_pointer(self._target, head), read_pointer(self._target, head + word))
        chain = follow_list(head, ends, read, _MAX_AREAS, moving=self._target.live)
        while True:
            try:
                vm = next(chain)
            except StopIteration as stop:
                problem: str | None = stop.value
                return problem
            # Areas of vm_map_ram() have none. Where the address is of no use, neither is the rest of the list.
            if vm:
                check_pointer(self._target, vm, _VM_STRUCT)
                yield _Area(*self._vm.read(self._target, vm))


def find_vmalloc_areas(target: Target) -> VmallocWalk | None:
    """Return the walk over a target's vmalloc areas, None when the debug info or the kernel lacks what it needs."""
    try:
        return VmallocWalk(target)
    except (MissingTypeError, MissingSymbolError):
        return None
