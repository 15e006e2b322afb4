# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs on arm64, on the kept slice of a kernel: calls are of four bytes, per-CPU data lies
in the image.

That state and buffers are what the guest printed is test_generations.py's.
"""

from __future__ import annotations

import bisect
import io

import pytest
import zstandard
from elftools.elf.elffile import ELFFile

from tests.lab.comparison import lines_of
from tests.lab.golden import DEBUG_INFO, DESTINATION, golden_target, read_truth
from tests.lab.kcovdbg_run import ask, run_kcovdbg

DIRECTORY = DESTINATION / "6.12-arm64"
# As vmlinux.lds.S has it: from here on up the image, with 2 GiB for modules below.
IMAGE = 0xFFFF800080000000


@pytest.fixture(scope="module")
def answers() -> tuple[dict, dict]:
    """Return the guest's line about a trace of PCs, and what kcovdbg says."""
    line = lines_of(read_truth(DIRECTORY))["kc-pc"]
    target = golden_target(DIRECTORY)
    info, buffer, tasks = ask(target, "info", f"buffer {line['tid']} --raw", "tasks -a")
    calls = run_kcovdbg(*target, "export", "rawcover", str(line["tid"]), status=0)
    return line, {"info": info, "buffer": buffer, "tasks": tasks, "calls": calls.stdout.split()}


def test_calls_are_of_four_bytes(answers) -> None:
    line, said = answers
    assert [int(call, 16) for call in said["calls"]] == sorted(
        {int(pc, 16) - 4 for pc in line["records"]}
    )


def test_addresses_are_the_running_kernel_s(answers) -> None:
    _, said = answers
    offset = int(said["info"][0]["kaslr_offset"], 16)
    assert said["info"][0]["machine"] == "aarch64"
    assert offset
    assert offset % (1 << 16) == 0
    for row in said["buffer"]:
        assert int(row["pc"], 16) >> 32 == IMAGE >> 32
        assert int(row["address"], 16) == int(row["pc"], 16) + offset


def test_functions_are_the_symbol_table_s(answers) -> None:
    line, said = answers
    image = ELFFile(io.BytesIO(zstandard.decompress((DIRECTORY / DEBUG_INFO).read_bytes())))
    functions: dict[int, str] = {}
    for symbol in image.get_section_by_name(".symtab").iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC":
            functions.setdefault(symbol["st_value"], symbol.name)
    starts = sorted(functions)
    expected = [
        functions[starts[bisect.bisect_left(starts, int(pc, 16)) - 1]] for pc in line["records"]
    ]
    assert [row["frames"][-1]["function"] for row in said["buffer"]] == expected
    assert "__arm64_sys_getppid" in expected


def test_every_task_has_its_cpu(answers) -> None:
    _, said = answers
    assert {row["cpu"] for row in said["tasks"]} == {0}


def test_sleeping_tasks_are_in_pause(answers) -> None:
    # The C library's pause() is ppoll(NULL, 0, NULL, NULL) here. The workload leaves its tasks in
    # it.
    line, said = answers
    (task,) = (row for row in said["tasks"] if row["pid"] == line["tid"])
    assert (task["syscall"]["number"], task["syscall"]["name"]) == (73, "ppoll")
    assert task["syscall"]["args"][:4] == ["0x0"] * 4
    # A worker of vhost never was in user space.
    assert all(
        row["syscall"] is None and not row["errors"]
        for row in said["tasks"]
        if row["comm"].startswith("vhost-")
    )
