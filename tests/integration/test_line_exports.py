# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exports of lines, functions and branches: a program's own run, which gcov counts as well, in the
programs that read them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.kcovdbg_run import run_kcovdbg
from tests.support.compiled_image import run
from tests.support.programs import output_of
from tests.unit.export.test_export_formats import read_cobertura, read_lcov

HEADER = """\
static inline __attribute__((always_inline)) int clamp_to(int number, int most)
{
	extern int mark(int);
	if (number > most)
		return mark(most);
	return number;
}
static inline __attribute__((always_inline)) int unused_clamp(int number)
{
	extern int mark(int);
	return mark(number) + 7;
}
"""
SOURCE = """\
#include "sub/clamp.h"
int __attribute__((noinline)) mark(int number)
{
	return number ^ 3;
}
static int __attribute__((noinline)) sum(int count)
{
	int i, total = 0;

	for (i = 0; i < count; i++) {
		if (i == 1000)
			total -= mark(7);
		total += clamp_to(i, 3);
	}
	return total;
}
int __attribute__((noinline)) never(int number)
{
	if (number > 3)
		return unused_clamp(1);
	return sum(number);
}
static inline __attribute__((always_inline)) int scale(int number)
{
	return number * 12345 ^ number;
}
int __attribute__((noinline)) work(int number)
{
	if (number == 77)
		return never(number);
	return sum(number) + scale(number);
}
"""
OTHER = """\
int __attribute__((noinline)) idle(int number)
{
	return number * 3;
}
"""
MAIN = """\
#include <stdio.h>
int work(int number), idle(int number);
static unsigned long records[4096];
static int count;
__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
	if (count < 4096)
		records[count++] = (unsigned long)__builtin_return_address(0);
}
int main(int argc, char **argv)
{
	int i;

	(void)argv;
	work(9);
	if (argc > 5)
		idle(argc);
	for (i = 0; i < count; i++)
		printf("%#lx\\n", records[i]);
	return 0;
}
"""


class Program(NamedTuple):
    """A program that was run, and its trace."""

    folder: Path
    """With its sources, which debug info names relative to it."""
    image: Path
    trace: Path

    def export(self, *words: str | Path, format_name: str = "lcov") -> list[str]:
        """Return the lines of an export."""
        out = self.folder / "export.out"
        arguments = (
            "-s",
            self.image,
            "--source-dir",
            self.folder,
            "export",
            format_name,
            f"file:{self.trace}",
        )
        run_kcovdbg(*arguments, "--pc", "raw", *words, "-o", out, status=0)
        return out.read_text().splitlines()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("program")
    texts = {"sub/clamp.h": HEADER, "src/work.c": SOURCE, "src/idle.c": OTHER, "main.c": MAIN}
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    flags = ["gcc", "-g", "-O2", "-fno-pie", "-I.", "-c"]
    for name in ("work", "idle"):
        run([*flags, "-fsanitize-coverage=trace-pc", f"src/{name}.c", "-o", f"{name}.o"], folder)
    run([*flags, "main.c"], folder)
    run(
        ["gcc", "-no-pie", "-Wl,--build-id=sha1", "-o", "image", "work.o", "idle.o", "main.o"],
        folder,
    )
    trace = folder / "trace"
    trace.write_text(output_of(folder / "image"))
    return Program(folder, folder / "image", trace)


class Gcov(NamedTuple):
    """What gcov counts of a file."""

    lines: dict[int, int]
    functions: dict[str, int]
    starts: dict[str, int]


@pytest.fixture(scope="module")
def truth(program: Program) -> dict[str, Gcov]:
    """Return what gcov counts of the same run, by file."""
    folder = program.folder / "gcov"
    folder.mkdir()
    flags = ["gcc", "-g", "-O0", "--coverage", "-I..", "-c"]
    for name in ("work", "idle"):
        run([*flags, f"../src/{name}.c", "-o", f"{name}.o"], folder)
    run(["gcc", "-c", "../main.c"], folder)
    run(["gcc", "--coverage", "-o", "image", "work.o", "idle.o", "main.o"], folder)
    run(["./image"], folder)
    found: dict[str, Gcov] = {}
    for name in ("work", "idle"):
        report = subprocess.run(
            ["gcov", "--json-format", "--stdout", f"{name}.o"],
            cwd=folder,
            capture_output=True,
            check=True,
        )
        for file in json.loads(report.stdout)["files"]:
            lines = {row["line_number"]: row["count"] for row in file["lines"]}
            functions = {row["name"]: row["execution_count"] for row in file["functions"]}
            starts = {row["name"]: row["start_line"] for row in file["functions"]}
            found[str((folder / file["file"]).resolve())] = Gcov(lines, functions, starts)
    return found


def test_lines_and_functions_are_those_of_gcov(program, truth):
    read = read_lcov(program.export())
    compared = total = 0
    for path in ("src/work.c", "src/idle.c", "sub/clamp.h"):
        lines, functions, starts = truth[str(program.folder / path)]
        found = read[str(program.folder / path)]
        both = lines.keys() & found.lines.keys()
        assert {line: found.lines[line] > 0 for line in both} == {
            line: lines[line] > 0 for line in both
        }
        executed = {name: hits > 0 for name, (_, hits) in found.functions.items()}
        # gcov does not list functions that are always inlined.
        inlined = {"clamp.h": {"clamp_to": 1, "unused_clamp": 0}, "work.c": {"scale": 1}}
        expected = {**functions, **inlined.get(Path(path).name, {})}
        assert executed == {name: count > 0 for name, count in expected.items()}
        for name, start in starts.items():
            # genhtml 2 takes a function from its first line that is known.
            assert found.functions[name][0] == min(line for line in found.lines if line >= start)
        compared += len(both)
        total += len(lines)
    # The first line of a function is that of its name for gcov, and that of its brace for a compiler
    # that optimizes.
    assert compared >= total * 0.6
    # How often each was called, of which gcov has the number.
    functions = truth[str(program.folder / "src/work.c")].functions
    work = read[str(program.folder / "src/work.c")].functions
    assert {name: work[name][1] for name in functions} == functions


def test_functions_agree_with_their_lines(program):
    """lcov 2 refuses a function without an executed line that was executed, and the reverse: each
    has the lines up to the next one, as for ``scale``, which is inlined behind one that never ran.
    """
    for found in read_lcov(program.export()).values():
        starts = sorted({line for line, _ in found.functions.values()})
        for start, end in pairwise([*starts, 1 << 30]):
            lines = [hits for line, hits in found.lines.items() if start <= line < end]
            entered = [hits for line, hits in found.functions.values() if line == start]
            assert any(lines) == any(entered), start


def test_branches(program):
    work = read_lcov(program.export())[str(program.folder / "src/work.c")]
    text = SOURCE.splitlines()
    sides = {
        text[line - 1].strip(): sorted(hits or 0 for hits in taken)
        for (line, _), taken in work.branches.items()
    }
    assert sides["if (number == 77)"] == [0, 1]
    assert sides["if (i == 1000)"] == [0, 9]
    assert sides["if (number > 3)"] == [0, 0]


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("--file", "src"), {"src/work.c", "src/idle.c"}),
        (("--file", "src/idle.c"), {"src/idle.c"}),
        (("--file", "sub"), {"sub/clamp.h"}),
        (("--function", "idle"), {"src/idle.c"}),
        (("--function", "never"), {"src/work.c"}),
    ],
)
def test_selected_files(program, words, files):
    everything, read = read_lcov(program.export()), read_lcov(program.export(*words))
    assert {str(Path(path).relative_to(program.folder)) for path in read} == files
    for path, found in read.items():
        assert found.lines
        assert found.functions
        if words[0] == "--file":
            assert found == everything[path]
    if words == ("--function", "never"):
        (found,) = read.values()
        assert found.functions.keys() == {"never"}
        start = SOURCE.splitlines().index("int __attribute__((noinline)) never(int number)") + 1
        assert all(start <= line <= start + 5 for line in found.lines)
        assert set(found.lines.values()) == {0}


def test_file_in_which_nothing_ran(program):
    (found,) = read_lcov(program.export("--file", "src/idle.c")).values()
    assert set(found.lines.values()) == {0}
    assert [hits for _, hits in found.functions.values()] == [0]


def test_cobertura_has_what_lcov_has(program):
    lines = program.export(format_name="cobertura")
    sources, files = read_cobertura(lines)
    assert sources == [str(program.folder)]
    expected = read_lcov(program.export())
    assert files == {
        str(Path(path).relative_to(program.folder)): found.lines for path, found in expected.items()
    }


@pytest.mark.parametrize("by", ["directory", "file", "function"])
def test_points_has_the_figures_of_the_export(program, by):
    words = (
        "-s",
        program.image,
        "points",
        "src",
        f"file:{program.trace}",
        "--pc",
        "raw",
        "--by",
        by,
        "--json",
    )
    rows = json.loads(run_kcovdbg(*words, status=0).stdout)
    read = {
        Path(path).name: found for path, found in read_lcov(program.export("--file", "src")).items()
    }
    lines = [hits for found in read.values() for hits in found.lines.values()]
    entered = [hits for found in read.values() for _, hits in found.functions.values()]
    assert sum(row["lines"] for row in rows) == len(lines)
    assert sum(row["executed_lines"] for row in rows) == sum(map(bool, lines))
    assert sum(row["functions"] for row in rows) == len(entered)
    assert sum(row["executed_functions"] for row in rows) == sum(map(bool, entered))
    assert all(row["line_share"] == row["executed_lines"] / row["lines"] for row in rows)
    if by == "file":
        assert {Path(row["name"]).name for row in rows} == read.keys()
    if by == "function":
        executed = {
            row["name"]: (bool(row["executed_functions"]), bool(row["executed_lines"]))
            for row in rows
        }
        assert executed["sum"] == executed["work"] == executed["mark"] == (True, True)
        assert executed["never"] == executed["idle"] == (False, False)


def test_points_of_several_traces(program, tmp_path):
    """Together they executed what one of them did; of an incomplete one the rest is unknown."""
    pcs = program.trace.read_text().split()
    (tmp_path / "a").write_text("\n".join(pcs[::2]))
    (tmp_path / "b").write_text("\n".join(pcs[1::2]))
    command = ("-s", program.image, "points", "src/work.c", "--pc", "raw", "--by", "file", "--json")
    (expected,) = json.loads(run_kcovdbg(*command, f"file:{program.trace}", status=0).stdout)
    (found,) = json.loads(
        run_kcovdbg(*command, f"file:{tmp_path}/a", f"file:{tmp_path}/b", status=0).stdout
    )
    assert found["executed_lines"] + found["unknown_lines"] >= expected["executed_lines"]
    assert found["functions"] == expected["functions"]


def test_incomplete_trace_has_executed_lines_alone(program, tmp_path):
    """A buffer that was full: what is not in it may have been dropped."""
    pcs = [int(word, 16) for word in program.trace.read_text().split()]
    trace = tmp_path / "full.kcov"
    trace.write_bytes(b"".join(word.to_bytes(8, "little") for word in (len(pcs), *pcs)))
    side = {
        "format": 1,
        "mode": "TRACE_PC",
        "word_size": 8,
        "byteorder": "little",
        "size": len(pcs) + 1,
        "kaslr_offset": "0x0",
    }
    Path(f"{trace}.json").write_text(json.dumps(side))
    whole = read_lcov(program.export())
    for name in (trace, tmp_path):
        read = read_lcov(program._replace(trace=name).export()) if name.is_file() else None
        if read is None:
            shutil.copy(trace, tmp_path / "again.kcov")
            shutil.copy(f"{trace}.json", tmp_path / "again.kcov.json")
            # Of several traces, one was full.
            read = read_lcov(program._replace(trace=name).export())
        hits = [count for found in read.values() for count in found.lines.values()]
        assert hits
        assert 0 not in hits
        executed = {
            (path, line)
            for path, found in whole.items()
            for line, count in found.lines.items()
            if count
        }
        assert {(path, line) for path, found in read.items() for line in found.lines} <= executed
        assert all(count for found in read.values() for _, count in found.functions.values())


def test_source_has_the_states_of_the_export(program):
    read = read_lcov(program.export())
    words = "-s", program.image, "source", f"file:{program.trace}", "--pc", "raw", "--json"
    decided = {"executed": True, "partly": True, "not-executed": False}
    states = {
        (Path(row["file"]).name, row["line"]): decided.get(row["state"])
        for row in json.loads(run_kcovdbg(*words, status=0).stdout)
        if row["state"] != "no-code"
    }
    exported = {
        (Path(path).name, line): hits > 0
        for path, found in read.items()
        for line, hits in found.lines.items()
    }
    assert len(states) > 10
    assert {place: exported.get(place) for place in states} == states
    text = SOURCE.splitlines()
    # It has no code of its own, but what is inlined there.
    call = text.index("		return unused_clamp(1);") + 1
    assert exported["work.c", call] is False


def find_sums(printed: str) -> dict[str, tuple[int, int]]:
    """Return what lcov and genhtml say of lines, functions and branches."""
    found = re.findall(r"(lines|functions|branches)\.+ *: *[\d.]+% \((\d+) of (\d+)", printed)
    return {kind: (int(hit), int(total)) for kind, hit, total in found}


def test_lcov_and_genhtml(program):
    read = read_lcov(program.export())
    out = program.folder / "export.out"
    expected = {
        "lines": [hits for found in read.values() for hits in found.lines.values()],
        "functions": [hits for found in read.values() for _, hits in found.functions.values()],
        "branches": [
            side or 0
            for found in read.values()
            for sides in found.branches.values()
            for side in sides
        ],
    }
    sums = {kind: (sum(map(bool, hits)), len(hits)) for kind, hits in expected.items()}
    assert all(0 < hit < total for hit, total in sums.values())
    options = ("--rc", "lcov_branch_coverage=1")
    assert find_sums(output_of("lcov", "--summary", out, *options)) == sums
    html = ("genhtml", out, "--branch-coverage", "-o", program.folder / "html", *options)
    assert find_sums(output_of(*html)) == sums


def test_pycobertura(program):
    pycobertura = pytest.importorskip("pycobertura")
    filesystem = pytest.importorskip("pycobertura.filesystem")
    program.export(format_name="cobertura")
    out = program.folder / "export.out"
    report = pycobertura.Cobertura(str(out), filesystem.DirectoryFileSystem(str(program.folder)))
    read = read_lcov(program.export())
    assert set(report.files()) == {str(Path(path).relative_to(program.folder)) for path in read}
    for path, found in read.items():
        name = str(Path(path).relative_to(program.folder))
        missed = {line for line, hits in found.lines.items() if not hits}
        # What has a branch that only went one way is missed as well.
        missed |= {line for (line, _), sides in found.branches.items() if 0 in sides}
        assert set(report.missed_statements(name)) == missed
        assert set(report.hit_statements(name)) == found.lines.keys() - missed
    everything = [hits for found in read.values() for hits in found.lines.values()]
    assert report.line_rate() == pytest.approx(
        sum(map(bool, everything)) / len(everything), abs=1e-3
    )


def test_gcovr(program, tmp_path):
    pytest.importorskip("gcovr")
    program.export(format_name="cobertura")
    document = program.folder / "export.xml"
    shutil.copy(program.folder / "export.out", document)
    options = (
        "--root",
        program.folder,
        "--cobertura-add-tracefile",
        document,
        "--json-pretty",
        "--json",
        tmp_path / "out",
    )
    output_of(sys.executable, "-m", "gcovr", *options)
    files = json.loads((tmp_path / "out").read_text())["files"]
    found = {
        file["file"]: {row["line_number"]: row["count"] for row in file["lines"]} for file in files
    }
    read = read_lcov(program.export())
    assert found == {
        str(Path(path).relative_to(program.folder)): records.lines for path, records in read.items()
    }


def test_gcovr_without_any_text(program, tmp_path):
    """An image away from its sources: names are relative, as in debug info."""
    pytest.importorskip("gcovr")
    image, document = tmp_path / "image", tmp_path / "export.xml"
    shutil.copy(program.image, image)
    words = ("export", "cobertura", f"file:{program.trace}", "--pc", "raw", "-o", document)
    run_kcovdbg("-s", image, *words, status=0)
    # Names are relative to the working directory then.
    options = ("--cobertura-add-tracefile", document, "--json")
    output_of(sys.executable, "-m", "gcovr", *options, tmp_path / "out")
    files = json.loads((tmp_path / "out").read_text())["files"]
    assert {file["file"] for file in files} == {"src/work.c", "src/idle.c", "sub/clamp.h"}


@pytest.mark.parametrize("format_name", ["lcov", "cobertura"])
def test_diff_cover(program, truth, tmp_path, format_name):
    """Of a patch that adds one file: lines that gcov says ran, of those that are known."""
    pytest.importorskip("diff_cover")
    tree = tmp_path / "tree"
    shutil.copytree(program.folder / "src", tree / "src")
    shutil.copytree(program.folder / "sub", tree / "sub")
    git = ("git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a@b")
    output_of(*git, "init", "-q", "-b", "main")
    output_of(*git, "commit", "-q", "--allow-empty", "-m", "empty")
    output_of(*git, "checkout", "-q", "-b", "work")
    output_of(*git, "add", ".")
    output_of(*git, "commit", "-q", "-m", "work")
    out = tmp_path / f"out.{'info' if format_name == 'lcov' else 'xml'}"
    arguments = (
        "-s",
        program.image,
        "--source-dir",
        tree,
        "export",
        format_name,
        f"file:{program.trace}",
        "--pc",
        "raw",
    )
    run_kcovdbg(*arguments, "-o", out, status=0)
    report = tmp_path / "report.json"
    command = (
        sys.executable,
        "-m",
        "diff_cover.diff_cover_tool",
        out,
        "--compare-branch",
        "main",
        "--format",
        f"json:{report}",
    )
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    stats = json.loads(report.read_text())["src_stats"]
    read = read_lcov(program.export())
    for name in ("src/work.c", "src/idle.c", "sub/clamp.h"):
        found = read[str(program.folder / name)]
        missed = {line for line, hits in found.lines.items() if not hits}
        if format_name == "lcov":
            # Of a function that was not executed, diff-cover takes the first line as well.
            missed |= {line for line, hits in found.functions.values() if not hits}
        assert set(stats[name]["violation_lines"]) == missed
        counts = truth[str(program.folder / name)].lines
        assert {
            line: counts[line] for line in stats[name]["violation_lines"] if counts.get(line)
        } == {}
