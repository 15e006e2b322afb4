# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces with records in modules: named by the side file and the module's file alone, and compared
across boots.
"""

import json
import re
import struct

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.coverage_points import PointKind, find_file_points
from tests.integration.test_two_builds import ask, images, run
from tests.support.programs import output_of
from tests.support.traces import write_words
from tests.support.two_builds import AFTER, BEFORE, build_program

SOURCE = """
int total;
__attribute__((noinline)) int keep_inner(int n)
{
    if (n == 3)
        return total;
    return n * 7;
}
int keep_outer(int n)
{
    int sum = 0;
    while (n--)
        sum += keep_inner(n);
    return sum;
}
"""
PLACES = (0x7FC0000000, 0x7FC0432000)


def read_words(path):
    return [word for (word,) in struct.iter_unpack("<Q", path.read_bytes()[8:])]


class Module:
    """A relocatable file with debug info, as a module's is."""

    def __init__(self, folder, source=SOURCE):
        self.path = folder / "keep.ko"
        self.source = source.splitlines()
        (folder / "drivers").mkdir()
        (folder / "drivers" / "keep.c").write_text(source)
        flags = ["-g", "-O1", "-fsanitize-coverage=trace-pc", "-mcmodel=kernel", "-fno-pie"]
        output_of("gcc", *flags, "-c", "drivers/keep.c", "-o", "keep.o", cwd=folder)
        output_of("ld", "-r", "--build-id=sha1", "-o", self.path, "keep.o", cwd=folder)
        with ElfFile(self.path) as elf:
            self.build_id = elf.build_id
        after_call = False
        self.functions = {}
        """Offset of each return address -> function."""
        for line in output_of("objdump", "-d", "--no-show-raw-insn", self.path).splitlines():
            if match := re.match(r"[0-9a-f]+ <(\w+)>:", line):
                function = match[1]
            elif match := re.match(r"\s*([0-9a-f]+):\s+(\w+)", line):
                if after_call:
                    self.functions[int(match[1], 16)] = function
                after_call = match[2].startswith("call")

    def lines(self, offsets):
        """Return the lines of calls before return addresses."""
        shown = output_of(
            "addr2line", "-j", ".text", "-e", self.path, *(hex(offset - 1) for offset in offsets)
        )
        return [int(line.rpartition(":")[2].split()[0]) for line in shown.splitlines()]

    def trace(self, program, name, place):
        """Write a trace of all of its points, after some of the program; return its name and its
        offsets in order.
        """
        program.run(name, 9)
        path = program.folder / f"{name}.kcov"
        offsets = sorted(self.functions) * 2
        write_words(path, read_words(path) + [place + offset for offset in offsets])
        side = path.with_name(f"{path.name}.json")
        here = {
            "name": "keep",
            "build_id": self.build_id,
            "size": 4096,
            "sections": {".text": hex(place + 0x1000)},
        }
        # As if the kernel had been moved by 4096.
        side.write_text(
            json.dumps(
                {**json.loads(side.read_text()), "kaslr_offset": "0x1000", "modules": [here]}
            )
        )
        return f"file:{path}", offsets


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield build_program(tmp_path_factory.mktemp("program") / "p", BEFORE)


@pytest.fixture(scope="module")
def module(program):
    return Module(program.folder)


def test_names_come_from_the_modules_file(program, module):
    trace, offsets = module.trace(program, "named", PLACES[0])
    assert len(set(offsets)) > 5
    _, rows = ask(
        *images(program),
        "--other-vmlinux",
        module.path,
        "diff",
        trace,
        program.run("alone", 9)[0],
        "--json",
    )
    found = {int(row["pc"], 0) - PLACES[0]: row["frames"][0] for row in rows}
    assert {offset: frame["function"] for offset, frame in found.items()} == module.functions
    assert [found[offset]["line"] for offset in sorted(found)] == module.lines(sorted(found))


def test_traces_of_two_boots(program, module):
    traces = [
        module.trace(program, f"boot{number}", place)[0] for number, place in enumerate(PLACES)
    ]
    for words in (images(program), (*images(program), "--other-vmlinux", module.path)):
        assert ask(*words, "diff", *traces, "--json") == (0, [])
        assert ask(*words, "diff", "--ordered", *traces, "--json") == (0, [])
        assert ask(*words, "trace", traces[1], "--against", traces[0])[0] == 0
    _, rows = ask(*images(program), "--other-vmlinux", module.path, "trace", traces[1], "--json")
    assert {row["function"] for row in rows} >= set(module.functions.values())


def test_what_one_boot_has_more(program, module):
    left, offsets = module.trace(program, "more", PLACES[0])
    right, _ = module.trace(program, "less", PLACES[1])
    path = program.folder / "less.kcov"
    gone = offsets[2]
    write_words(path, [word for word in read_words(path) if word != PLACES[1] + gone])
    status, (row,) = ask(
        *images(program), "--other-vmlinux", module.path, "diff", left, right, "--json"
    )
    assert (status, row["side"], int(row["pc"], 0)) == (1, "left", PLACES[0] + gone)


def test_states_of_a_modules_lines(program, module):
    """Lines without a point, and lines that were not executed, as of the image."""
    trace, offsets = module.trace(program, "states", PLACES[0])
    path = program.folder / "states.kcov"
    inner = [offset for offset in sorted(set(offsets)) if module.functions[offset] == "keep_inner"]
    by_line = dict(zip(module.lines(inner), inner, strict=True))
    missing = by_line[module.source.index("        return total;") + 1]
    write_words(path, [word for word in read_words(path) if word != PLACES[0] + missing])
    words = [*images(program), "--other-vmlinux", module.path]
    _, rows = ask(*words, "source", trace, "drivers/keep.c", "--json")
    states = {module.source[row["line"] - 1].strip(): row["state"] for row in rows}
    assert states["return total;"] == "not-executed"
    assert states["return n * 7;"] == "executed"
    assert states["while (n--)"] == "executed"
    _, rows = ask(*words, "points", "drivers", trace, "--by", "file", "--json")
    assert [row["name"] for row in rows] == ["drivers/keep.c"]
    assert rows[0]["lines"] == rows[0]["executed_lines"] + 1
    diff = program.folder / "keep.diff"
    added = "".join(f"+{line}\n" for line in module.source)
    diff.write_text(
        "diff --git a/drivers/keep.c b/drivers/keep.c\nnew file mode 100644\n--- /dev/null\n"
        f"+++ b/drivers/keep.c\n@@ -0,0 +1,{len(module.source)} @@\n{added}"
    )
    status, rows = ask(*words, "patch", diff, trace, "--json")
    patched = {row["text"].strip(): row["state"] for row in rows}
    assert status == 1
    assert patched["return total;"] == "not-executed"
    assert patched["return n * 7;"] == "executed"


def test_points_and_lines_that_differ_are_those_of_the_module(program, module):
    left, offsets = module.trace(program, "with", PLACES[0])
    right, _ = module.trace(program, "without", PLACES[0])
    inner = [offset for offset in sorted(set(offsets)) if module.functions[offset] == "keep_inner"]
    by_line = dict(zip(module.lines(inner), inner, strict=True))
    missing = by_line[module.source.index("        return total;") + 1]
    path = program.folder / "without.kcov"
    write_words(path, [word for word in read_words(path) if word != PLACES[0] + missing])
    words = [*images(program), "--other-vmlinux", module.path]
    relocations = output_of("readelf", "-W", "-r", module.path).splitlines()
    calls = [line.split()[0] for line in relocations if "__sanitizer_cov_trace_pc" in line]
    points = sorted(int(call, 16) + 4 for call in calls)
    own = [offset for offset in points if offset in inner]
    for place, expected in (("drivers/keep.c", points), ("drivers", points), ("keep_inner", own)):
        _, rows = ask(*words, "points", place, right, "--json")
        assert [int(row["pc"], 0) - PLACES[0] for row in rows] == expected
        assert {int(row["pc"], 0) - PLACES[0] for row in rows if not row["hits"]} == {missing}
    status, rows = ask(*words, "diff", "--by", "line", left, right, "--json")
    assert (status, {row["side"] for row in rows}) == (1, {"left"})
    assert "return total;" in {module.source[row["line"] - 1].strip() for row in rows}
    assert {row["file"] for row in rows} == {"drivers/keep.c"}


def test_a_branch_stands_before_a_modules_line(program, module):
    trace, offsets = module.trace(program, "branch", PLACES[0])
    inner = [offset for offset in sorted(set(offsets)) if module.functions[offset] == "keep_inner"]
    by_line = dict(zip(module.lines(inner), inner, strict=True))
    line = module.source.index("        return total;") + 1
    path = program.folder / "branch.kcov"
    write_words(path, [word for word in read_words(path) if word != PLACES[0] + by_line[line]])
    words = ["-s", program.image, "-s", module.path, "why"]
    _, rows = ask(*words, f"drivers/keep.c:{line}", trace, "--json")
    assert [row["code"] for row in rows[:2]] == ["code-not-executed", "branch-never-taken"]
    (found,) = [row for row in rows if row["code"] == "branch-never-taken"]
    assert found["guard"]["line"] == line
    assert f"drivers/keep.c:{module.source.index('    if (n == 3)') + 1}" in found["answer"]
    _, (row,) = ask(*words, "keep_outer", trace, "--json")
    assert row["code"] == "code-executed"
    _, rows = ask(*words, "--all", "drivers", trace, "--json")
    assert rows[0]["guard"]["file"] == "drivers/keep.c"


def test_a_module_whose_file_is_missing_is_named(program, module):
    """With what is missing: lines of it are unknown, not absent."""
    trace, _ = module.trace(program, "unnamed", PLACES[0])
    diff = program.folder / "unnamed.diff"
    diff.write_text("--- a/drivers/keep.c\n+++ b/drivers/keep.c\n@@ -1,0 +2,1 @@\n+int total;\n")
    for command in (
        ["source", trace],
        ["points", "--by", "file", "src", trace],
        ["diff", "--by", "line", trace, trace],
        ["patch", diff, trace],
    ):
        _, text, errors = run(*images(program), *command)
        told = f"{text}\n{errors}".splitlines()
        assert any("keep" in line and module.build_id in line for line in told), command
    _, rows = ask(*images(program), "source", trace, "--json")
    assert rows
    assert all(row["state"] for row in rows)
    alone = write_words(program.folder / "unnamed.kcov", [PLACES[0] + min(module.functions)])
    _, (row,) = ask(*images(program), "source", alone, "--json")
    assert row["file"] is None
    assert [module.build_id in error for error in row["errors"]] == [True]
    status, text, _ = run(*images(program), "patch", diff, trace, "--json")
    (row,) = json.loads(text)
    assert (status, row["state"], row["reason"]) == (2, "unknown", "module")


CODE = """
.text
call __sanitizer_cov_trace_pc
call other
jmp __sanitizer_cov_trace_pc
.section .text.unlikely, "ax"
nop
call __sanitizer_cov_trace_const_cmp4
.section .altinstr_replacement, "ax"
call __sanitizer_cov_trace_pc
"""


def test_points_of_a_modules_file(tmp_path):
    """Calls of callbacks alone: what a jump records is the address behind its caller's call."""
    (tmp_path / "code.s").write_text(CODE)
    output_of("gcc", "-m64", "-c", "code.s", "-o", "code.ko", cwd=tmp_path)
    with ElfFile(tmp_path / "code.ko") as elf:
        found = {section: points for section, points in find_file_points(elf).items() if points}
    assert found == {".text": {5: PointKind.PC}, ".text.unlikely": {6: PointKind.CMP}}


# A branch more in one function, and all lines shifted.
ADDED = "*(volatile int *)&total = n;"
CHANGED = "\n\n" + SOURCE.replace(
    "    return n * 7;", f"    if (n == 5)\n        {ADDED}\n    return n * 7;"
)


def test_modules_of_two_builds(program, module, tmp_path):
    """Points of a module are matched with all points of the other build's, executed or not."""
    after = build_program(tmp_path / "after", AFTER)
    changed = Module(after.folder, CHANGED)
    left, _ = module.trace(program, "before", PLACES[0])
    right, _ = changed.trace(after, "after", PLACES[1])
    words = [
        *images(program, after),
        "--other-vmlinux",
        module.path,
        "--other-vmlinux",
        changed.path,
    ]
    words += ["--other-source", program.folder, "--other-source", after.folder]

    def rows_of_modules(*operands):
        _, rows = ask(*words, "diff", *operands, "--json")
        return [row for row in rows if min(PLACES) <= int(row["pc"], 0) < max(PLACES) + 0x1000]

    rows = rows_of_modules(left, right)
    text = {changed.source[row["frames"][0]["line"] - 1].strip() for row in rows}
    assert {row["side"] for row in rows} == {"right"}
    assert ADDED in text
    assert text <= {ADDED, "if (n == 5)", "return n * 7;"}
    # One point of the module on the right: all others are on the left only, with their
    # counterparts.
    rows = rows_of_modules(
        left, write_words(after.folder / "after.kcov", [PLACES[1] + min(changed.functions)])
    )
    assert len(rows) > 5
    for row in rows:
        assert (row["side"], row["missing"]) == ("left", None)
        name = changed.functions[int(row["counterpart"], 0) - PLACES[1]]
        assert name == row["frames"][0]["function"]
        line = changed.lines([int(row["counterpart"], 0) - PLACES[1]])[0]
        assert changed.source[line - 1] == module.source[row["frames"][0]["line"] - 1]
