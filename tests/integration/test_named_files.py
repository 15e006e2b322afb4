# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files and standard input without a command: answered by what they are, and never run unless
somebody says so.
"""

import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from tests.lab.kcovdbg_run import ROOT, run_kcovdbg

BOOT = (
    "".join(f"[    0.{index:06}] usb {index}: new device\n" for index in range(200))
    + "[    1.0]  vfs_read+0x15/0x300\n"
)
ACTIONS = (
    "! touch made\ninfo > made\ntasks | tee made\ncollect -- touch made\nslice -o made\n< "
    "commands\n"
)
OOPS = (
    "[    1.000000] BUG: kernel NULL pointer dereference, address: 0000000000000000\n"
    "[    1.000001] CPU: 0 UID: 0 PID: 41 Comm: kc-pc Not tainted 6.12.1 #1\n"
    "[    1.000002] RIP: 0010:vfs_read+0x5/0x300\n[    1.000003] Call Trace:\n[    1.000004]  "
    "<TASK>\n"
    "[    1.000005]  vfs_read+0x15/0x300\n"
)
LOGS = {
    "actions inside": BOOT + ACTIONS + BOOT,
    "actions first": ACTIONS + BOOT,
    "one action first": "info > made\n" + BOOT,
    "a script's first line": "#!/usr/bin/env kcovdbg\n" + ACTIONS + BOOT,
    "more commands than log": "tasks\n" * 300 + ACTIONS + BOOT,
    "actions alone": ACTIONS,
    "collect alone": "collect -- touch made\n",
}


STREAMS = ("standard input", "pipe")


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("form", ["file", "gzip", *STREAMS])
def test_a_log_never_runs(demo, tmp_path, name, form):
    (tmp_path / "commands").write_text("! touch made\n")
    path = tmp_path / "serial.log"
    data = LOGS[name].encode()
    path.write_bytes(gzip.compress(data) if form == "gzip" else data)
    options = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT)}}
    if form == "standard input":
        with path.open() as stream:
            done = run_kcovdbg("-s", demo.vmlinux, stdin=stream, **options)
    elif form == "pipe":
        done = run_kcovdbg("-s", demo.vmlinux, input=LOGS[name], **options)
    else:
        done = run_kcovdbg(demo.vmlinux, path, stdin=subprocess.DEVNULL, **options)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["commands", "serial.log"]
    # One error at most, whatever many lines there are.
    assert done.stderr.count("kcovdbg: ") <= 1
    assert "Traceback" not in done.stderr
    answered = {"actions inside", "actions first", "one action first"}
    # Lines most of which begin with commands are a script on standard input, and what they are in a
    # file.
    answered |= {"a script's first line"} if form != "gzip" else set()
    answered |= {"more commands than log"} if form not in STREAMS else set()
    if name in answered:
        assert done.returncode == 0
        assert "usb 199: new device" in done.stdout
        assert "fs/read_write.c" in done.stdout
        assert "sym" in done.stderr
    else:
        assert done.returncode == 2


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        ("".join(f"<4>{line}\n" for line in (BOOT + OOPS).splitlines()).encode(), "read_write.c:"),
        (b"#!/bin/sh\ninfo\n", None),
        (gzip.compress(b"info\n"), None),
        (b"info " * 300000, None),
    ],
    ids=["levels", "another program's script", "compressed commands", "a line without end"],
)
def test_what_standard_input_is_no_script(demo, tmp_path, data, answer):
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open("rb") as stream:
        done = run_kcovdbg("-s", demo.vmlinux, stdin=stream)
    if answer is None:
        assert (done.returncode, done.stdout) == (2, "")
    else:
        assert done.returncode == 0
        assert answer in done.stdout


def test_a_coprocess_is_answered_line_by_line():
    """A program writes a command and waits for its answer, before it writes the next one."""
    command = [sys.executable, "-m", "kcovdbg", "--demo"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        for line in ("# begin\n\ntasks 41 --jsonl\n", "tasks 34 --jsonl\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["pid"] == int(line.split()[-2])
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_pipe_that_returns_at_once_is_waited_for():
    """Another program that has the same pipe made it so, as ssh does."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    command = [sys.executable, "-m", "kcovdbg", "--demo"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=read, stdout=subprocess.PIPE, text=True
    ) as process:
        for tid in (41, 34):
            os.write(write, f"tasks {tid} --jsonl\n".encode())
            assert json.loads(process.stdout.readline())["pid"] == tid
        os.close(write)
        assert process.wait(60) == 0
    os.close(read)


@pytest.fixture(scope="module")
def inputs(demo, tmp_path_factory):
    """Files of each kind that kcovdbg or others write."""
    folder = tmp_path_factory.mktemp("inputs")
    run_kcovdbg("--demo", "export", "hex", "41", "-o", folder / "run.hex", status=0)
    run_kcovdbg("--demo", "export", "jsonl", "41", "-o", folder / "run.jsonl", status=0)
    run_kcovdbg("--demo", "export", "lcov", "41", "-o", folder / "run.info", status=0)
    (folder / "run16.txt").write_bytes((folder / "run.hex").read_text().encode("utf-16"))
    (folder / "run.gz").write_bytes(gzip.compress((folder / "run.hex").read_bytes()))
    (folder / "oops.txt").write_text(BOOT + OOPS)
    (folder / "report").write_text(OOPS.replace("kc-pc", "syz-executor.0"))
    (folder / "fix.patch").write_text(
        "--- a/fs/select.c\n+++ b/fs/select.c\n@@ -1,1 +1,1 @@\n-a\n+b\n"
    )
    crash = folder / "crash"
    crash.mkdir()
    (crash / "description").write_text(
        "BUG: unable to handle kernel NULL pointer dereference in ppoll\n"
    )
    (crash / "log0").write_text(f"executing program 0 (id=1):\ngetpid()\n\n{OOPS}")
    (crash / "report0").write_text(OOPS)
    (folder / "workdir" / "crashes").mkdir(parents=True)
    (folder / "workdir" / "crashes" / "0123").symlink_to(crash)
    return folder


ANSWERED = {
    "run.hex": ("top", "__do_sys_ppoll"),
    "run.jsonl": ("top", "__do_sys_ppoll"),
    "run16.txt": ("top", "__do_sys_ppoll"),
    "run.gz": ("top", "__do_sys_ppoll"),
    "oops.txt": ("sym", "vfs_read (fs/read_write.c:"),
    "report": ("syzkaller", "vfs_read"),
    "crash": ("syzkaller", "vfs_read"),
    "crash/report0": ("sym", "vfs_read (fs/read_write.c:"),
    "crash/log0": ("syzkaller", "vfs_read (fs/read_write.c:"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_a_file_is_answered_by_what_it_is(demo, inputs, tmp_path, name):
    command, word = ANSWERED[name]
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    for words in ([demo.vmlinux, inputs / name], [inputs / name, "-s", demo.vmlinux]):
        done = run_kcovdbg(*words, stdin=subprocess.DEVNULL, env=environment, status=0)
        note, *_ = done.stderr.splitlines()
        assert f"{inputs / name}: " in note
        assert f": {command} " in note
        assert word in done.stdout
    if not (inputs / name).is_dir():
        with (inputs / name).open("rb") as stream:
            done = run_kcovdbg("-s", demo.vmlinux, stdin=stream, status=0)
        assert ("fs/read_write.c" if command == "syzkaller" else word) in done.stdout


def test_a_recording_is_summarized(tmp_path):
    done = run_kcovdbg("examples/fuzz.jsonl", stdin=subprocess.DEVNULL, status=0)
    assert (
        done.stdout == run_kcovdbg("monitor", "examples/fuzz.jsonl", "--summary", status=0).stdout
    )
    with (ROOT / "examples" / "fuzz.jsonl").open() as stream:
        assert run_kcovdbg(stdin=stream, status=0).stdout == done.stdout
    text = (ROOT / "examples" / "fuzz.jsonl").read_text()
    for data in gzip.compress(text.encode()), text.encode("utf-16"):
        (tmp_path / "recording").write_bytes(data)
        assert (
            run_kcovdbg(tmp_path / "recording", stdin=subprocess.DEVNULL, status=0).stdout
            == done.stdout
        )


@pytest.mark.parametrize(("name", "noun"), [("fix.patch", "patch"), ("run.info", "lcov")])
def test_what_no_command_reads_is_refused_by_name(demo, inputs, name, noun):
    done = run_kcovdbg(demo.vmlinux, inputs / name, stdin=subprocess.DEVNULL, status=2)
    assert (done.stdout, noun in done.stderr) == ("", True)
    with (inputs / name).open() as stream:
        done = run_kcovdbg(stdin=stream, status=2)
    assert (done.stdout, noun in done.stderr) == ("", True)


def test_a_dump_on_standard_input_is_refused_by_name(demo):
    with demo.core.open("rb") as stream:
        assert "dump" in run_kcovdbg(stdin=stream, status=2).stderr
    assert (
        "dump"
        in run_kcovdbg(input=demo.core.read_bytes()[:100000], text=False, status=2).stderr.decode()
    )


def test_a_log_is_not_read_for_the_running_kernel(inputs):
    done = run_kcovdbg(inputs / "oops.txt", stdin=subprocess.DEVNULL, status=2)
    assert "-s VMLINUX" in done.stderr
    # What syzkaller says of a report needs no kernel, and addresses have no names.
    assert "vfs_read" in run_kcovdbg(inputs / "report", stdin=subprocess.DEVNULL, status=0).stdout
    run_kcovdbg(inputs / "run.hex", stdin=subprocess.DEVNULL, status=0)


def test_several_files_are_answered_in_turn(demo, inputs):
    words = [demo.vmlinux, inputs / "run.hex", inputs / "fix.patch", inputs / "oops.txt"]
    done = run_kcovdbg(*words, stdin=subprocess.DEVNULL, status=2)
    assert done.stdout.index("47 records") < done.stdout.index("vfs_read (fs/read_write.c:")


def test_one_crash_directory_and_a_report_alone(demo, inputs, tmp_path):
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    for name, comm in ("crash", "kc-pc"), ("report", "syz-executor.0"), ("crash/log0", "kc-pc"):
        words = ["-s", demo.vmlinux, "syzkaller", inputs / name, "--json"]
        (row,) = json.loads(run_kcovdbg(*words, env=environment, status=0).stdout)
        assert (row["function"], row["comm"], row["pid"]) == ("vfs_read", comm, 41)
        assert row["file"] == "fs/read_write.c"
        assert row["title"].startswith("BUG: ")
        assert (row["program"] is not None) is (name != "report")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("top oops.txt", "sym file:oops.txt"),
        ("top file:oops.txt", "sym file:oops.txt"),
        ("top run.hex", "top file:run.hex"),
        ("sym run.hex", "top file:run.hex"),
        ("sym ./oops.txt", "sym file:./oops.txt"),
        ("buffer crash", "syzkaller crash"),
        ("trace fix.patch", "patch FILE"),
        ("points vfs_read file:oops.txt", "sym file:oops.txt"),
    ],
)
@pytest.mark.parametrize("has_memory", [False, True])
def test_a_file_in_the_wrong_place_gets_a_hint(demo, inputs, line, hint, has_memory):
    target = ["-c", demo.core, "-s", demo.vmlinux] if has_memory else ["-s", demo.vmlinux]
    done = run_kcovdbg(*target, *line.split(), cwd=inputs, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode in (1, 2)
    assert hint in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "line",
    [
        "-s oops.txt info",
        "-c oops.txt info",
        "-s oops.txt -c {core} info",
        "--symbol-table oops.txt info",
        "monitor oops.txt --summary",
    ],
)
def test_a_wrong_option_says_what_the_file_is(demo, inputs, line):
    words = line.format(core=demo.core).split()
    done = run_kcovdbg(*words, cwd=inputs, env={"PYTHONPATH": str(ROOT)}, status=2)
    problem, hint = done.stderr.splitlines()
    assert "oops.txt" in problem
    assert "sym file:oops.txt" in hint


@pytest.mark.skipif(shutil.which("nm") is None, reason="no binutils here")
def test_functions_with_offsets_are_the_pcs_that_nm_names(demo, opened_demo, tmp_path):
    symbols = [
        line.split()
        for line in subprocess.check_output(["nm", "-S", demo.vmlinux], text=True).splitlines()
    ]
    code = [
        (int(words[0], 16), int(words[1], 16), words[3])
        for words in symbols
        if len(words) == 4 and words[2] in "tT"
    ]
    names = Counter(name for *_, name in code)
    lines, pcs = [], []
    for row in opened_demo.ask("buffer 41 --raw"):
        pc = int(row["pc"], 16)
        start, size, name = next(
            ((start, size, name) for start, size, name in code if start < pc <= start + size),
            (0, 0, ""),
        )
        if names[name] == 1:
            lines.append(f"{name}+{pc - start:#x}/{size:#x}\n")
            pcs.append(row["pc"])
    path = tmp_path / "run.txt"
    path.write_text("".join(lines))
    assert len(pcs) > 30
    assert [row["pc"] for row in opened_demo.ask(f"buffer file:{path}")] == pcs
    # The start of a function is no return address, and what this kernel lacks is left out and
    # named.
    path.write_text("".join((*lines, "vfs_read+0x0/0x300\n", "no_such_function+0x10/0x20\n")))
    output, errors = opened_demo.run(f"buffer file:{path}")
    assert "no_such_function+0x10/0x20" in output + errors
    path.write_text("no_such_function+0x10/0x20\n")
    opened_demo.run(f"top file:{path}", 2)


def test_an_executable_script(demo, tmp_path):
    """The kernel gives the path of a script to the program in its first line, with the options
    there.
    """
    program = tmp_path / "kcovdbg"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kcovdbg "$@"\n')
    script = tmp_path / "look"
    for options, status, said in (" --script", 0, "x\n"), ("", 2, ""):
        script.write_text(f"#!/usr/bin/env -S {program}{options}\n! echo x\n")
        for file in (program, script):
            file.chmod(0o755)
        done = subprocess.run(
            [script], capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL
        )
        assert (done.returncode, done.stdout) == (status, said), done.stderr


def test_lists_and_logs_compressed_with_lzma(demo, tmp_path):
    """As those of gzip; other formats are named, with what decompresses them."""
    texts = {"top": "0xffffffff81000105\n" * 4, "sym": BOOT}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        packed = tmp_path / f"{name}.lzma"
        packed.write_bytes(lzma.compress(text.encode(), lzma.FORMAT_ALONE))
        shown = [
            run_kcovdbg("-s", demo.vmlinux, name, f"file:{path}", "--json", status=0).stdout
            for path in (tmp_path / name, packed)
        ]
        assert json.loads(shown[0]) == json.loads(shown[1]) != []
        other = tmp_path / f"{name}.bz2"
        other.write_bytes(bz2.compress(text.encode()))
        for words in (("top", f"file:{other}"), ("sym", f"file:{other}"), ("patch", other, "1")):
            assert "bzip2 -d" in run_kcovdbg("-s", demo.vmlinux, *words, status=2).stderr
