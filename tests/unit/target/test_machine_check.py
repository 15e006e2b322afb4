# SPDX-License-Identifier: LGPL-2.1-or-later
"""The check of the machine before a run of all tests, and the progress report of the run."""

import os
from pathlib import Path

import pytest

from tests import __main__ as steps
from tests import machine


def test_devices(tmp_path):
    null = Path("/dev/null").stat().st_rdev
    devices = {"/dev/null": (os.major(null), os.minor(null))}
    assert list(machine.check_devices(devices)) == []
    # A chroot's /dev/full is a regular file as soon as somebody has written to it.
    plain = tmp_path / "full"
    plain.write_text("")
    missing = tmp_path / "zero"
    found = list(machine.check_devices({str(plain): (1, 7), str(missing): (1, 5), "/dev/null": (1, 7)}))
    assert [problem.split(": ")[0] for problem in found] == [str(plain), str(missing), "/dev/null"]
    assert all("\n" not in problem and "mknod" in problem for problem in found)


def test_terminals():
    def no_terminal():
        raise FileNotFoundError(2, "No such file or directory")

    assert list(machine.check_terminals()) == []
    (problem,) = machine.check_terminals(no_terminal)
    assert problem.startswith("/dev/pts: ")


def test_proc_and_shared_memory(tmp_path):
    assert list(machine.check_proc()) == []
    assert [problem.split(": ")[0] for problem in machine.check_proc(tmp_path)] == [str(tmp_path)]
    assert list(machine.check_shared_memory(tmp_path)) == []
    missing = tmp_path / "shm"
    assert [problem.split(": ")[0] for problem in machine.check_shared_memory(missing)] == [str(missing)]


def test_space(tmp_path):
    assert list(machine.check_space({tmp_path / "not" / "yet": 0})) == []
    assert [problem.split(": ")[0] for problem in machine.check_space({tmp_path / "not": 1 << 40})] == [str(tmp_path)]


def test_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemAvailable:    1048576 kB\n")
    assert list(machine.check_memory(meminfo, 1024)) == []
    (problem,) = machine.check_memory(meminfo, 1025)
    assert {"1024", "1025"} <= set(problem.split())


def test_a_bad_machine_runs_no_step(monkeypatch, capsys):
    monkeypatch.setattr(machine, "CHECKS", (lambda: iter(["/dev/full: not a device"]),))
    monkeypatch.setattr(steps, "run_steps", lambda *_: pytest.fail("a step ran"))
    assert steps.main() == 2
    assert capsys.readouterr().err == "tests: /dev/full: not a device\n"


@pytest.mark.parametrize(("statuses", "status"), [((0, 0), 0), ((3, 0), 1), ((0, 3), 1)])
def test_each_step_runs_and_is_reported(monkeypatch, capfd, statuses, status):
    commands = [("sh", "-c", f"echo step {number}; exit {code}") for number, code in enumerate(statuses)]
    monkeypatch.setattr(machine, "CHECKS", ())
    monkeypatch.setattr(steps, "STEPS", [steps.Step(f"name {number}", command) for number, command in enumerate(commands)])
    assert steps.main() == status
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("step")] == ["step 0", "step 1"]
    heads = [line for line in lines if line.startswith("[")]
    assert [head.split()[0] for head in heads] == ["[1/2]", "[2/2]"]
    assert "name 1" in heads[0]
    assert len([line for line in lines if line.endswith(("name 0", "name 1")) and not line.startswith("[")]) == 2


def test_time():
    assert steps.format_time(0.9) == " 0:00"
    assert steps.format_time(3599.9) == "59:59"
