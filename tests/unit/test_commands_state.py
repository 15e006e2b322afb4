# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands that show state: their keys are those that the design promises."""

import csv
import io
import json

import pytest

from kcovdbg.commands.run import run_line
from kcovdbg.errors import TargetError
from kcovdbg.render.width import text_width
from tests.unit.state import (
    KCOV,
    REMOTE_KCOV,
    Streams,
    StubCensus,
    make_kcov,
    make_layout,
    make_session,
    make_target,
    make_task,
)

KEYS = {
    "info": "target release machine build_id kaslr_offset generation variants features live errors",
    "tasks": (
        "pid tgid comm task cpu kcov kcov_remote kcov_mode kcov_mode_raw in_ctxsw kcov_size kcov_area kcov_sequence "
        "kcov_handle kcov_softirq role beneath owns_remote count full errors"
    ),
    "objects": (
        "kcov refcount counted mode size area t pid comm remote remote_size sequence count capacity full references errors"
    ),
    "remote": "handle subsystem instance bucket kcov pid comm errors",
    "areas": "area size list state pid cpu errors",
    "percpu": "where cpu pid comm saved_mode saved_size saved_area saved_kcov saved_sequence errors",
}


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def session(streams, monkeypatch):
    return make_session(streams, monkeypatch)


@pytest.fixture
def ask(session, streams):
    def ask(line):
        ask.status = run_line(session, line)
        out, ask.said = streams.take()
        return json.loads(out) if "--json" in line else out

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


def test_tasks_json(ask):
    row = next(row for row in ask("tasks --json") if row["pid"] == 42)
    assert row == {
        "pid": 42,
        "tgid": 42,
        "comm": "syz-executor",
        "task": "0xffff88800402a000",
        "cpu": 0,
        "kcov": hex(REMOTE_KCOV),
        "kcov_remote": None,
        "kcov_mode": "TRACE_PC",
        "kcov_mode_raw": "0x40000002",
        "in_ctxsw": True,
        "kcov_size": 65536,
        "kcov_area": "0xffffc90000200000",
        "kcov_sequence": 1,
        "kcov_handle": "0x2a",
        "kcov_softirq": 0,
        "role": "local",
        "beneath": None,
        "owns_remote": True,
        "count": 65535,
        "full": True,
        "errors": [],
    }
    null = next(row for row in ask("tasks -a --json") if row["pid"] == 1)
    assert (null["kcov"], null["kcov_area"], null["role"]) == ("0x0", "0x0", "none")


def test_tasks_text(ask):
    lines = ask("tasks 41 42 7").splitlines()
    assert [line[:82].rstrip() for line in lines] == [
        "PID  COMM          MODE                 COUNT  ROLE",
        " 41  syz-executor  TRACE_PC          11/65535  local",
        " 42  syz-executor  TRACE_PC  FULL 65535/65535  local, remote owner",
        "  7  kworker/0:1   TRACE_PC          11/65535  softirq-section over remote-section",
    ]
    assert [line[84:] for line in lines] == [
        "KCOV                HANDLE       CPU  AREA                TASK                TGID   SIZE  SEQUENCE",
        "0xffff888003a51c00  0              0  0xffffc90000200000  0xffff888004029000    41  65536         1",
        "0xffff888003a51d00  common:0x2a    0  0xffffc90000200000  0xffff88800402a000    42  65536         1",
        "0xffff888003a51c00  usb:1          0  0xffffc90000200000  0xffff888004007000     7  65536         1",
    ]


def test_tasks_that_cannot_be_read(ask):
    text = ask("tasks 'evil*'")
    assert r"evil\x1b[2J\u202e\x0a" in text
    assert text.splitlines()[-1] == "note: task 66: buffer 0xdead: it can't be read"
    assert ask("tasks 66 --json")[0]["errors"] == ["buffer 0xdead: it can't be read"]
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
    assert ask.said == "kcovdbg: note: no task is 9\nkcovdbg: note: no task with KCOV state matches nobody\n"
    assert ask("tasks 9 41").splitlines()[-1] == "note: no task is 9"
    assert ask.status == 0


def test_modes_of_this_kernel(session, streams):
    from kcovdbg.commands.run import run_reporting

    assert run_reporting(session, "tasks --mode trace-uniq") == 2
    assert "no mode TRACE_UNIQ" in streams.take()[1]


def test_counts_of_remote_owners(streams, monkeypatch):
    owner = make_task(50, kcov_area=0, kcov_size=0, kcov=REMOTE_KCOV, owns_remote=True, count=5, mode="REMOTE")
    session = make_session(streams, monkeypatch, census=StubCensus((owner,)))
    run_line(session, "tasks")
    assert " 5/65535 " in streams.take()[0]


def test_no_tasks(streams, monkeypatch):
    session = make_session(streams, monkeypatch, census=StubCensus((), said=("the task list is broken: x",)))
    assert run_line(session, "tasks") == 0
    assert streams.take() == ("no task has KCOV state\nnote: the task list is broken: x\n", "")
    assert run_line(session, "tasks --json") == 0
    assert streams.take() == ("[]\n", "kcovdbg: note: the task list is broken: x\n")


def test_objects(ask):
    rows = ask("objects --json")
    assert [row["kcov"] for row in rows] == [hex(KCOV), hex(REMOTE_KCOV)]
    assert (rows[1]["refcount"], rows[1]["counted"]) == (3, 1)
    assert rows[0]["references"] == [
        {"kind": "task", "counts": 1, "pid": 41, "fd": None, "file": None, "start": None, "handle": None, "cpu": None},
        {
            "kind": "fd",
            "counts": 1,
            "pid": 41,
            "fd": 3,
            "file": "0xffff888005000000",
            "start": None,
            "handle": None,
            "cpu": None,
        },
    ]
    assert rows[1]["references"][0]["start"] == "0x7f0000000000"
    assert rows[1]["references"][1]["handle"] == "0x100000000000001"
    text = ask("objects")
    assert "task 41, fd 41/3" in text
    assert "3, found 1" in text
    assert "vma 42, usb:1, usb:2, usb:3, 2 more handles" in text


def test_one_object(ask):
    lines = ask(f"objects {REMOTE_KCOV:x}").splitlines()
    assert len(lines) == 2 + 6
    assert lines[2] == "  counts  vma     vma 42  at 0x7f0000000000"
    assert lines[3] == "          remote  usb:1"
    assert ask("objects ffff888000000000 --json") == []
    assert ask.status == 2
    assert "nothing refers to a struct kcov at 0xffff888000000000" in ask.said


def test_an_object_that_cannot_be_read(streams, monkeypatch):
    from dataclasses import replace

    lost = replace(
        make_kcov(), fields=None, mode=None, pid=None, comm=None, count=None, capacity=None, full=None, errors=("gone",)
    )
    session = make_session(streams, monkeypatch, census=StubCensus(objects={KCOV: lost}))
    run_line(session, "objects --json")
    row = json.loads(streams.take()[0])[0]
    assert row["errors"] == ["gone"]
    assert row["refcount"] is row["area"] is row["t"] is row["remote"] is None
    run_line(session, "objects")
    assert streams.take()[0].endswith(f"note: kcov {KCOV:#x}: gone\n")


def test_remote(ask):
    assert ask("remote --json") == [
        {
            "handle": "0x100000000000001",
            "subsystem": "usb",
            "instance": 1,
            "bucket": 5,
            "kcov": hex(REMOTE_KCOV),
            "pid": 42,
            "comm": "syz-executor",
            "errors": [],
        }
    ]
    assert ask("remote").splitlines()[1].split()[:3] == ["usb:1", "42", "syz-executor"]


def test_areas(ask):
    assert ask("areas").splitlines()[1:] == [
        "0xffffc90000300000  65536  task  cached    -    -",
        "0xffffc90000200000    512  irq   in-use    7    1",
    ]


def test_saved(ask):
    rows = ask("saved --json")
    assert rows == ask("percpu --json")
    assert rows[0]["saved_mode"] == "TRACE_PC"
    assert rows[0]["saved_mode_raw"] == "0x40000002"
    assert rows[1]["saved_mode"] is None
    assert rows[1]["errors"] == ["the current task of CPU 0 can't be read"]
    assert ask("percpu").splitlines()[-1] == "note: CPU 0: the current task of CPU 0 can't be read"


def test_info(ask):
    assert ask("info --json") == [
        {
            "target": "vmcore",
            "release": "6.12.1",
            "machine": "x86_64",
            "build_id": "ab" * 20,
            "kaslr_offset": "0x1200000",
            "generation": "E9a",
            "variants": ["KCOV_PC_RANGE (2021)"],
            "features": ["remote", "softirq"],
            "live": False,
            "errors": ["struct kcov.new is new to kcovdbg: it may mean more than is shown"],
        }
    ]
    text = ask("info")
    assert "KCOV generation  E9a (stable kernels since August 2026 (6.1.185, 6.12.106)): saved state in the task" in text


def test_info_of_a_kernel_without_kcov(streams, monkeypatch):
    class NoLayout:
        def __get__(self, *_args):
            raise TargetError("this kernel has no KCOV")

    session = make_session(streams, monkeypatch, layout=make_layout(), target=make_target(build_id=None, notes=("no paging",)))
    del session.__dict__["layout"]
    monkeypatch.setattr(type(session), "layout", NoLayout())
    assert run_line(session, "info --json") == 0
    row = json.loads(streams.take()[0])[0]
    assert row["generation"] is row["variants"] is row["features"] is row["build_id"] is None
    assert row["errors"] == ["this kernel has no KCOV"]
