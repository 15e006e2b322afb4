# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers and checks of a kernel with incomplete debug info: no invented record, and no certain false finding."""

from dataclasses import replace

import pytest

from tests.support.kernels.asker import Asker, ask_everything
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E7, E9B, ROWS
from tests.unit.walk.test_missing_members import TELLING, members_of, without


def list_buffers(kernel):
    """One buffer of each kind: a task's and an object's by what it records, a section's, a saved one."""
    truth, found = kernel.truth, {}
    for pid, task in truth.tasks.items():
        if task.session is not None:
            kcov = truth.objects[task.session.kcov]
            found.setdefault(
                ("task", kcov.mode, bool(kcov.bitmap_words), task.session.area is None, task.softirq), f"buffer {pid}"
            )
        elif task.owns:
            found.setdefault("owner", f"buffer {pid}")
        if task.saved is not None:
            found.setdefault(("saved", task.saved.mode), f"buffer saved:{task.cpu}")
    for name in kernel.buffers:
        kcov = truth.objects[name]
        found.setdefault(("object", kcov.mode, bool(kcov.bitmap_words)), f"buffer kcov:{kernel.objects[name]:#x}")
    return list(found.values())


def is_of_kcov(type_name, name):
    return "kcov" in type_name or "kcov" in name


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_any_member(row, sample):
    kernel = Kernel(row)
    buffers = list_buffers(kernel)
    asker = Asker(kernel.target)
    truth = {command: asker.rows(command) for command in buffers}
    assert asker.rows("check")[0] == []
    problems = []
    for type_name, name in sample(members_of(kernel.target)):
        # Members of other structures are the same in all of them.
        if (not is_of_kcov(type_name, name) and row is not E9B) or (type_name, name) in TELLING:
            continue
        restore = without(kernel.target, type_name, name)
        asker = Asker(kernel.target)
        what = f"{row.name} without {type_name}.{name}"
        for command in buffers:
            rows, said = asker.rows(command)
            whole, said_before = truth[command]
            if "internal error" in said or any(found not in whole for found in rows):
                problems.append(f"{what}: {command}: {said or rows}")
            elif rows != whole and not said.replace(said_before, ""):
                problems.append(f"{what}: {command}: nothing is said of what is missing")
        rows, said = asker.rows("check")
        problems += [f"{what}: {found['rule']} {found['message']}" for found in rows if found["certainty"] != "unsure"]
        if "internal error" in said:
            problems.append(f"{what}: check: {said}")
        restore()
    assert problems == []


def test_member_under_another_name():
    row = replace(E7, task=E7.task.replace("*kcov_area", "*kcov_buffer"))
    # The kernel itself is filled by the old name: nothing is put where the new one is.
    target = Kernel(E7).target
    target.types["struct task_struct"] = renamed(target.types["struct task_struct"], "kcov_area", "kcov_buffer")
    assert "kcov_buffer" in row.task
    answers, said = ask_everything(target)
    (info,) = answers["info"]
    assert info["generation"] == "E7"
    assert any("struct task_struct.kcov_buffer" in error for error in info["errors"])
    assert any("struct task_struct.kcov_area" in error for error in info["errors"])
    assert "internal error" not in said


def renamed(structure, before, after):
    return replace(structure, members={after if name == before else name: member for name, member in structure.members.items()})
