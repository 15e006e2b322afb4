# SPDX-License-Identifier: LGPL-2.1-or-later
"""Outputs of real runs: no input is overwritten, no device replaced; links, pipes and standard
output are written through.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.kcovdbg_run import ROOT, parse_rows, run_kcovdbg
from tests.support.traces import write_words


@pytest.fixture
def folder(demo, tmp_path):
    """A directory with a dump of its own and a trace; the vmlinux is shared, and only read."""
    (tmp_path / "vmcore").write_bytes(demo.core.read_bytes())
    (tmp_path / "vmlinux").symlink_to(demo.vmlinux)
    write_words(tmp_path / "run.kcov", range(0xFFFFFFFF81000001, 0xFFFFFFFF81000004))
    return tmp_path


def run(folder, *words, **options):
    return run_kcovdbg(*words, cwd=folder, timeout=300, **options)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


INPUTS = (
    ("slice", "-o", "vmcore"),
    ("slice", "-o", "vmlinux"),
    ("slice", "-o", "hard"),
    ("slice", "-o", "soft"),
    ("export", "hex", "16", "-o", "vmcore"),
    ("export", "hex", "file:run.kcov", "-o", "run.kcov"),
    ("report", "file:run.kcov", "-o", "run.kcov"),
    ("report", "file:run.kcov", "-o", "run.kcov.json"),
    ("collect", "-o", "vmcore", "--", "touch", "was-run"),
    ("-e", "tasks > vmcore"),
    ("-e", "tasks >> vmcore"),
    ("-e", "tasks > hard"),
    ("-e", "top file:run.kcov > run.kcov"),
    ("-e", "sym file:oops.txt > oops.txt"),
    ("-e", "sym file:oops.txt >> oops.txt"),
    ("-e", "top file:run.kcov | sort > run.kcov"),
    ("-e", "tasks | sort | (cat; true) 2>/dev/null >>'hard'"),
    ("-e", "tasks | cat > $XDG_CONFIG_HOME/vmcore"),
    ("-e", "help > kcovdbg/config.toml"),
    ("-e", "diff 'file:*.kcov' file:run.kcov > run.kcov"),
    ("--script", "script"),
)


@pytest.mark.parametrize("words", INPUTS, ids=" ".join)
def test_no_output_overwrites_an_input(folder, words):
    (folder / "hard").hardlink_to(folder / "vmcore")
    (folder / "soft").symlink_to("vmcore")
    (folder / "run.kcov.json").write_text('{"format": 1}')
    (folder / "script").write_text("tasks > script\n")
    (folder / "oops.txt").write_text("vfs_read+0x15/0x40\n")
    (folder / "kcovdbg").mkdir()
    (folder / "kcovdbg/config.toml").write_text("# mine\n")
    before = contents(folder)
    # The exit status of collect where it fails itself.
    status = 125 if words[0] == "collect" else 2
    done = run(
        folder, "vmlinux", "vmcore", *words, env={"XDG_CONFIG_HOME": str(folder)}, status=status
    )
    assert "cannot write" in done.stderr
    assert done.stdout == ""
    assert contents(folder) == before


def test_commands_from_standard_input_are_not_overwritten(folder):
    (folder / "commands").write_text("help > commands\n")
    with (folder / "commands").open() as commands:
        assert (
            "cannot write 'commands'"
            in run(folder, "--script", "-", stdin=commands, status=2).stderr
        )
    assert (folder / "commands").read_text() == "help > commands\n"


def test_debug_info_that_was_found_is_not_overwritten(folder, demo):
    """Beside the dump, without being named."""
    (folder / "vmlinux").unlink()
    (folder / "vmlinux").hardlink_to(demo.vmlinux)
    size = (folder / "vmlinux").stat().st_size
    for words in (
        ("slice", "-o", "vmlinux"),
        ("-e", "tasks > vmlinux"),
        ("-e", "tasks >> vmlinux"),
    ):
        assert "cannot write 'vmlinux'" in run(folder, "vmcore", *words, status=2).stderr
        assert (folder / "vmlinux").stat().st_size == size


def test_the_check_comes_before_the_dump_is_opened(folder):
    (folder / "vmlinux").unlink()
    (folder / "vmlinux").write_bytes(b"\x7fELF but damaged" + bytes(100))
    for words in (("slice", "-o", "vmcore"), ("-e", "tasks > vmcore")):
        assert "cannot write 'vmcore'" in run(folder, "vmlinux", "vmcore", *words).stderr


@pytest.mark.parametrize(
    "line",
    ["slice -o {}", "report -o {}", "symbols build vmlinux -o {}", "help > {}", "help >> {}"],
)
@pytest.mark.parametrize("path", ["link", "/dev/full"])
def test_a_full_device_is_an_error_and_stays_a_device(folder, line, path):
    (folder / "link").symlink_to("/dev/full")
    done = run(folder, "vmlinux", "vmcore", "-e", line.format(path), status=2)
    *_, problem, hint = done.stderr.splitlines()
    assert path in problem
    assert os.strerror(28) in problem
    assert hint.startswith("  ")
    assert Path("/dev/full").is_char_device()
    assert (folder / "link").is_symlink()


@pytest.mark.parametrize("name", ["/dev/stdout", "-", "fifo"])
def test_a_slice_goes_through_standard_output_and_pipes(folder, name):
    os.mkfifo(folder / "fifo")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((folder / "fifo").read_bytes) if name == "fifo" else None
        done = run(folder, "vmlinux", "vmcore", "slice", "-o", name, text=False, status=0)
        content = done.stdout if read is None else read.result(timeout=60)
    assert content[:4] == b"\x7fELF"
    assert (folder / "fifo").is_fifo()
    (folder / "again").write_bytes(content)
    asked = ("tasks", "--json")
    assert (
        run(folder, "vmlinux", "again", *asked).stdout
        == run(folder, "vmlinux", "vmcore", *asked).stdout
        != ""
    )


def test_standard_output_in_a_file_keeps_all_of_it(folder):
    with (folder / "out").open("wb") as out:
        run(
            folder,
            "-e",
            "export hex file:run.kcov -o /dev/stdout",
            capture_output=False,
            stdout=out,
            status=0,
        )
    lines = (folder / "out").read_text().splitlines()
    assert lines[:3] == [f"0xffffffff8100000{number}" for number in (1, 2, 3)]
    # The table that describes the file.
    assert any(line.startswith("/dev/stdout") for line in lines[3:])


def test_links_to_files_stay_links(folder):
    (folder / "real").write_text("old")
    (folder / "link").symlink_to("real")
    for line in ("slice -o link", "export hex file:run.kcov --force -o link", "help > link"):
        before = (folder / "real").read_bytes()
        run(folder, "vmlinux", "vmcore", "-e", line, status=0)
        assert (folder / "link").is_symlink()
        assert (folder / "real").read_bytes() != before


def test_the_batch_has_a_directory_of_its_own(folder):
    before = contents(folder)
    (folder / "sub").mkdir()
    for name in (".", "sub/..", "/dev/full", "run.kcov"):
        done = run(folder, "batch", "-e", "tasks", "-s", "vmlinux", "vmcore", "-o", name, status=2)
        assert f"'{name}'" in done.stderr
        assert contents(folder) == before
        assert not (folder / "_runs").exists()


def test_a_directory_is_refused_before_the_run(folder):
    (folder / "taken").mkdir()
    for words, status in (
        (("collect", "-o", "taken", "--", "touch", "was-run"), 125),
        (("collect", "-o", "none/run.kcov", "--", "touch", "was-run"), 125),
        (("slice", "-o", "taken"), 2),
        (("report", "-o", "taken", "file:run.kcov"), 2),
    ):
        assert "could not write" in run(folder, "vmlinux", "vmcore", *words, status=status).stderr
    assert list((folder / "taken").iterdir()) == []
    assert not (folder / "was-run").exists()


def test_a_read_only_file_system_is_named(folder):
    code = 'mkdir ro && mount -t tmpfs -o ro none ro && exec "$@"'
    words = [
        sys.executable,
        "-m",
        "kcovdbg",
        "-e",
        "help > ro/a",
        "-e",
        "export hex file:run.kcov -o ro/a",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", code, "sh", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if "could not write 'ro/a'" in line]
    assert len(errors) == 2
    assert all(os.strerror(30) in line for line in errors)


def test_a_cache_that_cannot_be_used_is_named_once(folder):
    """Nothing can be made in /proc, even by root."""
    environment = {"XDG_CACHE_HOME": "/proc/none", "TMPDIR": str(folder)}
    words = (
        "vmlinux",
        "vmcore",
        "-e",
        "points start_kernel --json",
        "-e",
        "points start_kernel --json",
    )
    done = run(folder, *words, env=environment, status=0)
    first, second = parse_rows(done.stdout)
    assert first == second != []
    assert done.stderr.count("XDG_CACHE_HOME") == 1
    own = folder / f"kcovdbg-{os.geteuid()}"
    assert str(own) in done.stderr
    # The next run finds the table there, and has nothing to say.
    done = run(folder, *words[:4], env=environment)
    assert (json.loads(done.stdout), done.stderr) == (first, "")
    rows = json.loads(run(folder, "doctor", "--json", env=environment).stdout)
    assert [row["ok"] for row in rows if str(own) in row["answer"]] == [None]
    rows = json.loads(run(folder, "doctor", "--json", env={"XDG_CACHE_HOME": str(folder)}).stdout)
    assert [row["ok"] for row in rows if row["answer"] == str(folder / "kcovdbg" / "symbols")] == [
        True
    ]


@pytest.mark.parametrize(
    "line", ["tasks > {}", "tasks >> {}", "slice -o {}", "export hex kc-usb -o {}"]
)
def test_a_program_in_drgn_keeps_its_files(folder, demo, line):
    import drgn

    from kcovdbg.frontends.drgn_commands import CommandError, run_in_drgn

    (folder / "hard").hardlink_to(folder / "vmcore")
    prog = drgn.Program()
    prog.set_core_dump(str(folder / "vmcore"))
    prog.load_debug_info([str(demo.vmlinux)])
    before = contents(folder)
    for name in ("vmcore", "hard", "vmlinux"):
        with pytest.raises(CommandError, match=f"{name}.*being read"):
            run_in_drgn(prog, line.format(folder / name))
        assert contents(folder) == before


def test_no_output_overwrites_a_source_file_before_it_is_read(folder):
    tree = folder / "linux"
    (tree / "kernel").mkdir(parents=True)
    (tree / "kernel" / "sys.c").write_text("source")
    (tree / "notes").write_text("old")
    (folder / "link.c").symlink_to(tree / "kernel" / "sys.c")
    base = ("-c", "vmcore", "-s", "vmlinux", "--source-dir", str(tree))
    for path in ("linux/kernel/sys.c", "link.c"):
        done = run(folder, *base, "-e", f"tasks > {path}", status=2)
        assert path in done.stderr
        assert str(tree) in done.stderr
    assert (tree / "kernel" / "sys.c").read_text() == "source"
    # Anything else there is the user's to write.
    run(folder, *base, "-e", "tasks > linux/notes", "-e", "tasks > linux/new.h", status=0)
    assert (tree / "notes").read_text() == (tree / "new.h").read_text() != "old"


def test_standard_output_is_an_input(folder):
    """The shell's >> leaves what is in the file."""
    before = contents(folder)
    for words in (("top", "file:run.kcov"), ("-e", "top file:run.kcov | cat")):
        for name in ("run.kcov", "vmcore"):
            with (folder / name).open("ab") as file:
                done = subprocess.run(
                    [sys.executable, "-m", "kcovdbg", "-c", "vmcore", "-s", "vmlinux", *words],
                    cwd=folder,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            assert done.returncode == 2, done.stderr
            assert contents(folder) == before
