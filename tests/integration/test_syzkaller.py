# SPDX-License-Identifier: LGPL-2.1-or-later
"""``syzkaller`` on a made-up working directory with real dumps; compared with kcovdbg's answers
about each dump.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from kcovdbg.farm.batch_run import BatchJob, LineOutcome, Outcome
from kcovdbg.target.demo_files import find_demo
from tests.integration.test_batch import run, unpack
from tests.lab.golden import DESTINATION
from tests.support.programs import addr2line, output_of

if TYPE_CHECKING:
    from pathlib import Path

DEMO = find_demo()
OTHER = DESTINATION / "saved-per-cpu"
WARNING = b"Warning: Permanently added '[localhost]:1569' (ED25519) to the list of known hosts.\r\n"
# Made up; the frames are as printk's %pS and syzkaller print them.
REPORT = """\
BUG: KASAN: slab-use-after-free in made_up_read+0x12/0x340 drivers/made/up.c:12
Read of size 8 at addr ffff888012345678 by task syz.0.1/77

CPU: 0 UID: 0 PID: 77 Comm: syz.0.1 Not tainted 6.12.0 #1
Call Trace:
 <TASK>
 __dump_stack lib/dump_stack.c:94 [inline]
 dump_stack_lvl+0x116/0x1b0 lib/dump_stack.c:120
 print_report+0xc3/0x620 mm/kasan/report.c:488
 ? __pfx_made_up_read+0x10/0x10
 kasan_report+0xd9/0x110 mm/kasan/report.c:601
 made_up_read+0x12/0x340 drivers/made/up.c:12
 vfs_read+0x87/0xbe0 fs/read_write.c:565
 __x64_sys_read+0x12/0x20 fs/read_write.c:629
 do_syscall_64+0xcd/0x250 arch/x86/entry/common.c:83
 entry_SYSCALL_64_after_hwframe+0x77/0x7f
RIP: 0033:0x7f67c7d5cfce
 </TASK>

Allocated by task 12:
 kasan_save_stack+0x33/0x60 mm/kasan/common.c:47
 other_function+0x12/0x20 other.c:3
"""
TITLE = "KASAN: use-after-free in \x1b]0;owned\x07\x1b[2J\x9b31m"


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manager with a dump of its own kernel, one of an older kernel, one cut off, and a crash
    without any.
    """
    top = tmp_path_factory.mktemp("manager")
    crashes = top / "workdir/crashes"
    for name, title in (
        ("demo", TITLE),
        ("other", "BUG: other"),
        ("cut", "BUG: cut"),
        ("none", "INFO: none"),
    ):
        (crashes / name).mkdir(parents=True)
        (crashes / name / "description").write_text(f"{title}\n")
        (crashes / name / "log0").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    (crashes / "none/report0").write_text(REPORT)
    (crashes / "demo/vmcore").write_bytes(unpack(DEMO / "demo.slice.zst"))
    (crashes / "other/vmcore").write_bytes(unpack(OTHER / "slice.zst"))
    whole = (crashes / "demo/vmcore").read_bytes()
    (crashes / "cut/vmcore").write_bytes(whole[: len(whole) * 3 // 4])
    (crashes / "empty").mkdir()
    (crashes / "empty/vmcore").write_bytes(b"")
    (crashes / "ssh").mkdir()
    (crashes / "ssh/vmcore").write_bytes(WARNING + whole)
    (top / "linux").mkdir()
    (top / "linux/vmlinux").write_bytes(unpack(DEMO / "vmlinux.zst"))
    (top / "older").write_bytes(unpack(OTHER / "vmlinux.zst"))
    (top / "manager.cfg").write_text(
        '{\n\t# local\n\t"workdir": "workdir",\n\t"kernel_obj": "linux"\n}\n'
    )
    return top


def ask(*words: str | Path, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the row of each crash."""
    return {
        row["crash"].rpartition("/")[2]: row
        for row in json.loads(run(*words, "--json", **options).stdout)
    }


def read_files(top: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in top.rglob("*")
        if path.is_file()
    }


def test_answers(manager: Path, tmp_path: Path) -> None:
    before = read_files(manager)
    workdir = manager / "workdir"
    output = tmp_path / "state"
    words = ["syzkaller", str(workdir), "-s", str(manager / "older"), "-o", str(output)]
    rows = ask(*words, status=1)
    assert set(rows) == {"demo", "other", "cut", "none", "empty", "ssh"}
    assert {name for name, row in rows.items() if row["error"] is not None} == {
        "cut",
        "empty",
        "ssh",
    }
    size = (workdir / "crashes/demo/vmcore").stat().st_size
    assert f"{size * 3 // 4:,} of {size:,} bytes" in rows["cut"]["error"]
    assert "is empty" in rows["empty"]["error"]
    assert f"at byte {len(WARNING)}" in rows["ssh"]["error"]
    for name in ("cut", "ssh"):
        answers = output / "crashes" / name / "vmcore"
        for file in ("last.txt", "check.txt", "trace.txt", "why.txt"):
            assert rows[name]["error"].partition(" ")[2] in (answers / file).read_text()
    assert rows["ssh"]["violations"] is rows["demo"]["violations"] is True
    assert rows["demo"]["title"] == TITLE
    assert rows["demo"]["log"] == str(workdir / "crashes/demo/log0")
    assert rows["demo"]["build_id"] not in (None, rows["other"]["build_id"])
    # Nothing crashed there.
    assert (rows["demo"]["function"], rows["demo"]["errors"]) == (None, ["no task crashed"])
    for name, image in (("demo", manager / "linux/vmlinux"), ("other", manager / "older")):
        answers = output / "crashes" / name / "vmcore"
        assert rows[name]["answers"] == str(answers)
        for dump in (rows[name]["dump"], rows[name]["slice"]):
            alone = run(
                "-c", dump, "-s", str(image), "-e", "last --all", "-e", "check", status=None
            )
            assert (
                alone.stdout
                == (answers / "last.txt").read_text() + (answers / "check.txt").read_text()
            )
            assert rows[name]["violations"] == (alone.returncode == 1)
    assert read_files(manager) == before
    # Running it again reads no dump, whatever it is given.
    after = read_files(output)
    assert ask("syzkaller", manager / "manager.cfg", *words[2:], status=None) == rows
    assert {path for path, found in read_files(output).items() if after[path] != found} == {
        output / "crashes/none/program.txt"
    }
    shown = run(*words, status=None)
    assert not {"\x1b", "\x07", "\x9b"} & set(shown.stdout + shown.stderr)
    assert "6 crashes, 5 dumps; 5 were read earlier" in shown.stderr + shown.stdout


def test_a_crash_without_a_dump(manager: Path, tmp_path: Path) -> None:
    crashes = tmp_path / "workdir/crashes"
    shutil.copytree(manager / "workdir/crashes/none", crashes / "none")
    (crashes / "log").mkdir()
    (crashes / "log/log0").write_text(
        f"1s ago: executing program 0 (id=1):\nsync()\x1b[2J()\n\n[   12.5][   T77] {REPORT}"
    )
    (crashes / "program").mkdir()
    (crashes / "program/repro.prog").write_text("getppid()\n")
    rows = ask("syzkaller", tmp_path / "workdir", "-o", tmp_path / "answers")
    for name in ("none", "log"):
        row = rows[name]
        assert (row["function"], row["file"], row["line"]) == (
            "made_up_read",
            "drivers/made/up.c",
            12,
        )
        assert (row["comm"], row["pid"], row["syscall"], row["dump"], row["error"]) == (
            "syz.0.1",
            77,
            "read",
            None,
            None,
        )
        assert row["program"] == str(tmp_path / f"answers/crashes/{name}/program.txt")
    assert (tmp_path / "answers/crashes/none/program.txt").read_text() == "sync()\n"
    assert "\x1b" not in (tmp_path / "answers/crashes/log/program.txt").read_text()
    assert rows["none"]["report"] == str(crashes / "none/report0")
    assert (
        rows["program"]["program"]
        == rows["program"]["reproducer"]
        == str(crashes / "program/repro.prog")
    )
    assert rows["program"]["function"] is None
    assert rows["program"]["errors"]


def test_a_report_with_source_lines(manager: Path, tmp_path: Path) -> None:
    """The size behind the slash is the room up to the next symbol; addr2line knows the line of the
    call before the address.
    """
    vmlinux = manager / "linux/vmlinux"
    listed = [line.split() for line in output_of("nm", "-n", vmlinux).splitlines()]
    addresses = [(int(address, 16), name) for address, kind, name in listed if kind in "tT"]
    place = next(index for index, (_, name) in enumerate(addresses) if name == "vfs_read")
    start = addresses[place][0]
    size = next(address for address, _ in addresses[place:] if address > start) - start
    ((_, file, line),) = addr2line(vmlinux, [start + 0x15 - 1])[0][:1]
    for name, room in (("same", size), ("other", size + 0x100)):
        folder = tmp_path / f"workdir/crashes/{name}"
        folder.mkdir(parents=True)
        frames = (
            f"BUG: \x1b[2J\nCall Trace:\n dump_stack_lvl+0x5/0x10\n kasan_report+0x5/0x10\n "
            f"vfs_read+0x15/{room:#x}\n"
        )
        (folder / "report0").write_text(frames)
    rows = ask("syzkaller", tmp_path / "workdir", "-s", vmlinux, "-o", tmp_path / "answers")
    assert {row["function"] for row in rows.values()} == {"vfs_read"}
    assert (file.endswith(f"/{rows['same']['file']}"), line) == (True, rows["same"]["line"])
    assert (rows["other"]["file"], rows["other"]["line"]) == (None, None)
    shown = (tmp_path / "answers/crashes/same/report.txt").read_text()
    assert f"{rows['same']['file']}:{rows['same']['line']}" in shown
    assert "\x1b" not in shown


def make_outcome(job: BatchJob, build_id: str) -> str:
    lines = tuple(LineOutcome(line, 0, 0) for line in job.lines)
    outcome = Outcome(job.path, build_id=build_id, lines=lines)
    return json.dumps({"identity": job.identity(), "outcome": asdict(outcome)})


def test_what_was_planted_in_the_work_directory(manager: Path, tmp_path: Path) -> None:
    """Links at every place that answers were once written to, and an outcome: none is followed,
    none is believed.
    """
    crash = tmp_path / "workdir/crashes/demo"
    crash.mkdir(parents=True)
    shutil.copy(manager / "workdir/crashes/demo/vmcore", crash / "vmcore")
    (crash / "log0").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "bashrc").write_text("mine\n")
    answers = crash / "vmcore.kcovdbg"
    answers.mkdir()
    for name in (
        "program.txt",
        "last.txt",
        "why.txt",
        "check.txt",
        "trace.txt",
        "slice.txt",
        "kcov.slice.zst",
    ):
        (answers / name).symlink_to(victim / "bashrc")
    runs = answers / "_runs"
    runs.mkdir()
    commands = (
        "last --all",
        "why {crashed}",
        "check",
        "trace {covered}",
        f"slice -o {answers}/kcov.slice.zst",
    )
    names = ("last.txt", "why.txt", "check.txt", "trace.txt", "slice.txt")
    job = BatchJob(
        str(crash / "vmcore"),
        commands,
        str(answers),
        (),
        600,
        files=tuple(f"{answers}/{name}" for name in names),
    )
    (runs / f"{job.key}.json").write_text(make_outcome(job, "planted"))
    (crash.parent / "linked").symlink_to(victim)
    before = read_files(tmp_path)
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    rows = ask("syzkaller", tmp_path / "workdir", "-s", manager / "linux", env=environment)
    assert rows["demo"]["build_id"] not in (None, "planted")
    assert rows["demo"]["violations"] is True
    assert rows["demo"]["answers"].startswith(str(tmp_path / "state/kcovdbg/syzkaller/workdir-"))
    found = {
        path: kept
        for path, kept in read_files(tmp_path).items()
        if not path.is_relative_to(tmp_path / "state")
    }
    assert found == before


@pytest.mark.parametrize(
    "place", ["workdir", "workdir/new/a", "workdir/crashes/away/a", "through/a", "links", "."]
)
def test_places_for_answers_that_are_refused(tmp_path: Path, place: str) -> None:
    """In the work directory, through a link in it, above it, and where there are links."""
    crash = tmp_path / "workdir/crashes/a"
    crash.mkdir(parents=True)
    (crash / "log0").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    (tmp_path / "victim").mkdir()
    (tmp_path / "workdir/crashes/away").symlink_to(tmp_path / "victim")
    (tmp_path / "through").symlink_to(tmp_path / "workdir/crashes/away")
    (tmp_path / "links/crashes").mkdir(parents=True)
    (tmp_path / "links/crashes/a").symlink_to(tmp_path / "victim")
    before = {*tmp_path.rglob("*")}
    refused = run("syzkaller", str(tmp_path / "workdir"), "-o", str(tmp_path / place), status=2)
    assert "-o DIR" in refused.stderr
    assert {*tmp_path.rglob("*")} == before


def test_no_image_and_another_place(manager: Path, tmp_path: Path) -> None:
    """A dump without its vmlinux fails alone; answers go to the directory of -o."""
    crashes = tmp_path / "workdir/crashes/demo"
    crashes.mkdir(parents=True)
    shutil.copy(manager / "workdir/crashes/demo/vmcore", crashes / "vmcore")
    words = ["syzkaller", tmp_path / "workdir", "-o", tmp_path / "answers", "-s", manager / "older"]
    (row,) = ask(*words, status=1).values()
    assert "build-id" in row["error"]
    assert [path.name for path in crashes.iterdir()] == ["vmcore"]
    assert row["answers"] == str(tmp_path / "answers/crashes/demo/vmcore")


def test_a_vmlinux_is_asked_for_where_there_are_dumps(manager: Path, tmp_path: Path) -> None:
    for name in ("none", "cut"):
        crashes = tmp_path / name / "crashes"
        crashes.mkdir(parents=True)
        shutil.copytree(manager / "workdir/crashes" / name, crashes / name)
        done = run("syzkaller", tmp_path / name, "-o", tmp_path / "answers", status=None)
        assert ("-s VMLINUX" in done.stdout + done.stderr) == (name == "cut")


@pytest.mark.parametrize("name", ["{crashed}", "{covered}", "{}"])
def test_a_directory_with_the_name_of_a_placeholder(
    manager: Path, tmp_path: Path, name: str
) -> None:
    crash = tmp_path / "workdir/crashes" / name
    crash.mkdir(parents=True)
    shutil.copy(manager / "workdir/crashes/demo/vmcore", crash / "vmcore")
    (row,) = ask(
        "syzkaller", tmp_path / "workdir", "-o", tmp_path / "answers", "-s", manager / "linux"
    ).values()
    assert row["error"] is None
    answers = tmp_path / "answers/crashes" / name / "vmcore"
    assert row["slice"] == str(answers / "kcov.slice.zst")
    assert (answers / "kcov.slice.zst").stat().st_size > 1000
    assert {path.name for path in (tmp_path / "answers/crashes").iterdir()} == {name}


def test_what_a_configuration_may_not_choose(manager: Path, tmp_path: Path) -> None:
    """The whole machine, files that wait or act when they are opened, and JSON that is nested
    without end.
    """
    workdir = tmp_path / "workdir"
    (workdir / "crashes/a").mkdir(parents=True)
    (workdir / "crashes/a/log0").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    os.mkfifo(workdir / "x.ko")
    (workdir / "y.ko").symlink_to("/dev/zero")
    (workdir / "vmlinux").symlink_to(manager / "linux/vmlinux")
    words = ["syzkaller", str(workdir), "-o", str(tmp_path / "answers"), "--timeout", "60"]
    for kernel in ("/", str(workdir), str(manager / "linux")):
        settings = {"workdir": str(workdir), "kernel_obj": kernel, "module_obj": [kernel] * 100}
        (workdir / "m.cfg").write_text(json.dumps(settings))
        done = run(*words, "--json", status=0)
        (row,) = json.loads(done.stdout)
        assert (row["build_id"], row["program"] is not None) == (None, True)
        # What is not searched is named.
        assert (f"'{kernel}'" in done.stderr) == (kernel != str(workdir))
    (workdir / "m.cfg").write_text("[" * 100_000)
    assert run(*words, status=0).stderr.count("Traceback") == 0
    assert run("syzkaller", str(workdir / "m.cfg"), status=2).stderr.count("Traceback") == 0
