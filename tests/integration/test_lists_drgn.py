# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mappings and vmalloc areas as drgn's helpers list them, on every kept slice."""

from pathlib import Path

import drgn
import pytest
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import for_each_vma, for_each_vmap_area

from kcovdbg.target.drgn.programs import open_core
from tests.lab.golden import DEBUG_INFO, DESTINATION, SLICE

KEPT = sorted(path for path in DESTINATION.iterdir() if path.is_dir())


@pytest.fixture(scope="module", params=KEPT, ids=lambda path: path.name)
def target(request):
    directory: Path = request.param
    opened = open_core(str(directory / SLICE), [str(directory / DEBUG_INFO)])
    yield opened
    opened.close()


def test_mappings(target):
    compared = 0
    processes = list_for_each_entry("struct task_struct", target.prog["init_task"].tasks.address_of_(), "tasks")
    for mm in {task.mm.value_() for task in processes} - {0}:
        vmas = list(for_each_vma(drgn.Object(target.prog, "struct mm_struct *", value=mm)))
        expected = [
            (vma.vm_start.value_(), vma.vm_end.value_(), vma.vm_pgoff.value_(), vma.vm_flags.value_(), vma.vm_file.value_())
            for vma in vmas
        ]
        assert [tuple(vma) for vma in target.vmas.for_each_vma(mm)] == expected
        compared += len(vmas)
    assert compared > 100


def test_vmalloc_areas(target):
    expected = [(area.va_start.value_(), bool(area.vm.flags & 0x08)) for area in for_each_vmap_area(target.prog) if area.vm]
    found = list(target.vmalloc.for_each_vmalloc_area())
    assert [(area.start, area.has_user_pages) for area in found] == expected
    assert len(found) > 50
