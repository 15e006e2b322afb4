# SPDX-License-Identifier: LGPL-2.1-or-later
"""``syzkaller`` on a made-up working directory with real dumps; compared with kcovdbg's answers about each dump."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from kcovdbg.target.demo_files import find_demo
from tests.integration.test_batch import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

DEMO = find_demo()
OTHER = ROOT / "tests/golden/generations/saved-per-cpu"
TITLE = "KASAN: use-after-free in \x1b]0;owned\x07\x1b[2J\x9b31m"


def unpack(source: Path, target: Path) -> None:
    with source.open("rb") as packed, target.open("wb") as plain:
        zstandard.ZstdDecompressor().copy_stream(packed, plain)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manager with a dump of its own kernel, one of an older kernel, one cut off, and a crash without any."""
    top = tmp_path_factory.mktemp("manager")
    crashes = top / "workdir/crashes"
    for name, title in (("demo", TITLE), ("other", "BUG: other"), ("cut", "BUG: cut"), ("none", "INFO: none")):
        (crashes / name).mkdir(parents=True)
        (crashes / name / "description").write_text(f"{title}\n")
        (crashes / name / "log0").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    unpack(DEMO / "demo.slice.zst", crashes / "demo/vmcore")
    unpack(OTHER / "slice.zst", crashes / "other/vmcore")
    (crashes / "cut/vmcore").write_bytes((crashes / "demo/vmcore").read_bytes()[:300_000])
    (top / "linux").mkdir()
    unpack(DEMO / "vmlinux.zst", top / "linux/vmlinux")
    unpack(OTHER / "vmlinux.zst", top / "older")
    (top / "manager.cfg").write_text('{\n\t# local\n\t"workdir": "workdir",\n\t"kernel_obj": "linux"\n}\n')
    return top


def read_files(top: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in top.rglob("*") if path.is_file()}


def test_answers(manager: Path) -> None:
    before = read_files(manager)
    workdir = manager / "workdir"
    words = ["syzkaller", str(workdir), "-s", str(manager / "older")]
    done = run(*words, "--json")
    rows: dict[str, dict[str, Any]] = {row["crash"].rpartition("/")[2]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"demo", "other", "cut", "none"}
    assert {name for name, row in rows.items() if row["error"] is not None} == {"cut"}
    assert (rows["none"]["dump"], rows["none"]["errors"]) == (None, [])
    assert rows["demo"]["title"] == TITLE
    assert rows["demo"]["log"] == str(workdir / "crashes/demo/log0")
    assert rows["demo"]["build_id"] not in (None, rows["other"]["build_id"])
    # Nothing crashed there.
    assert (rows["demo"]["function"], rows["demo"]["errors"]) == (None, ["no task crashed"])
    for name, image in (("demo", manager / "linux/vmlinux"), ("other", manager / "older")):
        answers = workdir / "crashes" / name / "vmcore.kcovdbg"
        assert rows[name]["answers"] == str(answers)
        for dump in (rows[name]["dump"], rows[name]["slice"]):
            alone = run("-c", dump, "-s", str(image), "-e", "last --all", "-e", "check", check=False)
            assert alone.stdout == (answers / "last.txt").read_text() + (answers / "check.txt").read_text()
            assert rows[name]["violations"] == (alone.returncode == 1)
    after = read_files(manager)
    assert {path: after[path] for path in before} == before
    assert {path.parent.name for path in set(after) - set(before)} == {"vmcore.kcovdbg", "_runs"}
    # Running it again reads no dump, whatever it is given.
    again = run("syzkaller", str(manager / "manager.cfg"), "-s", str(manager / "older"), "--json")
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert read_files(manager) == after
    shown = run(*words)
    assert not {"\x1b", "\x07", "\x9b"} & set(shown.stdout + shown.stderr)
    assert "4 crashes, 3 dumps, 3 of them read earlier" in shown.stderr + shown.stdout


def test_no_image_and_another_place(manager: Path, tmp_path: Path) -> None:
    """A dump without its vmlinux fails alone; answers go to the directory of -o."""
    crashes = tmp_path / "workdir/crashes/demo"
    crashes.mkdir(parents=True)
    (crashes / "vmcore").symlink_to(manager / "workdir/crashes/demo/vmcore")
    words = ["syzkaller", str(tmp_path / "workdir"), "-o", str(tmp_path / "answers"), "--json"]
    done = run(*words, "-s", str(manager / "older"), check=False)
    (row,) = json.loads(done.stdout)
    assert done.returncode == 2
    assert "build-id" in row["error"]
    assert [path.name for path in crashes.iterdir()] == ["vmcore"]
    assert row["answers"] == str(tmp_path / "answers/demo/vmcore.kcovdbg")


def test_a_vmlinux_is_asked_for_where_there_are_dumps(manager: Path, tmp_path: Path) -> None:
    for name in ("none", "cut"):
        crashes = tmp_path / name / "crashes"
        crashes.mkdir(parents=True)
        (crashes / name).symlink_to(manager / "workdir/crashes" / name)
        done = run("syzkaller", str(tmp_path / name), "-o", str(tmp_path / "answers"), check=False)
        assert ("-s VMLINUX" in done.stdout + done.stderr) == (name == "cut")


@pytest.mark.parametrize("place", ["absent", "file"])
def test_refusals(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"\x7fELF")
    command = [sys.executable, "-m", "kcovdbg", "syzkaller", str(tmp_path / place)]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert refused.returncode == 2
    assert place in refused.stderr
    assert "Traceback" not in refused.stderr
