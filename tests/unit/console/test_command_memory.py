# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program on a kernel in memory: what it says of hostile and missing memory, and of a kernel without KCOV."""

import json

import pytest

from kcovdbg.frontends.cli import main
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A
from tests.support.memory_target import Structure


@pytest.fixture
def kernel():
    return Kernel(E9A)


@pytest.fixture
def cli(capsys, kernel):
    def cli(*words):
        status = main(words, open_target=lambda _options: kernel.target)
        out, cli.err = capsys.readouterr()
        assert status == 0, cli.err
        return json.loads(out) if "--json" in words else out

    return cli


def test_names_of_tasks_are_escaped(cli, kernel):
    kernel.put(kernel.tasks[40], "struct task_struct", comm=b"\x1b[2Jfuzz\xff".ljust(16, b"\0"))
    (row,) = cli("tasks", "40", "--json")
    assert row["comm"] == "\x1b[2Jfuzz\\xff"
    text = cli("tasks", "40")
    assert r"\x1b[2Jfuzz\xff  " in text
    assert "\x1b" not in text


def test_a_missing_page_is_said(cli, kernel):
    area = kernel.buffers["local"]
    del kernel.target.segments[area]
    (row,) = [row for row in cli("tasks", "--json") if row["kcov_area"] == hex(area)]
    assert row["count"] is None
    assert hex(area) in row["errors"][0]
    assert f"note: task {row['pid']}: buffer {area:#x}" in cli("tasks")


def test_a_layout_that_is_not_the_kernels_is_said(cli, kernel):
    """As of GCC's RANDSTRUCT plugin, of which the debug info says nothing."""
    cli("tasks", "--json")
    assert "RANDSTRUCT" not in cli.err
    kernel.put(kernel.tasks[0], "struct task_struct", comm=bytes(range(0x80, 0x90)))
    cli("tasks", "--json")
    assert "RANDSTRUCT" in cli.err


def test_a_kernel_without_kcov(capsys, kernel):
    target = kernel.target
    task = target.types["struct task_struct"]
    members = {name: member for name, member in task.members.items() if not name.startswith("kcov")}
    target.types["struct task_struct"] = Structure(task.size, members)
    assert main(["tasks"], open_target=lambda _options: target) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert "struct task_struct" in message
    assert "CONFIG_KCOV=y" in hint
    assert main(["info", "--json"], open_target=lambda _options: target) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["generation"] is row["variants"] is row["features"] is None
    assert "struct task_struct" in row["errors"][0]
