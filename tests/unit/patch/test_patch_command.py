# SPDX-License-Identifier: LGPL-2.1-or-later
"""``patch`` as a user types it, on an image that was compiled from the source that the diffs are
of.
"""

import io
import json
import re
import subprocess
import sys

import jsonschema
import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.frontends.cli import main
from kcovdbg.patch import command
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import make_table
from tests.support import compiled_image
from tests.support.compiled_image import FIRST, HEADER, SECOND, compile_image
from tests.support.state import strict_schema


def diff_of(file, text, first=1, last=None, *, context=3):
    """A diff that adds some lines of a text."""
    lines = text.splitlines()
    last = len(lines) if last is None else last
    start, end = max(first - context, 1), min(last + context, len(lines))
    body = [
        ("+" if first <= number <= last else " ") + lines[number - 1]
        for number in range(start, end + 1)
    ]
    before = len(body) - (last - first + 1)
    return (
        f"--- a/{file}\n+++ b/{file}\n@@ -{start if before else 0},{before} "
        f"+{start},{len(body)} @@\n" + "".join(line + "\n" for line in body)
    )


class Built:
    """The image, and what makes diffs and traces beside it."""

    def __init__(self, folder, capsys):
        self.folder, self._capsys = folder, capsys
        self.image = compile_image(folder)
        with ElfFile(self.image) as elf:
            make_table(elf).write(folder / "table")
        self.table = LocationTable(folder / "table")

    def points(self, function):
        (symbol,) = [one for one in self.table.functions_named(function) if one.name == function]
        return [
            pc
            for pc in self.table.pcs(PointKind.PC)
            if symbol.address < pc <= symbol.address + symbol.size
        ]

    def trace(self, name, *functions):
        """A set of PCs: all of some functions."""
        path = self.folder / name
        path.write_text(
            "".join(f"{pc:#x}\n" for function in functions for pc in self.points(function))
        )
        return f"file:{path}"

    def diff(self, text, name="change.diff"):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def ask(self, *words):
        """Return the exit status, the rows and the notes."""
        status = main(
            [
                "-s",
                str(self.image),
                "--source-dir",
                str(self.folder),
                "patch",
                *words,
                "--pc",
                "raw",
                "--json",
            ]
        )
        out, said = self._capsys.readouterr()
        return status, json.loads(out) if out else None, said


@pytest.fixture
def built(tmp_path, capsys):
    return Built(tmp_path, capsys)


def line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def states(rows):
    return {(row["file"], row["line"]): row["state"] for row in rows}


def test_states_and_attribution(built):
    diff = built.diff(
        diff_of("src/first.c", FIRST)
        + diff_of("src/second.c", SECOND)
        + diff_of("sub/inlined.h", HEADER)
    )
    second, both = built.trace("second.txt", "second"), built.trace("both.txt", "second", "first")
    status, rows, _ = built.ask(diff, second, both)
    found = states(rows)
    jsonschema.validate(rows, strict_schema("patch"))
    assert status == 1
    assert (
        found["src/first.c", line_of(FIRST, "static __attribute__((noinline, cold)) int rare")]
        == "not-executed"
    )
    assert (
        found["src/first.c", line_of(FIRST, "__attribute__((no_sanitize_coverage")]
        == "not-instrumented"
    )
    assert found["src/first.c", line_of(FIRST, "#include")] == "no-code"
    loop = ("src/second.c", line_of(SECOND, "sum += chained"))
    assert found[loop] in ("executed", "partly")
    # A header counts at each copy.
    assert found["sub/inlined.h", line_of(HEADER, "return twice(number - 1)")] in (
        "executed",
        "partly",
    )
    by_line = {(row["file"], row["line"]): row for row in rows}
    assert [one["trace"] for one in by_line[loop]["traces"]] == [second, both]
    only = by_line["src/first.c", line_of(FIRST, "if (__builtin_expect")]
    assert [one["trace"] for one in only["traces"]] == [both]
    assert all(
        row["text"] in (*FIRST.splitlines(), *SECOND.splitlines(), *HEADER.splitlines())
        for row in rows
    )


def test_each_trace_of_a_directory(built):
    (built.folder / "cov").mkdir()
    built.trace("cov/a.txt", "second")
    built.trace("cov/b.txt", "first", "second")
    diff = built.diff(diff_of("src/second.c", SECOND))
    _, rows, _ = built.ask(diff, f"file:{built.folder}/cov")
    (row,) = [row for row in rows if "sum += chained" in row["text"]]
    assert [one["trace"].rpartition("/")[2] for one in row["traces"]] == ["a.txt", "b.txt"]
    assert row["hits"] == sum(one["hits"] for one in row["traces"])


def test_all_was_executed(built):
    number = line_of(SECOND, "sum += chained")
    status, rows, _ = built.ask(
        built.diff(diff_of("src/second.c", SECOND, number, number)), built.trace("t.txt", "second")
    )
    assert (status, len(rows), rows[0]["built_line"]) == (0, 1, number)


def test_only_missed_lines(built):
    diff = built.diff(diff_of("src/first.c", FIRST))
    _, rows, _ = built.ask(diff, built.trace("t.txt", "second"), "--missed")
    assert rows
    assert {row["state"] for row in rows} <= {"not-executed", "partly", "unknown"}


def test_a_diff_of_another_state_of_the_tree(built):
    """The kernel was built from a source with two lines less above."""
    diff = built.diff(diff_of("src/second.c", "\n/* more */\n" + SECOND, 6, 10))
    _, rows, _ = built.ask(diff, built.trace("t.txt", "second"))
    assert {row["line"] - row["built_line"] for row in rows} == {2}
    diff = built.diff(
        diff_of("src/second.c", SECOND.replace("sum += chained(i)", "sum += changed(i)"), 7, 7)
    )
    status, rows, _ = built.ask(diff, built.trace("t.txt", "second"))
    assert [(row["state"], row["built_line"]) for row in rows] == [("unknown", None)]
    # Nothing is known.
    assert status == 2


def test_a_tree_that_was_changed_after_the_build(built):
    diff = built.diff(diff_of("src/second.c", SECOND))
    (built.folder / "src" / "second.c").write_text("\n\n\n" + SECOND)
    _, rows, _ = built.ask(diff, built.trace("t.txt", "second"))
    assert {(row["state"], row["built_line"]) for row in rows} == {("unknown", None)}


def test_a_file_that_is_not_built(built):
    (built.folder / "src" / "Makefile").write_text("obj-$(CONFIG_THIRD) += third.o\n")
    status, rows, _ = built.ask(
        built.diff(diff_of("src/third.c", "int x;\n")), built.trace("t.txt", "second")
    )
    assert (status, rows[0]["state"], rows[0]["option"]) == (0, "not-built", "CONFIG_THIRD")


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "src/../../x.c"])
def test_paths_out_of_the_tree(built, path):
    text = f"--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+root:x:0:0:\n"
    status, rows, _ = built.ask(built.diff(text), built.trace("t.txt", "second"))
    assert (status, rows[0]["state"]) == (2, "unknown")


def test_a_list_of_another_build(built):
    """Its PCs say neither that a line was executed nor that it was not."""
    start = built.points("second")[0]
    path = built.folder / "other.txt"
    path.write_text("".join(f"{start + 3 * number:#x}\n" for number in range(1, 60)))
    status, rows, said = built.ask(built.diff(diff_of("src/second.c", SECOND)), f"file:{path}")
    assert (status, rows) == (2, None)
    assert str(path) in said


def test_standard_input(built, monkeypatch):
    text = diff_of("src/second.c", SECOND)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    _, rows, _ = built.ask("-", built.trace("t.txt", "second"))
    assert len(rows) == len(SECOND.splitlines())


def test_what_git_has(built):
    def git(*words):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *words]
        subprocess.run(command, cwd=built.folder, capture_output=True, check=True)

    git("init", "-q")
    before = SECOND.replace("        sum += chained(i);", "        sum += chained(i - 1);")
    (built.folder / "src" / "second.c").write_text(before)
    git("add", "src/second.c")
    git("commit", "-qm", "1")
    (built.folder / "src" / "second.c").write_text(SECOND)
    trace = built.trace("t.txt", "second")
    for words in ((trace,), ("HEAD", trace)):
        _, rows, _ = built.ask(*words)
        assert [row["text"] for row in rows] == ["        sum += chained(i);"]
    git("commit", "-qam", "2")
    assert [row["line"] for row in built.ask("HEAD~1..", trace)[1]] == [
        line_of(SECOND, "sum += chained")
    ]
    assert built.ask(trace)[:2] == (0, [])


def test_a_script_that_nobody_named_runs_no_git(built, monkeypatch, capsys):
    trace = built.trace("t.txt", "second")
    diff = built.diff(diff_of("src/second.c", SECOND))
    monkeypatch.setattr(command, "git_diff", lambda *_: pytest.fail("git was run"))
    for words, status in (("HEAD~1..", 2), (diff, 0)):
        line = f"patch {words} {trace} --pc raw\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line.encode())))
        assert main(["-s", str(built.image), "--source-dir", str(built.folder)]) == status, (
            capsys.readouterr().err
        )


def test_text(built, capsys):
    diff = built.diff(diff_of("src/second.c", SECOND))
    trace = built.trace("t.txt", "second")
    capsys.readouterr()
    assert main(
        [
            "-s",
            str(built.image),
            "--source-dir",
            str(built.folder),
            "patch",
            diff,
            trace,
            "--pc",
            "raw",
        ]
    ) in (0, 1)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("src/second.c")
    (line,) = [line for line in out if "sum += chained" in line]
    assert line.split()[:3] in (
        ["1", "+", str(line_of(SECOND, "sum += chained"))],
        ["1", "~", str(line_of(SECOND, "sum += chained"))],
    )


@pytest.mark.parametrize(
    "words",
    [
        ("change.diff",),
        ("missing.diff", "{trace}"),
        ("src/second.c", "{trace}"),
        ("no..range", "{trace}"),
    ],
)
def test_wrong_words(built, words, monkeypatch):
    monkeypatch.chdir(built.folder)
    built.diff(diff_of("src/second.c", SECOND))
    trace = built.trace("t.txt", "second")
    assert built.ask(*(word.format(trace=trace) for word in words))[0] == 2


INLINED = """
extern volatile int taken;
static inline __attribute__((always_inline)) void checked(void)
{
    if (taken > 3)
        taken = 7;
}
volatile int taken;
__attribute__((noinline)) int caller(int number)
{
    if (number)
        checked();
    return 0;
}
"""


def test_a_line_that_code_is_inlined_at(tmp_path, capsys, monkeypatch):
    """It has no code of its own: what was inlined there decides."""
    text = SECOND + INLINED
    monkeypatch.setattr(compiled_image, "SECOND", text)
    built = Built(tmp_path, capsys)
    number = line_of(text, "        checked();")
    diff = built.diff(diff_of("src/second.c", text, number, number))
    (row,) = built.ask(diff, built.trace("other.txt", "second"))[1]
    assert (row["state"], row["reason"]) == ("not-executed", None)
    entry = built.folder / "entry.txt"
    entry.write_text(f"{built.points('caller')[0]:#x}\n")
    (row,) = built.ask(diff, f"file:{entry}")[1]
    # What follows the entry was not recorded, which no run of it does.
    assert (row["state"], row["reason"]) == ("unknown", "edges")
    trace = built.trace("own.txt", "caller")
    (row,) = built.ask(diff, trace)[1]
    assert (row["state"], row["reason"], [one["trace"] for one in row["traces"]]) == (
        "executed",
        None,
        [trace],
    )


def test_a_page(built, capsys):
    diff, trace = (
        built.diff(diff_of("src/second.c", SECOND) + diff_of("src/first.c", FIRST)),
        built.trace("t.txt", "second"),
    )
    words = ["-s", str(built.image), "--source-dir", str(built.folder), "report", "--pc", "raw"]
    page = built.folder / "page.html"
    assert main([*words, "--patch", diff, trace, "-o", str(page)]) == 0
    text = page.read_text()
    section = text[text.index('id="patch"') :]
    section = section[: section.index("</section>")]
    for style, part in (
        ("c-none", "return rare(number)"),
        ("c-none", "int rare(int number)"),
        ("c-", "sum += chained"),
    ):
        (row,) = [row for row in section.split("<tr") if part in re.sub("<[^>]*>", "", row)]
        assert style in row
    assert main([*words, "--patch", diff, "-o", str(built.folder / "other.html")]) == 2
    assert not (built.folder / "other.html").exists()


def test_hostile_text_is_escaped(built, capsys):
    text = "--- /dev/null\n+++ b/src/\x1b[2Jx.c\n@@ -0,0 +1 @@\n+\x1b]0;title\x07\n"
    diff, trace = built.diff(text), built.trace("t.txt", "second")
    capsys.readouterr()
    main(["-s", str(built.image), "--source-dir", str(built.folder), "patch", diff, trace])
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err


def test_blanks_that_mail_changed_are_a_reason(built):
    text = diff_of("src/second.c", SECOND)
    trace = built.trace("second.txt", "second")
    _, expected, _ = built.ask(built.diff(text), trace)
    damaged = text.replace("    ", "\t")
    _, rows, _ = built.ask(built.diff(damaged), trace)
    reasons = {row["line"]: row["reason"] for row in rows}
    assert {row["line"] for row in expected} == reasons.keys()
    changed = {row["line"] for row in expected if row["text"].startswith("    ")}
    assert {reasons[line] for line in changed} == {"blanks"}


def test_a_file_without_lines_is_named(built):
    text = diff_of("src/second.c", SECOND) + "Only in new/src: third.c\n"
    _, rows, said = built.ask(built.diff(text), built.trace("second.txt", "second"))
    assert {row["file"] for row in rows} == {"src/second.c"}
    assert "new/src/third.c" in said
