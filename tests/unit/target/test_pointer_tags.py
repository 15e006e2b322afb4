# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels whose pointers have a tag in the top byte, made of kernels without: every answer is the
same.
"""

import struct

import pytest

from kcovdbg.errors import PointerError, ReadError
from kcovdbg.target.page_array import PageArray
from kcovdbg.target.pointer import (
    check_pointer,
    find_pointer_tag,
    is_kernel_pointer,
    read_pointer,
    strip_tag,
)
from kcovdbg.target.slab_memory import SlabWalk
from kcovdbg.target.target import Member, Symbol
from tests.support.kernels.asker import Asker, ask_everything
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9B, ROWS
from tests.support.memory_target import MemoryTarget, Structure
from tests.unit.target import test_maple_tree as maple
from tests.unit.target import test_slab_memory as slab

SOFTWARE, HARDWARE = 0xFF << 56, 0x0F << 56
# Without the array of struct page, whose addresses have no tags.
HEAP = range(0xFFFF_8800_0000_0000, 0xFFFF_E000_0000_0000)
IMAGE = 0xFFFF_8000_8000_0000
FLAG = IMAGE + 0x100


def put_tags(target, tag=SOFTWARE):
    """Put another tag into each pointer to allocated memory that is stored anywhere."""
    count = 0
    numbers = [
        target.symbols[name]
        for name in ("__per_cpu_offset", "page_offset_base")
        if name in target.symbols
    ]
    for start, data in target.segments.items():
        first = -start % 8
        for offset in range(first, len(data) - 7, 8):
            (word,) = struct.unpack_from("<Q", data, offset)
            is_number = any(
                symbol.address <= start + offset < symbol.address + symbol.size
                for symbol in numbers
            )
            if word in HEAP and not is_number:
                count += 1
                struct.pack_into("<Q", data, offset, word & ~tag | count * 0x35 << 56 & tag)
    target.pointer_tag = tag
    return count


@pytest.mark.parametrize(
    ("row", "tag"),
    [*((row, SOFTWARE) for row in ROWS), (E9B, HARDWARE)],
    ids=lambda value: getattr(value, "name", None),
)
def test_every_answer_is_the_same(row, tag):
    plain, tagged = Kernel(row), Kernel(row)
    assert put_tags(tagged.target, tag) > 100
    assert ask_everything(tagged.target) == ask_everything(plain.target)
    lines = [
        "check --json",
        *(f"buffer kcov:{plain.objects[name]:#x} --json" for name in ("local", "full")),
    ]
    assert [Asker(tagged.target).ask(line) for line in lines] == [
        Asker(plain.target).ask(line) for line in lines
    ]


def test_the_user_may_give_a_tag():
    kernel = Kernel(ROWS[-1])
    put_tags(kernel.target)
    asker = Asker(kernel.target)
    address = kernel.objects["local"]
    tagged = address & ~SOFTWARE | 0xF3 << 56
    assert [row["kcov"] for row in asker.rows(f"objects {tagged:#x}")[0]] == [f"{address:#x}"]
    for words in ("why {:#x} --json", "buffer kcov:{:#x} --json"):
        assert asker.ask(words.format(tagged))[0] == asker.ask(words.format(address))[0] != ""


@pytest.mark.parametrize("hardened", [False, True])
@pytest.mark.parametrize("tag", [SOFTWARE, HARDWARE])
def test_slabs(hardened, tag):
    kernel = slab.Kernel(hardened=hardened)
    objects = kernel.slab(0, 3, (1, 7))
    if hardened:
        # What is encoded is a pointer with its tag; the place that it is encoded with is an
        # address.
        for address in (objects[1], objects[7]):
            (stored,) = struct.unpack("<Q", kernel.target.read(address + 128, 8))
            place = int.from_bytes((address + 128).to_bytes(8, "little"), "big")
            if stored ^ slab.RANDOM ^ place:
                kernel.write(address + 128, stored ^ 0x35 << 56 & tag)
    put_tags(kernel.target, tag)
    assert list(SlabWalk(kernel.target, PageArray(kernel.target)).for_each_file()) == slab.without(
        objects, 1, 7
    )


@pytest.mark.parametrize("sheaves", ["node", "per_node"])
def test_sheaves(sheaves):
    kernel = slab.Kernel(sheaves=sheaves)
    objects = kernel.slab(0, 3)
    kernel.write(slab.PER_CPU + 0x100, 0, kernel.sheaf(0, [objects[3]]), 0)
    kernel.barn(0, [kernel.sheaf(3, [objects[1]])])
    put_tags(kernel.target)
    assert kernel.files() == slab.without(objects, 1, 3)


def test_no_quarantine_with_tags():
    """Before v6.3 caches of all modes have the member."""
    kernel = slab.Kernel(has_shadow=True)
    objects = kernel.slab(0, 3, (1,))
    kernel.target.holes.append((slab.SHADOW, slab.SHADOW + slab.FRAMES * slab.PAGE_SIZE // 8))
    with pytest.raises(ReadError):
        kernel.files()
    put_tags(kernel.target)
    assert kernel.files() == slab.without(objects, 1)


def test_maple_trees():
    tree = maple.two_levels()
    entries = tree.entries()
    put_tags(tree.target)
    assert tree.entries() == entries


def test_direct_map():
    """It is found by the address of a slab cache."""
    cache = -(1 << 47) + 0x1234_5680
    tagged = cache & ~SOFTWARE | 0x12 << 56
    assert slab.find_arm64_map(slab.GIB, tagged, SOFTWARE) == slab.find_arm64_map(slab.GIB, cache)


@pytest.mark.parametrize(
    ("machine", "symbol", "flag", "expected"),
    [
        ("aarch64", "__hwasan_tag_memory", None, SOFTWARE),
        ("aarch64", "kasan_init_hw_tags", 1, HARDWARE),
        # On a machine without the Memory Tagging Extension.
        ("aarch64", "kasan_init_hw_tags", 0, 0),
        ("aarch64", "kasan_init_hw_tags", None, HARDWARE),
        ("aarch64", "kasan_init", 1, 0),
        ("x86_64", "__hwasan_tag_memory", None, 0),
    ],
)
def test_which_kernels_have_tags(machine, symbol, flag, expected):
    target = MemoryTarget(
        machine=machine,
        types={"struct static_key": Structure(16, {"enabled": Member(0, 4, "atomic_t")})},
        symbols={symbol: Symbol(symbol, IMAGE, 64)},
    )
    if flag is not None:
        target.symbols["kasan_flag_enabled"] = Symbol("kasan_flag_enabled", FLAG, 16)
        target.segments[FLAG] = bytearray([flag] + [0] * 15)
    assert find_pointer_tag(target) == expected


ADDRESS = 0xFFFF_0000_C012_3450


@pytest.mark.parametrize(
    ("tag", "stored", "is_pointer"),
    [
        (SOFTWARE, 0xF3FF_0000_C012_3450, True),
        (SOFTWARE, 0x12FF_0000_C012_3450, True),
        (SOFTWARE, 0xFFFF_0000_C012_3450, True),
        (HARDWARE, 0xF3FF_0000_C012_3450, True),
        # A bit beside the tag is damaged.
        (HARDWARE, 0x73FF_0000_C012_3450, False),
        (SOFTWARE, 0xF36F_0000_C012_3450, False),
        (SOFTWARE, 0x1200_0000_C012_3450, False),
        (0, 0xF3FF_0000_C012_3450, False),
        (0, 0x12FF_0000_C012_3450, False),
    ],
)
def test_damaged_pointers_are_refused(tag, stored, is_pointer):
    target = MemoryTarget(pointer_tag=tag, segments={IMAGE: bytearray(struct.pack("<Q", stored))})
    found = read_pointer(target, IMAGE)
    assert found == strip_tag(target, stored)
    assert is_kernel_pointer(target, found) == is_pointer
    if is_pointer:
        assert found == ADDRESS
    else:
        with pytest.raises(PointerError):
            check_pointer(target, found, "struct kcov")


def test_small_numbers_and_user_addresses_are_kept():
    target = MemoryTarget(pointer_tag=SOFTWARE)
    for number in (0, 1, 0x7FFF_FFFF_F000, 0x0100_0000_0000_0001, 1 << 55):
        assert strip_tag(target, number) == number
