# SPDX-License-Identifier: LGPL-2.1-or-later
"""The unpacked demo in real GDB and drgn; each part is compared with another source."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from elftools.elf.elffile import ELFFile

from kcovdbg.target.opener import find_demo, list_demo_files
from tests.lab.kcovdbg_run import run_kcovdbg

needs_gdb = pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "new" / "try"
    done = run_kcovdbg("demo", folder)
    assert done.returncode == 0, done.stderr
    return folder


def saved() -> str:
    return run_kcovdbg("--demo", "-e", "saved").stdout


def test_every_file_is_whole(unpacked: Path) -> None:
    files = list_demo_files()
    assert {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()} == {Path(file.name) for file in files}
    for file in files:
        content = file.path.read_bytes()
        if file.path.suffix == ".zst":
            content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
        assert (unpacked / file.name).read_bytes() == content


def test_lines_to_type_work(unpacked: Path, tmp_path: Path) -> None:
    shown = run_kcovdbg("demo", tmp_path / "a b").stdout
    lines = [line for line in shown.splitlines() if line.startswith("kcovdbg ") and " gdb " not in line]
    assert len(lines) == 2
    for line in lines:
        command = f"{sys.executable} -m {line} -e tasks"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2])
        assert (done.returncode, "TRACE_PC" in done.stdout) == (0, True), done.stderr


def test_points_are_found_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The debug info is in files without a name, which drgn resolves to paths that lead nowhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run_kcovdbg("--demo", "-e", "points vfs_read --json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_nothing_is_overwritten(tmp_path: Path, kind: str) -> None:
    there = tmp_path / "vmlinux"
    if kind == "file":
        there.write_text("mine")
    else:
        there.symlink_to(tmp_path / "none")
    done = run_kcovdbg("demo", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert str(there) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["vmlinux"]
    assert there.is_symlink() or there.read_text() == "mine"


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run_kcovdbg("demo", tmp_path / "file")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) <= 2
    assert (tmp_path / "file").read_text() == "mine"


@needs_gdb
@pytest.mark.parametrize("target", ["demo", "core"])
def test_in_gdb(unpacked: Path, target: str) -> None:
    image, core = str(unpacked / "vmlinux"), str(unpacked / "vmcore")
    gdb = ["gdb", "-nx", "-q", "-batch"]
    start = {"demo": ["--demo", *gdb], "core": [core, image, *gdb]}[target]
    done = run_kcovdbg(*start, "-ex", "echo @@\\n", "-ex", "kcov-show saved")
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("@@\n")[2] == saved()


def test_in_drgn(unpacked: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from kcovdbg.helpers import for_each_kcov_task\nprint(*(task.pid.value_() for task in for_each_kcov_task(prog)))\n"
    )
    drgn = [Path(sys.executable).parent / "drgn", "-q", "-c", unpacked / "vmcore", "-s", unpacked / "vmlinux", script]
    done = subprocess.run(drgn, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    tasks = json.loads(run_kcovdbg("--demo", "-e", "tasks --json").stdout)
    assert done.stdout.split() == [str(row["pid"]) for row in tasks], done.stderr


def test_a_core_that_gdb_cannot_read_is_named(tmp_path: Path) -> None:
    done = run_kcovdbg("--qemu", "/nowhere", "gdb", "-batch")
    assert done.returncode == 2
    assert "--gdb-remote" in done.stderr


def test_source_is_that_of_the_module(unpacked: Path) -> None:
    """The file that is shipped is the one that the module was compiled from: where debug info has functions, it has them."""
    text = (unpacked / "modules/kcovlab_keep.c").read_text().splitlines()
    with (unpacked / "kcovlab_keep.ko").open("rb") as file:
        functions = [
            (die.attributes["DW_AT_name"].value.decode(), die.attributes["DW_AT_decl_line"].value)
            for unit in ELFFile(file).get_dwarf_info().iter_CUs()
            for die in unit.iter_DIEs()
            if die.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in die.attributes
        ]
    # module_init() and module_exit() declare theirs again.
    own = [(name, line) for name, line in functions if re.fullmatch("kcovlab_keep_(inner|middle|outer|write)", name)]
    assert len(own) == 4
    assert [name for name, line in own if not re.search(rf"\b{name}\(", text[line - 1])] == []


def test_source_is_shown() -> None:
    objects = json.loads(run_kcovdbg("--demo", "-e", "objects --json").stdout)
    truth = json.loads(zstandard.ZstdDecompressor().decompressobj().decompress((find_demo() / "truth.json.zst").read_bytes()))
    keep = next(line for line in truth["lines"] if line.get("state") == "kc-keep")
    (kcov,) = [row["kcov"] for row in objects if row["size"] == keep["size"]]
    rows = json.loads(run_kcovdbg("--demo", "-e", f"source kcov:{kcov} kcovlab_keep_inner --json").stdout)
    covered = [row for row in rows if row["hits"]]
    # It is called with 2, 1, 0 and 3.
    assert {row["text"].strip(): row["hits"] for row in covered}["switch (n) {"] == 4


def test_calls_are_for_tree(unpacked: Path) -> None:
    done = run_kcovdbg(unpacked / "calls/vmlinux", unpacked / "calls/vmcore", "-e", "tree kc-ext --json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert "do_readlinkat" in {row["function"] for row in rows}
    assert max(row["depth"] for row in rows) > 5


@pytest.mark.skipif(shutil.which("objcopy") is None, reason="needs binutils")
def test_code_and_debug_info_in_two_files(tmp_path: Path) -> None:
    """Commands that read code answer as with the image that has both, in either order."""
    folder = find_demo()
    whole, image, debug_file = (tmp_path / name for name in ("vmlinux", "image", "vmlinux.debug"))
    with (folder / "vmlinux.zst").open("rb") as packed, whole.open("wb") as unpacked:
        zstandard.ZstdDecompressor().copy_stream(packed, unpacked)
    subprocess.run(["objcopy", "--only-keep-debug", whole, debug_file], check=True)
    subprocess.run(["strip", "-o", image, whole], check=True)

    def ask(*symbols: Path) -> tuple[int, list[str]]:
        named = [word for path in symbols for word in ("-s", path)]
        lines = ("points vfs_read --json", "sites --json", "check")
        words = ["-c", folder / "demo.slice.zst", *named, "-q", *(word for line in lines for word in ("-e", line))]
        done = run_kcovdbg(*words, cache=str(tmp_path / "-".join(path.name for path in symbols)))
        return done.returncode, done.stdout.splitlines()

    expected = ask(whole)
    assert len(expected[1]) > 20
    # The remark on the rule that it replaces.
    assert "B12" in expected[1][-1]
    assert ask(image, debug_file) == ask(debug_file, image) == expected
