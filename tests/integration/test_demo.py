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

from kcovdbg.monitor.monitor_source import LiveSource
from kcovdbg.target.demo_files import find_demo, list_demo_files
from tests.integration.conftest import DemoWorkspace
from tests.lab.kcovdbg_run import ask, run_kcovdbg, run_lines
from tests.support.programs import split_image

needs_gdb = pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "new" / "try"
    run_kcovdbg("demo", folder, status=0)
    return folder


def test_every_file_is_whole(unpacked: Path) -> None:
    files = list_demo_files()
    assert {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()} == {
        Path(file.name) for file in files
    }
    for file in files:
        content = file.path.read_bytes()
        if file.path.suffix == ".zst":
            content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
        assert (unpacked / file.name).read_bytes() == content


def test_lines_to_type_work(unpacked: Path, tmp_path: Path) -> None:
    shown = run_kcovdbg("demo", tmp_path / "a b").stdout
    lines = [
        line for line in shown.splitlines() if line.startswith("kcovdbg ") and " gdb " not in line
    ]
    assert len(lines) == 2
    for line in lines:
        command = f"{sys.executable} -m {line} -e tasks"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )
        assert (done.returncode, "TRACE_PC" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("kind", ["file", "link", "no directory"])
def test_nothing_is_overwritten(tmp_path: Path, kind: str) -> None:
    there = tmp_path / "vmlinux"
    if kind == "link":
        there.symlink_to(tmp_path / "none")
    else:
        there.write_text("mine")
    done = run_kcovdbg("demo", there if kind == "no directory" else tmp_path, status=2)
    assert (done.stdout, len(done.stderr.splitlines()) <= 2) == ("", True)
    assert str(there) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["vmlinux"]
    assert there.is_symlink() or there.read_text() == "mine"


@needs_gdb
@pytest.mark.parametrize("target", ["demo", "core"])
def test_in_gdb(unpacked: Path, opened_demo: DemoWorkspace, target: str) -> None:
    image, core = str(unpacked / "vmlinux"), str(unpacked / "vmcore")
    gdb = ["gdb", "-nx", "-q", "-batch"]
    start = {"demo": ["--demo", *gdb], "core": [core, image, *gdb]}[target]
    done = run_kcovdbg(*start, "-ex", "echo @@\\n", "-ex", "kcov-show saved", status=0)
    assert done.stdout.partition("@@\n")[2] == opened_demo.run("saved")[0]


def test_in_drgn(unpacked: Path, opened_demo: DemoWorkspace, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from kcovdbg.helpers import for_each_kcov_task\nprint(*(task.pid.value_() for task in "
        "for_each_kcov_task(prog)))\n"
    )
    drgn = [
        Path(sys.executable).parent / "drgn",
        "-q",
        "-c",
        unpacked / "vmcore",
        "-s",
        unpacked / "vmlinux",
        script,
    ]
    done = subprocess.run(drgn, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.split() == [str(row["pid"]) for row in opened_demo.ask("tasks")], done.stderr


def test_a_core_that_gdb_cannot_read_is_named(tmp_path: Path) -> None:
    assert "--gdb-remote" in run_kcovdbg("--qemu", "/nowhere", "gdb", "-batch", status=2).stderr


def test_source_is_that_of_the_module(unpacked: Path) -> None:
    """The file that is shipped is the one that the module was compiled from: where debug info has
    functions, it has them.
    """
    text = (unpacked / "modules/kcovlab_keep.c").read_text().splitlines()
    with (unpacked / "kcovlab_keep.ko").open("rb") as file:
        functions = [
            (die.attributes["DW_AT_name"].value.decode(), die.attributes["DW_AT_decl_line"].value)
            for unit in ELFFile(file).get_dwarf_info().iter_CUs()
            for die in unit.iter_DIEs()
            if die.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in die.attributes
        ]
    # module_init() and module_exit() declare theirs again.
    own = [
        (name, line)
        for name, line in functions
        if re.fullmatch("kcovlab_keep_(inner|middle|outer|write)", name)
    ]
    assert len(own) == 4
    assert [name for name, line in own if not re.search(rf"\b{name}\(", text[line - 1])] == []


def test_source_is_shown() -> None:
    truth = json.loads(
        zstandard.ZstdDecompressor()
        .decompressobj()
        .decompress((find_demo() / "truth.json.zst").read_bytes())
    )
    keep = next(line for line in truth["lines"] if line.get("state") == "kc-keep")
    (kcov,) = [row["kcov"] for row in ask(["--demo"], "objects")[0] if row["size"] == keep["size"]]
    (rows,) = ask(["--demo"], f"source kcov:{kcov} kcovlab_keep_inner")
    covered = [row for row in rows if row["hits"]]
    # It is called with 2, 1, 0 and 3.
    assert {row["text"].strip(): row["hits"] for row in covered}["switch (n) {"] == 4


def test_demo_of_calls(unpacked: Path) -> None:
    (rows,) = ask([unpacked / "calls/vmlinux", unpacked / "calls/vmcore"], "trace kc-ext")
    assert "do_readlinkat" in {row["function"] for row in rows}
    assert max(row["depth"] for row in rows) > 5


def test_code_and_debug_info_in_two_files(unpacked: Path, tmp_path: Path) -> None:
    """Commands that read code answer as with the image that has both, in either order."""
    whole = tmp_path / "vmlinux"
    whole.symlink_to(unpacked / "vmlinux")
    debug_file, image = split_image(whole)

    def answers(*symbols: Path) -> list[str]:
        named = [word for path in symbols for word in ("-s", path)]
        cache = tmp_path / "-".join(("cache", *(path.name for path in symbols)))
        lines = ("points vfs_read --json", "sites --json", "check")
        return run_lines(["-c", unpacked / "vmcore", *named], *lines, status=1, cache=cache)

    expected = answers(whole)
    assert all(expected)
    # The remark on the rule that it replaces.
    assert "B12" in expected[-1].splitlines()[-1]
    assert answers(image, debug_file) == answers(debug_file, image) == expected


def test_a_look_counts_its_reads(opened_demo: DemoWorkspace) -> None:
    look = LiveSource(opened_demo.kernel.target, opened_demo.kernel.memory.layout, None).look()
    assert look.objects
    # More than one of each object.
    assert (look.reads or 0) > len(look.objects)
