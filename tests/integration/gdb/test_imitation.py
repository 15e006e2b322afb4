# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show on a process that has KCOV's structures, and a core of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.gdb.conftest import Imitation
from tests.support.gdb_run import LOADER, ROOT, run_gdb


def check_tasks(found: list[dict], truth: list[dict]) -> None:
    by_pid = {row["pid"]: row for row in found}
    # An idle task's lock is only there with -a.
    assert sorted(by_pid) == [row["pid"] for row in truth]
    for row in truth:
        expected = {**row, "count": None if row["count"] < 0 else row["count"]}
        assert {key: by_pid[row["pid"]][key] for key in expected} == expected
        assert by_pid[row["pid"]]["errors"] == []


@pytest.mark.parametrize("which", ["imitation", "shifted"])
def test_answers_are_what_the_process_says(which, request):
    made: Imitation = request.getfixturevalue(which)
    said = run_gdb(made.program, made.core, ask=["kcov-show tasks --json"])
    check_tasks(said.json(), made.truth)


def test_all_commands_answer(imitation):
    asked = ["info", "tasks -a", "objects", "remote", "areas", "percpu", "buffer 41", "buffer 42", "top 41"]
    said = run_gdb(imitation.program, imitation.core, ask=[f"kcov-show {line} --json" for line in asked])
    answers = dict(zip(asked, map(json.loads, said.answers), strict=True))
    assert [row["pid"] for row in answers["tasks -a"]] == [0, 41, 42, 53, 54, 60, 0]
    assert [row["comm"] for row in answers["objects"]] == ["syz-executor", "thread", "owner"]
    assert [reference["kind"] for reference in answers["objects"][0]["references"]] == ["task", "fd"]
    assert [(row["handle"], row["pid"], row["bucket"]) for row in answers["remote"]] == [("0x42", 53, 7)]
    assert [(row["list"], row["cpu"]) for row in answers["areas"]] == [("task", None), ("irq", 0), ("irq", 1)]
    assert answers["percpu"] == []
    assert [row["symbol"] for row in answers["buffer 41"]] == ["covered", "kcov_ioctl", "covered"]
    assert answers["buffer 41"][0]["frames"][0]["file"].endswith("imitation.c")
    assert answers["buffer 42"][0]["arg1"] == "0x7"


def test_what_is_lacking_is_said(imitation):
    said = run_gdb(imitation.program, imitation.core, ask=["kcov-show objects"])
    assert all(lacking in said.text for lacking in ("mappings", "vmalloc", "slab"))


def test_remarks_stay_out_of_json_in_a_pipe(imitation):
    said = run_gdb(
        imitation.program, imitation.core, ask=["| kcov-show objects --json | cat", "kcov-show objects --json | cat"]
    )
    assert len(said.json(0)) == len(said.json(1)) == 3
    assert "mappings" in said.stderr


def test_per_cpu_of_a_shifted_program(shifted):
    said = run_gdb(shifted.program, shifted.core, ask=["kcov-show info --json", "kcov-show tasks -a --json"])
    info = said.json(0)[0]
    assert int(info["kaslr_offset"], 16) != 0
    assert "as the loaded symbols are relocated" in said.stderr
    # The second CPU's idle task is on no list: it is found through that CPU's runqueue.
    assert [row["comm"] for row in said.json(1) if row["pid"] == 0] == ["swapper/0", "swapper/1"]


def test_functions_in_expressions(imitation):
    said = run_gdb(
        imitation.program,
        imitation.core,
        ask=[
            "print $kcov(41)->size",
            "print $kcov_count(41)",
            "print $kcov_mode(42)",
            "print/x *$kcov_area(41)",
            "print $kcov_task(53)->pid",
            "print $kcov(60)",
            "print $kcov(9999)",
        ],
    )
    assert said.answers[:6] == ["$1 = 512", "$2 = 3", '$3 = "TRACE_CMP"', "$4 = 0x3", "$5 = 53", "$6 = (struct kcov *) 0x0"]
    assert "9999" in said.stderr


def test_functions_in_conditions(imitation):
    said = run_gdb(
        imitation.program,
        before=["break covered if $kcov_count(41) == 3", "run"],
        ask=["backtrace 1", "kcov-show tasks 41 --json"],
    )
    assert said.answers[0].startswith("#0  covered ")
    assert said.json()[0]["count"] == 3


def test_printers(imitation):
    said = run_gdb(
        imitation.program,
        imitation.core,
        ask=[
            "print *$kcov(53)",
            "print *(struct kcov_remote *)((char *)kcov_remote_map[7].first - 16)",
            "print -raw-values on -- *$kcov(53)",
            "enable pretty-printer .*imitation kcov;task_struct",
            "print *$kcov_task(41)",
        ],
    )
    assert "kcov: TRACE_PC, 512 words, remote" in said.answers[0]
    assert "refcount = 2" in said.answers[0]
    assert "common:0x42" in said.answers[1]
    assert "refs = {" in said.answers[2]
    assert "kcov_mode = TRACE_PC | IN_CTXSW" in said.answers[-1]
    assert "on_cpu" not in said.answers[-1]


def test_other_structures_print_as_before(imitation):
    said = run_gdb(imitation.program, imitation.core, ask=["print init_task.comm", "print *$kcov_task(41)"])
    assert "on_cpu" in said.answers[1]


def test_completion(imitation):
    asked = {
        "kcov-show ob": ["kcov-show objects"],
        "kcov-show tasks --js": ["kcov-show tasks --json", "kcov-show tasks --jsonl"],
        "kcov-show tasks --mode trace-": ["kcov-show tasks --mode trace-cmp", "kcov-show tasks --mode trace-pc"],
        "kcov-show tasks --mode=trace-p": ["kcov-show tasks --mode=trace-pc"],
        "kcov-show tasks 4": ["kcov-show tasks 41", "kcov-show tasks 42"],
        "kcov-show buffer 5": ["kcov-show buffer 53"],
        "kcov-show buffer sa": ["kcov-show buffer saved:"],
        "kcov-show buffer saved:": [],
        "kcov-show why comm": ["kcov-show why common:0x42"],
        "kcov-show help ta": ["kcov-show help tasks"],
    }
    said = run_gdb(imitation.program, imitation.core, ask=[f"complete {text}" for text in asked])
    for (text, wanted), answer in zip(asked.items(), said.answers, strict=True):
        assert sorted(answer.splitlines()) == wanted, text


def test_completion_without_target_is_silent():
    asked = ("tasks 4", "tasks --cs", "check --explain T10", "export spe", "points vfs_re", "points fs/")
    said = run_gdb(ask=[f"complete kcov-show {text}" for text in asked])
    assert said.answers[:2] == ["", "kcov-show tasks --csv"]
    assert said.answers[2] == "kcov-show check --explain T10"
    assert said.answers[3:] == ["kcov-show export speedscope", "", ""]
    assert said.stderr == ""


def test_help(imitation):
    said = run_gdb(ask=["help kcov-show", "help kcov-show buffer", "apropos -v kcov-show tasks"])
    assert "\nkcov-show tasks -- " in said.answers[0]
    assert "kcov-show buffer 41" in said.answers[1]


def test_machine_interface(imitation):
    command = ["gdb", "-nx", "-q", "-i=mi3", "-iex", f"source {LOADER}", imitation.program, imitation.core]
    asked = "-kcov-show tasks --mode trace-pc\n-kcov-show objects\n-kcov-show bogus\n-gdb-exit\n"
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, errors="backslashreplace", timeout=60, check=False
    )
    # With the first answer, GDB itself prints the selected frame.
    results = [line for line in done.stdout.splitlines() if line.startswith(("^done", "^error"))]
    assert 'rows=[{pid="41",tgid="41",comm="syz-executor"' in results[0]
    assert 'kcov_remote="null"' in results[0]
    assert "mappings" in results[1].partition("remarks=")[2]
    assert results[2].startswith('^error,msg="kcovdbg: ')
    assert "bogus" in results[2]


def test_settings_and_breakpoints_stay(imitation):
    shown = ["show", "info breakpoints", "info display", "show prompt", "info auto-load"]

    def state(*commands: str) -> list[str]:
        before = ["break covered", "tbreak standing", "set listsize 3"]
        said = run_gdb(imitation.program, imitation.core, before=[*before, *commands], ask=shown)
        return [line for line in said.text.splitlines() if not line.startswith(("kcov", "history"))]

    used = ["kcov-show tasks", "kcov-show objects --json", "kcov-show buffer 41", "print $kcov_count(41)", "kcov-show bogus"]
    asked, left = state(*used), state()
    # The last answer is in GDB's value history, as intended.
    assert asked == left


def test_errors_are_a_line_and_a_way_out(imitation):
    said = run_gdb(imitation.program, imitation.core, ask=["kcov-show taks", "kcov-show tasks --jsn", "kcov-show buffer 9"])
    assert "Traceback" not in said.stderr
    assert "did you mean tasks" in said.stderr
    assert "did you mean --json" in said.stderr
    assert "task 9\n" in said.stderr


def test_parameters(imitation):
    said = run_gdb(
        imitation.program,
        imitation.core,
        before=["set kcov format json"],
        ask=["kcov-show tasks 41", "show kcov format", "set kcov kaslr-offset 0x1000", "kcov-show tasks", "show kcov"],
    )
    assert said.json(0)[0]["pid"] == 41
    assert "is json" in said.answers[1]
    # With a wrong offset init_task is not where a task is: nothing is shown, and an error says so.
    assert said.answers[3] in ("", "[]")
    assert said.stderr.strip()
    assert "kaslr-offset" in said.answers[4]


def test_ascii_terminal(imitation):
    said = run_gdb(
        imitation.program, imitation.core, ask=["help kcov-show", "kcov-show tasks"], environment={"LC_ALL": "C", "LANG": "C"}
    )
    assert "Traceback" not in said.stderr
    assert "syz-executor" in said.text
    assert said.text.isascii()


def test_only_the_standard_library(imitation):
    foreign = "[m for m in sys.modules if m.split('.')[0] in ('drgn', 'cffi', '_cffi_backend', 'pygments', 'prompt_toolkit')]"
    said = run_gdb(
        imitation.program,
        imitation.core,
        before=["kcov-show tasks", "kcov-show buffer 41"],
        ask=[f"python import sys; print({foreign}, [p for p in sys.path if 'kcovdbg' in p or p == '{ROOT}'])"],
    )
    assert said.answers == ["[] []"]


def test_installed_package(imitation, tmp_path):
    # As a wheel has it: the package only.
    shutil.copytree(ROOT / "kcovdbg", tmp_path / "site" / "kcovdbg", symlinks=False)
    path = subprocess.run(
        [sys.executable, "-c", "from kcovdbg.engine.gdb_script import find_gdb_script; print(find_gdb_script())"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert Path(path).is_relative_to(tmp_path)
    said = run_gdb(imitation.program, imitation.core, ask=["kcov-show tasks 41 --json"], loader=Path(path))
    assert said.json()[0]["pid"] == 41


def test_outside_of_gdb():
    done = subprocess.run([sys.executable, LOADER], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode != 0


def test_command_line(imitation):
    command = [sys.executable, "-m", "kcovdbg"]
    path = subprocess.run([*command, "gdb-path"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    assert Path(path) == LOADER
    done = subprocess.run(
        [*command, "gdb", "-nx", "-batch", imitation.program, imitation.core, "-ex", "kcov-show tasks 41 --json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(done.stdout[done.stdout.index("[\n") :])[0]["pid"] == 41
