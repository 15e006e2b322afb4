# SPDX-License-Identifier: LGPL-2.1-or-later
"""A hash map without a free entry: nothing new is recorded, although the buffer has room."""

from __future__ import annotations

import pytest

from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import J

# By task: the object of the same name, and the map that its mode records through.
MAPS = {
    200: ("uniq", "map"),
    201: ("edges", "map_edge"),
    202: ("both", "map"),
    203: ("uniq-cmp", "map"),
}
OTHER = {"map": "map_edge", "map_edge": "map"}


def fill(kernel, name, member, last):
    """Use the entries of a map up to a place."""
    kcov = kernel.truth.objects[name]
    first = kcov.count if OTHER[member] != member and is_written(kcov.mode, member) else 0
    for place in range(first, last):
        kernel.add_entry(kernel.maps[name, member], place, ent=kernel.text + 0x10 * place)


def is_written(mode, member):
    return "UNIQ_EDGE" in mode if member == "map_edge" else mode != "TRACE_UNIQ_EDGE"


def answers(kernel, pid):
    """Return whether the task's and the object's buffer are full, and the codes of why."""
    asker = Asker(kernel.target)
    (task,), _ = asker.rows(f"tasks {pid}")
    (kcov,), _ = asker.rows(f"objects {kernel.objects[MAPS[pid][0]]:#x}")
    reasons, _ = asker.rows(f"why {pid}")
    text, _ = asker.ask(f"tasks {pid}")
    assert ("FULL" in text) == bool(task["full"])
    return task["full"], kcov["full"], [row["code"] for row in reasons]


@pytest.mark.parametrize("pid", MAPS)
def test_map_without_a_free_entry_is_full(pid):
    kernel = Kernel(J)
    name, member = MAPS[pid]
    size = kernel.truth.objects[name].size
    assert answers(kernel, pid) == (False, False, ["coverage"])
    fill(kernel, name, member, size - 1)
    assert answers(kernel, pid) == (False, False, ["coverage"])
    kernel.add_entry(kernel.maps[name, member], size - 1, ent=kernel.text)
    assert answers(kernel, pid) == (True, True, ["buffer-full"])


@pytest.mark.parametrize("pid", MAPS)
def test_the_other_map_does_not_matter(pid):
    kernel = Kernel(J)
    name, member = MAPS[pid]
    fill(kernel, name, OTHER[member], kernel.truth.objects[name].size)
    assert answers(kernel, pid) == (False, False, ["coverage"])


def test_mode_without_a_map():
    kernel = Kernel(J)
    fill(kernel, "local", "map", kernel.truth.objects["local"].size)
    (task,), _ = Asker(kernel.target).rows("tasks 40")
    assert task["full"] is False


def test_memory_of_an_earlier_map_is_no_entry():
    """Two pieces at the end of the memory are linked to each other, and to no bucket of this
    map.
    """
    kernel = Kernel(J)
    kcov_map = kernel.maps["uniq", "map"]
    head = kernel.allocate(64)
    bucket = (head - kcov_map) // kernel.word
    for place in (1022, 1023):
        kernel.add_entry(kcov_map, place, bucket, ent=kernel.text)
    assert answers(kernel, 200) == (False, False, ["coverage"])


# What is unreadable of the last piece of memory, in bytes from its start, and whether the map is
# known to have no entry left.
@pytest.mark.parametrize(
    ("used", "start", "full"),
    [(1023, 0, False), (1024, 40, True), (1024, 0, None)],
    ids=["free", "an entry without its link back", "an entry"],
)
def test_last_piece_that_cannot_be_read(used, start, full):
    kernel = Kernel(J)
    fill(kernel, "uniq", "map", used)
    mem = kernel.read_word(kernel.maps["uniq", "map"] + kernel.offset("struct kcov_map", "mem"))
    kernel.target.holes.append((mem + 1023 * 64 + start, mem + 1024 * 64))
    (task,), _ = Asker(kernel.target).rows("tasks 200")
    assert task["full"] is full
    assert bool(task["errors"]) == (full is None)
