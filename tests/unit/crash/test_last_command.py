# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command `last`, on made-up kernels."""

import pytest

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.model.memory import StackFrame
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E7, E9A
from tests.support.memory_target import MemoryStacks


@pytest.fixture
def kernel():
    made = Kernel(E9A)
    made.target.symbols["_stext"] = made.target.symbols["_stext"]._replace(size=0)
    for number, name in enumerate(("do_write", "do_crash", "panic", "print_it")):
        made.add_symbol(name, 0x40, made.text + 0x40 * number)
    return made


def give_stack(kernel, pid, *functions, crashed=True):
    frames = [
        StackFrame(kernel.text, function, "a\x1b[2Jb.c", 7, None, False) for function in functions
    ]
    kernel.target.stacks = MemoryStacks(
        {kernel.tasks[pid]: frames}, kernel.tasks[pid] if crashed else None
    )


def test_crashed_task(cli, kernel):
    # Task 40 has 17 records, 16 bytes apart, of return addresses: the one at the start of a
    # function is of the one before.
    give_stack(kernel, 40, "delay", "panic", "do_crash", "do_write")
    status, rows, _ = cli(kernel, "last", "--json")
    assert status == 0
    assert [row["index"] for row in rows] == list(range(9))
    assert {row["pid"] for row in rows} == {40}
    assert (rows[-1]["comm"], rows[-1]["symbol"], rows[-1]["stack"]) == ("executor", "do_crash", 2)
    assert [row["symbol"] for row in rows[1:5]] == ["do_write"] * 4
    _, text, _ = cli(kernel, "last")
    assert "crashed in do_crash(); 8 " in text
    assert "= #2" in text
    assert "\x1b" not in text


def test_named_tasks(cli, kernel):
    give_stack(kernel, 40, "schedule", crashed=False)
    _, rows, err = cli(kernel, "last", "40", "1", "--json")
    assert {row["pid"] for row in rows} == {40}
    assert len(rows) == 17
    assert "task 1 (init) had no coverage" in err
    assert cli(kernel, "last", "99999")[0] == 2
    assert [row["index"] for row in cli(kernel, "last", "40", "-n", "3", "--json")[1]] == [
        14,
        15,
        16,
    ]


@pytest.mark.parametrize(
    ("member", "value", "word"),
    [
        ("kcov_area", 0, "TRACE_PC"),
        ("kcov_size", 0, "clamped"),
        # Its own task_struct, which has zeros.
        ("kcov_area", None, "enabled for this task"),
    ],
)
def test_damaged_fields_of_a_session_are_no_empty_buffer(cli, kernel, member, value, word):
    give_stack(kernel, 40, "schedule", crashed=False)
    page = kernel.allocate(2 * PAGE_SIZE) + PAGE_SIZE & -PAGE_SIZE
    kernel.put(kernel.tasks[40], "struct task_struct", **{member: page if value is None else value})
    _, out, err = cli(kernel, "last", "40")
    assert word in out + err
    assert "not enabled for it" not in out + err
    assert "was reset" not in out + err


def test_an_impossible_size_has_no_capacity(cli, kernel):
    kernel.put(kernel.tasks[40], "struct task_struct", kcov_size=0xFFFFFFFF)
    (row,) = cli(kernel, "tasks", "40", "--json")[1]
    assert (row["capacity"], row["full"]) == (None, None)
    assert row["count"] == 17


def test_full_buffer_is_not_the_last(cli, kernel):
    _, rows, err = cli(kernel, "last", "42", "--json")
    assert rows[-1]["full"] is True
    assert "FULL" in err


def test_full_of_a_crash_only(cli, kernel):
    """Even if crash handling filled the buffer, the records before the crash are its end."""
    give_stack(kernel, 42, "panic", "do_crash", "do_write")
    _, text, err = cli(kernel, "last")
    assert "crashed in do_crash()" in text
    assert "FULL" not in text + err


def test_current_tasks_where_none_crashed(cli):
    kernel = Kernel(E9A)
    _, rows, _ = cli(kernel, "last", "--json")
    running = {pid for pid, task in kernel.truth.tasks.items() if task.running}
    assert {row["pid"] for row in rows} <= running
    assert 60 in {row["pid"] for row in rows}


def test_what_a_softirq_interrupted(cli):
    _, rows, _ = cli(Kernel(E9A), "last", "60", "--json")
    assert list(dict.fromkeys(row["buffer"].split(":")[0] for row in rows)) == ["saved", "area"]
    assert sum(row["buffer"].startswith("saved") for row in rows) == 7
    assert sum(row["buffer"].startswith("area") for row in rows) == 5


def test_owner_of_remote_coverage(cli):
    _, rows, err = cli(Kernel(E7), "last", "50", "--json")
    assert rows == []
    assert "task 50 (owner) had no coverage" in err
    assert "its buffer holds its sections' coverage" in err
    kernel = Kernel(E7)
    kernel.write_word(kernel.buffers["remote"], 0)
    _, _, err = cli(kernel, "last", "50", "--json")
    assert "its buffer holds" not in err
    assert "the coverage of no section is in its buffer" in err


def test_an_exiting_task_may_have_had_kcov(cli):
    _, rows, err = cli(Kernel(E9A), "last", "46", "--json")
    assert rows == []
    assert "KCOV is not enabled" not in err
    assert "whether it was enabled before is unknown" in err


def test_comparisons(cli):
    status, rows, _ = cli(Kernel(E9A), "last", "41", "--json")
    assert status == 0
    assert (rows[-1]["size"], rows[-1]["arg1"]) == (8, "0x2")
    assert "64 bits, constant: 0x2, 0x4" in cli(Kernel(E9A), "last", "41")[1]


def test_all(cli):
    kernel = Kernel(E9A)
    status, text, _ = cli(kernel, "last", "--all", "-n", "5")
    assert status == 0
    for pid in (40, 41, 42, 43, 60, 62, 7):
        assert f"task {pid} (" in text
    assert "task 1 (init)" not in text


def test_without_stacks(cli):
    kernel = Kernel(E9A)
    kernel.target.stacks = None
    _, _, err = cli(kernel, "last", "40", "--json")
    assert "stacks" in err
