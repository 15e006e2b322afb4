# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collectors in the background: the shell continues, reports their end and status, keeps their
traces, and ends them.
"""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kcovdbg.collect.background_jobs import find_jobs
from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.console.runner import run_line
from kcovdbg.console.terminal import Terminal
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from tests.lab.kcovdbg_run import ROOT
from tests.support.child_process import children_of, is_alive, wait_for


class Shell:
    def __init__(self):
        self.out = io.StringIO()
        program = (sys.executable, "-m", "tests.support.collector_process")
        frontend = Frontend(
            lambda _color: Terminal(self.out, self.out), find_program=lambda: program
        )
        self.workspace = Workspace(COMMANDS, frontend=frontend)

    def run(self, line):
        self.out.seek(0)
        self.out.truncate()
        self.status = run_line(self.workspace, line)
        return self.out.getvalue()

    def told(self):
        return ["".join(text for _, text in line) for line in self.workspace.announce()]

    def ended(self):
        return ["".join(text for _, text in line) for line in self.workspace.end_background()]


@pytest.fixture
def shell(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    shell = Shell()
    yield shell
    shell.ended()
    assert list((tmp_path / "temporary").iterdir()) == []


def commands_of(shell):
    pids = (pid for job in find_jobs(shell.workspace).running for pid in children_of(job.pid))
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]


def test_the_shell_goes_on_and_tells_the_end(shell, tmp_path):
    first = shell.run(
        f"collect -- sh -c 'echo said; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 3' &"
    )
    assert first.startswith("[1] collector ")
    (row,) = json.loads(shell.run("jobs --json"))
    assert (row["job"], row["state"], row["status"], row["kept"]) == (1, "running", None, [])
    assert not shell.told()
    (tmp_path / "go").touch()
    shell.run("jobs --wait 1")
    assert shell.status == 3
    told = shell.out.getvalue().splitlines()
    assert told[0].startswith("[1] ended with status 3: sh -c ")
    assert "; kept as @collect1: 0 records" in told[0]
    assert "jobs --output" in told[1]
    assert not shell.told()
    assert "said" in shell.run("jobs --output 1").splitlines()
    assert list(shell.workspace.inputs.kept) == ["@collect1"]
    (row,) = json.loads(shell.run("jobs --json"))
    assert (row["state"], row["status"], row["kept"], row["buffers"]) == (
        "ended",
        3,
        ["@collect1"],
        [],
    )


def test_files_and_names(shell, tmp_path):
    shell.run("collect --keep @mine -- true &")
    shell.run(f"collect -o {tmp_path}/a.kcov --per-thread -- sh -c '(exit 2); true' &  # a remark")
    shell.run("jobs --wait")
    assert list(shell.workspace.inputs.kept) == ["@mine"]
    assert len(list(tmp_path.glob("a.*.kcov"))) == len(list(tmp_path.glob("a.*.kcov.json"))) == 2
    assert len(json.loads(shell.run("jobs 2 --json"))[0]["files"]) == 2


def test_leaving_ends_them_and_keeps_files(shell, tmp_path):
    shell.run("collect -- sleep 1000 &")
    shell.run(f"collect -o {tmp_path}/a.kcov -- sh -c 'sleep 1001; true' &")
    wait_for(lambda: sorted(commands_of(shell)) == ["sh", "sleep"])
    pids = [pid for job in find_jobs(shell.workspace) for pid in (job.pid, *children_of(job.pid))]
    told = shell.ended()
    assert told[:2] == ["[1] ending: sleep 1000", "[2] ending: sh -c 'sleep 1001; true'"]
    assert "[1] ended with status 143: sleep 1000; kept as @collect1: 0 records" in told
    assert (tmp_path / "a.kcov").exists()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_end_one(shell):
    shell.run("collect -- sleep 1000 &")
    wait_for(lambda: commands_of(shell) == ["sleep"])
    assert "[1] ended with status 143" in shell.run("jobs --end 1")
    assert shell.status == 143
    with pytest.raises(KcovdbgError):
        shell.run("jobs --end")
    with pytest.raises(KcovdbgError, match=r"\b7\b"):
        shell.run("jobs --end 7")


def test_failure_is_told(shell):
    shell.run("collect -- /nonexistent &")
    shell.run("jobs --wait")
    told = shell.out.getvalue().splitlines()
    assert told[0].startswith("[1] ")
    assert {"127", "/nonexistent"} <= set(re.findall(r"/?\w+", told[0]))
    assert "/nonexistent" in told[1]
    assert not shell.workspace.inputs.kept


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("tasks &", "tasks"),
        ("collect -- true & true", "&"),
        ("& true", "&"),
        ("collect -- true > a &", "&"),
        ("collect --syscall -- true &", "--syscall"),
        ("collect --repeat 3 -- true &", "--repeat"),
        ("collect --json -- true &", "--json"),
        ("collect --format syzkaller -- true &", "--format|syzkaller"),
        ("collect &", "collect"),
    ],
)
def test_what_cannot_run_in_the_background(shell, line, named):
    with pytest.raises(UsageError, match=named):
        shell.run(line)
    assert not list(find_jobs(shell.workspace))


def test_not_inside_other_debuggers(shell):
    frontend = shell.workspace.frontend
    shell.workspace.frontend = replace(frontend, find_program=None)
    with pytest.raises(CapabilityError):
        shell.run("collect -- true &")
    assert shell.told() == shell.ended() == []


STUB = """
import sys, time
from pathlib import Path
import kcovdbg.frontends.cli as cli

cli.main = lambda words: (Path(words[-1]).touch(), time.sleep(1000))
sys.exit(cli.run_for_parent(sys.argv[1:]))
"""
SESSION = """
import os, sys, time
from kcovdbg.collect.background_jobs import Jobs

jobs = Jobs(None, (sys.executable, sys.argv[1], str(os.getpid())))
print(jobs.start([sys.argv[2]], output="x", name=None, title="").pid, flush=True)
time.sleep(1000)
"""


def test_it_ends_with_a_workspace_that_is_killed(tmp_path):
    """The shell is killed by SIGKILL and cannot end its jobs; the collector is a stub that only
    waits.
    """
    stub, armed = tmp_path / "stub.py", tmp_path / "armed"
    stub.write_text(STUB)
    command = [sys.executable, "-c", SESSION, stub, armed]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as workspace:
        pid = int(workspace.stdout.readline())
        wait_for(armed.exists)
        workspace.kill()
    wait_for(lambda: not is_alive(pid))
