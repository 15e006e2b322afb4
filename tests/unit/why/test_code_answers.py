# SPDX-License-Identifier: LGPL-2.1-or-later
"""``why`` about code, on a program that records what it executes as a kernel does: what it ran is
the truth.
"""

import html
import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.frontends.cli import main
from kcovdbg.frontends.mcp.tools import ToolBox
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.trace_paths import FileConfinement
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.records.side_file import side_path
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import make_table
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.support.compiled_image import run
from tests.support.state import Streams, make_workspace, strict_schema

SOURCE = Path(__file__).parents[2] / "support" / "programs" / "called.c"
FILE = "dir/called.c"
ASSEMBLY = "dir/entry.S"
# As SYM_CODE_START() makes it: the symbol is of no function.
ENTRY = """.globl entry
.section .entry.text, "ax"
entry:
    nop
    ret
.data
.globl table
table:
    .quad 1
"""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the program makes system calls of x86-64"
)


class Program:
    """The program, with traces of its calls beside it."""

    def __init__(self, folder, capsys):
        self.folder, self._capsys = folder, capsys
        (folder / "dir").mkdir()
        (folder / FILE).write_text(SOURCE.read_text())
        options = [
            "-g",
            "-O2",
            "-fno-pie",
            "-fno-stack-protector",
            "-fcf-protection=none",
            "-fno-ipa-cp",
            "-fno-ipa-sra",
        ]
        options += ["-fsanitize-coverage=trace-pc,trace-cmp", "-fno-optimize-sibling-calls"]
        run(["gcc", *options, "-c", FILE, "-o", "called.o"], folder)
        (folder / ASSEMBLY).write_text(ENTRY)
        run(["gcc", "-g", "-c", ASSEMBLY, "-o", "entry.o"], folder)
        link = ["-no-pie", "-nostdlib", "-static", "-Wl,--build-id=sha1", "-Wl,-z,noexecstack"]
        run(["gcc", *link, "-o", "image", "called.o", "entry.o"], folder)
        self.image = folder / "image"
        with ElfFile(self.image) as elf:
            make_table(elf).write(folder / "table")
        self.table = LocationTable(folder / "table")

    def record(self, *letters, mode="TRACE_PC", **header):
        """Run some calls; return the name of the trace."""
        done = subprocess.run([self.image, *letters], capture_output=True, check=True)
        path = self.folder / f"{''.join(letters)}-{mode}.kcov"
        path.write_bytes(done.stdout if mode == "TRACE_PC" else done.stderr)
        side = {
            "format": 1,
            "mode": mode,
            "word_size": 8,
            "byteorder": "little",
            "size": 1 << 14,
            **header,
        }
        side_path(path).write_text(json.dumps(side))
        return f"file:{path}"

    def ask(self, *words):
        """Return the rows; the exit status and the remarks are kept."""
        self.status = main(["-s", str(self.image), "why", *words, "--json"])
        out, self.said = self._capsys.readouterr()
        rows = json.loads(out) if out else []
        jsonschema.validate(rows, strict_schema("why"))
        return rows

    def out(self):
        """Return what was printed."""
        return self._capsys.readouterr().out

    def codes(self, *words):
        return [row["code"] for row in self.ask(*words)]

    def line(self, part):
        return next(
            number for number, text in enumerate(SOURCE.read_text().splitlines(), 1) if part in text
        )

    def place(self, part):
        return f"{FILE}:{self.line(part)}"


@pytest.fixture
def program(tmp_path, capsys):
    return Program(tmp_path, capsys)


def row_of(rows, code):
    (row,) = [row for row in rows if row["code"] == code]
    return row


@pytest.mark.parametrize("traces", [(), ("1",)])
def test_assembly_outside_of_functions(program, traces):
    """It has code, and is of no module."""
    names = [program.record(*traces)] if traces else []
    for subject in ("entry", f"{ASSEMBLY}:4"):
        (row,) = program.ask(subject, *names)
        assert row["code"].endswith("-not-instrumented"), row


def test_a_list_of_another_build(program):
    """Its PCs do not say that code did not run."""
    start = next(iter(program.table.pcs(PointKind.PC)))
    path = program.folder / "other.txt"
    path.write_text("".join(f"{start + 1 + 3 * number:#x}\n" for number in range(60)))
    assert program.ask("helper", f"file:{path}") == []
    assert (program.status, str(path) in program.said) == (2, True)


def test_data_is_no_function(program):
    assert program.ask("table", program.record("1")) == []
    assert program.status == 2


def test_paths_of_other_forms(program):
    line = program.line("CALL int helper") + 2
    for path in (f"./dir//called.c:{line}", f"dir/../{FILE}:{line}"):
        assert program.codes(path, program.record("1")) == program.codes(
            f"{FILE}:{line}", program.record("1")
        )
    words = ["--source-dir", str(program.folder), "-s", str(program.image), "why", "--json"]
    assert main([*words, f"{program.folder}/{FILE}:{line}"]) == 0
    rows = json.loads(program.out())
    assert "code-absent" not in {row["code"] for row in rows}


def test_function_that_ran(program):
    assert program.codes("helper", program.record("1")) == ["code-executed"]
    assert program.codes("deep", program.record("2")) == ["code-executed"]
    assert program.status == 0


def test_function_that_ran_only_where_it_is_inlined(program):
    """A copy that was inlined is as much the function as the one with code of its own."""
    rows = program.ask("shared", program.record("4"))
    assert [row["code"] for row in rows] == ["code-executed"]
    assert rows[0]["values"]["covered"] > 0
    rows = program.ask("shared", program.record("1"))
    assert rows[0]["code"] == "code-not-executed"
    assert rows[0]["values"]["covered"] == 0
    # Its own code, and the copy in the system call.
    assert rows[0]["values"]["points"] >= 2
    found = {row["path"][0] for row in rows if row["code"] == "system-call-not-made"}
    assert found == {"__x64_sys_four"}


def test_branch_that_never_went_there(program):
    rows = program.ask("middle", program.record("1"))
    row = row_of(rows, "branch-never-taken")
    assert rows[0]["code"] == "code-not-executed"
    assert row["path"] == ["__x64_sys_one", "helper", "middle"]
    assert row["values"] == {"branches": 1, "function": "helper"}
    guard = row["guard"]
    assert (guard["function"], guard["file"]) == ("helper", FILE)
    assert program.line("call of middle") == guard["line"]
    assert f"{FILE}:{program.line('/* guard */')}" in row["answer"]
    # The other system call leads there as well, and was not made.
    assert row_of(rows, "system-call-not-made")["path"] == ["__x64_sys_two", "middle"]
    assert {row["code"] for row in rows} == {
        "code-not-executed",
        "branch-never-taken",
        "system-call-not-made",
    }
    assert {row["question"] for row in rows} == {rows[0]["question"]}


def test_the_nearest_way_of_several_calls(program):
    rows = program.ask("deep", program.record("1"))
    row = row_of(rows, "branch-never-taken")
    assert row["path"] == ["__x64_sys_one", "helper", "middle", "deep"]
    assert row_of(rows, "system-call-not-made")["path"] == ["__x64_sys_two", "middle", "deep"]
    candidate = row_of(rows, "address-taken")
    assert candidate["values"]["function"] == "pointed"
    assert candidate["path"] is None
    assert ["ops.open" in text for text in candidate["values"]["pointers"]] == [True]


def test_what_was_compared_there(program):
    trace, compared = program.record("1"), program.record("1", mode="TRACE_CMP")
    row = row_of(program.ask("middle", trace, compared), "branch-never-taken")
    (operands,) = row["operands"]
    assert {operands["arg1"], operands["arg2"]} == {"0x5", "0x1234"}
    assert (operands["size"], operands["const"]) == (4, True)
    assert int(operands["pc"], 16) in program.table.pcs(PointKind.CMP)
    assert "0x1234" in row["answer"]
    # What was compared does not say what ran.
    program.ask("middle", compared)
    assert program.status == 2


def test_functions_that_only_pointers_lead_to(program):
    trace = program.record("1")
    rows = program.ask("connected", trace)
    assert row_of(rows, "address-taken")["values"]["pointers"] == ["ops.inner.connect[1]"]
    assert all(row["path"] is None and row["guard"] is None for row in rows)
    assert program.codes("lonely", trace) == ["code-not-executed", "never-called-directly"]
    # It was called, which no record of the caller says.
    assert program.codes("connected", program.record("3")) == ["code-executed"]


def test_line(program):
    place = program.place("deep line")
    rows = program.ask(place, program.record("2"))
    row = row_of(rows, "branch-never-taken")
    # The function ran, the line did not.
    assert row["guard"]["line"] == program.line("deep line")
    assert row["path"][-1] == "deep"
    assert program.codes(place.replace("dir/", ""), program.record("g")) == ["code-executed"]
    assert program.codes(program.place("call of middle"), program.record("g")) == ["code-executed"]
    assert "code-not-executed" in program.codes(program.place("call of deep"), program.record("1"))
    assert program.codes(f"{FILE}:1", program.record("1")) == ["code-absent"]
    assert program.ask("none/such.c:4", program.record("1")) == []
    assert program.status == 2


def test_pc(program):
    with ElfFile(program.image) as elf:
        symbol = elf.symbols.find("middle")
    (pc, *_) = [
        pc
        for pc in program.table.pcs(PointKind.PC)
        if symbol.address < pc <= symbol.address + symbol.size
    ]
    assert program.codes(hex(pc), program.record("2")) == ["code-executed"]
    rows = program.ask(hex(pc), program.record("1"))
    assert [row["code"] for row in rows[:2]] == ["code-not-executed", "branch-never-taken"]
    with ElfFile(program.image) as elf:
        data = elf.symbols.find("ops").address
    assert program.ask(hex(data), program.record("1")) == []
    assert program.status == 2


def test_function_without_points(program):
    rows = program.ask("unseen", program.record("1"))
    assert [row["code"] for row in rows] == ["code-not-instrumented"]
    assert rows[0]["path"] == ["__x64_sys_one", "unseen"]


def test_several_traces(program):
    first, second = program.record("1"), program.record("2")
    assert program.codes("middle", first, second) == ["code-executed"]
    rows = program.ask("connected", first, second)
    assert rows[0]["code"] == "code-not-executed"
    assert sum(text.startswith("file:") for text in rows[0]["evidence"]) == 2


@pytest.mark.parametrize(
    "header", [{"mode": "UNIQUE_PC"}, {"size": 10}], ids=["unique", "overflowed"]
)
def test_what_an_incomplete_trace_cannot_say(program, header):
    trace = program.record("1")
    path = side_path(Path(trace.removeprefix("file:")))
    path.write_text(json.dumps({**json.loads(path.read_text()), **header}))
    if "size" in header:
        count = int.from_bytes(Path(trace.removeprefix("file:")).read_bytes()[:8], "little")
        path.write_text(json.dumps({**json.loads(path.read_text()), "size": count + 1}))
    assert program.codes("middle", trace) == ["unknown"]
    assert program.status == 2
    assert program.codes("helper", trace) == ["code-executed"]


def test_without_a_trace(program):
    rows = program.ask(program.place("call of deep"))
    assert row_of(rows, "system-call-path")["path"][-1] == "middle"
    assert "code-executed" not in {row["code"] for row in rows}


def test_what_is_left_out_is_counted(program, monkeypatch):
    monkeypatch.setattr("kcovdbg.why.code_answers._SHOWN", 1)
    rows = program.ask("middle", program.record("1"))
    assert row_of(rows, "ways-left-out")["values"] == {"ways": 1}


def test_nothing_is_claimed_that_is_not_so(program):
    """Of each function after each run: what is said to have run did, and what is not said to have
    run did not.
    """
    functions = [
        "deep",
        "middle",
        "helper",
        "pointed",
        "connected",
        "lonely",
        "__x64_sys_one",
        "__x64_sys_two",
        "__x64_sys_three",
    ]
    ran = {
        "1": {"__x64_sys_one", "helper"},
        "2": {"__x64_sys_two", "middle", "deep"},
        "3": {"__x64_sys_three", "pointed", "connected", "deep"},
        "g": {"__x64_sys_one", "helper", "middle", "deep"},
    }
    for letter, expected in ran.items():
        trace = program.record(letter)
        for function in functions:
            rows = program.ask(function, trace)
            assert (rows[0]["code"] == "code-executed") == (function in expected), (
                letter,
                function,
            )
            for row in rows:
                if row["code"] == "branch-never-taken":
                    assert row["values"]["function"] in expected
                if row["code"] == "system-call-not-made":
                    assert row["values"]["function"] not in expected


def test_tool_of_mcp(program, monkeypatch):
    """At most 2 kB unless the call says otherwise, with the number of all rows and where to
    continue.
    """
    folder = program.folder.resolve()
    program.record("1")
    workspace = make_workspace(Streams(), monkeypatch)
    options = TargetOptions(symbols=(str(program.image),), image=True)
    kernel = Kernel(KernelOptions(lambda: open_target(options)))
    box = ToolBox(replace(workspace, inputs=UserInputs(kernel)), FileConfinement(folder))
    answer = box.call("why", {"subject": "deep", "what": ["file:1-TRACE_PC.kcov"]})
    assert not answer.is_error, answer.text
    assert len(answer.text) <= 2048
    content = json.loads(answer.text)
    assert content["total"] == 4
    assert [row["code"] for row in content["rows"]][:2] == [
        "code-not-executed",
        "system-call-not-made",
    ]
    assert content["next"] == len(content["rows"]) or content["next"] is None
    whole = box.call(
        "why", {"subject": "deep", "what": ["file:1-TRACE_PC.kcov"], "limit": 100}
    ).content
    assert len(whole["rows"]) == content["total"]
    assert box.call("why", {"subject": "deep", "what": ["file:/etc/passwd"]}).is_error


def test_branches_by_the_lines_behind_them(program):
    """With call one, middle() and deep() run only behind helper()'s branch."""
    rows = program.ask("--all", FILE, program.record("1"))
    assert program.status == 0
    lines = [row["values"]["lines"] for row in rows]
    assert lines == sorted(lines, reverse=True)
    by_place = {(row["code"], row["values"].get("function")): row for row in rows}
    branch = by_place["branch-never-taken", "helper"]
    assert branch["guard"]["line"] == program.line("call of middle")
    # middle() is called by system call two as well.
    assert branch["values"]["lines"] == 1
    assert branch["values"]["functions"] == 0
    assert by_place["several-ways", "middle"]["values"]["functions"] == 1
    assert by_place["system-call-not-made", "__x64_sys_two"]
    pointed = by_place["address-taken", "pointed"]
    assert pointed["values"]["pointers"] == ["ops.open"]
    assert ("address-taken", "helper") not in by_place
    assert by_place["never-called-directly", "lonely"]["values"]["functions"] == 1


def test_all_needs_a_trace(program):
    program.ask("--all", FILE)
    assert program.status == 2
    program.ask("--all", "dir/other.c", program.record("1"))
    assert program.status == 2


def test_file_that_is_not_built(program):
    """The tree's Makefile says which option builds it."""
    (program.folder / "dir" / "Makefile").write_text("obj-$(CONFIG_OTHER) += other.o\n")
    (program.folder / "Makefile").write_text("obj-y += dir/\n")
    (program.folder / "dir" / "other.c").write_text("int other;\n")
    trace = program.record("1")
    words = ["--source-dir", str(program.folder), "-s", str(program.image)]
    assert main([*words, "why", "dir/other.c:1", trace, "--json"]) == 0
    (row,) = json.loads(program.out())
    assert row["code"] == "code-absent"
    assert "CONFIG_OTHER" in row["answer"]
    assert main([*words, "why", "dir/another.c:1", trace]) == 2


def test_lines_that_system_calls_may_reach(program):
    """Nothing leads to lonely(): its lines do not count in the share of reachable code."""
    rows = {}
    for options in ((), ("--reachable",)):
        words = ["points", FILE, program.record("1"), "--by", "function", *options, "--json"]
        assert main(["-s", str(program.image), *words]) == 0
        rows[options] = {row["name"]: row for row in json.loads(program.out())}
    left_out = set(rows[()]) - set(rows["--reachable",])
    # What the program's start calls and records with is left out as well.
    assert "lonely" in left_out
    assert not left_out & {"shared", "helper", "middle", "connected"}
    assert {"pointed", "deep", "__x64_sys_two"} <= set(rows["--reachable",])
    for name, row in rows["--reachable",].items():
        assert row == rows[()][name]


def test_report_of_what_to_aim_at(program):
    """The page has the ranks of why --all."""
    trace, page = program.record("1"), program.folder / "page.html"
    image = ["-s", str(program.image)]
    assert main([*image, "report", "--aim", FILE, trace, "-o", str(page)]) == 0
    assert str(page) in program.out()
    markup = page.read_text()
    assert "__x64_sys_two" not in markup[: markup.index('id="aims"')]
    section = markup[markup.index('id="aims"') : markup.index('id="summary"')]
    for row in program.ask("--all", FILE, trace):
        assert html.escape(row["answer"]) in section
    assert main([*image, "report", "--aim", FILE, "-o", str(page)]) == 2


def test_order_of_places_does_not_depend_on_the_process(program):
    trace, answers = program.record("1"), set()
    for seed in ("1", "2", "3"):
        words = ["-s", str(program.image), "why", "--all", FILE, trace, "--json"]
        command = [sys.executable, "-m", "kcovdbg", *words]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        answers.add(done.stdout)
    assert len(answers) == 1


def test_a_system_call_of_an_incomplete_trace(program):
    """What has no record may have run: no system call is said not to have been made."""
    words = program.record("1", count=99, size=4)
    codes = program.codes("--all", FILE, words)
    assert "system-call-not-made" not in codes
