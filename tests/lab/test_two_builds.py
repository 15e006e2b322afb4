# SPDX-License-Identifier: LGPL-2.1-or-later
"""A patch of the kernel's source, compiled as in the lab's kernel: points are matched as a diff of
the sources pairs lines.

What the patch adds to coverage, tests/integration/test_kept_traces.py asks of traces of kernels
before and after it.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import build_table_file
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.kernel import Kernel, run_logged

PATCH = Path(__file__).parent / "generations" / "getpriority.patch"
FILE = "kernel/sys.c"
CALLBACKS = (
    "pc",
    "switch",
    *(f"{kind}{size}" for kind in ("cmp", "const_cmp") for size in (1, 2, 4, 8)),
)


class Build:
    """One object of a kernel, with its source."""

    def __init__(self, kernel: Kernel, source: Path) -> None:
        self.source = source
        work = source / "work"
        shutil.copytree(source / "kernel", work)
        (work / "Kbuild").write_text("obj-m := sys.o\n")
        mapping = f"KCFLAGS=-ffile-prefix-map={work}=kernel"
        run_logged(
            [
                "make",
                "-C",
                str(kernel.tree),
                *kernel.recipe.make_arguments(),
                mapping,
                f"M={work}",
                "sys.o",
            ],
            work,
        )
        stub = work / "stub.c"
        stub.write_text(
            "".join(f"void __sanitizer_cov_trace_{name}(void) {{}}\n" for name in CALLBACKS)
        )
        subprocess.run(
            ["gcc", "-c", "-fno-pie", "-mcmodel=kernel", "-o", work / "stub.o", stub], check=True
        )
        self.image = source / "image"
        # What the rest of the kernel would define is not called here.
        options = [
            "--noinhibit-exec",
            "--unresolved-symbols=ignore-all",
            "-static",
            "--build-id=sha1",
            "-e",
            "0",
        ]
        command = [
            "ld",
            *options,
            "-Ttext=0xffffffff81000000",
            "-o",
            self.image,
            work / "sys.o",
            work / "stub.o",
        ]
        subprocess.run(command, check=True, capture_output=True)
        self.text = (source / FILE).read_text().splitlines()
        table = LocationTable(build_table_file(self.image, folder=source / "tables"))
        self.lines: dict[int, tuple[str, int]] = {}
        points = table.pcs(PointKind.PC)
        for pc, row in zip(points, table.get_rows(points), strict=True):
            frame = (
                next((frame for frame in row[1] if frame.file == FILE), None)
                if row is not None
                else None
            )
            if frame is not None and frame.line is not None:
                self.lines[pc] = frame.function or "", frame.line

    def trace(self, name: str, pcs: list[int]) -> str:
        path = self.source / name
        path.write_text("".join(f"{pc:#x}\n" for pc in pcs))
        return f"file:{path}"

    def of(self, function: str) -> list[int]:
        return [pc for pc, (name, _) in self.lines.items() if name == function]


@pytest.fixture(scope="module")
def builds(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Build]:
    tarball = kernel.recipe.tarball
    if not tarball.exists():
        pytest.skip(f"needs {tarball}")
    before, after = (tmp_path_factory.mktemp(name) for name in ("before", "after"))
    wanted = [f"{kernel.recipe.package}/{name}" for name in (FILE, "kernel/uid16.h")]
    subprocess.run(
        ["tar", "-xJf", tarball, "--occurrence=1", "--strip-components=1", *wanted],
        cwd=before,
        check=True,
    )
    shutil.copytree(before / "kernel", after / "kernel")
    subprocess.run(
        ["patch", "-s", "-p1", "--no-backup-if-mismatch", "-i", PATCH], cwd=after, check=True
    )
    return Build(kernel, before), Build(kernel, after)


def ask(before: Build, after: Build, *words: str, with_source: bool = True) -> Any:
    options: list[str | os.PathLike[str]] = []
    for build in (before, after):
        options += ["--other-vmlinux", build.image]
    if with_source:
        for build in (before, after):
            options += ["--other-source", build.source]
    done = run_kcovdbg(*options, *words, "--json")
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def same_lines(before: Build, after: Build) -> Mapping[int, int]:
    """The lines that both versions have, as difflib pairs them."""
    texts = [
        [line.replace("override_release", "release_override") for line in build.text]
        for build in (before, after)
    ]
    blocks = difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks()
    return {block.a + at + 1: block.b + at + 1 for block in blocks for at in range(block.size)}


@pytest.mark.parametrize("with_source", [True, False])
def test_points_are_matched_as_a_diff_pairs_their_lines(
    builds: tuple[Build, Build], with_source: bool
) -> None:
    before, after = builds
    everything = before.trace("all", list(before.lines))
    # A trace of one point: all others are on the left only, with their counterparts.
    one = after.trace("one", after.of("release_override")[:1])
    rows = ask(before, after, "diff", "--pc", "raw", everything, one, with_source=with_source)
    pairs = same_lines(before, after)
    renamed = set(before.of("override_release"))
    paired = wrong = 0
    for row in rows:
        if int(row["pc"], 0) in renamed:
            # A function of another name is another function.
            assert row["side"] == "right" or row["counterpart"] is None
        if row["counterpart"] is None or int(row["counterpart"], 0) not in after.lines:
            continue
        paired += 1
        wrong += (
            pairs.get(before.lines[int(row["pc"], 0)][1])
            != after.lines[int(row["counterpart"], 0)][1]
        )
    assert len(before.lines) > 500
    assert paired > 0.98 * (len(before.lines) - len(renamed))
    assert wrong <= (0 if with_source else 0.01 * paired)
