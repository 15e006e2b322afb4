# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show on the kernel with kcov_dataflow: its JSON is kcovdbg's, byte for byte.

The kernel is built by hand: python -m tests.lab build --recipe dataflow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.table_builder import build_table
from kcovdbg.symbols.table_cache import open_table
from tests.integration.gdb.test_same_answers import ask_gdb, ask_kcovdbg
from tests.lab import kernel as kernels
from tests.lab import requirements
from tests.lab.generation import GENERATIONS
from tests.lab.initramfs import make_userland
from tests.lab.situation import dump_of

pytestmark = pytest.mark.lab
GENERATION = GENERATIONS["dataflow"]


def test_on_a_dump_inside_a_section():
    kernel = kernels.find(GENERATION.recipe)
    if kernel is None or requirements.missing(requirements.BOOT):
        pytest.skip("the kernel isn't built: python -m tests.lab build --recipe dataflow")
    image = ElfFile(Path(kernel.vmlinux).resolve())
    if open_table(image.build_id) is None:
        build_table(image.path)
    path = dump_of(kernel, make_userland(kernel), GENERATION.situation, "elf-paging").path

    def ask(lines):
        return ask_kcovdbg(["-c", path], kernel.vmlinux, lines)

    state = ask(["tasks", "objects", "remote"])
    sessions = [(row["pid"], one) for row in state.rows("tasks") for one in row["devices"]]
    objects = [row for row in state.rows("objects") if row["device"] == "dataflow"]
    handles = [row["handle"] for row in state.rows("remote") if row["device"] == "dataflow"]
    assert sessions
    assert objects
    assert handles
    sure = ["tasks -a", "objects", "areas", "remote", "check -a", "last -a"]
    sure += [f"why {pid}" for pid, _ in sessions] + [f"why {row['kcov']}" for row in objects] + [f"why {handles[0]}"]
    full = [f"dataflow:{pid}" for pid, one in sessions if one["count"]]
    full += [f"dataflow:{row['kcov']}" for row in objects if row["count"]]
    assert full
    # Its callbacks are called by hand, at PCs that are no coverage points: GDB has no lines of the functions around them.
    sure += [f"buffer {name} --raw --fields index,pc,kind,values" for name in full]
    # A healthy state has no findings.
    lines = ["check", *dict.fromkeys(sure)]
    outside = ask(lines)
    assert {row["device"] for row in outside.rows("areas")} >= {"dataflow"}
    inside = ask_gdb([kernel.vmlinux, path], lines)
    for line in lines:
        assert line == "check" or outside.rows(line), f"{line} answers nothing: it proves nothing"
        assert inside.texts[line] == outside.texts[line], line
