# SPDX-License-Identifier: LGPL-2.1-or-later
"""``collect`` on the command line, with a fake device; and how it cuts traces at system calls."""

import json
import subprocess
import sys
from array import array
from dataclasses import replace

import pytest

from kcovdbg.abi.record import CMP, PC, decode_record, split_records
from kcovdbg.abi.syscall_names import argument_count, syscall_name
from kcovdbg.collect import command_run as running
from kcovdbg.collect.collected_traces import COLLECT_ROWS, call_text, merge, own_records
from kcovdbg.collect.command import parse_remote, parse_size
from kcovdbg.console.json_schema import keys_of
from kcovdbg.errors import WordError
from kcovdbg.frontends.cli import main
from kcovdbg.records.run_counts import RunCounts, find_occurrences
from kcovdbg.records.side_file import read_header
from kcovdbg.series.kcov_dataflow import CODEC as DATAFLOW
from tests.support.collector_process import no_target
from tests.support.fake_kcov import FakeKcov
from tests.support.screen import ROOT, Screen
from tests.unit.records.test_collect_files import PCS, make


@pytest.fixture
def cli(capfd, monkeypatch):
    fake = FakeKcov()
    monkeypatch.setattr(running, "collect_command", fake.collect_command)

    def cli(*words):
        status = main(["collect", *words], open_target=no_target)
        return status, *capfd.readouterr()

    cli.fake = fake
    return cli


def test_statuses(cli):
    assert cli("--", "sh", "-c", "exit 3")[0] == 3
    assert cli("sh", "-c", "kill -9 $$")[0] == 137
    status, _, errors = cli("--", "/nonexistent")
    assert status == 127
    assert "/nonexistent: " in errors
    for words in (
        ["--nonsense", "--", "true"],
        [],
        ["--mode", "pc-ext", "--", "true"],
        ["--buffer-size", "x", "--", "true"],
    ):
        assert cli(*words)[0] == 125
    cli.fake.errors["open"] = 13
    status, _, errors = cli("--", "true")
    assert status == 125
    assert "sudo" in errors


def test_json_is_all_of_standard_output(cli):
    status, out, errors = cli("--json", "--", "echo", "hello")
    assert (status, json.loads(out)) == (0, [])
    assert "hello" in errors


# Of a device: an argument and a returned value, each with a header, its PC, a pointer, and one
# value.
VALUES = [1 << 32 | 0xE0000001, PCS[0], 0xFFFF888000001000, 9, 1 << 32 | 0xF0000002, PCS[1], 0, 5]


def make_split(words, codec):
    """Return a buffer with two records."""
    buffer = make(words, codec=codec)
    found, encoding = split_records(buffer.words, buffer.encoding)
    return replace(buffer, words=found, encoding=encoding, count=2, stored_count=2)


@pytest.mark.parametrize(
    ("codec", "words", "documented"),
    [
        (PC, PCS[:2], COLLECT_ROWS[0]),
        (CMP, [7, 1, 2, PCS[0], 6, 3, 4, PCS[1]], COLLECT_ROWS[1]),
        (DATAFLOW, VALUES, COLLECT_ROWS[2]),
    ],
)
def test_records_as_json(cli, monkeypatch, codec, words, documented):
    def collect_command(request, _find_holder=None):
        buffer = make_split(words, codec)
        task = running.TaskTrace(41, 41, 0, running.TaskKind.COMMAND, "ls", 0, 0, buffer)
        return running.Collected(request, 0, 0.1, (task,))

    monkeypatch.setattr(running, "collect_command", collect_command)
    status, out, _ = cli("--json", "--", "ls")
    rows = json.loads(out)
    assert status == 0
    shown = [(row["pc"], row["symbol"], row["tid"], row["part"]) for row in rows]
    assert shown == [(hex(pc), None, 41, "task") for pc in PCS[:2]]
    assert [set(row) for row in rows] == [{key.name for key in keys_of(documented)}] * 2


def test_files(cli, tmp_path):
    path = tmp_path / "a.kcov"
    status, out, _ = cli(
        "-o", str(path), "--per-thread", "--json", "--", "sh", "-c", "(exit 2); true"
    )
    assert status == 0
    rows = json.loads(out)
    assert [row["file"] for row in rows] == [str(tmp_path / f"a.{row['tid']}.kcov") for row in rows]
    assert len(rows) == 2
    header = read_header(tmp_path / f"a.{rows[0]['tid']}.kcov")
    assert header.argv == ("sh", "-c", "(exit 2); true")
    assert (header.mode, header.size, header.count) == ("TRACE_PC", 1 << 19, 0)


def test_repeat_and_system_calls(cli):
    status, out, _ = cli("--repeat", "3", "--", "true")
    assert status == 0
    assert "3 runs: 0 points" in out
    status, out, errors = cli("--syscall", "--json", "--", "cat", "/etc/hostname")
    calls = json.loads(out)
    assert status == 0
    assert "/etc/hostname" in {call["text"] for call in calls}
    assert "ptrace" in errors


class Grown:
    """A run whose task makes 3000 records, with any size of the buffer."""

    def __init__(self, status=0, records=3000):
        self.sizes = []
        self.status, self.records = status, records

    def __call__(self, request, _find_holder=None):
        self.sizes.append(request.size)
        capacity = request.size - 1
        count = min(self.records, capacity)
        words = array("Q", (PCS * (count // len(PCS) + 1))[:count])
        buffer = replace(
            make(words), count=count, stored_count=count, capacity=capacity, size=request.size
        )
        task = running.TaskTrace(7, 7, 0, running.TaskKind.COMMAND, "ls", 0, 0, buffer)
        return running.Collected(request, self.status, 0.1, (task,))


@pytest.mark.parametrize(
    ("words", "status", "sizes", "said"),
    [
        ((), 0, [512], "--buffer-size 2048"),
        (("--grow",), 0, [512, 2048, 8192], "again with 8192"),
        # After the user ended the command, it does not run again.
        (("--grow",), 130, [512], "later records are missing"),
    ],
)
def test_growing(cli, monkeypatch, words, status, sizes, said):
    made = Grown(status)
    monkeypatch.setattr(running, "collect_command", made)
    found, out, errors = cli("--buffer-size", "512", *words, "--keep", "@a", "--", "ls")
    assert (found, made.sizes) == (status, sizes)
    assert said in out + errors


def test_growing_ends(cli, monkeypatch):
    made = Grown(records=1 << 40)
    monkeypatch.setattr(running, "collect_command", made)
    monkeypatch.setattr("kcovdbg.collect.command._MAX_GROWN", 1 << 13)
    _, out, errors = cli("--buffer-size", "512", "--grow", "--keep", "@a", "--", "ls")
    assert made.sizes == [512, 2048, 8192]
    assert "a buffer of 8192 words was full: later records are missing" in out + errors


TRAPPED = "trap 'exit 5' INT; echo ready; while :; do sleep 0.05; done"
IGNORED = "trap '' INT; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "presses", "status"),
    [(TRAPPED, 1, 5), ("echo ready; exec sleep 100", 1, 130), (IGNORED, 2, 137)],
)
def test_interrupt_from_a_terminal(tmp_path, script, presses, status):
    """The terminal sends C-c to the command as well, which may ignore it; the second one kills it.

    All records are kept.
    """
    path = tmp_path / "a.kcov"
    words = (
        sys.executable,
        "-m",
        "tests.support.collector_process",
        "collect",
        "-o",
        str(path),
        "--",
        "sh",
        "-c",
        script,
    )
    with Screen(*words, columns=100) as screen:
        screen.wait("ready")
        for press in range(presses):
            if press:
                screen.settle()
            screen.type("\x03")
        assert screen.end(30) == status
    assert read_header(path).argv == ("sh", "-c", script)
    assert "Traceback" not in screen.text


def test_terminated(tmp_path):
    path = tmp_path / "a.kcov"
    words = [
        sys.executable,
        "-m",
        "tests.support.collector_process",
        "collect",
        "-o",
        str(path),
        "--",
        "sh",
        "-c",
    ]
    with subprocess.Popen(
        [*words, "echo ready; exec sleep 100"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as owner:
        assert owner.stdout.readline() == "ready\n"
        owner.terminate()
        assert owner.wait(30) == 143
    assert read_header(path).comm in ("sh", "sleep")


def test_sizes_and_handles():
    assert [parse_size(text) for text in ("1", "512", "513", "4K", "1m", "0x400")] == [
        512,
        512,
        1024,
        4096,
        1 << 20,
        1024,
    ]
    assert parse_remote(["usb:1,usb:2", "common:auto"]) == ((1 << 56 | 1, 1 << 56 | 2), 0)
    assert parse_remote(["common:0x42"]) == ((), 0x42)
    assert parse_remote(()) == ((), None)
    for bad in (["usb"], ["common:0"], ["common:1,common:2"]):
        with pytest.raises(WordError):
            parse_remote(bad)


def test_what_ptrace_leaves_is_cut_off():
    def names(text):
        return [tuple(word.split("/")) for word in text.split()]

    functions = names(
        "cgroup_leave_frozen inlined/ptrace_stop ptrace_stop __x64_sys_close filp_close "
        "ptrace_notify "
        "task_work_run ____fput ptrace_notify ptrace_do_notify map_id_up ptrace_stop "
        "cgroup_enter_frozen ptrace_stop"
    )
    assert [functions[index] for index in own_records(functions)] == names(
        "__x64_sys_close filp_close task_work_run ____fput"
    )
    assert own_records([]) == []
    # Of a call that doesn't return there is no end.
    assert own_records(names("ptrace_stop do_exit mm_release")) == [1, 2]


def test_merged_buffers():
    left, right = make(PCS[:3]), replace(make(PCS[3:5]), name="42", capacity=2)
    both = merge([left, right])
    assert (list(both.words), both.count, both.capacity) == (PCS[:5], 5, None)
    assert "full: 42" in both.remarks[1]
    assert merge([left]) is left
    assert merge([make([7, 1, 2, PCS[0]], "TRACE_CMP", CMP)] * 2).count == 2
    both = merge([make_split(VALUES, DATAFLOW), make_split(VALUES[4:] + VALUES[:4], DATAFLOW)])
    found = [decode_record(both.words, index, both.encoding) for index in range(both.count)]
    assert [(one.pc, one.values.values) for one in found] == [
        (PCS[0], (9,)),
        (PCS[1], (5,)),
        (PCS[1], (5,)),
        (PCS[0], (9,)),
    ]


def test_stable_and_flickering():
    found = find_occurrences(RunCounts([{1: 2, 2: 1}, {1: 1, 3: 4}]))
    occurrences = [(one.pc, one.runs, one.records, one.is_stable) for one in found]
    assert occurrences == [(2, 1, 1, False), (3, 1, 4, False), (1, 2, 3, True)]


def test_calls_as_text():
    number = next(number for number in range(1024) if syscall_name(number) == "openat")
    call = running.TracedSyscall(
        1, number, False, (0xFFFFFF9C, 0x7000, 0, 0, 5, 6), 1, '/a\x1b"', 3, 0, 0, 0
    )
    assert call_text(call) == 'openat(0xffffff9c, "/a\x1b"", 0, 0)'
    assert (syscall_name(56, "aarch64"), syscall_name(9999), argument_count("openat")) == (
        "openat",
        "syscall_9999",
        4,
    )
    assert call_text(replace(call, is_compat=True)).startswith(f"32-bit call {number}(")


def test_a_trace_on_standard_output(cli, tmp_path, monkeypatch):
    """The trace alone: what the command writes goes to standard error."""
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "out").open("w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        status, _, errors = cli("-o", "-", "--", "echo", "said")
    assert (status, errors.splitlines()[0]) == (0, "said")
    assert cli("-o", "saved", "--", "true")[0] == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "saved").read_bytes() != b""
    for words in (["--per-thread"], ["--remote", "usb:1"], ["--json"]):
        assert cli("-o", "-", *words, "--", "touch", "was-run")[0] == 125
    assert not (tmp_path / "was-run").exists()
