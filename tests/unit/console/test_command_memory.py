# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program on a kernel in memory: what it says of hostile and missing memory, and of a kernel
without KCOV.
"""

import pytest

from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A
from tests.support.memory_target import Structure


@pytest.fixture
def kernel():
    return Kernel(E9A)


def test_a_missing_page_and_a_hostile_name(cli, kernel):
    kernel.put(kernel.tasks[40], "struct task_struct", comm=b"\x1b[2Jfuzz\xff".ljust(16, b"\0"))
    area = kernel.buffers["local"]
    del kernel.target.segments[area]
    (row,) = [row for row in cli(kernel, "tasks", "--json")[1] if row["kcov_area"] == hex(area)]
    assert row["count"] is None
    assert hex(area) in row["errors"][0]
    text = cli(kernel, "tasks")[1]
    assert f"note: task {row['pid']}: buffer {area:#x}" in text
    # Names are escaped.
    assert r"\x1b[2Jfuzz\xff  " in text
    assert "\x1b" not in text


def test_a_layout_that_is_not_the_kernels_is_said(cli, kernel):
    """As of GCC's RANDSTRUCT plugin, of which the debug info says nothing."""
    assert "RANDSTRUCT" not in cli(kernel, "tasks")[2]
    kernel.put(kernel.tasks[0], "struct task_struct", comm=bytes(range(0x80, 0x90)))
    assert "RANDSTRUCT" in cli(kernel, "tasks", "--json")[2]


def test_a_kernel_without_kcov(cli, kernel):
    task = kernel.target.types["struct task_struct"]
    members = {name: member for name, member in task.members.items() if not name.startswith("kcov")}
    kernel.target.types["struct task_struct"] = Structure(task.size, members)
    status, _, err = cli(kernel, "tasks")
    message, hint = err.splitlines()
    assert (status, "struct task_struct" in message, "CONFIG_KCOV=y" in hint) == (2, True, True)
    status, (row,), _ = cli(kernel, "info", "--json")
    assert (status, row["generation"], row["variants"], row["features"]) == (0, None, None, None)
    assert "struct task_struct" in row["errors"][0]
