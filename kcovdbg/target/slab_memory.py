# SPDX-License-Identifier: LGPL-2.1-or-later
"""Allocated objects of SLUB's caches, in the memory of any target.

A full slab is on no list. So the slabs of a cache are searched for in the array of ``struct page``.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.target.page_array import PAGE, PageArray, PageBlock, find_page_type, page_reader
from kcovdbg.target.pointer import (
    Links,
    check_pointer,
    follow_list,
    is_kernel_pointer,
    read_pointer,
    read_word,
    read_words,
    strip_tag,
    tagged_pointers,
)
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol, find_member, read_string
from kcovdbg.target.target import SlabObject, Target

_CACHE: Final = "struct kmem_cache"
_CPU_CACHE: Final = "struct kmem_cache_cpu"
_CPU_SHEAVES: Final = "struct slub_percpu_sheaves"
_SHEAF: Final = "struct slab_sheaf"
_FILES: Final = "filp"
# General caches of GFP_KERNEL: kmalloc-64, kmalloc-rnd-03-64 (CONFIG_RANDOM_KMALLOC_CACHES),
# kmalloc-part-02-64. Caches for DMA, and for accounted or reclaimable objects, are not matched.
_GENERAL_CACHE: Final = re.compile(r"kmalloc-(?:(?!dma|cg|rcl)\w+-)*\d+[kM]?$")

# Machines have some hundred caches.
_MAX_CACHES: Final = 1 << 16
_MAX_NODES: Final = 1 << 10
_MAX_SHEAVES: Final = 1 << 16
_NAME_SIZE: Final = 64
# SLUB counts the objects of a slab with 15 or 16 bits.
_MAX_OBJECTS: Final = (1 << 16) - 1
# Larger slabs hold a single object.
_MAX_SLAB_SIZE: Final = 16 << 20
# arch/x86/Kconfig: 8 bytes have one byte of shadow memory. It is at most 7 if the first of them may
# be accessed.
_SHADOW_OFFSET: Final = 0xDFFF_FC00_0000_0000
_SHADOW_SHIFT: Final = 3
_ACCESSIBLE: Final = 8
# How often a slab of a live kernel is read if it changes during a read.
_ATTEMPTS: Final = 4

_FLAGS: Final = ("flags.f", "flags")


class _Cache(NamedTuple):
    """``struct kmem_cache``."""

    address: int
    name: str | None
    object_size: int
    size: int
    """Distance from one object to the next."""
    link: int
    """Offset of a free object's link to the next one."""
    first: int
    """Offset of the first object in a slab."""
    random: int | None
    """The secret by which links are encoded; None without CONFIG_SLAB_FREELIST_HARDENED."""
    cpu_slab: int
    """Per-CPU ``struct kmem_cache_cpu *`` as stored, 0 if there is none."""
    sheaves: int
    """Per-CPU ``struct slub_percpu_sheaves *`` as stored, 0 if there is none."""


class _Slab(NamedTuple):
    cache: _Cache
    start: int
    """Address of the first object."""
    length: int
    """The number of objects."""
    free: int
    """The first free object, 0 when there is none."""


class SlabWalk:
    """The walk of SLUB's caches.

    :param target: the kernel.
    :param pages: its pages.
    :raises MissingTypeError: when the debug info lacks a type, or the allocator is not SLUB.
    :raises MissingSymbolError: when the kernel has no caches.
    """

    def __init__(self, target: Target, pages: PageArray) -> None:
        self._target = target
        self._pages = pages
        self._caches = target.symbol("slab_caches").address
        optional = "red_left_pad random cpu_slab cpu_sheaves"
        members = f"list.next list.prev name object_size size offset {optional}"
        self._cache = BlockLayout(target, _CACHE, members).require(*optional.split())
        # Linux kernel commit 2d517aa09bbc ("slab: add opt-in caching layer of percpu sheaves") (in
        # v6.18). CPUs have only these since 32c894c7274b ("slab: remove struct kmem_cache_cpu") (in
        # v7.0).
        self._sheaves = _SheafWalk(target) if self._cache.has("cpu_sheaves") else None
        self._cpu_cache: BlockLayout | None = None
        if self._cache.has("cpu_slab") or self._sheaves is None:
            # Linux kernel commit bb192ed9aa71 ("mm/slub: Convert most struct page to struct slab by
            # spatch") (in v5.17).
            self._cpu_cache = BlockLayout(
                target, _CPU_CACHE, {"freelist": ("freelist",), "slab": ("slab", "page")}
            ).require()
            self._cache.offset("cpu_slab")
        # Since Linux kernel commit d122019bf061 ("mm: Split slab into its own type") (in v5.17); it
        # overlays struct page.
        try:
            self._slab = self._find_slab_layout("struct slab")
        except MissingTypeError:
            self._slab = self._find_slab_layout(PAGE)
        self._is_slab = _find_slab_test(target)
        # Linux kernel commit 80a9201a5965 ("mm, kasan: switch SLUB to stackdepot, enable memory
        # quarantine for SLUB") (in v4.8). Modes with tags have no quarantine.
        self._has_quarantine = (
            find_member(target, _CACHE, ("kasan_info",)) is not None and not target.pointer_tag
        )
        if self._has_quarantine and target.machine != "x86_64":
            raise MissingTypeError("the shadow memory of this machine is unknown")
        self._files: tuple[int, ...] | None = None

    def _find_slab_layout(self, type_name: str) -> BlockLayout:
        return BlockLayout(self._target, type_name, "slab_cache freelist objects").require()

    def for_each_slab_object(self, size: int) -> Iterator[SlabObject]:
        problem: ReadError | None = None
        for address in self._for_each_object(lambda caches: _choose_general(caches, size)):
            try:
                yield SlabObject(address, self._target.read(address, size))
            except ReadError as error:
                problem = problem or error
        if problem is not None:
            raise ReadError(f"objects are missing: {problem}", problem.address)

    def for_each_file(self) -> Iterator[int]:
        if self._files is not None:
            yield from self._files
            return
        seen: list[int] = []
        for address in self._for_each_object(
            lambda caches: [cache for cache in caches if cache.name == _FILES]
        ):
            seen.append(address)
            yield address
        if not self._target.live:
            self._files = tuple(seen)

    def _for_each_object(self, choose: Callable[[list[_Cache]], Iterable[_Cache]]) -> Iterator[int]:
        """Yield the addresses of the allocated objects of caches. Objects that may be free are left
        out.

        :raises ReadError: at the end, the first problem.
        """
        caches: list[_Cache] = []
        problems: list[ReadError] = []
        try:
            caches.extend(self._for_each_cache())
        except ReadError as error:
            problems.append(error)
        for cache in caches:
            if cache.name is None:
                # The cache may be a wanted one.
                message = f"the name of the slab cache {cache.address:#x} could not be read"
                problems.append(ReadError(message, cache.address))
        chosen: dict[int, _Cache] = {}
        free: set[int] = set()
        for cache in choose(caches):
            try:
                free |= self._find_free_on_cpus(cache)
                chosen[cache.address] = cache
            except ReadError as error:
                problems.append(error)
        try:
            for page, slab in self._for_each_slab(chosen):
                try:
                    in_slab = self._find_free(page, slab) | self._find_poisoned(slab)
                except ReadError as error:
                    problems.append(error)
                    continue
                for number in range(slab.length):
                    address = slab.start + number * slab.cache.size
                    if address not in in_slab and address not in free:
                        yield address
        except ReadError as error:
            problems.append(error)
        if problems:
            raise problems[0]

    def _for_each_cache(self) -> Iterator[_Cache]:
        offset = self._cache.offset("list.next")

        def read(link: int) -> tuple[_Cache, Links]:
            address = link - offset
            check_pointer(self._target, address, _CACHE)
            found = self._cache.read_named(self._target, address)
            cache = _Cache(
                address,
                self._read_name(found["name"]),
                found["object_size"],
                found["size"],
                link=found["offset"],
                first=found["red_left_pad"] or 0,
                random=found["random"],
                cpu_slab=found["cpu_slab"] or 0,
                sheaves=found["cpu_sheaves"] or 0,
            )
            if not 0 < cache.object_size <= cache.size or cache.link >= cache.size:
                sizes = f"objects of {cache.object_size} bytes in {cache.size}"
                raise ReadError(f"the slab cache {address:#x} has {sizes}", address)
            return cache, Links(found["list.next"], found["list.prev"])

        problem = yield from follow_list(self._target, self._caches, read, _MAX_CACHES)
        if problem is not None:
            raise ReadError(f"could not read the list of slab caches: {problem}", self._caches)

    def _read_name(self, address: int) -> str | None:
        """Return the name of a cache, None when it is unreadable."""
        if not is_kernel_pointer(self._target, address, 1):
            return ""
        return read_string(self._target, address, _NAME_SIZE)

    def _for_each_slab(self, caches: Mapping[int, _Cache]) -> Iterator[tuple[int, _Slab]]:
        """Yield the slabs of caches, each with the address of its ``struct page``.

        :raises ReadError: at the end, when part of the array of pages is missing.
        """
        if not caches:
            return
        base, page_size = self._pages.direct_map(), self._target.page_size
        missing: list[PageBlock] = []
        for block in self._pages.for_each_block():
            if block.missing:
                missing.append(block._replace(data=b""))
            for number in self._find_candidates(block, caches):
                start = number * self._pages.element_size
                page = block.data[start : start + self._pages.element_size]
                slab = self._decode(page, base + (block.first + number) * page_size, caches)
                if slab is not None and self._is_slab(page):
                    yield block.address + start, slab
        if missing:
            count = sum(block.missing for block in missing)
            raise ReadError(
                f"{count} pages of the array of {PAGE} are missing: their slabs are not found",
                missing[0].address,
            )

    def _find_candidates(self, block: PageBlock, caches: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of the elements that would be slabs of the caches, by the member
        ``slab_cache``.
        """
        word = self._target.word_size
        words = array("Q" if word == 8 else "I", block.data)
        if (sys.byteorder == "big") != self._target.big_endian:
            words.byteswap()
        column = words[self._slab.offset("slab_cache") // word :: self._pages.element_size // word]
        wanted = {pointer for cache in caches for pointer in tagged_pointers(self._target, cache)}
        if wanted.isdisjoint(column):
            return
        yield from (number for number, cache in enumerate(column) if cache in wanted)

    def _decode(self, page: bytes, address: int, caches: Mapping[int, _Cache]) -> _Slab | None:
        cache, free, count = self._slab.decode(
            page[self._slab.start : self._slab.start + self._slab.span]
        )
        found = caches.get(cache)
        if (
            found is None
            or not 0 < count <= _MAX_OBJECTS
            or found.first + count * found.size > _MAX_SLAB_SIZE
        ):
            return None
        return _Slab(found, address + found.first, count, free)

    def _find_free(self, page: int, slab: _Slab) -> set[int]:
        """Return the free objects on a slab's own list."""
        retries = _ATTEMPTS - 1 if self._target.live else 0
        for _ in range(retries):
            with suppress(ReadError):
                return self._follow_free(slab)
            # The slab has changed: start again with the first free object of now.
            slab = slab._replace(free=self._slab.read(self._target, page)[1])
        return self._follow_free(slab)

    def _find_poisoned(self, slab: _Slab) -> set[int]:
        """Return the objects that must not be accessed, by KASAN's shadow memory.

        SLUB counts objects in KASAN's quarantine as allocated. Since Linux kernel commit
        b8c8ba73c68b ("slub: Introduce CONFIG_SLUB_RCU_DEBUG") (in v6.12) files are among them.
        """
        if not self._has_quarantine:
            return set()
        size = slab.cache.size
        start = (slab.start >> _SHADOW_SHIFT) + _SHADOW_OFFSET & WORD_MASK
        shadow = self._target.read(start, (slab.length * size >> _SHADOW_SHIFT) or 1)
        return {
            slab.start + number * size
            for number in range(slab.length)
            if shadow[number * size >> _SHADOW_SHIFT] >= _ACCESSIBLE
        }

    def _follow_free(self, slab: _Slab) -> set[int]:
        """Return the objects on a list of free objects.

        :raises ReadError: when the list is unreadable, has a cycle, or leaves the slab.
        """
        found: set[int] = set()
        if not slab.free:
            return found
        cache = slab.cache
        what = f"a list of free objects of {cache.name or 'a slab cache'}"
        try:
            memory = self._target.read(slab.start, slab.length * cache.size)
        except ReadError:
            # A slice may lack the pages of allocated objects.
            memory = b""
        word = self._target.word_size
        address = slab.free
        while address:
            number, rest = divmod(address - slab.start, cache.size)
            if rest or not 0 <= number < slab.length:
                raise ReadError(f"{what} leads to {address:#x}", address)
            if address in found:
                raise ReadError(f"{what} has a cycle at {address:#x}", address)
            found.add(address)
            offset = number * cache.size + cache.link
            stored = memory[offset : offset + word] or self._target.read(address + cache.link, word)
            link = int.from_bytes(stored, self._target.byte_order)
            address = self._decode_link(slab, link, address + cache.link)
        return found

    def _decode_link(self, slab: _Slab, stored: int, address: int) -> int:
        """Return the address of the next free object, 0 at the end of the list.

        :param stored: the link as stored.
        :param address: the address of the link.
        """
        random = slab.cache.random
        if random is None:
            return strip_tag(self._target, stored)
        # The address is swapped since Linux kernel commit 1ad53d9fa3f6 ("slub: improve bit
        # diffusion for freelist ptr obfuscation") (in v5.7 and stable kernels).
        swapped = int.from_bytes(address.to_bytes(self._target.word_size, "little"), "big")
        links = [strip_tag(self._target, stored ^ random ^ mask) for mask in (swapped, address)]
        end = slab.start + slab.length * slab.cache.size
        for link in links:
            if not link or slab.start <= link < end:
                return link
        # The list leaves the slab: damage.
        return links[0]

    def _find_free_on_cpus(self, cache: _Cache) -> set[int]:
        """Return the free objects that CPUs allocate from next."""
        found: set[int] = set()
        for offset in self._find_cpu_offsets():
            if cache.cpu_slab and self._cpu_cache is not None:
                found |= self._find_free_on_cpu(
                    self._cpu_cache, cache, cache.cpu_slab + offset & WORD_MASK
                )
            if cache.sheaves and self._sheaves is not None:
                found |= self._sheaves.find_on_cpu(cache.sheaves + offset & WORD_MASK)
        if cache.sheaves and self._sheaves is not None:
            found |= self._sheaves.find_on_nodes(cache.address)
        return found

    def _find_free_on_cpu(self, layout: BlockLayout, cache: _Cache, address: int) -> set[int]:
        check_pointer(self._target, address, _CPU_CACHE)
        most = _ATTEMPTS if self._target.live else 1
        for attempts in range(most, 0, -1):
            free, page = layout.read(self._target, address)
            try:
                slab = self._read_slab(page, {cache.address: cache}) if page else None
                return set() if slab is None else self._follow_free(slab._replace(free=free))
            except ReadError:
                if attempts == 1:
                    raise
        raise AssertionError

    def _read_slab(self, page: int, caches: Mapping[int, _Cache]) -> _Slab | None:
        """Read the slab of a ``struct page *``, None if it is a slab of another cache."""
        check_pointer(self._target, page, PAGE)
        frame = self._pages.find_frame(page)
        if frame is None:
            raise ReadError(f"the slab of a CPU {page:#x} is not in the array of pages", page)
        data = self._target.read(page, self._pages.element_size)
        return self._decode(data, self._pages.direct_map() + frame * self._target.page_size, caches)

    def _find_cpu_offsets(self) -> list[int]:
        """Return for each CPU the offset that is added to a per-CPU pointer."""
        table = find_kernel_symbol(self._target, "__per_cpu_offset")
        if table is None:
            # CONFIG_SMP=n.
            return [0]
        return [
            read_word(self._target, table.address + cpu * self._target.word_size)
            for cpu in self._target.cpus()
        ]


class _SheafWalk:
    """The walk of sheaves: arrays of free objects that CPUs and nodes keep.

    :raises MissingTypeError: when the debug info lacks a type.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._cpu = BlockLayout(target, _CPU_SHEAVES, "main spare").require()
        self._sheaf = BlockLayout(target, _SHEAF, "barn_list.next barn_list.prev size").require()
        self._objects = target.member(_SHEAF, "objects").offset
        self._full = target.member("struct node_barn", "sheaves_full").offset
        # Since Linux kernel commit 5ba6bc27b1f9 ("slab: decouple pointer to barn from
        # kmem_cache_node") (in v7.1).
        per_node = find_member(target, _CACHE, ("per_node",))
        self._has_nodes = per_node is None
        if per_node is not None:
            self._nodes = per_node.offset
            node = "struct kmem_cache_per_node_ptrs"
            self._node_size = target.type_size(node)
        else:
            self._nodes = target.member(_CACHE, "node").offset
            node = "struct kmem_cache_node"
            self._node_size = target.word_size
        self._barn = target.member(node, "barn").offset

    def find_on_cpu(self, address: int) -> set[int]:
        """Return the objects in the sheaves of a CPU.

        :param address: ``struct slub_percpu_sheaves *``.
        """
        check_pointer(self._target, address, _CPU_SHEAVES)
        found: set[int] = set()
        for sheaf in self._cpu.read(self._target, address):
            if sheaf:
                check_pointer(self._target, sheaf, _SHEAF)
                found.update(self._read_objects(sheaf, self._sheaf.read(self._target, sheaf)[2]))
        return found

    def find_on_nodes(self, cache: int) -> set[int]:
        """Return the objects in the full sheaves of all nodes.

        :param cache: ``struct kmem_cache *``.
        """
        found: set[int] = set()
        for number in range(self._count_nodes()):
            node = cache + self._nodes + number * self._node_size
            if self._has_nodes:
                node = read_pointer(self._target, node)
                if not node:
                    continue
                check_pointer(self._target, node, "struct kmem_cache_node")
            barn = read_pointer(self._target, node + self._barn)
            if barn:
                check_pointer(self._target, barn, "struct node_barn")
                found.update(*self._read_full(barn + self._full))
        return found

    def _count_nodes(self) -> int:
        count = find_kernel_symbol(self._target, "nr_node_ids")
        if count is None:
            # CONFIG_NUMA=n.
            return 1
        number = read_word(self._target, count.address, 4)
        if not 0 < number <= _MAX_NODES:
            raise ReadError(f"nr_node_ids is {number}", count.address)
        return number

    def _read_full(self, head: int) -> Iterator[tuple[int, ...]]:
        offset = self._sheaf.offset("barn_list.next")

        def read(link: int) -> tuple[tuple[int, ...], Links]:
            sheaf = link - offset
            check_pointer(self._target, sheaf, _SHEAF)
            following, before, size = self._sheaf.read(self._target, sheaf)
            return self._read_objects(sheaf, size), Links(following, before)

        problem = yield from follow_list(self._target, head, read, _MAX_SHEAVES)
        if problem is not None:
            raise ReadError(f"could not read a list of sheaves: {problem}", head)

    def _read_objects(self, sheaf: int, size: int) -> tuple[int, ...]:
        if size > _MAX_OBJECTS:
            raise ReadError(f"the sheaf {sheaf:#x} has {size} objects", sheaf)
        pointers = read_words(self._target, sheaf + self._objects, size)
        return tuple(strip_tag(self._target, pointer) for pointer in pointers)


def _choose_general(caches: Iterable[_Cache], size: int) -> list[_Cache]:
    """Return the smallest general cache of each family whose objects have room for a size."""
    best: dict[str, _Cache] = {}
    for cache in caches:
        name = cache.name or ""
        if not _GENERAL_CACHE.match(name) or cache.object_size < size:
            continue
        family = name.rpartition("-")[0]
        if family not in best or cache.object_size < best[family].object_size:
            best[family] = cache
    return list(best.values())


def _find_slab_test(target: Target) -> Callable[[bytes], bool]:
    """Return a function that returns whether a ``struct page`` is a slab's first one.

    Such a page refers to a cache, but so may a page that was freed.
    """
    is_slab = find_page_type(target, "slab")
    if is_slab is not None:
        return is_slab
    flags = target.enumerators("enum pageflags")
    if "PG_slab" in flags:
        read, value = page_reader(target, _FLAGS), 1 << flags["PG_slab"]
        return lambda page: bool(read(page) & value)
    # Since Linux kernel commit 46df8e73a4a3 ("mm: free up PG_slab") (in v6.10), PG_slab is a macro,
    # which debug info lacks.
    return bool
