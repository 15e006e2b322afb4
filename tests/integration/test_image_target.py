# SPDX-License-Identifier: LGPL-2.1-or-later
"""The demo's kernel image alone, and with a module; addr2line, nm and the demo's dump say what is right."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kcovdbg.target.dump_file import unpack
from kcovdbg.target.opener import find_demo
from tests.lab.kcovdbg_run import run_kcovdbg

pytest.importorskip("drgn")
needs_binutils = pytest.mark.skipif(shutil.which("addr2line") is None, reason="needs binutils")

MODULE = "kcovlab_keep"
# Each needs the memory of a kernel.
STATE = (
    "tasks",
    "objects",
    "remote",
    "areas",
    "saved",
    "check",
    "why 1",
    "last",
    "slice -o {out}",
    "top 41",
    "source fs/read_write.c",
    "report -o {out}",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the image, the module, and a trace of the dump as a list of PCs."""
    folder = tmp_path_factory.mktemp("image")
    for name in ("vmlinux", f"{MODULE}.ko"):
        shutil.copy(unpack(find_demo() / f"{name}.zst").path, folder / name)
    done = run_kcovdbg("--demo", "-e", f"export hex 41 -o {folder}/41.hex")
    assert done.returncode == 0, done.stderr
    return folder


Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def rows(files: Path) -> Rows:
    def run(*words: str, target: Sequence[str] = ("-s", "{}/vmlinux")) -> list[dict[str, Any]]:
        done = run_kcovdbg(*(word.format(files, files) for word in (*target, *words)), "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    return run


@needs_binutils
def test_names_are_those_of_addr2line(files: Path, rows: Rows) -> None:
    pcs = [int(line, 16) for line in (files / "41.hex").read_text().split()]
    words = [f"{pc - 1:x}" for pc in pcs]
    run = subprocess.run(["addr2line", "-a", "-f", "-i", "-e", files / "vmlinux", *words], capture_output=True, text=True)
    told: list[list[tuple[str, str]]] = []
    lines = iter(run.stdout.splitlines())
    for line in lines:
        if line.startswith("0x"):
            told.append([])
            continue
        place = re.search(r":([0-9]+|[?])", next(lines))
        assert place is not None
        told[-1].append((line, place[1]))
    for target in (("-s", "{}/vmlinux"), ("{}/vmlinux",), ("--image", "-s", "{}/vmlinux")):
        found = rows("buffer", "file:{}/41.hex", target=target)
        assert [int(row["pc"], 16) for row in found] == pcs
        # With the demo's slim debug info, addr2line has no names of what is inlined.
        assert [row["frames"][-1]["function"] for row in found] == [frames[-1][0] for frames in told]
        assert [str(row["frames"][0]["line"]) for row in found] == [frames[0][1] for frames in told]


def test_info_knows_the_kernel(rows: Rows) -> None:
    (image,) = rows("info")
    dump = json.loads(run_kcovdbg("--demo", "info", "--json").stdout)[0]
    same = ("release", "machine", "build_id", "generation", "features")
    assert {key: image[key] for key in same} == {key: dump[key] for key in same}
    assert (image["kaslr_offset"], image["live"], image["errors"]) == ("0x0", False, [])


def test_sites_without_handles(rows: Rows) -> None:
    dump = json.loads(run_kcovdbg("--demo", "sites", "--json").stdout)
    keys = ("function", "subsystem", "context", "file", "line", "symbol", "wrapper")
    found = rows("sites")
    assert {tuple(row[key] for key in keys) for row in found} == {tuple(row[key] for key in keys) for row in dump}
    assert all(row["registered"] is None and row["handle"] is None and row["errors"] for row in found)


@needs_binutils
def test_points_of_a_module(files: Path, rows: Rows) -> None:
    """Its calls have relocations: the place that it is given is kcovdbg's own choice, but not the offsets."""
    target = ("-s", "{}/vmlinux", "-s", f"{{}}/{MODULE}.ko")
    for function in (f"{MODULE}_inner", f"{MODULE}_middle"):
        found = rows("points", function, target=target)
        code = subprocess.run(["objdump", "-dr", "-j", ".text", files / f"{MODULE}.ko"], capture_output=True, text=True).stdout
        calls = [
            int(match[1], 16) + 4
            for match in re.finditer(r"^\s+([0-9a-f]+): R_X86_64_PLT32\s+__sanitizer_cov_trace_\w+-0x4", code, re.M)
        ]
        symbols = subprocess.run(["nm", "-S", files / f"{MODULE}.ko"], capture_output=True, text=True).stdout
        place = re.search(rf"^([0-9a-f]+) ([0-9a-f]+) t {function}$", symbols, re.M)
        assert place is not None
        start, size = int(place[1], 16), int(place[2], 16)
        wanted = [call - start for call in calls if start < call <= start + size]
        pcs = [int(row["pc"], 16) for row in found]
        assert len(wanted) > 1
        assert [pc - pcs[0] for pc in pcs] == [offset - wanted[0] for offset in wanted]
        assert {row["frames"][-1]["function"] for row in found} == {function}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--image", "info"),
        ("--image", "-k", "-s", "{}/vmlinux", "info"),
        ("-s", "{}/vmlinux", "-s", "{}/other", "info"),
    ],
)
def test_ambiguous_targets(files: Path, arguments: Sequence[str]) -> None:
    if not (files / "other").exists():
        image = (files / "vmlinux").read_bytes()
        build_id = json.loads(run_kcovdbg("-s", files / "vmlinux", "info", "--json").stdout)[0]["build_id"]
        (files / "other").write_bytes(image.replace(bytes.fromhex(build_id), bytes(len(build_id) // 2)))
    done = run_kcovdbg(*(word.format(files) for word in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) <= 2


@pytest.fixture(scope="module")
def table(files: Path) -> Path:
    """The location table of the image."""
    done = run_kcovdbg("symbols", "build", files / "vmlinux", "-o", files / "k.sym")
    assert done.returncode == 0, done.stderr
    return files / "k.sym"


@pytest.fixture(scope="module")
def recorded(files: Path, table: Path) -> Path:
    """A trace whose side file names the build of the image, whose table is in the cache."""
    pcs = [int(line, 16) for line in (files / "41.hex").read_text().split()]
    (files / "41.kcov").write_bytes(struct.pack(f"<{len(pcs) + 1}Q", len(pcs), *pcs))
    (build,) = json.loads(run_kcovdbg("-s", files / "vmlinux", "info", "--json").stdout)
    write_side_file(files / "41.kcov", build["build_id"])
    # Fills the cache of tables.
    assert run_kcovdbg("-s", files / "vmlinux", "points", "vfs_read").returncode == 0
    return files / "41.kcov"


def write_side_file(path: Path, build_id: str) -> None:
    header = {"format": 1, "mode": "TRACE_PC", "word_size": 8, "byteorder": "little", "build_id": build_id}
    path.with_name(f"{path.name}.json").write_text(json.dumps({**header, "kaslr_offset": 0, "size": 1024}))


NAMED = (
    "buffer {trace}",
    "top {trace}",
    "trace {trace}",
    "source {trace}",
    "points do_sys_poll {trace}",
    "diff {trace} {trace}",
    "export lcov {trace}",
    "export jsonl {trace}",
    "view --text {trace}",
    "report {trace} -o -",
)


@pytest.mark.parametrize("line", NAMED)
def test_every_way_to_name_the_kernel_gives_the_same_names(files: Path, table: Path, recorded: Path, line: str) -> None:
    """The image, its table, and a trace that needs neither on the command line."""
    answers = []
    for target in (("-s", files / "vmlinux"), ("--symbol-table", table), ()):
        done = run_kcovdbg(*target, "-e", line.format(trace=f"file:{recorded}"))
        assert done.returncode in (0, 1), done.stderr
        assert "kcore" not in done.stderr
        answers.append(done.stdout)
    if line.startswith("report"):
        # Each page has the name of its target.
        answers = [str(sorted(re.findall(r"\b(?:do_sys_poll|pid_nr_ns|__task_pid_nr_ns)\b", answer))) for answer in answers]
    assert answers[0] == answers[1] == answers[2]
    assert re.search(r"pid|poll", answers[0]) or line.startswith("diff")


@pytest.mark.parametrize("option", ["-s", "--symbol-table"])
@pytest.mark.parametrize("line", STATE)
def test_what_needs_memory_names_the_target(files: Path, table: Path, tmp_path: Path, line: str, option: str) -> None:
    out = tmp_path / "out"
    given = files / "vmlinux" if option == "-s" else table
    done = run_kcovdbg(option, given, "-e", line.format(out=out))
    first, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert str(given) in first
    assert "kcore" not in done.stderr
    assert "-c" in hint
    assert ("file:" in hint) == line.startswith(("top", "source"))
    assert not out.exists()


@pytest.mark.parametrize("output", ["lcov", "cobertura", "jsonl", "rawcoverfiles", "funccover", "modoff", "drcov", "report"])
def test_nothing_is_written_without_names(recorded: Path, tmp_path: Path, output: str) -> None:
    trace, out = tmp_path / "t.kcov", tmp_path / "out"
    trace.write_bytes(recorded.read_bytes())
    write_side_file(trace, "ab" * 20)
    line = f"report file:{trace} -o {out}" if output == "report" else f"export {output} file:{trace} -o {out}"
    done = run_kcovdbg("-e", line)
    assert (done.returncode, done.stdout, out.exists()) == (2, "", False)
    assert "ab" * 20 in done.stderr
    assert "kcore" not in done.stderr


def test_pcs_need_no_names(recorded: Path, tmp_path: Path) -> None:
    """A list of PCs is the same with and without names."""
    for name in ("hex", "rawcover"):
        named = run_kcovdbg("-e", f"export {name} file:{recorded}")
        (tmp_path / "t.kcov").write_bytes(recorded.read_bytes())
        write_side_file(tmp_path / "t.kcov", "ab" * 20)
        nameless = run_kcovdbg("-e", f"export {name} file:{tmp_path / 't.kcov'}")
        assert (named.returncode, nameless.returncode, nameless.stdout) == (0, 0, named.stdout)


def test_a_folder_of_several_builds(files: Path, tmp_path: Path) -> None:
    """The one of the dump's build ID is taken; without a dump it has to be the only one."""
    others = Path(__file__).parents[1] / "golden/generations/6.12-gcc/vmlinux.zst"
    (tmp_path / "builds").mkdir()
    (tmp_path / "builds/a").symlink_to(others.parent)
    shutil.copy(others, tmp_path / "builds/other.zst")
    shutil.copy(files / "vmlinux", tmp_path / "builds/vmlinux")
    (tmp_path / "builds/notes.bz2").write_bytes(b"BZh91AY&SY")
    dump = unpack(find_demo() / "demo.slice.zst").path
    done = run_kcovdbg("-c", dump, "-s", tmp_path / "builds", "-e", "tasks --json")
    named = run_kcovdbg("-c", dump, "-s", files / "vmlinux", "-e", "tasks --json")
    assert (done.returncode, done.stdout) == (0, named.stdout)
    alone = run_kcovdbg("-s", tmp_path / "builds", "info")
    assert alone.returncode == 2
    assert "other.zst" in alone.stderr
    (tmp_path / "builds/other.zst").unlink()
    assert run_kcovdbg("-s", tmp_path / "builds", "info").returncode == 0
    (tmp_path / "empty").mkdir()
    empty = run_kcovdbg("-s", tmp_path / "empty", "info")
    assert empty.returncode == 2
    assert str(tmp_path / "empty") in empty.stderr
