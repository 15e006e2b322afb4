# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slabs made by hand, and damaged."""

import struct

import pytest

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.target.connection import Connection
from kcovdbg.target.page_array import PageArray
from kcovdbg.target.rsp import Stub
from kcovdbg.target.slab_memory import SlabWalk
from kcovdbg.target.target import PageRange, Symbol
from tests.support.kernels.declare import Declarations
from tests.support.memory_target import MemoryTarget

DIRECT_MAP = 0xFFFF_8880_0000_0000
PAGES = 0xFFFF_EA00_0000_0000
IMAGE = 0xFFFF_FFFF_8100_0000
CACHES = DIRECT_MAP + 0x10_0000
PER_CPU = 0xFFFF_C900_0000_0000
FRAMES = 64
"""Pages of the machine."""
SUBSECTION = 512
"""Elements of the array that are present together."""
ELEMENT = 64
SLAB_TYPE, BUDDY_TYPE = 0xF5, 0xF0
PAGE_TYPES = {"PGTY_slab": SLAB_TYPE, "PGTY_buddy": BUDDY_TYPE}
# Of the direct map: Documentation/arch/x86/x86_64/mm.rst in the kernel has where shadow memory
# begins.
SHADOW = 0xFFFF_EC00_0000_0000 + (DIRECT_MAP - 0xFFFF_8000_0000_0000 >> 3)
RANDOM = 0x1234_5678_9ABC_DEF0
NAMES = ("filp", "kmalloc-64", "kmalloc-cg-64", "kmalloc-128")
SIZES = (256, 64, 64, 128)


TYPES = """
struct list_head { struct list_head *next; struct list_head *prev; };
struct page { unsigned long flags; long more[4]; unsigned long private; unsigned int page_type; long end; };
struct slab { unsigned long flags; struct kmem_cache *slab_cache; long more[2]; void *freelist; unsigned int inuse:16;
              unsigned int objects:15; long end[2]; };
struct kmem_cache_cpu { void **freelist; unsigned long tid; struct slab *slab; };
struct slub_percpu_sheaves { long lock; struct slab_sheaf *main; struct slab_sheaf *spare; };
struct slab_sheaf { struct list_head barn_list; unsigned int size; void *objects[0]; };
struct node_barn { long lock; struct list_head sheaves_full; };
struct kmem_cache_node { long lock; struct node_barn *barn; };
struct kasan_cache { long offset; };
"""
CACHE_TYPE = """
struct kmem_cache {{ void *{}; unsigned int size; unsigned int object_size; unsigned int offset; const char *name;
                     struct list_head list; unsigned long {}; {}; }};
"""


class Kernel:
    """A machine of 64 pages with four caches, of which none has a slab yet; two CPUs.

    :param hardened: whether links of free objects are encoded.
    :param sheaves: what leads to the sheaves of a node, ``node`` or ``per_node``; None for a kernel
        without sheaves.
    """

    def __init__(self, *, hardened=True, has_types=True, sheaves=None, has_shadow=False):
        self.hardened = hardened
        self.sheaves = sheaves
        # There is no other state of a CPU since v7.0.
        cpu = "cpu_slab" if sheaves is None else "cpu_sheaves"
        last = (
            f"void *{sheaves}[2]"
            if sheaves
            else "struct kasan_cache kasan_info"
            if has_shadow
            else "long end"
        )
        cache = CACHE_TYPE.format(cpu, "random" if hardened else "more", last)
        names = "slab_caches page_offset_base __per_cpu_offset nr_node_ids".split()
        self.target = MemoryTarget(
            types=Declarations().declare(TYPES + cache).types,
            enums={"enum pagetype": PAGE_TYPES}
            if has_types
            else {"enum pageflags": {"PG_slab": 9}},
            symbols={
                name: Symbol(name, IMAGE + 16 * number, 16) for number, name in enumerate(names)
            },
            segments={
                IMAGE: bytearray(256),
                CACHES: bytearray(0x1000),
                PER_CPU: bytearray(0x2000),
                PAGES: bytearray(SUBSECTION * ELEMENT),
                DIRECT_MAP: bytearray(FRAMES * PAGE_SIZE),
                **({SHADOW: bytearray(FRAMES * PAGE_SIZE // 8)} if has_shadow else {}),
            },
            cpu_numbers=(0, 1),
            pages=(PageRange(0, SUBSECTION, PAGES),),
        )
        self.write(self.target.symbols["page_offset_base"].address, DIRECT_MAP)
        self.write(self.target.symbols["__per_cpu_offset"].address, PER_CPU, PER_CPU + 0x1000)
        if sheaves == "per_node":
            pointers = "struct kmem_cache_per_node_ptrs { struct node_barn *barn; };"
            self.target.types |= Declarations().declare(pointers).types
        self.write(self.target.symbols["nr_node_ids"].address, 1)
        links = [
            self.target.symbols["slab_caches"].address,
            *(self.cache(number) + 32 for number in range(len(NAMES))),
        ]
        for number, link in enumerate(links):
            self.write(link, links[(number + 1) % len(links)], links[number - 1])
        for number, (name, size) in enumerate(zip(NAMES, SIZES, strict=True)):
            self.write(
                self.cache(number),
                0x100 * (number + 1),
                size << 32 | size,
                size // 2,
                CACHES + 0x800 + 32 * number,
            )
            self.write(self.cache(number) + 48, RANDOM)
            self.target.write(CACHES + 0x800 + 32 * number, name.encode() + b"\0")

    @staticmethod
    def cache(number):
        return CACHES + 0x80 * number

    def sheaf(self, place, objects):
        """Make an array of free objects that is on no list; return its address."""
        address = CACHES + 0xC00 + 0x40 * place
        self.write(address, address, address, len(objects), *objects)
        return address

    def barn(self, number, sheaves):
        """Make the full sheaves of the only node."""
        node, barn = CACHES + 0xA00, CACHES + 0xA40
        self.write(self.cache(number) + 56, barn if self.sheaves == "per_node" else node)
        self.write(node + 8, barn)
        links = [barn + 8, *sheaves]
        for place, link in enumerate(links):
            self.write(link, links[(place + 1) % len(links)], links[place - 1])

    def write(self, address, *words):
        self.target.write(address, struct.pack(f"<{len(words)}Q", *words))

    def chain(self, number, free):
        """Link free objects; return the first."""
        for address, following in zip(free, [*free, 0][1:], strict=True):
            place = address + SIZES[number] // 2
            swapped = int.from_bytes(place.to_bytes(8, "little"), "big")
            self.write(place, following ^ RANDOM ^ swapped if self.hardened else following)
        return free[0] if free else 0

    def slab(self, number, frame, free=()):
        """Make a slab of a cache in one page; return its objects."""
        start = DIRECT_MAP + frame * PAGE_SIZE
        objects = [start + offset for offset in range(0, PAGE_SIZE, SIZES[number])]
        page = PAGES + frame * ELEMENT
        self.write(page, 1 << 9, self.cache(number))
        self.write(
            page + 32, self.chain(number, [objects[index] for index in free]), len(objects) << 16
        )
        self.write(page + 48, SLAB_TYPE << 24)
        return objects

    def free(self, frame, order):
        """Make a page the first one of a free block."""
        has_types = "enum pagetype" in self.target.enums
        self.write(
            PAGES + frame * ELEMENT + 40, order, BUDDY_TYPE << 24 if has_types else 0xFFFF_FF7F
        )

    def on_cpu(self, number, cpu, frame, free):
        """Make a slab the one that a CPU allocates from."""
        self.write(
            PER_CPU + 0x1000 * cpu + 0x100 * (number + 1),
            self.chain(number, free),
            0,
            PAGES + frame * ELEMENT,
        )

    @property
    def walk(self):
        return SlabWalk(self.target, PageArray(self.target))

    def files(self):
        return list(self.walk.for_each_file())


def without(objects, *free):
    return [address for index, address in enumerate(objects) if index not in free]


@pytest.mark.parametrize("has_types", [True, False])
@pytest.mark.parametrize("hardened", [True, False])
def test_free_objects_are_left_out(hardened, has_types):
    kernel = Kernel(hardened=hardened, has_types=has_types)
    full, partial, active = kernel.slab(0, 3), kernel.slab(0, 5, (1, 7, 2)), kernel.slab(0, 9, (4,))
    kernel.slab(1, 6)
    kernel.on_cpu(0, 1, 9, [active[0], active[15]])
    assert kernel.files() == [*full, *without(partial, 1, 2, 7), *without(active, 0, 4, 15)]


def test_objects_in_quarantine_are_left_out():
    kernel = Kernel(has_shadow=True)
    objects = kernel.slab(0, 3, (1,))
    for index, byte in ((4, 0xFB), (9, 0xFA), (12, 0xFC)):
        kernel.target.write(
            SHADOW + (objects[index] - DIRECT_MAP >> 3), bytes([byte]) + b"\xfb" * 31
        )
    # Of the last granule five bytes may be accessed.
    kernel.target.write(SHADOW + (objects[2] - DIRECT_MAP >> 3), bytes(30) + b"\x05\xfc")
    assert kernel.files() == without(objects, 1, 4, 9, 12)
    other = kernel.slab(0, 40)
    kernel.target.holes.append((SHADOW + 3 * 512, SHADOW + 4 * 512))
    expect(kernel, other, "read")


@pytest.mark.parametrize("way", ["node", "per_node"])
def test_free_objects_in_sheaves(way):
    kernel = Kernel(sheaves=way)
    first, second = kernel.slab(0, 3), kernel.slab(0, 5, (1,))
    kernel.write(PER_CPU + 0x100, 0, kernel.sheaf(0, [first[3], second[4]]), 0)
    kernel.write(PER_CPU + 0x1100, 0, kernel.sheaf(1, []), kernel.sheaf(2, [first[0]]))
    kernel.barn(0, [kernel.sheaf(3, [second[9]]), kernel.sheaf(4, [first[7], second[0]])])
    assert kernel.files() == [*without(first, 0, 3, 7), *without(second, 0, 1, 4, 9)]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda kernel: kernel.write(CACHES + 0xC00 + 16, 1 << 20), "objects"),
        (lambda kernel: kernel.write(PER_CPU + 0x108, 0x1234), "not a kernel address"),
        (
            lambda kernel: kernel.write(CACHES + 0xC00 + 0x40 * 3, CACHES + 0xC00 + 0x40 * 3),
            "list of sheaves",
        ),
        (
            lambda kernel: kernel.write(kernel.target.symbols["nr_node_ids"].address, 1 << 20),
            "nr_node_ids",
        ),
        (lambda kernel: kernel.target.holes.append((CACHES + 0xC00, CACHES + 0x1000)), "read"),
    ],
)
def test_a_cache_whose_sheaves_are_damaged_is_left_out(damage, match):
    kernel = Kernel(sheaves="node")
    objects = kernel.slab(0, 3)
    kernel.write(PER_CPU + 0x100, 0, kernel.sheaf(0, [objects[3]]), 0)
    kernel.barn(0, [kernel.sheaf(3, [objects[1]])])
    assert kernel.files() == without(objects, 1, 3)
    damage(kernel)
    expect(kernel, [], match)


def test_the_smallest_cache_of_each_family():
    kernel = Kernel()
    objects = [(address, bytes(48)) for address in kernel.slab(1, 2)]
    kernel.slab(2, 3)
    kernel.slab(3, 4)
    assert [tuple(found) for found in kernel.walk.for_each_slab_object(48)] == objects
    assert [found.address for found in kernel.walk.for_each_slab_object(65)] == kernel.slab(3, 4)
    assert list(kernel.walk.for_each_slab_object(500)) == []


def test_links_of_older_kernels():
    kernel = Kernel()
    objects = kernel.slab(0, 3, (1, 2))
    for address, following in ((objects[1], objects[2]), (objects[2], 0)):
        kernel.write(address + 128, following ^ RANDOM ^ address + 128)
    assert kernel.files() == without(objects, 1, 2)


def test_what_is_left_of_a_freed_slab_is_none():
    kernel = Kernel()
    kernel.slab(0, 3)
    kernel.write(PAGES + 3 * ELEMENT + 48, 0xFFFF_FFFF)
    assert kernel.files() == []


def expect(kernel, files, match):
    found = []
    with pytest.raises(ReadError, match=match):
        found.extend(kernel.walk.for_each_file())
    assert found == files


def test_a_broken_list_of_free_objects_costs_its_slab():
    for damage, match in ((lambda first: first, "cycle"), (lambda first: first + 8, "leads to")):
        kernel = Kernel(hardened=False)
        good, bad = kernel.slab(0, 3), kernel.slab(0, 5, (1, 7))
        kernel.write(bad[7] + 128, damage(bad[1]))
        expect(kernel, good, match)


def test_unreadable_objects_are_left_out():
    kernel = Kernel()
    good, lost = kernel.slab(0, 3), kernel.slab(0, 5, (1,))
    kernel.target.holes.append((lost[0], lost[0] + PAGE_SIZE))
    expect(kernel, good, "read")
    # Free objects on the present pages reveal the slab.
    kernel = Kernel()
    good, cut = kernel.slab(0, 3), kernel.slab(0, 5, (1,))
    kernel.target.holes.append((cut[4], cut[0] + PAGE_SIZE))
    assert kernel.files() == [*good, *without(cut, 1)]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda kernel: kernel.target.holes.append((PER_CPU + 0x1000, PER_CPU + 0x2000)), "read"),
        (lambda kernel: kernel.write(PER_CPU + 0x100, 0, 0, DIRECT_MAP), "array of pages"),
        (lambda kernel: kernel.write(kernel.cache(0) + 8, 0), "slab caches"),
    ],
)
def test_damage_that_leaves_no_file(damage, match):
    kernel = Kernel()
    kernel.slab(0, 3)
    damage(kernel)
    expect(kernel, [], match)


def test_a_broken_list_of_caches():
    kernel = Kernel()
    files = kernel.slab(0, 3)
    kernel.write(kernel.cache(2) + 32, kernel.cache(1) + 32)
    expect(kernel, files, "list of slab caches")


def test_missing_pages_of_the_array_of_pages():
    kernel = Kernel()
    files = kernel.slab(0, 3)
    kernel.target.holes.append((PAGES + 2 * PAGE_SIZE, PAGES + 4 * PAGE_SIZE))
    expect(kernel, files, "^2 pages of the array of struct page")
    # Nothing is read after a long gap.
    kernel.target.holes.append((PAGES, PAGES + 6 * PAGE_SIZE))
    expect(kernel, [], "^8 pages of the array of struct page")


@pytest.mark.parametrize("has_types", [True, False])
def test_elements_of_free_pages_are_not_read_through_a_slow_connection(has_types):
    kernel = Kernel(has_types=has_types)
    kernel.target.segments[DIRECT_MAP] += bytearray(SUBSECTION * PAGE_SIZE)
    kernel.target.connection = Stub()
    before, after = kernel.slab(0, 3), kernel.slab(0, 448)
    kernel.free(128, 7)
    # No blocks: one is not aligned to its size, the other is larger than the allocator's are.
    kernel.free(65, 7)
    kernel.free(0, 40)
    kernel.target.holes.append((PAGES + 3 * PAGE_SIZE, PAGES + 4 * PAGE_SIZE))
    assert kernel.files() == [*before, *after]
    kernel.target.holes.append((PAGES + 6 * PAGE_SIZE, PAGES + 7 * PAGE_SIZE))
    expect(kernel, [*before, *after], "^1 pages of the array of struct page")
    # Elsewhere it costs less to read all of it at once.
    kernel.target.connection = Connection()
    expect(kernel, [*before, *after], "^2 pages of the array of struct page")


def test_other_allocators_and_machines_are_not_walked():
    kernel = Kernel()
    kernel.target.machine = "ppc64le"
    with pytest.raises(MissingTypeError):
        _ = kernel.walk
    kernel = Kernel()
    del kernel.target.types["struct kmem_cache_cpu"]
    with pytest.raises(MissingTypeError):
        _ = kernel.walk


def test_a_list_that_changes_is_read_again():
    kernel = Kernel(hardened=False)
    kernel.target.live = True
    objects = kernel.slab(0, 3, (1, 7))
    kernel.write(objects[7] + 128, objects[1])
    read = kernel.target.read

    def settle(address, size):
        if address == objects[0]:
            kernel.target.read = read
            data = read(address, size)
            kernel.write(objects[7] + 128, 0)
            return data
        return read(address, size)

    kernel.target.read = settle
    assert kernel.files() == without(objects, 1, 7)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("bits", "memstart"),
    [
        (48, GIB),
        # KASLR moves the direct map, here by most of what there is.
        (48, GIB - (1 << 46)),
        (39, GIB),
        (47, 2 * GIB),
        (52, GIB),
        (52, GIB - (1 << 50)),
    ],
)
def test_direct_map_of_arm64(bits, memstart):
    """``__phys_to_virt()``: from ``PAGE_OFFSET``, -(1 << bits), the memory from ``memstart_addr``
    on is mapped.
    """
    assert (
        find_arm64_map(memstart, -(1 << bits) + 0x1234_5680)
        == -(1 << bits) - memstart & (1 << 64) - 1
    )


def test_direct_map_of_52_bits_on_a_cpu_for_48():
    """``arm64_memblock_init()`` moves ``memstart_addr`` so that the formula holds with 52 bits."""
    start = find_arm64_map(GIB - ((1 << 52) - (1 << 48)), -(1 << 48) + 0x5680)
    assert start + GIB & (1 << 64) - 1 == -(1 << 48) & (1 << 64) - 1


def find_arm64_map(memstart, cache, tag=0):
    """Return the start of the direct map of a kernel that has its first slab cache at an
    address.
    """
    words = [word & (1 << 64) - 1 for word in (cache, memstart)]
    target = MemoryTarget(
        machine="aarch64",
        pointer_tag=tag,
        types=Declarations().declare(TYPES).types,
        symbols={
            name: Symbol(name, IMAGE + at, 8)
            for name, at in (("slab_caches", 0), ("memstart_addr", 8))
        },
        segments={IMAGE: bytearray(struct.pack("<QQ", *words))},
    )
    return PageArray(target).direct_map()
