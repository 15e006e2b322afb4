# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bit of the mode that no known kernel has: it is said once, and is no damage."""

from __future__ import annotations

import pytest

from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E2, E7, E9A, E9B, P2, X2, J
from tests.unit.series.test_trace_pc_ext import types_of

TASK, KCOV = "struct task_struct", "struct kcov"
IN_CTXSW = 1 << 30
# Those that are local in every generation: by task.
LOCAL = {40: "local", 42: "full", 43: "orphan"}
ROWS = {row.name: row for row in (E2, E7, E9A, E9B, P2, J)}
BITS = (8, 15, 27, 28, 29, 31)


def kernel_with(row, bit, pids=(), names=()):
    """Set a bit in the modes of tasks and of objects."""
    kernel = Kernel(row)
    for pid in pids:
        address = kernel.tasks[pid]
        kernel.put(
            address,
            TASK,
            kcov_mode=kernel.session_mode(None, kernel.truth.tasks[pid].session)
            | IN_CTXSW
            | 1 << bit,
        )
    for name in names:
        kernel.put(
            kernel.objects[name], KCOV, mode=kernel.mode(kernel.truth.objects[name].mode) | 1 << bit
        )
    return kernel


def findings(kernel):
    rows, said = Asker(kernel.target).rows("check")
    assert "internal error" not in said
    return [
        (row["rule"], row["severity"], {value["name"]: value["value"] for value in row["values"]})
        for row in rows
    ]


@pytest.mark.parametrize("bit", BITS)
@pytest.mark.parametrize("name", ROWS)
def test_bit_in_tasks_and_objects_alike(name, bit):
    kernel = kernel_with(ROWS[name], bit, LOCAL, LOCAL.values())
    assert findings(kernel) == [
        ("X6", "info", {"bit": hex(1 << bit), "tasks": "3", "objects": "3"})
    ]
    asker = Asker(kernel.target)
    for pid, its in LOCAL.items():
        (task,), _ = asker.rows(f"tasks {pid}")
        (kcov,), _ = asker.rows(f"objects {kernel.objects[its]:#x}")
        count = kernel.truth.objects[its].count
        assert (task["kcov_mode"], task["role"], task["count"]) == ("TRACE_PC", "local", count)
        assert (kcov["mode"], kcov["count"]) == ("TRACE_PC", count)
        # Both say that the mode has a bit that is unknown.
        assert task["errors"] == kcov["errors"] == [f"mode bit {bit} is unknown"]
        rows, said = asker.rows(f"buffer {pid}")
        assert (len(rows), f"mode bit {bit} is unknown" in said) == (count, True)


@pytest.mark.parametrize("bit", [3, 5, 7])
def test_low_bit_beside_a_mode(bit):
    kernel = kernel_with(E7, bit, LOCAL, LOCAL.values())
    assert findings(kernel) == [
        ("X6", "info", {"bit": hex(1 << bit), "tasks": "3", "objects": "3"})
    ]


def test_low_bit_alone_may_be_a_mode():
    kernel = Kernel(E7)
    kernel.put(kernel.objects["opened"], KCOV, mode=1 << 5)
    assert ("K2", "error") in [found[:2] for found in findings(kernel)]


@pytest.mark.parametrize("bit", [15, 27])
def test_bit_in_tasks_alone(bit):
    kernel = kernel_with(E9A, bit, LOCAL)
    assert findings(kernel) == [
        ("X6", "info", {"bit": hex(1 << bit), "tasks": "3", "objects": "0"})
    ]


def test_bit_of_a_task_without_a_session_is_no_state():
    kernel = kernel_with(E9A, 27, LOCAL)
    kernel.put(kernel.tasks[45], TASK, kcov_mode=IN_CTXSW | 1 << 27)
    assert 45 not in [row["pid"] for row in Asker(kernel.target).rows("tasks")[0]]


def test_flag_of_a_switch_in_an_object_is_damage():
    kernel = kernel_with(E9A, 30, names=["stopped"])
    assert [found[:2] for found in findings(kernel)] == [("K2", "error")]


def test_several_bits_are_damage():
    kernel = Kernel(E7)
    kernel.put(kernel.objects["stopped"], KCOV, mode=0x41414101)
    assert [found[:2] for found in findings(kernel) if found[0] == "K2"] == [("K2", "error")]


@pytest.mark.parametrize("bit", BITS)
def test_bit_in_a_section_and_in_a_saved_session(bit):
    kernel = kernel_with(E9A, bit, (7, 8), ("remote",))
    for pid in (60, 9, 3, 52):
        kernel.put(kernel.tasks[pid], TASK, kcov_mode=2 | 1 << bit)
    kernel.put(kernel.tasks[9], TASK, kcov_saved_mode=2 | 1 << bit)
    (found,) = findings(kernel)
    assert found == ("X6", "info", {"bit": hex(1 << bit), "tasks": "6", "objects": "1"})
    rows, _ = Asker(kernel.target).rows("saved")
    assert {row["saved_mode"] for row in rows} == {"TRACE_PC", "REMOTE"}


def test_second_use_of_a_flag_that_nothing_shows():
    """Typed records in a kernel whose debug info does not show what bit 29 is."""
    kernel = kernel_with(E7, 29, LOCAL, LOCAL.values())
    words = types_of(kernel, "local")
    for number in range(4, 18):
        kernel.write_word(kernel.buffers["local"] + 8 * number, words[number % 3])
    asker = Asker(kernel.target)
    (info,), _ = asker.rows("info")
    assert info["variants"] == []
    rows, said = asker.rows("buffer 40")
    assert {row["kind"] for row in rows} == {"entry", "pc", "exit"}
    assert "guess" in said
    # What is a guess is no ground for a rule.
    assert [found[:2] for found in findings(kernel)] == [("X6", "info")]
    # It is not paused: the bit of a pause is never in an object's mode.
    codes = [row["code"] for row in asker.rows("why 40")[0]]
    assert codes == ["coverage"]


def test_known_bit_is_not_unknown():
    assert findings(Kernel(X2)) == []
