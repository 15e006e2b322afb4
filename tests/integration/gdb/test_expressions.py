# SPDX-License-Identifier: LGPL-2.1-or-later
"""Expressions of GDB as arguments, functions without a thread id, exit statuses, source folders of
GDB, ``info kcov``.
"""

from __future__ import annotations

import subprocess

import pexpect

from kcovdbg.elf.file import ElfFile
from kcovdbg.frontends.gdb.server import INSIDE, spell_hint
from kcovdbg.symbols.dwarf_reader import read_comp_dir
from tests.lab.kcovdbg_run import ask
from tests.support.gdb_run import LOADER, PLAIN, ROOT

# The task that the demo's only CPU was running.
CURRENT = 82
PC_TASK = 34


def test_expressions_are_arguments(gdb):
    said = gdb(
        before=[
            "kcov-show symbols --apply",
            f"set var $t = {PC_TASK}",
            f"set var $p = $kcov({PC_TASK})",
        ],
        ask=[
            "kcov-show tasks $t --json",
            "kcov-show buffer kcov:0 --json",
            "kcov-show objects $p --json",
            f"kcov-show tasks $kcov_task({PC_TASK})->pid --json",
            "kcov-show tasks $t | awk '{print $2}'",
            "kcov-show tasks $nothing",
            "kcov-show tasks $kcov(",
        ],
    )
    assert [row["pid"] for row in said.json(0)] == [PC_TASK]
    (row,) = said.json(2)
    assert row["pid"] == PC_TASK
    assert [row["pid"] for row in said.json(3)] == [PC_TASK]
    # What follows the pipe is the shell's.
    assert said.answers[4].split() == ["COMM", "kc-pc"]
    assert said.answers[5:] == ["", ""]
    assert "$nothing" in said.stderr
    assert "Traceback" not in said.stderr


def test_functions_without_an_argument_are_about_the_current_task(gdb):
    said = gdb(
        ask=[
            "output $kcov_task()->pid",
            "output $kcov_count()",
            f"output $kcov_count({CURRENT})",
            "output $kcov_count(1, 2)",
        ]
    )
    assert said.answers == [str(CURRENT), said.answers[2], said.answers[1], ""]
    assert int(said.answers[1]) > 0


def test_exit_statuses(demo, gdb):
    said = gdb(
        before=["kcov-show tasks"],
        ask=[
            "output $_kcov_status",
            "kcov-show check",
            "output $_kcov_status",
            "kcov-show buffer 9999",
            "output $_kcov_status",
        ],
    )
    assert [said.answers[index] for index in (0, 2, 4)] == ["0", "1", "2"]
    for line, status in (
        ("kcov-show check", 1),
        ("kcov-show tasks", 0),
        ("kcov-show buffer 9999", 1),
    ):
        command = [
            "gdb",
            *PLAIN,
            "-iex",
            f"source {LOADER}",
            "-batch",
            demo.vmlinux,
            demo.core,
            "-ex",
            line,
        ]
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        assert done.returncode == status, line


def test_source_folders_are_those_of_gdb(demo, gdb, tmp_path):
    row = gdb(ask=[f"kcov-show buffer {PC_TASK} -n 1 --json"]).json(0)[0]
    frame = row["frames"][0]
    text = "/* the line that was executed */"
    path = tmp_path / "tree" / frame["file"]
    path.parent.mkdir(parents=True)
    path.write_text("\n" * (frame["line"] - 1) + text + "\n")
    line = f"kcov-show source {PC_TASK} {frame['file']}"
    said = gdb(ask=[line, f"directory {tmp_path}/tree", line])
    assert text not in said.answers[0]
    assert "--source-dir" not in said.answers[0]
    assert text in said.answers[2]
    with ElfFile(demo.vmlinux) as image:
        built = read_comp_dir(image)
    assert (
        text in gdb(before=[f"set substitute-path {built} {tmp_path}/tree"], ask=[line]).answers[0]
    )


def test_info_kcov(demo, gdb):
    said = gdb(ask=["info kcov", f"info kcov tasks {PC_TASK} --json"])
    info, tasks = ask(["-c", demo.core, "-s", demo.vmlinux], "info", f"tasks {PC_TASK}")
    assert info[0]["kaslr_offset"] in said.answers[0]
    assert info[0]["build_id"] in said.answers[0].replace(" ", "")
    assert said.json(1) == tasks


def test_it_says_once_where_the_kernel_is(demo, gdb):
    ((info,),) = ask(["-c", demo.core, "-s", demo.vmlinux], "info")
    said = gdb(ask=["kcov-show tasks", "kcov-show objects", "kcov-show saved"])
    assert said.stderr.count(info["kaslr_offset"]) == 1
    assert info["kaslr_offset"] not in said.text


def test_commands_that_only_refuse_are_not_offered():
    assert {"mcp", "jobs", "resume", "gdb"}.isdisjoint(command.name for command in INSIDE)


def test_hints_are_in_the_words_of_gdb():
    """No hint names an option of the command line, or a command without its prefix."""
    assert spell_hint("tasks -a lists all tasks") == "kcov-show tasks -a lists all tasks"
    for hint in (
        "name the kernel: -s VMLINUX",
        "give the kernel's vmlinux with debug info: -s VMLINUX",
    ):
        assert "-s " not in spell_hint(hint)
        assert "symbol-file VMLINUX" in spell_hint(hint)
    assert spell_hint("--source-dir names one") == "directory names one"
    assert "kcovdbg" not in spell_hint("kcovdbg remote lists all handles")


def test_gdb_of_the_command_line_says_where_the_kernel_is(demo):
    child = pexpect.spawn(
        str(ROOT / ".venv" / "bin" / "kcovdbg"),
        [str(demo.vmlinux), str(demo.core), "gdb", "-nx", "-q"],
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 200),
    )
    try:
        child.expect_exact("KASLR offset 0x")
        child.expect_exact("symbols --apply")
        child.expect_exact("(gdb) ")
    finally:
        child.close(force=True)
