# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose a descriptor and a mapping are: threads with a file table of their own, processes that
share tables and memory.
"""

import pytest

from kcovdbg.errors import KcovdbgError
from kcovdbg.model.state import Part
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E0, E2, E9A, E9B


def holders(kernel, name, kind):
    """Return who has descriptors or mappings of an object, and how many of its references count."""
    objects = kernel.reader().read(Part.OBJECTS).objects
    kcov = objects[kernel.objects[name]]
    found = [
        (reference.pid, reference.fd) for reference in kcov.references if reference.kind == kind
    ]
    return found, kcov.counted


def place(kernel, name):
    return kernel.read_buffer(name).kcov


def own_table(kernel, tid, name):
    kernel.put(kernel.tasks[tid], "struct task_struct", files=kernel.tables[name])


@pytest.mark.parametrize("row", [E2, E9A, E9B], ids=lambda row: row.name)
def test_a_thread_with_a_table_of_its_own(row):
    """As after unshare(CLONE_FILES): the leader's descriptors are not the thread's."""
    kernel = Kernel(row)
    before = holders(kernel, "shared", "fd")
    own_table(kernel, 41, "child")
    found, counted = holders(kernel, "shared", "fd")
    assert counted == before[1]
    assert sorted(found) == sorted([*before[0], (41, 4)])
    assert holders(kernel, "local", "fd")[0] == [(40, 3)]
    assert place(kernel, "fd:41/4") == kernel.objects["shared"]
    # Other threads have the leader's.
    assert place(kernel, "fd:42/3") == place(kernel, "fd:40/3") == kernel.objects["local"]
    for name in ("fd:41/3", "fd:40/4"):
        with pytest.raises(KcovdbgError):
            place(kernel, name)


def test_threads_with_a_table_of_their_own_name_it_by_the_first():
    kernel = Kernel(E9A)
    for tid in (41, 42):
        own_table(kernel, tid, "child")
    found = holders(kernel, "shared", "fd")[0]
    (named,) = {pid for pid, _ in found} & {41, 42}
    for tid in (41, 42):
        assert place(kernel, f"fd:{tid}/4") == kernel.objects["shared"]
        rows, _ = Asker(kernel.target).rows(f"objects {tid}")
        assert rows
    assert found.count((named, 4)) == 1


def test_the_table_of_an_exited_leader_is_named_by_the_process():
    kernel = Kernel(E9A)
    kernel.put(kernel.tasks[40], "struct task_struct", files=0, mm=0)
    assert holders(kernel, "local", "fd")[0] == [(40, 3)]
    assert holders(kernel, "local", "vma")[0] == [(40, None)]
    assert place(kernel, "fd:40/3") == place(kernel, "fd:43/3") == kernel.objects["local"]


@pytest.mark.parametrize("row", [E0, E2, E9A, E9B], ids=lambda row: row.name)
def test_processes_that_share_memory_and_files(row):
    """As after clone(CLONE_VM | CLONE_FILES), or vfork()."""
    kernel = Kernel(row)
    before = holders(kernel, "local", "fd")[1]
    kernel.put(
        kernel.tasks[44],
        "struct task_struct",
        files=kernel.tables["fuzz"],
        mm=kernel.spaces["fuzz"],
    )
    for kind, fd in (("fd", 3), ("vma", None)):
        found, counted = holders(kernel, "local", kind)
        assert {(40, fd), (44, fd)} == {*found} - {(None, None)}
        assert counted == before
    assert place(kernel, "fd:44/3") == kernel.objects["local"]
    asker = Asker(kernel.target)
    codes = {row["code"] for row in asker.rows("why 44")[0]}
    assert codes
    assert "not-opened" not in codes
    assert int(kernel.objects["local"]) in {
        int(row["kcov"], 16) for row in asker.rows("objects 44")[0]
    }
    # Another object lost the process's former table.
    assert not any(
        f"{kernel.objects['local']:x}" in row["object"] for row in asker.rows("check")[0]
    )
