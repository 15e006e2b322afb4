# SPDX-License-Identifier: LGPL-2.1-or-later
"""The demo's kernel image alone, and with a module; addr2line, nm and the demo's dump say what is
right.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kcovdbg.elf.file import ElfFile
from tests.integration.conftest import Demo, DemoWorkspace
from tests.lab.kcovdbg_run import ask, run_kcovdbg, run_lines
from tests.support.programs import addr2line, list_functions, output_of
from tests.support.traces import write_trace

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
def pcs(opened_demo: DemoWorkspace) -> list[int]:
    return [int(word, 16) for word in opened_demo.run("export hex 41")[0].split()]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, pcs: list[int]) -> Path:
    """A trace of the dump as a list of PCs."""
    path = tmp_path_factory.mktemp("trace") / "41.hex"
    path.write_text("".join(f"{pc:#x}\n" for pc in pcs))
    return path


def test_names_are_those_of_addr2line(demo: Demo, trace: Path, pcs: list[int]) -> None:
    told = addr2line(demo.vmlinux, (pc - 1 for pc in pcs))
    for target in (("-s", demo.vmlinux), (demo.vmlinux,), ("--image", "-s", demo.vmlinux)):
        (found,) = ask(target, f"buffer file:{trace}")
        assert [int(row["pc"], 16) for row in found] == pcs
        # With the demo's slim debug info, addr2line has no names of what is inlined.
        assert [row["frames"][-1]["function"] for row in found] == [
            frames[-1][0] for frames in told
        ]
        assert [row["frames"][0]["line"] or 0 for row in found] == [frames[0][2] for frames in told]


def test_the_kernel_and_its_sites(demo: Demo, opened_demo: DemoWorkspace) -> None:
    (image,), sites = ask(["-s", demo.vmlinux], "info", "sites")
    (dump,) = opened_demo.ask("info")
    same = ("release", "machine", "build_id", "generation", "features")
    assert {key: image[key] for key in same} == {key: dump[key] for key in same}
    assert (image["kaslr_offset"], image["live"], image["errors"]) == ("0x0", False, [])
    keys = ("function", "subsystem", "context", "file", "line", "symbol", "wrapper")
    of_image, of_dump = (
        {tuple(row[key] for key in keys) for row in rows}
        for rows in (sites, opened_demo.ask("sites"))
    )
    assert of_image == of_dump
    assert all(
        row["registered"] is None and row["handle"] is None and row["errors"] for row in sites
    )


def test_points_of_a_module(demo: Demo) -> None:
    """Its calls have relocations: the place that it is given is kcovdbg's own choice, but not the
    offsets.
    """
    names = (f"{MODULE}_inner", f"{MODULE}_middle")
    answers = ask(["-s", demo.vmlinux, "-s", demo.module], *(f"points {name}" for name in names))
    code = output_of("objdump", "-dr", "-j", ".text", demo.module)
    pattern = r"^\s+([0-9a-f]+): R_X86_64_PLT32\s+__sanitizer_cov_trace_\w+-0x4"
    calls = [int(match[1], 16) + 4 for match in re.finditer(pattern, code, re.MULTILINE)]
    for name, rows in zip(names, answers, strict=True):
        (span,) = list_functions(demo.module)[name]
        wanted = [call - span.start for call in calls if span.start < call <= span.stop]
        pcs = [int(row["pc"], 16) for row in rows]
        assert len(wanted) > 1
        assert [pc - pcs[0] for pc in pcs] == [offset - wanted[0] for offset in wanted]
        assert {row["frames"][-1]["function"] for row in rows} == {name}


@pytest.fixture(scope="module")
def build_id(opened_demo: DemoWorkspace) -> str:
    return str(opened_demo.ask("info")[0]["build_id"])


def test_ambiguous_targets(demo: Demo, tmp_path: Path, build_id: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(
        demo.vmlinux.read_bytes().replace(bytes.fromhex(build_id), bytes(len(build_id) // 2))
    )
    for words in (
        ["--image"],
        ["--image", "-k", "-s", demo.vmlinux],
        ["-s", demo.vmlinux, "-s", other],
    ):
        done = run_kcovdbg(*words, "info", status=2)
        assert (done.stdout, len(done.stderr.splitlines()) <= 2) == ("", True)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, demo: Demo) -> Path:
    """The location table of the image, which is in the cache as well."""
    path = tmp_path_factory.mktemp("table") / "k.sym"
    run_kcovdbg("symbols", "build", demo.vmlinux, "-o", path, status=0)
    return path


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


def test_every_way_to_name_the_kernel_gives_the_same_names(
    demo: Demo, table: Path, tmp_path: Path, pcs: list[int], build_id: str
) -> None:
    """The image, its table, and a trace that needs neither on the command line."""
    lines = [
        line.format(trace=write_trace(tmp_path / "41.kcov", pcs, build_id=build_id))
        for line in NAMED
    ]
    answers = []
    for target in (("-s", demo.vmlinux), ("--symbol-table", table), ()):
        *found, page = run_lines(target, *lines, status=0)
        # Each page has the name of its target.
        found.append(
            str(sorted(re.findall(r"\b(?:do_sys_poll|pid_nr_ns|__task_pid_nr_ns)\b", page)))
        )
        answers.append(found)
    assert answers[0] == answers[1] == answers[2]
    for line, answer in zip(NAMED, answers[0], strict=True):
        assert re.search(r"pid|poll", answer) or line.startswith("diff")


@pytest.mark.parametrize("option", ["-s", "--symbol-table"])
def test_what_needs_memory_names_the_target(
    demo: Demo, table: Path, tmp_path: Path, option: str
) -> None:
    given = demo.vmlinux if option == "-s" else table
    words = [word for line in STATE for word in ("-e", line.format(out=tmp_path / "out"))]
    done = run_kcovdbg(option, given, *words, status=2)
    assert done.stdout == ""
    assert "kcore" not in done.stderr
    said = iter(done.stderr.splitlines())
    for line, first, hint in zip(STATE, said, said, strict=True):
        assert str(given) in first
        assert "-c" in hint
        assert ("file:" in hint) == line.startswith(("top", "source"))
    assert list(tmp_path.iterdir()) == []


WITH_NAMES = [
    *(
        f"export {name}"
        for name in ("lcov", "cobertura", "jsonl", "rawcoverfiles", "funccover", "modoff", "drcov")
    ),
    "report",
]


def test_nothing_is_written_without_names(tmp_path: Path, pcs: list[int]) -> None:
    trace = write_trace(tmp_path / "t.kcov", pcs, build_id="ab" * 20)
    words = [word for line in WITH_NAMES for word in ("-e", f"{line} {trace} -o {tmp_path}/out")]
    done = run_kcovdbg(*words, status=2)
    assert (done.stdout, (tmp_path / "out").exists()) == ("", False)
    assert done.stderr.count("kcovdbg: ") == done.stderr.count("ab" * 20) == len(WITH_NAMES)
    assert "kcore" not in done.stderr


def test_pcs_need_no_names(tmp_path: Path, table: Path, pcs: list[int], build_id: str) -> None:
    """A list of PCs is the same with and without names."""
    traces = [
        write_trace(tmp_path / number, pcs, build_id=number) for number in (build_id, "ab" * 20)
    ]
    named, nameless = (
        [*run_lines([], f"export hex {trace}", f"export rawcover {trace}", status=0)]
        for trace in traces
    )
    assert named == nameless
    assert named[0]


def test_a_folder_of_several_builds(demo: Demo, tmp_path: Path) -> None:
    """The one of the dump's build ID is taken; without a dump it has to be the only one."""
    others = Path(__file__).parents[1] / "golden/generations/6.12-gcc/vmlinux.zst"
    builds = tmp_path / "builds"
    builds.mkdir()
    (builds / "a").symlink_to(others.parent)
    shutil.copy(others, builds / "other.zst")
    shutil.copy(demo.vmlinux, builds / "vmlinux")
    (builds / "notes.bz2").write_bytes(b"BZh91AY&SY")
    found, named = (ask(["-c", demo.core, "-s", path], "tasks") for path in (builds, demo.vmlinux))
    assert found == named
    assert "other.zst" in run_kcovdbg("-s", builds, "info", status=2).stderr
    (builds / "other.zst").unlink()
    run_kcovdbg("-s", builds, "info", status=0)
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in run_kcovdbg("-s", tmp_path / "empty", "info", status=2).stderr


def test_a_module_with_more_code_than_there_are_addresses(demo: Demo, tmp_path: Path) -> None:
    data = bytearray(demo.module.read_bytes())
    with ElfFile(demo.module) as elf:
        header = elf.header
        number = elf.text_sections()[0].number
    at = header.shoff + header.shentsize * number + 32
    data[at : at + 8] = b"\xff" * 8
    path = tmp_path / "module.ko"
    path.write_bytes(data)
    done = run_kcovdbg("-s", demo.vmlinux, "-s", path, "info", status=2)
    assert "internal error" not in done.stderr
    assert str(path) in done.stderr
