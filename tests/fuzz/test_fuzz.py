# SPDX-License-Identifier: LGPL-2.1-or-later
"""A reduced run of the fuzzer; ``python -m tests.fuzz`` runs more."""

import copy
import gc
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kcovdbg.errors import KcovdbgError
from tests.fuzz import run
from tests.fuzz.reference_reader import Reader, parse_vmcoreinfo
from tests.fuzz.run import Case, Figures, Fuzzer

pytestmark = pytest.mark.skipif(
    shutil.which("gdb") is None, reason="GDB tells the oracle where members are: apt-get install gdb"
)

CASES = 150
FILES = 40


@pytest.fixture(scope="module")
def fuzzer():
    return Fuzzer()


def test_damaged_memory(fuzzer):
    figures = fuzzer.run(range(1_000_000, 1_000_000 + CASES))
    assert figures.is_clean, "\n".join(figures.problems)
    assert figures.cases == CASES
    # Otherwise the damage was in memory that is not read.
    assert figures.changed > CASES // 2
    assert figures.rows > 100 * CASES
    print(figures)


def run_files(*words):
    """In a process of its own: the fuzzer forks, which drgn's threads do not survive."""
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "0", "--nice", "0", *words]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 crashes, 0 hangs" in done.stdout


def test_damaged_files():
    run_files("--files", str(FILES), "--seed", "1000000")


def crash(_session, _line, _terminal):
    return 1 / 0


def hang(_session, _line, _terminal):
    time.sleep(60)


def write_raw(_session, _line, terminal):
    terminal.stdout.write("\x1b[2J")
    return 0


@pytest.mark.parametrize(("behaviour", "noticed"), [(crash, "crashes"), (hang, "hangs"), (write_raw, "raw")])
def test_the_fuzzer_sees_what_it_looks_for(fuzzer, monkeypatch, behaviour, noticed):
    figures = Figures()
    monkeypatch.setattr(fuzzer, "run_line", behaviour)
    monkeypatch.setattr(run, "SECONDS", 0.3)
    fuzzer.case(1, figures)
    assert getattr(figures, noticed)
    assert not figures.is_clean


# False answers, each with one field, row or word of the healthy answer changed.
LIES = {
    "tasks -a": [
        lambda rows: rows[3].update(pid=4711),
        lambda rows: rows[3].update(comm="init"),
        lambda rows: rows[3].update(kcov_mode="TRACE_CMP"),
        lambda rows: rows[3].update(kcov_sequence=rows[3]["kcov_sequence"] + 1),
        lambda rows: rows[3].update(kcov_handle="0x1"),
        lambda rows: rows[3].update(count=12345),
        lambda rows: rows[3].update(role="local" if rows[3]["role"] != "local" else "none"),
        lambda rows: rows[3].update(owns_remote=not rows[3]["owns_remote"]),
        lambda rows: rows.pop(),
        lambda rows: rows.append(rows[0]),
    ],
    "objects": [
        lambda rows: rows[0].update(refcount=rows[0]["refcount"] + 1),
        lambda rows: rows[0].update(mode="REMOTE"),
        lambda rows: rows[0].update(size=rows[0]["size"] + 1),
        lambda rows: rows[0].update(counted=rows[0]["counted"] + 1),
        lambda rows: rows[0]["references"].append(rows[1]["references"][-1]),
        lambda rows: rows.pop(),
    ],
    "remote": [lambda rows: rows[0].update(handle="0x7"), lambda rows: rows.pop(), lambda rows: rows[0].update(comm="nobody")],
    "areas": [
        lambda rows: rows[0].update(size=1),
        lambda rows: rows[0].update(area="0xffff888000000000"),
        lambda rows: next(row for row in rows if row["state"] == "in-use").update(pid=1),
    ],
    "saved": [lambda rows: rows[0].update(saved_size=1), lambda rows: rows.clear()],
}


@pytest.mark.parametrize(("name", "number"), [(name, number) for name, lies in LIES.items() for number in range(len(lies))])
def test_the_oracle_sees_a_lie(fuzzer, name, number):
    fuzzer.target.heal()
    fuzzer.oracle.begin()
    fuzzer.oracle.take_tasks(fuzzer.healthy["tasks -a"])
    rows = copy.deepcopy(fuzzer.healthy[name])
    assert fuzzer.oracle.judge(name, rows, ()) == []
    LIES[name][number](rows)
    assert fuzzer.oracle.judge(name, rows, ())


def test_a_gap_without_a_word_is_a_lie(fuzzer):
    """A row that vanishes from a damaged list is fine when a remark says so, and only then."""
    fuzzer.target.heal()
    task = fuzzer.places.tasks[-1]
    fuzzer.target.put(task, "struct task_struct", "tasks.next", 0)
    fuzzer.target.memory.settle()
    fuzzer.oracle.begin()
    rows = [row for row in fuzzer.healthy["tasks -a"] if int(row["task"], 16) != fuzzer.places.tasks[3]]
    fuzzer.oracle.take_tasks(rows)
    assert any("nothing is said" in problem for problem in fuzzer.oracle.judge("tasks -a", rows, ()))
    assert not any(
        "nothing is said" in problem for problem in fuzzer.oracle.judge("tasks -a", rows, ("the task list is broken",))
    )
    fuzzer.target.heal()


def test_what_is_remembered_is_what_would_be_read(fuzzer):
    """drgn's walks with and without memory of healthy ones, over the same damage."""
    target = fuzzer.target
    for seed in range(7_000, 7_012):
        target.heal()
        run.do_damage(target, fuzzer.places, run.Random(seed))
        target.forget()
        target.memory.settle()
        found = []
        for use in (True, False):
            target.use_memo(use)
            case = Case(fuzzer, Figures(), f"seed {seed}", run.Random(seed))
            found.append([case.command(line) for line in ("objects --json", "areas --json", "check -a")])
        assert found[0] == found[1], seed
    target.use_memo(True)
    target.heal()


def errors_held() -> list[KcovdbgError]:
    gc.collect()
    return [held for held in gc.get_objects() if isinstance(held, KcovdbgError)]


def test_what_is_remembered_holds_on_to_nothing(fuzzer):
    """An error with its traceback keeps a whole look at the kernel: after 46,594 cases that were four gibibytes."""
    before = errors_held()  # a parameter of a test that ran earlier in this process, for example
    fuzzer.run(range(246_000, 246_030))
    held = errors_held()
    assert held
    kept = [error for error in held if not any(error is earlier for earlier in before)]
    assert [str(error) for error in kept if error.__traceback__ is not None] == []


def test_independent_reader(fuzzer):
    """The reference reader agrees with drgn on all addresses, and reads what was written."""
    fuzzer.target.heal()
    reader: Reader = fuzzer.oracle.reader
    fuzzer.oracle.begin()
    for address in (*fuzzer.places.tasks, *fuzzer.places.kcovs, *fuzzer.places.areas):
        assert reader.translate(address, set()) == fuzzer.target.physical(address)
    assert reader.translate(0x1000, set()) is None
    kcov = fuzzer.places.kcovs[0]
    fuzzer.target.put(kcov, "struct kcov", "sequence", 77)
    fuzzer.target.memory.settle()
    fuzzer.oracle.begin()
    assert reader.decode("kcov", kcov).sequence == 77
    fuzzer.target.heal()
    fuzzer.oracle.begin()
    assert reader.decode("kcov", kcov).sequence != 77
    assert parse_vmcoreinfo(b"xxOSRELEASE=6\nA=b\0c=d") == {"OSRELEASE": "6", "A": "b"}


def test_no_page_is_as_large_as_a_top_level_entry(fuzzer):
    """Bit 7 makes a page of the entries below, and makes the processor refuse one of these: what hangs on it can't be read.

    Seed 114501 sets it.
    """
    target, reader = fuzzer.target, fuzzer.oracle.reader
    target.heal()
    kcov = next(int(row["kcov"], 16) for row in fuzzer.healthy["objects"] if row["area"] != "0x0" and row["count"])
    area = int(next(row["area"] for row in fuzzer.healthy["objects"] if int(row["kcov"], 16) == kcov), 16)
    entry = reader._root + (area >> 39 & 511) * 8
    target.memory.write(entry, (int.from_bytes(target.memory.read(entry, 8), "little") | 0x80).to_bytes(8, "little"))
    target.memory.settle()
    fuzzer.oracle.begin()
    assert reader.translate(area, set()) is None
    case = Case(fuzzer, Figures(), "512 GiB", run.Random(0))
    row = next(row for row in case.rows("objects") if int(row["kcov"], 16) == kcov)
    assert row["count"] is None
    assert any(f"{area:#x}" in error for error in row["errors"])
    target.heal()


def test_object_with_flag_bits(fuzzer):
    """Bit 30 is a flag in a task's mode word, and damage in an object's."""
    target = fuzzer.target
    target.heal()
    kcov = fuzzer.places.kcovs[0]
    target.put(kcov, "struct kcov", "mode", 1 << 30 | 2)
    case = Case(fuzzer, Figures(), "flag", run.Random(0))
    row = next(row for row in case.rows("objects") if int(row["kcov"], 16) == kcov)
    assert row["mode"] == "0x40000002"
    assert any("mode" in error for error in row["errors"])
    target.heal()


def test_object_that_is_not_aligned(fuzzer):
    """Every command that follows a pointer into the middle of an object refuses it with a reason."""
    target = fuzzer.target
    target.heal()
    kcov = fuzzer.places.kcovs[0]
    case = Case(fuzzer, Figures(), "aligned", run.Random(0))
    task = next(int(row["task"], 16) for row in case.rows("tasks") if row["kcov"] == hex(kcov))
    target.put(task, "struct task_struct", "kcov", kcov + 1)
    target.memory.settle()
    row = next(row for row in case.rows("objects") if row["kcov"] == hex(kcov + 1))
    assert row["refcount"] is None
    assert row["errors"]
    assert case.figures.is_clean
    target.heal()
