# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mappings, vmalloc areas and slab objects as drgn's helpers list them, on every kept slice."""

import contextlib
from pathlib import Path

import drgn
import pytest
from drgn.helpers.linux.boot import kaslr_offset
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import for_each_valid_page_range, for_each_vma, for_each_vmap_area
from drgn.helpers.linux.mmzone import for_each_present_section, section_decode_mem_map
from drgn.helpers.linux.percpu import per_cpu_ptr
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry

from kcovdbg.errors import ReadError
from kcovdbg.target.drgn.programs import open_core
from kcovdbg.target.page_array import PageArray
from kcovdbg.target.rsp import Stub
from kcovdbg.target.slab_memory import SlabWalk
from tests.lab.golden import DEBUG_INFO, DESTINATION, SLICE
from tests.support.drgn_slabs import list_files, list_general_objects

KEPT = sorted(path for path in DESTINATION.iterdir() if path.is_dir())


@pytest.fixture(scope="module", params=KEPT, ids=lambda path: path.name)
def target(request):
    directory: Path = request.param
    opened = open_core(str(directory / SLICE), [str(directory / DEBUG_INFO)])
    opened.prog.register_object_finder("direct map", find_in_direct_map, enable_index=-1)
    yield opened
    opened.close()


def find_in_direct_map(prog, name, flags, _file):
    """Find the variable by which drgn finds the direct map, where slim debug info lacks it and the
    image has its symbol.
    """
    if name != "saved_command_line" or not flags & drgn.FindObjectFlags.VARIABLE:
        return None
    return drgn.Object(prog, "char *", address=prog.symbol(name).address)


def test_per_cpu_data(target):
    prog = target.prog
    assert target.kaslr_offset == kaslr_offset(prog)
    assert [*target.cpus()] == [*for_each_possible_cpu(prog)]
    queues = prog["runqueues"].address_of_()
    for cpu in target.cpus():
        assert target.per_cpu("runqueues", cpu) == int(per_cpu_ptr(queues, cpu))


def test_sections_of_memory(target):
    sections = for_each_present_section(target.prog)
    expected = {int(section_decode_mem_map(section, number)) for number, section in sections}
    assert expected
    assert expected == {part.address for part in target.page_ranges()}


def test_mappings(target):
    compared = 0
    processes = list_for_each_entry(
        "struct task_struct", target.prog["init_task"].tasks.address_of_(), "tasks"
    )
    for mm in {task.mm.value_() for task in processes} - {0}:
        vmas = list(for_each_vma(drgn.Object(target.prog, "struct mm_struct *", value=mm)))
        expected = [
            (
                vma.vm_start.value_(),
                vma.vm_end.value_(),
                vma.vm_pgoff.value_(),
                vma.vm_flags.value_(),
                vma.vm_file.value_(),
            )
            for vma in vmas
        ]
        assert [tuple(vma) for vma in target.vmas.for_each_vma(mm)] == expected
        compared += len(vmas)
    assert compared > 100


def test_vmalloc_areas(target):
    expected = [
        (area.va_start.value_(), bool(area.vm.flags & 0x08))
        for area in for_each_vmap_area(target.prog)
        if area.vm
    ]
    found = list(target.vmalloc.for_each_vmalloc_area())
    assert [(area.start, area.has_user_pages) for area in found] == expected
    assert len(found) > 50


def test_vmalloc_areas_in_their_tree():
    """Until v6.9 the kernel has its areas in a list, which kcovdbg and drgn's helper read, and in a
    red-black tree.
    """
    # The slice of the other 6.1 kernel lacks the page with the tree's root.
    directory = DESTINATION / "6.1-clang-fixed"
    opened = open_core(str(directory / SLICE), [str(directory / DEBUG_INFO)])
    root = opened.prog["vmap_area_root"].address_of_()
    areas = [
        area
        for area in rbtree_inorder_for_each_entry("struct vmap_area", root, "rb_node")
        if area.vm
    ]
    expected = [(area.va_start.value_(), bool(area.vm.flags & 0x08)) for area in areas]
    assert [
        (area.start, area.has_user_pages) for area in opened.vmalloc.for_each_vmalloc_area()
    ] == expected
    assert len(expected) > 100
    opened.close()


def test_slab_objects(target):
    if target.machine not in ("x86_64", "s390x"):
        pytest.skip("drgn's helpers do not find the slabs of this machine")
    files = list_files(target.prog)
    assert len(files) > 50
    assert sorted(target.slab.for_each_file()) == sorted(set(files) - find_freed(target, files))
    for size in (target.type_size("struct kcov"), 96, 192):
        # Slices have what was searched: these caches of some kernels only, as one was searched for
        # lost buffers.
        try:
            objects = list_general_objects(target.prog, size)
            freed = find_freed(target, objects)
        except drgn.FaultError:
            with pytest.raises(ReadError):
                list(target.slab.for_each_slab_object(size))
        else:
            expected = [
                address
                for address in objects
                if address not in freed and is_readable(target, address, size)
            ]
            found = []
            is_whole = len(expected) == len(
                [address for address in objects if address not in freed]
            )
            with contextlib.nullcontext() if is_whole else pytest.raises(ReadError):
                # After the last one that can be read, the walk says that others cannot.
                found.extend(one.address for one in target.slab.for_each_slab_object(size))
            assert sorted(found) == expected


def test_slab_objects_without_the_elements_of_free_pages(target, monkeypatch):
    """As through a stub."""
    if target.machine not in ("x86_64", "s390x"):
        pytest.skip("drgn's helpers do not find the slabs of this machine")
    read, sizes = target.read, []

    def count(address, size):
        data = read(address, size)
        sizes.append(len(data))
        return data

    whole = PageArray(target)
    monkeypatch.setattr(target, "connection", Stub())
    pages = PageArray(target)
    monkeypatch.setattr(target, "read", count)
    spans = [(block.first, len(block.data)) for block in pages.for_each_block()]
    less = sum(sizes)
    assert spans == [(block.first, len(block.data)) for block in whole.for_each_block()]
    assert less < sum(sizes) - less
    monkeypatch.undo()
    files = list_files(target.prog)
    assert sorted(SlabWalk(target, pages).for_each_file()) == sorted(
        set(files) - find_freed(target, files)
    )


def is_readable(target, address, size):
    try:
        return bool(target.prog.read(address, size))
    except drgn.FaultError:
        return False


def test_parts_of_the_array_of_pages():
    """A guest with 192 MiB has one section and half of another. drgn's helper has all of it, of
    which the slice has none.
    """
    directory = DESTINATION / "dataflow"
    opened = open_core(str(directory / SLICE), [str(directory / DEBUG_INFO)])
    (first, end, array) = next(for_each_valid_page_range(opened.prog))
    parts = list(opened.page_ranges())
    assert [(part.first, part.length) for part in parts] == [(first, 32768), (32768, 16384)]
    assert [part.address for part in parts] == [int(array + part.first) for part in parts]
    assert end == 65536
    # Where it is unknown which parts are present, all are taken to be.
    section = dict(for_each_present_section(opened.prog))[1]
    put(opened, section.usage.address_, b"\xff" * 8)
    assert [(part.first, part.length) for part in opened.page_ranges()] == [
        (first, 32768),
        (32768, 32768),
    ]
    put(opened, section.section_mem_map.address_, (0x1003).to_bytes(8, "little"))
    assert [(part.first, part.length) for part in opened.page_ranges()] == [(first, 32768)]
    put(
        opened,
        opened.symbol("__highest_present_section_nr").address,
        (1 << 40).to_bytes(8, "little"),
    )
    with pytest.raises(ReadError, match="__highest_present_section_nr"):
        list(opened.page_ranges())
    opened.close()


def put(target, start, data):
    target.prog.add_memory_segment(
        start, len(data), lambda _, size, offset, __: data[offset : offset + size], False
    )


def find_freed(target, addresses):
    """Return what KASAN keeps in its quarantine, which drgn takes for allocated."""
    if not target.prog.type("struct kmem_cache").has_member("kasan_info"):
        return set()
    freed = {
        address
        for address in addresses
        if target.prog.read((address >> 3) + 0xDFFFFC0000000000 & 2**64 - 1, 1)[0] >= 8
    }
    try:
        target.prog.type("struct rcu_delayed_free")
    except LookupError:
        # Files are in a cache with SLAB_TYPESAFE_BY_RCU, which has a quarantine only with
        # CONFIG_SLUB_RCU_DEBUG.
        return freed
    assert freed
    return freed
