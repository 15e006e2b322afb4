# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands that show state: their keys are the documented ones."""

import csv
import io
import json
import re
from dataclasses import replace
from functools import partial

import pytest

from kcovdbg.console.command import parse_arguments
from kcovdbg.console.runner import run_command, run_line
from kcovdbg.console.text import text_width
from kcovdbg.console.wording import count_text
from kcovdbg.errors import GoneError, KcovdbgError, TargetError, UsageError
from kcovdbg.model.kcov import Reference
from kcovdbg.model.task import Role
from kcovdbg.target.connection import MachineState
from tests.support.state import (
    KCOV,
    REMOTE_KCOV,
    Streams,
    StubReader,
    make_kcov,
    make_target,
    make_task,
    make_workspace,
)

KEYS = {
    "info": "target release machine build_id kaslr_offset generation variants features live state "
    "report panic log errors",
    "tasks": (
        "pid tgid comm task cpu kcov kcov_remote kcov_mode kcov_mode_raw in_ctxsw kcov_size "
        "kcov_area kcov_sequence "
        "kcov_handle kcov_softirq role beneath owns_remote count full syscall errors"
    ),
    "objects": (
        "kcov refcount counted mode size area t pid comm remote remote_size sequence count "
        "capacity full references errors"
    ),
    "remote": "handle subsystem instance bucket kcov pid comm errors",
    "areas": "area size list state pid cpu errors",
    "percpu": "where cpu pid comm saved_mode saved_size saved_area saved_kcov saved_sequence "
    "errors",
}


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def workspace(streams, monkeypatch):
    return make_workspace(streams, monkeypatch)


@pytest.fixture
def ask(streams, monkeypatch):
    """Return what a line answers, of a state as StubReader takes it."""

    def ask(line, *tasks, **state):
        workspace = make_workspace(streams, monkeypatch, reader=StubReader(*tasks, **state))
        ask.status = run_line(workspace, line)
        out, ask.said = streams.take()
        return json.loads(out) if "--json" in line.split() else out

    return ask


@pytest.mark.parametrize("command", KEYS)
def test_keys(ask, command):
    rows = ask(f"{command} --json")
    assert rows
    for row in rows:
        assert set(KEYS[command].split()) <= set(row)
        assert list(row) == list(rows[0])
    header = next(csv.reader(io.StringIO(ask(f"{command} --csv"))))
    assert header == list(rows[0])


@pytest.mark.parametrize("command", KEYS)
def test_text_fits_a_terminal(ask, streams, command):
    streams.width = 80
    lines = ask(command).splitlines()
    if command != "info":
        assert all(text_width(line) <= 80 for line in lines if not line.startswith("note: "))
    assert all("\x1b" not in line for line in lines)


def test_tasks_name_their_system_calls(ask):
    rows = {row["pid"]: row for row in ask("tasks --json")}
    assert rows[41]["syscall"] == {
        "number": 0,
        "name": "read",
        "args": ["0x3", "0x7f0000001000", "0x200"],
    }
    assert (rows[66]["syscall"], len(rows[66]["errors"])) == (None, 2)
    text = ask("tasks --wide")
    assert "read(3, 0x7f0000001000, 512)" in text
    # One line for all of them, however many are unknown.
    assert (
        len([line for line in (text + ask.said).splitlines() if "system call unknown" in line]) == 1
    )


def test_tasks_text(ask):
    lines = ask(
        "tasks 41 42 7 --columns "
        "pid,comm,mode,count,role,kcov,handle,cpu,area,task,tgid,size,sequence"
    ).splitlines()
    assert [line[:82].rstrip() for line in lines] == [
        "PID  COMM          MODE                 COUNT  ROLE",
        " 41  syz-executor  TRACE_PC          11/65535  local",
        " 42  syz-executor  TRACE_PC  FULL 65535/65535  local, remote owner",
        "  7  kworker/0:1   TRACE_PC          11/65535  softirq-section over remote-section",
    ]
    assert [line[84:] for line in lines] == [
        "KCOV                HANDLE       CPU  AREA                TASK                TGID   "
        "SIZE  SEQUENCE",
        "0xffff888003a51c00  0              0  0xffffc90000200000  0xffff888004029000    41  "
        "65536         1",
        "0xffff888003a51d00  common:0x2a    0  0xffffc90000200000  0xffff88800402a000    42  "
        "65536         1",
        "0xffff888003a51c00  usb:1          0  0xffffc90000200000  0xffff888004007000     7  "
        "65536         1",
    ]


def test_tasks_that_cannot_be_read(ask):
    text = ask("tasks 'evil*'")
    assert r"evil\x1b[2J\u202e\x0a" in text
    assert "note: task 66: buffer 0xdead: it can't be read" in text.splitlines()
    assert ask("tasks 66 --json")[0]["errors"][0] == "buffer 0xdead: it can't be read"
    assert ask("tasks 66 --json")[0]["role"] is None


@pytest.mark.parametrize(
    ("line", "pids"),
    [
        ("tasks", [41, 42, 7, 66]),
        ("tasks -a", [1, 41, 42, 7, 66]),
        ("tasks 1", [1]),
        ("tasks 41 kworker", [41, 7]),
        ("tasks 'syz*'", [41, 42]),
        ("tasks --mode trace-pc", [41, 42, 7, 66]),
        ("tasks --mode KCOV_MODE_DISABLED -a", [1]),
        ("tasks --mode trace_cmp", []),
    ],
)
def test_tasks_chosen(ask, line, pids):
    assert [row["pid"] for row in ask(f"{line} --json")] == pids
    assert ask.status == 0


def test_tasks_that_are_not_there(ask):
    assert ask("tasks 9 nobody --json") == []
    assert ask.status == 2
    assert [line.split()[-1].strip("'") for line in ask.said.splitlines()] == ["9", "nobody"]
    assert ask("tasks 9 41").splitlines()[-1] == "note: no task 9"
    assert ask.status == 0
    # Said once where there is nothing else.
    assert ask("tasks 9").splitlines() == ["no task 9"]
    assert ask.status == 2


def test_counts_of_remote_owners(ask):
    owner = make_task(
        50, kcov_area=0, kcov_size=0, kcov=REMOTE_KCOV, owns_remote=True, count=5, mode="REMOTE"
    )
    assert " 5/65535 " in ask("tasks", (owner,))


def test_objects_of_remote_owners(ask):
    """Since v7.2, ``kcov`` of a task that only owns remote coverage is NULL; COUNT is of the object
    that it owns.
    """
    owner = make_task(
        50,
        kcov=0,
        kcov_remote=REMOTE_KCOV,
        owns_remote=True,
        count=5,
        mode="DISABLED",
        role=Role.NONE,
    )
    both = make_task(51, kcov=KCOV, kcov_remote=REMOTE_KCOV, owns_remote=True)
    carrier = make_task(
        52, kcov=0, kcov_remote=0, kcov_handle=0x4201, mode="DISABLED", role=Role.NONE
    )
    tasks = (owner, both, carrier)
    shown = [
        line.split()[:2] for line in ask("tasks -a --columns pid,kcov", tasks).splitlines()[1:4]
    ]
    assert shown == [["50", hex(REMOTE_KCOV)], ["51", hex(KCOV)], ["52", "0"]]
    # All members are shown then: the object is in KCOV_REMOTE only.
    assert ask("tasks -a --wide", tasks).splitlines()[1].count(hex(REMOTE_KCOV)) == 1
    assert [row["kcov"] for row in ask("tasks -a --json", tasks)] == ["0x0", hex(KCOV), "0x0"]


def test_unreadable_tasks_are_named_by_their_address(ask):
    task = make_task(errors=("pid is unreadable",))
    task = replace(task, fields=task.fields._replace(pid=None))
    assert hex(task.fields.address) in ask("tasks", (task,)).splitlines()[-1]


def test_no_tasks(ask):
    said = ("the task list is broken: x",)
    assert ask("tasks", (), said=said).splitlines()[1:] == ["note: the task list is broken: x"]
    assert (ask.status, ask.said) == (0, "")
    assert ask("tasks --json", (), said=said) == []
    assert (ask.status, ask.said) == (0, "kcovdbg: note: the task list is broken: x\n")


def test_objects(ask):
    rows = ask("objects --json")
    assert [row["kcov"] for row in rows] == [hex(KCOV), hex(REMOTE_KCOV)]
    assert (rows[1]["refcount"], rows[1]["counted"]) == (3, 1)
    text = ask("objects")
    # PID is the task; references of its own do not name it again.
    assert " 41  syz-executor  fd 3\n" in text
    assert "3, found 1" in text
    assert "vma 42, 5 handles" in text


def test_tasks_and_objects_fit_a_hundred_columns_in_pipes(ask):
    """With the names and counts of a real fuzzer."""
    long = {"comm": "syz-executor.12", "kcov_size": 1 << 20, "capacity": (1 << 20) - 1}
    tasks = [
        make_task(1234567, count=524288, **long),
        make_task(1234568, count=(1 << 20) - 1, full=True, owns_remote=True, **long),
        make_task(
            1234569,
            count=7,
            role=Role.SOFTIRQ_SECTION,
            beneath=Role.LOCAL,
            kcov_handle=0x4201,
            **long,
        ),
    ]
    references = (
        Reference("fd", 1, pid=1234567, fd=214, file=1),
        Reference("vma", 0, pid=1234567, start=1),
    )
    objects = {
        KCOV: replace(
            make_kcov(references=references),
            count=524288,
            capacity=(1 << 20) - 1,
            pid=1234567,
            comm=long["comm"],
        )
    }
    for line, columns in (
        ("tasks", ("PID", "COMM", "MODE", "COUNT", "ROLE")),
        ("objects", ("KCOV", "PID", "COMM", "REFERENCES")),
    ):
        shown = ask(line, all=tuple(tasks), objects=objects)
        assert max(map(len, shown.splitlines())) <= 100
        assert set(columns) <= set(shown.splitlines()[0].split())
        assert "syz-executor.12" in shown
        assert "…" not in shown
        assert (
            max(map(len, ask(f"{line} --wide", all=tuple(tasks), objects=objects).splitlines()))
            > 100
        )


def test_one_object(ask):
    lines = ask(f"objects {REMOTE_KCOV:x}").splitlines()
    assert len(lines) == 2 + 6
    assert lines[2] == "  counted    vma 42 at 0x7f0000000000"
    assert lines[3] == "  uncounted  handle usb:1"
    assert ask("objects ffff888000000000 --json") == []
    assert ask.status == 2
    assert "nothing refers to a struct kcov at 0xffff888000000000" in ask.said


def test_an_object_that_cannot_be_read(ask):
    lost = replace(
        make_kcov(),
        fields=None,
        mode=None,
        pid=None,
        comm=None,
        count=None,
        capacity=None,
        full=None,
        errors=("gone",),
    )
    (row,) = ask("objects --json", objects={KCOV: lost})
    assert row["errors"] == ["gone"]
    assert row["refcount"] is row["area"] is row["t"] is row["remote"] is None
    assert ask("objects", objects={KCOV: lost}).endswith(f"note: kcov {KCOV:#x}: gone\n")


def test_areas_and_handles(ask):
    assert ask("remote").splitlines()[1].split()[:3] == ["usb:1", "42", "syz-executor"]
    assert ask("percpu").splitlines()[-1] == "note: CPU 0: the current task of CPU 0 can't be read"
    assert ask("areas").splitlines()[1:] == [
        "0xffffc90000300000  65536  task  cached    -    -",
        "0xffffc90000200000    512  irq   in-use    7    1",
    ]


def test_info(ask):
    (found,) = ask("info --json")
    (error,) = found["errors"]
    assert "struct kcov.new" in error
    assert found["variants"] == ["KCOV_TRACE_PC_EXT (2026)"]
    text = ask("info")
    assert (
        "KCOV generation  E9a (stable kernels since August 2026 (6.1.185, 6.12.106)): saved "
        "state in the task" in text
    )


def test_a_machine_that_has_ended(streams, monkeypatch, tmp_path):
    target = make_target(
        name="guest", live=True, state=lambda: MachineState.GONE, is_gone=lambda: True
    )
    workspace = make_workspace(streams, monkeypatch, target=target)
    # Commands read by the target again, not by a stub.
    monkeypatch.undo()
    for line in (
        "tasks",
        "objects --json",
        "buffer 41",
        f"tasks > {tmp_path}/tasks",
        f"report -o {tmp_path}/page",
    ):
        with pytest.raises(GoneError, match="guest"):
            run_line(workspace, line)
    assert not list(tmp_path.iterdir())
    streams.take()
    assert run_line(workspace, "info --json") == 0
    row = json.loads(streams.take()[0])[0]
    assert (row["live"], row["state"], row["release"]) == (False, "gone", "6.12.1")


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        (None, 1),
        (OSError(3, "No such process"), 1),
        # A process that is killed loses its memory before its sockets are closed.
        (OSError(3, "No such process"), 3),
        (TargetError("no answer from QEMU"), 1),
    ],
)
def test_a_machine_that_ends_while_it_is_read(streams, monkeypatch, error, looks):
    """Also if only a part of the answer is missing because reads failed."""
    answers = iter([False] * looks)
    workspace = make_workspace(
        streams, monkeypatch, target=make_target(live=True, is_gone=lambda: next(answers, True))
    )

    def run(context, _args):
        assert context.target
        if error is not None:
            raise error

    command = replace(workspace.commands.find("tasks"), run=run)
    with pytest.raises(GoneError):
        run_command(workspace, command, parse_arguments(command, []), workspace.terminal())


def test_chosen_columns(ask):
    # Without values they vanish, unless they are chosen.
    assert "HANDLE" not in ask("tasks 41 --wide").splitlines()[0].split()
    assert "HANDLE" in ask("tasks 42 --wide").splitlines()[0].split()
    assert ask("tasks 41 --columns comm,PID,kcov_mode,MODE,handle").splitlines() == [
        "COMM          PID  MODE      MODE      HANDLE",
        "syz-executor   41  TRACE_PC  TRACE_PC  0",
    ]
    assert ask("info --columns release").splitlines()[0] == "release  6.12.1"
    # Instead of the drawing, the table of its data is shown.
    assert ask("help --columns command").splitlines()[0] == "COMMAND"


def test_a_line_per_value(ask):
    lines = ask("tasks 41 42 --vertical --columns pid,comm").splitlines()
    assert lines == [
        "-[ 1 ]-",
        "PID   41",
        "COMM  syz-executor",
        "-[ 2 ]-",
        "PID   42",
        "COMM  syz-executor",
    ]
    keys = [line.split()[0] for line in ask("tasks 41 --vertical").splitlines()[1:]]
    assert {"PID", "AREA", "KCOV_MODE_RAW"} <= set(keys)


def test_chosen_fields(ask):
    assert ask("tasks 41 --json --fields comm,pid") == [{"comm": "syz-executor", "pid": 41}]
    assert ask("tasks 41 --json --fields errors,pid") == [{"pid": 41, "errors": []}]
    assert ask("tasks 41 42 --csv --fields pid,kcov_handle") == "pid,kcov_handle\n41,0x0\n42,0x2a\n"
    assert ask("tasks 41 42 --jsonl --fields pid") == '{"pid": 41}\n{"pid": 42}\n'
    assert ask("help --jsonl --fields command").startswith('{"command": ')


@pytest.mark.parametrize(
    ("line", "named", "hint"),
    [
        ("tasks --columns pid,rolle", "'rolle'", "role"),
        ("tasks --json --fields pdi", "'pdi'", "pid"),
        ("tasks --jsonl --fields zzz", "'zzz'", "kcov_area"),
        ("tasks --fields pid", "--fields", "--columns"),
        ("tasks --json --columns pid", "--columns", "--fields"),
        ("tasks --csv --wide", "--wide", "--fields"),
        ("tasks --columns ,", "--columns", ""),
        ("tasks --json --jsonl", "--jsonl", ""),
    ],
)
def test_choices_that_cannot_be_met(workspace, streams, line, named, hint):
    with pytest.raises(UsageError) as caught:
        run_line(workspace, line)
    assert named in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert streams.take()[0] == ""


def test_objects_of_a_task(ask):
    every = {row["kcov"]: row for row in ask("objects --json")}
    assert ask("objects 42 --json") == [every[f"{REMOTE_KCOV:#x}"]]
    assert ask(f"objects 42 {KCOV:#x} --json") == [every[f"{REMOTE_KCOV:#x}"], every[f"{KCOV:#x}"]]
    assert ask("objects kworker/0:1 --json") == ask("objects 7 --json")
    assert ask("objects 1 --json") == []
    assert ask.status == 2


def test_a_name_of_several_tasks_is_refused_with_their_ids(workspace):
    for line in ("top syz-executor", "why syz-executor"):
        with pytest.raises(UsageError, match="'syz-executor'") as refused:
            run_line(workspace, line)
        assert {"41", "42"} <= set(re.findall(r"\d+", refused.value.hint))


def test_a_mistyped_name_of_a_task_is_told_the_similar_ones(workspace):
    for line in ("top syz-executr", "catch syz-executr kcov_mode"):
        with pytest.raises(KcovdbgError) as refused:
            run_line(workspace, line)
        assert "syz-executor" in refused.value.hint


def test_remote_handles_are_filtered(ask):
    (first,) = StubReader().remote
    ask = partial(ask, remote=(first, first._replace(handle=0x42, pid=7, comm="kworker")))
    every = ask("remote --json")
    usb, _ = every
    for word in ("usb:1", "0x100000000000001", "usb:*", "usb"):
        assert usb in ask(f"remote {word} --json")
    assert ask("remote usb:1 --json") == [usb]
    assert ask(f"remote {usb['pid']} --json") == [row for row in every if row["pid"] == usb["pid"]]
    assert ask(f"remote '{usb['comm'][:3]}*' --json") == [
        row for row in every if row["comm"][:3] == usb["comm"][:3]
    ]
    assert ask.func.status == 0
    assert ask("remote usb:1 no-such --json") == [usb]
    assert "no-such" in ask.func.said
    assert ask("remote usb:9 --json") == []
    assert ask.func.status == 2


@pytest.mark.parametrize("refcount", [2**31 - 1, -(2**30)])
def test_impossible_refcounts_widen_no_column(ask, refcount):
    objects = {KCOV: make_kcov(refcount=refcount)}
    assert str(refcount) not in ask("objects", objects=objects)
    for line in ("objects --wide", "objects --json"):
        assert str(refcount) in str(ask(line, objects=objects))


def test_impossible_counts_are_short():
    assert count_text(1 << 64, 511, True) == "FULL …/511"
    assert count_text(1 << 64, 511, True, is_whole=True) == f"FULL {1 << 64}/511"
    assert count_text(9_999_999_999, 511, True) == "FULL 9999999999/511"
    assert count_text(17, None, False) == "17"
