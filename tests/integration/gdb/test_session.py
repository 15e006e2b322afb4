# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show, its functions, printers and parameters, on the demo's core."""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.support.gdb_run import LOADER, run_gdb

# Of the demo.
PC_TASK, CMP_TASK = 34, 35
APPLY = "kcov-show symbols --apply"


def test_functions_are_what_gdb_reads(gdb):
    task = f"$kcov_task({PC_TASK})"
    said = gdb(
        before=[APPLY],
        ask=[
            f"print {task}->pid",
            f"print $kcov({PC_TASK})->t == {task}",
            f"print $kcov_count({PC_TASK}) == *$kcov_area({PC_TASK})",
            f"print $kcov_area({PC_TASK}) == {task}->kcov_area",
            f'print $_streq($kcov_mode({CMP_TASK}), "TRACE_CMP")',
            "print $kcov(1)",
            "print $kcov(9999)",
            "print $kcov_count(0)",
        ],
    )
    assert [answer.split(" = ")[1] for answer in said.answers[:5]] == [
        str(PC_TASK),
        "1",
        "1",
        "1",
        "1",
    ]
    assert said.answers[5].endswith("(struct kcov *) 0x0")
    assert said.answers[6] == ""
    assert "9999" in said.stderr
    assert said.answers[7].endswith(" = 0")


def test_symbols_are_moved_on_request_only(demo, gdb):
    where = "info symbol $kcov_task(0)"
    said = gdb(ask=[where, "kcov-show info", where, APPLY, where, "kcov-show info", "bt 1", APPLY])
    assert "init_task" not in said.answers[0] + said.answers[2]
    assert said.answers[4].startswith("init_task in section")
    command = said.answers[3]
    assert command.startswith(f"symbol-file {demo.vmlinux} -o 0x")
    assert command in said.answers[1]
    assert "symbol-file" not in said.answers[5]
    assert "??" not in said.answers[6]
    # Once is enough.
    assert said.answers[7] == ""
    assert gdb(ask=[command, where]).answers[1] == said.answers[4]


def test_the_path_of_an_image_is_no_command(demo, tmp_path):
    """GDB runs each line of what it is given: a directory may have any name."""
    folder = tmp_path / 'x"\nshell touch PWNED\necho "\x1b]0;TITLE\x07'
    folder.mkdir()
    image = folder / "vmlinux"
    shutil.copy(demo.vmlinux, image)
    where = "info symbol $kcov_task(0)"
    said = run_gdb(image, demo.core, ask=["kcov-show info", APPLY, where], directory=tmp_path)
    assert said.answers[2].startswith("init_task in section")
    assert [path.name for path in tmp_path.rglob("PWNED")] == []
    # GDB itself prints its own copy of the path on standard error.
    assert said.answers[1].count("\n") == 0
    assert "\x1b" not in said.answers[0] + said.answers[1]


def test_a_core_without_symbols(demo):
    """The image lies beside the dump."""
    said = run_gdb(
        "-c", demo.core, ask=["kcov-show tasks --json", f"print/x $kcov_count({PC_TASK})"]
    )
    assert PC_TASK in {row["pid"] for row in said.json(0)}


def test_printers(gdb):
    said = gdb(
        before=[APPLY],
        ask=[
            f"print *$kcov({PC_TASK})",
            f"print -raw-values on -- *$kcov({PC_TASK})",
            "kcov-show remote --json",
            f"print *$kcov_task({PC_TASK})",
            "enable pretty-printer global kcov;task_struct",
            f"print *$kcov_task({PC_TASK})",
        ],
    )
    assert "kcov: TRACE_PC, 8192 words" in said.answers[0]
    assert "refcount = 2" in said.answers[0]
    assert "refs = {" in said.answers[1]
    assert "on_cpu" in said.answers[3]
    assert "kcov_mode = TRACE_PC | IN_CTXSW" in said.answers[5]
    assert "on_cpu" not in said.answers[5]
    handle = next(row for row in said.json(2) if row["subsystem"] == "usb")
    # The first entry of the bucket is the newest handle.
    entry = (
        f"*(struct kcov_remote *)((char *)kcov_remote_map[{handle['bucket']}].first - "
        f"(long)&((struct kcov_remote *)0)->hnode)"
    )
    printed = gdb(before=[APPLY], ask=[f"print {entry}", f"print/x ({entry}).handle"]).answers
    rows = {row["handle"]: row for row in said.json(2)}
    row = rows[printed[1].split(" = ")[1]]
    assert f"{row['subsystem']}:" in printed[0]
    assert row["kcov"] in printed[0]


def test_completion(gdb):
    asked = {
        "kcov-show ob": ["kcov-show objects"],
        "kcov-show tasks --js": ["kcov-show tasks --json", "kcov-show tasks --jsonl"],
        "kcov-show tasks --mode trace-": [
            "kcov-show tasks --mode trace-cmp",
            "kcov-show tasks --mode trace-pc",
        ],
        "kcov-show tasks --mode=trace-p": ["kcov-show tasks --mode=trace-pc"],
        "kcov-show buffer 34": ["kcov-show buffer 34"],
        "kcov-show buffer sa": ["kcov-show buffer saved:"],
        "kcov-show why usb:": [
            f"kcov-show why usb:{number}" for number in (1, 12648430, 12648431, 200, 201)
        ],
        "kcov-show why ksys_rea": ["kcov-show why ksys_read", "kcov-show why ksys_readahead"],
        "kcov-show help ta": ["kcov-show help tasks"],
    }
    said = gdb(ask=[f"complete {text}" for text in asked])
    for (text, wanted), answer in zip(asked.items(), said.answers, strict=True):
        assert sorted(answer.splitlines()) == wanted, text


def test_completion_without_target_is_silent():
    asked = (
        "tasks 4",
        "tasks --cs",
        "check --explain T10",
        "export cob",
        "points vfs_re",
        "points fs/",
    )
    said = run_gdb(ask=[f"complete kcov-show {text}" for text in asked])
    assert said.answers[:2] == ["", "kcov-show tasks --csv"]
    assert said.answers[2] == "kcov-show check --explain T10"
    assert said.answers[3:] == ["kcov-show export cobertura", "", ""]
    assert said.stderr == ""


def test_help():
    said = run_gdb(
        ask=[
            "help kcov-show",
            "help kcov-show buffer",
            "apropos -v kcov-show tasks",
            "kcov-show help tasks",
        ]
    )
    assert "\nkcov-show tasks -- " in said.answers[0]
    assert "kcov-show buffer 41" in said.answers[1]
    assert said.answers[3].startswith("tasks - ")


def test_machine_interface(demo):
    command = ["gdb", "-nx", "-q", "-i=mi3", "-iex", f"source {LOADER}", demo.vmlinux, demo.core]
    asked = "-kcov-show tasks --mode trace-cmp\n-kcov-show objects\n-kcov-show bogus\n-gdb-exit\n"
    done = subprocess.run(
        command,
        input=asked,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=120,
        check=False,
    )
    # With the first answer, GDB itself prints the selected frame.
    results = [line for line in done.stdout.splitlines() if line.startswith(("^done", "^error"))]
    assert f'rows=[{{pid="{CMP_TASK}",tgid="{CMP_TASK}",comm="kc-cmp"' in results[0]
    assert 'kcov_remote="null"' in results[0]
    assert results[1].startswith("^done,rows=[")
    assert results[2].startswith('^error,msg="kcovdbg: ')
    assert "bogus" in results[2]


def test_errors_are_a_line_and_a_way_out(gdb):
    said = gdb(ask=["kcov-show taks", "kcov-show tasks --jsn", "kcov-show buffer 9999"])
    assert "Traceback" not in said.stderr
    assert "did you mean tasks" in said.stderr
    assert "did you mean --json" in said.stderr
    assert "task 9999\n" in said.stderr


def test_parameters(gdb):
    said = gdb(
        before=["set kcov format json"],
        ask=[
            "kcov-show tasks 34",
            "show kcov format",
            "set kcov kaslr-offset 0x1000",
            "kcov-show tasks",
            "show kcov",
        ],
    )
    assert said.json(0)[0]["pid"] == PC_TASK
    assert "is json" in said.answers[1]
    assert said.answers[3] == ""
    assert "0x1000" in said.stderr
    assert "kaslr-offset" in said.answers[4]


def test_remarks_stay_out_of_json_in_a_pipe(gdb):
    asked = [
        "kcov-show info --json",
        "| kcov-show info --json | cat",
        "kcov-show info --json | cat",
        "kcov-show info --json > /dev/fd/1",
    ]
    said = gdb(ask=asked[:3])
    assert said.json(0) == said.json(1) == said.json(2)
    assert "slice" in said.stderr


def test_ascii_terminal(gdb):
    environment = {"LC_ALL": "C", "LANG": "C"}
    said = gdb(ask=["help kcov-show tasks", "kcov-show tasks"], environment=environment)
    assert "Traceback" not in said.stderr
    assert "kc-pc" in said.text
    assert said.text.isascii()


def test_paths_are_those_of_gdbs_directory(gdb, tmp_path):
    said = gdb(ask=[f"cd {tmp_path}", "kcov-show tasks --json > tasks", "kcov-show tasks --json"])
    assert json.loads((tmp_path / "tasks").read_text()) == said.json(2)


def test_kept_buffers(gdb):
    said = gdb(
        before=["kcov-show keep @one 34"],
        ask=["kcov-show buffer @one --json", "kcov-show buffer 34 --json"],
    )
    assert said.json(0) == said.json(1) != []
