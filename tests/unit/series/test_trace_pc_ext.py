# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of entries and exits: the mode of tasks, objects and saved sessions in both postings, and
what shows the second.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcovdbg.walk.layout import detect_layout
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E7, X1, X2

TASK = "struct task_struct"
IN_CTXSW = 1 << 30
EXT_FORMAT = 1 << 29
HOOKS = ("__sanitizer_cov_trace_pc_entry", "__sanitizer_cov_trace_pc_exit")
V2 = "KCOV_TRACE_PC_EXT v2 (2026)"


def with_hooks(row):
    kernel = Kernel(row)
    for name in HOOKS:
        kernel.add_symbol(name, 64)
    return kernel


def types_of(kernel, name="ext"):
    """Write an entry, a block and an exit into the object's buffer, and return their words."""
    pc = kernel.text + 0x10
    words = [pc & (1 << 56) - 1, pc + 0x10, (pc + 0x20) & (1 << 56) - 1 | 1 << 60]
    for number, word in enumerate(words, 1):
        kernel.write_word(kernel.buffers[name] + 8 * number, word)
    return words


@pytest.mark.parametrize("row", [X1, X2], ids=lambda row: row.name)
def test_mode_is_shown_everywhere(row):
    kernel = Kernel(row)
    types_of(kernel)
    asker = Asker(kernel.target)
    (task,), _ = asker.rows("tasks 200")
    assert (task["kcov_mode"], task["role"], task["count"], task["errors"]) == (
        "TRACE_PC_EXT",
        "local",
        3,
        [],
    )
    (same,), _ = asker.rows("tasks --mode trace-pc-ext")
    assert same["pid"] == 200
    (kcov,), _ = asker.rows(f"objects {kernel.objects['ext']:#x}")
    assert (kcov["mode"], kcov["count"], kcov["full"], kcov["errors"]) == (
        "TRACE_PC_EXT",
        3,
        False,
        [],
    )
    for name in ("200", f"kcov:{kernel.objects['ext']:#x}", f"area:{kernel.buffers['ext']:#x}"):
        rows, _ = asker.rows(f"buffer {name}")
        assert [row["kind"] for row in rows] == ["entry", "pc", "exit"]
        assert [int(row["address"], 16) for row in rows] == [
            kernel.text + 0x10 * number for number in (1, 2, 3)
        ]
    assert asker.rows("check")[0] == []


@pytest.mark.parametrize("row", [X1, X2], ids=lambda row: row.name)
def test_mode_of_a_saved_session(row):
    """A softirq section in CPU 1's task 60 interrupted its local session."""
    kernel = Kernel(row)
    percpu = kernel.target.per_cpu("kcov_percpu_data", 1)
    if row is X1:
        kernel.put(percpu, "struct kcov_percpu_data", saved_kcov_ext_format=1)
        kernel.put(kernel.objects["interrupted"], "struct kcov", kcov_ext_format=1)
    else:
        kernel.put(percpu, "struct kcov_percpu_data", saved_mode=EXT_FORMAT | IN_CTXSW | 2)
        kernel.put(kernel.objects["interrupted"], "struct kcov", mode=EXT_FORMAT | 2)
    asker = Asker(kernel.target)
    rows, _ = asker.rows("saved")
    (saved,) = (row for row in rows if row["pid"] == 60)
    assert saved["saved_mode"] == "TRACE_PC_EXT"
    assert [row for row in asker.rows("check")[0] if row["severity"] in ("error", "warning")] == []


def test_disabled_object_of_the_first_posting_keeps_its_format():
    kernel = Kernel(X1)
    types_of(kernel)
    kernel.put(kernel.objects["ext"], "struct kcov", mode=1, t=0)
    kernel.put(kernel.tasks[200], TASK, kcov=0, kcov_mode=0, kcov_size=0, kcov_area=0)
    rows, _ = Asker(kernel.target).rows(f"buffer kcov:{kernel.objects['ext']:#x}")
    assert [row["kind"] for row in rows] == ["entry", "pc", "exit"]


def test_second_posting_by_its_number_for_user_space():
    assert detect_layout(Kernel(X2).target).generation.variants == (V2,)


def test_second_posting_by_its_hooks_where_numbers_are_missing():
    kernel = with_hooks(replace(X2, names={}))
    assert detect_layout(kernel.target).generation.variants == (V2,)
    (task,), _ = Asker(kernel.target).rows("tasks 200")
    assert task["kcov_mode"] == "TRACE_PC_EXT"


def test_hooks_alone_are_no_mode():
    """They come with an earlier patch of the series."""
    kernel = with_hooks(replace(E7, names={"KCOV_TRACE_PC": 0, "KCOV_TRACE_CMP": 1}))
    generation = detect_layout(kernel.target).generation
    assert (generation.variants, generation.unrecognised) == ((), ())


def test_member_decides_for_the_first_posting():
    kernel = with_hooks(replace(X1, names=X2.names))
    layout = detect_layout(kernel.target)
    assert layout.generation.variants == ("KCOV_TRACE_PC_EXT v1 (2026)",)
    assert layout.modes == X1.modes


def test_flag_in_another_mode_is_damage():
    kernel = Kernel(X2)
    kernel.put(kernel.objects["compared"], "struct kcov", mode=EXT_FORMAT | 3)
    kernel.put(kernel.tasks[41], TASK, kcov_mode=IN_CTXSW | EXT_FORMAT | 3)
    found = {(row["rule"], row["certainty"]) for row in Asker(kernel.target).rows("check K2 T5")[0]}
    assert found == {("K2", "certain"), ("T5", "certain")}
