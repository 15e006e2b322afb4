# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of code like the kernel's, by records of its points and by gcov: a program is built with
points and optimized, and for gcov without either, and makes the same runs. The two may differ where
the source says why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.kcovdbg_run import run_kcovdbg
from tests.support.compiled_image import run
from tests.unit.export.test_export_formats import read_lcov

SOURCES = Path(__file__).parents[1] / "support" / "programs" / "kernel_like"
# In comments of the sources, which say what they mean.
_MERGED = "/* merged */"
_KNOWN = "/* known */"
UNITS = ("options", "table", "buffer")
# Options, commands for the table, bytes for the ring.
RUNS = (
    ("", "", ""),
    ("a,b,!a,s=128", "+a+a-a-a", "hello"),
    ("a,d", "+a+b+c+d+e+f+g+h+ilx", "a?nopxxyz" * 4),
    ("s=12345678", "la-z+ala-a+b0b-b", "x"),
    ("c,f,g,e,s=5", "+a+b+c+d+e+f+g+h0a0bla+i+j", "abcdefghijklmnopqrstuvwx\x01\x02"),
    ("h", "-q", "\x01?" * 9),
    ("this is much longer than thirty bytes", "+alala", "mnx"),
)
BUILDS = {
    "gcc": ("gcc", "-O2"),
    "gcc for size": ("gcc", "-Os"),
    "clang": ("clang", "-O2"),
    "clang with branch protection": ("clang", "-O2", "-fcf-protection=branch"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gcov")
    for path in SOURCES.iterdir():
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def truth(folder: Path) -> list[dict[tuple[str, int], int]]:
    """Return the lines that gcov counts, of each run."""
    for program in ("gcc", "gcov"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    own = folder / "counted"
    own.mkdir()
    for name in UNITS:
        run(["gcc", "-g", "-O0", "--coverage", "-I..", "-c", f"../{name}.c"], own)
    run(["gcc", "-w", "-c", "../main.c"], own)
    run(["gcc", "--coverage", "-o", "image", *(f"{name}.o" for name in (*UNITS, "main"))], own)
    return [dict(_count(own, words)) for words in RUNS]


def _count(folder: Path, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, int], int]]:
    for path in folder.glob("*.gcda"):
        path.unlink()
    subprocess.run(["./image", *words], cwd=folder, check=True, capture_output=True)
    counts: dict[tuple[str, int], int] = {}
    for name in UNITS:
        command = ["gcov", "--json-format", "--stdout", f"{name}.o"]
        report = subprocess.run(command, cwd=folder, check=True, capture_output=True)
        for file in json.loads(report.stdout)["files"]:
            for row in file["lines"]:
                place = Path(file["file"]).name, row["line_number"]
                counts[place] = counts.get(place, 0) + row["count"]
    yield from counts.items()


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_lines_are_those_of_gcov(folder, truth, build):
    compiler, *flags = build
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    own = folder / "-".join(build)
    own.mkdir()
    flags = [compiler, "-g", "-fno-pie", *flags, "-c"]
    for name in UNITS:
        run([*flags, "-fsanitize-coverage=trace-pc", f"../{name}.c"], own)
    run([*flags, "-w", "../main.c"], own)
    objects = [f"{name}.o" for name in (*UNITS, "main")]
    run([compiler, "-no-pie", "-Wl,--build-id=sha1", "-o", "image", *objects], own)
    different = []
    decided = 0
    for words, counted in zip(RUNS, truth, strict=True):
        ran = subprocess.run([own / "image", *words], check=True, capture_output=True, text=True)
        (own / "trace").write_text(ran.stdout)
        out = own / "lines"
        options = "export", "lcov", f"file:{own / 'trace'}", "--pc", "raw", "-o", out
        run_kcovdbg("-s", own / "image", *options, status=0)
        for path, found in read_lcov(out.read_text().splitlines()).items():
            text = (folder / Path(path).name).read_text().splitlines()
            for line, hits in found.lines.items():
                count = counted.get((Path(path).name, line))
                decided += count is not None
                if count is not None and (hits > 0) != (count > 0):
                    different.append((text[line - 1], _MERGED if hits else _KNOWN))
    assert decided > 500
    assert [(text, mark) for text, mark in different if mark not in text] == []
    assert len(different) <= decided * 0.025
