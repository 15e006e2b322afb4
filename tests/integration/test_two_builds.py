# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of two builds, before and after a patch whose effect is known: the programs print what
they executed.
"""

import contextlib
import html
import io
import json
import re

import jsonschema
import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.frontends import cli
from tests.support.browser import CONTRAST
from tests.support.state import strict_schema
from tests.support.two_builds import AFTER, BEFORE, build_program

VALUES = (150, 42, 9)
RENAMED = {"renamed loop", "renamed large"}
NAMES = {command.name for command in COMMANDS}
# The validator is slow.
SAMPLE = 20


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Location tables of these programs go to a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def before(tmp_path_factory, cache):
    return build_program(tmp_path_factory.mktemp("before") / "b", BEFORE)


@pytest.fixture(scope="module")
def after(tmp_path_factory, cache):
    return build_program(tmp_path_factory.mktemp("after") / "a", AFTER)


def run(*words):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), errors.getvalue()


def ask(*words):
    """Run the program; return its exit status and what it printed: rows as they are declared."""
    status, text, errors = run(*words)
    assert status in (0, 1), errors
    if "--json" not in words:
        return status, text
    rows = json.loads(text)
    command = next(word for word in words if word in NAMES)
    jsonschema.validate(rows[:SAMPLE], strict_schema(command))
    return status, rows


def refuse(*words):
    """Run the program, which must fail; return its errors."""
    status, _, errors = run(*words)
    assert status == 2
    return errors


def images(*programs):
    return [word for program in programs for word in ("--other-vmlinux", program.image)]


def tags(program, rows, side):
    """Return the tags on the innermost lines of rows of one side."""
    return {program.tag(row["frames"][0]) for row in rows if row["side"] == side} - {None}


def test_diff_finds_what_the_programs_say(before, after):
    left, executed_before = before.run("diff", *VALUES)
    right, executed_after = after.run("diff", *VALUES)
    status, rows = ask(*images(before, after), "diff", left, right, "--json")
    assert status == 1
    # "high" is below a condition that the patch changes, "removed" and "added" are functions of one
    # build. A function that was renamed is one that is gone and one that is new.
    assert (
        tags(before, rows, "left") - RENAMED
        == executed_before - executed_after
        == {"high", "removed"}
    )
    assert (
        tags(after, rows, "right") - RENAMED
        == executed_after - executed_before
        == {"new answer", "added"}
    )
    missing = {(row["side"], row["frames"][0]["function"]): row["missing"] for row in rows}
    assert missing["left", "removed"] == missing["right", "added"] == "function"
    # The line of "high" is in both builds: the patched program did not come to it.
    (high,) = [row for row in rows if before.tag(row["frames"][0]) == "high"]
    assert high["missing"] is None
    assert int(high["counterpart"], 0)
    assert {row["missing"] for row in rows if row["frames"][0]["function"] == "clamp"} == {
        "line",
        None,
    }
    assert missing["left", "old_name"] == missing["right", "new_name"] == "function"
    causes = {
        row["frames"][0]["function"]: (row["cause"], row["cause_detail"])
        for row in rows
        if row["cause"] is not None
    }
    assert causes == {
        "removed": ("gone", None),
        "added": ("new", None),
        "old_name": ("renamed", "new_name"),
        "new_name": ("renamed", "old_name"),
    }
    # Moved, inlined: nothing of these differs.
    assert not {row["frames"][-1]["function"] for row in rows} & {"moved"}
    assert not {row["frames"][0]["function"] for row in rows} & {"helper"}


CAUSES_CALC = """#include "src/calc.h"
NOINLINE {quiet} int quiet(int value) {{ hit("quiet"); return value + 1; }}
NOINLINE int skipped(int value) {{ hit("skipped"); return value + 2; }}
{only} NOINLINE int {only_name}(int value) {{ hit("only"); return value * 5; }}
{optional}
/* Inlined, with a point behind its condition alone. */
static inline __attribute__((always_inline)) int limited(int value)
{{
	if (value > 1500) {{
		hit("limited");
		value = 1500;
	}}
	return value;
}}
/* A macro makes the name. */
#define DEFINE(name) NOINLINE int made_##name
DEFINE(up)(int value) {{ hit("made up"); return value - 7; }}
int run(int value)
{{
	int sum = value - 1;
	sum += limited(value);
	sum += quiet(value);
	if (value > 1000)
		sum += made_up(value);
	if (value > 1000)
		sum += skipped(value);
	return sum + {only_name}(value) + optional(value);
}}
"""


def test_each_function_that_one_build_lacks_has_its_cause(tmp_path):
    """Gone, not instrumented any more, not built, not reached: as the builds were made."""
    optional = "int optional(int value);"
    files = {
        "src/optional.c": '#include "src/calc.h"\nint optional(int value)\n'
        '{ hit("optional"); return value; }\n',
        "src/calc.c": CAUSES_CALC.format(quiet="", only="", only_name="old", optional=optional),
    }
    left = build_program(tmp_path / "left", files)
    calc = CAUSES_CALC.format(
        quiet="__attribute__((no_sanitize_coverage))",
        only="static",
        only_name="recent",
        optional="#define optional(value) 0",
    )
    right = build_program(tmp_path / "right", {"src/calc.c": calc})
    # In the tree, but not built.
    (right.folder / "src/optional.c").write_text(files["src/optional.c"])
    (right.folder / "src/Makefile").write_text("obj-$(CONFIG_OPTIONAL) += optional.o\n")
    traces = left.run("causes", 2000)[0], right.run("causes", 1)[0]
    for option in ((), ("--ordered",)):
        _, rows = ask(*images(left, right), "diff", *option, *traces, "--json")
        causes = {
            (row["side"], row["frames"][0]["function"]): (row["cause"], row["cause_detail"])
            for row in rows
        }
        # Both builds executed some of run().
        assert {causes.pop((side, "run"), (None, None)) for side in ("left", "right")} == {
            (None, None)
        }
        assert causes == {
            ("left", "quiet"): ("not-instrumented", None),
            ("left", "skipped"): ("not-reached", None),
            # Its condition ran, in the block of its caller.
            ("left", "limited"): ("unrecorded", None),
            # Nothing says where it begins.
            ("left", "made_up"): ("unknown", None),
            ("left", "old"): ("gone", None),
            ("left", "optional"): ("not-built", "CONFIG_OPTIONAL"),
            ("right", "recent"): ("new", None),
        }
    text = ask(*images(left, right), "diff", *traces)[1]
    (line,) = [line for line in text.splitlines() if " optional" in line]
    assert "CONFIG_OPTIONAL" in line
    # Without its sources, a function may as well be inlined.
    (right.folder / "src/calc.c").unlink()
    _, rows = ask(*images(left, right), "diff", *traces, "--json")
    assert {row["cause"] for row in rows if row["frames"][0]["function"] == "old"} == {"no-point"}


def test_counterparts_are_on_the_same_text(before, after):
    """Every line that both traces have, by its tag: a counterpart that is executed has the same
    one.
    """
    left, _ = before.run("texts", -5, 3, 7, 9, 150)
    right, _ = after.run("texts", 1)
    _, rows = ask(*images(before, after), "diff", left, right, "--json")
    executed = {before.tag(row["frames"][0]) for row in rows if row["missing"] is None} - {None}
    # What an argument of 1 makes of it is on both sides.
    assert executed == {"high", "moved seven", "nine", "helper odd"} - after.run("texts", 1)[1]


def test_same_behavior_is_no_difference(before, after, tmp_path):
    """A patch that shifts lines but changes nothing that runs."""
    files = {"src/calc.c": "\n\n\n" + BEFORE["src/calc.c"], "src/other.c": BEFORE["src/other.c"]}
    shifted = build_program(tmp_path / "shifted", files)
    left, executed = before.run("same", -5, 9)
    right, executed_too = shifted.run("same", -5, 9)
    assert executed == executed_too
    for words in (images(before, shifted), ()):
        assert ask(*words, "diff", left, right, "--json") == (0, [])
        assert ask(*words, "diff", "--ordered", left, right, "--json") == (0, [])
        assert ask(*words, "trace", right, "--against", left)[0] == 0
        text = ask(*words, "view", "--text", "--fold", left, right)[1]
        heading, only, *_ = text.splitlines()
        assert "same.kcov" in heading
        assert "equal records" in only


def test_order_of_lines_without_sources(before, after):
    """The tables in the cache have no source: functions and the order of their lines decide."""
    left, executed_before = before.run("order", *VALUES)
    right, executed_after = after.run("order", *VALUES)
    _, rows = ask("diff", left, right, "--json")
    assert tags(before, rows, "left") >= {"removed"}
    assert tags(after, rows, "right") >= {"added"}
    assert not {row["frames"][-1]["function"] for row in rows} & {"moved"}
    assert not (tags(before, rows, "left") - RENAMED) & executed_after
    assert not (tags(after, rows, "right") - RENAMED) & executed_before


def test_ordered_diff_shows_each_side_with_its_own_names(before, after):
    left, _ = before.run("ordered", 2)
    right, _ = after.run("ordered", 2)
    status, rows = ask(*images(before, after), "diff", "--ordered", left, right, "--json")
    assert status == 1
    found = {(row["side"], row["frames"][-1]["function"]) for row in rows}
    assert {("left", "removed"), ("right", "added")} <= found
    assert not {function for _, function in found} & {"moved"}


def test_trace_against_an_older_build(before, after):
    left, _ = before.run("trace", *VALUES)
    right, _ = after.run("trace", *VALUES)
    status, rows = ask(*images(before, after), "trace", right, "--against", left, "--json")
    assert status == 1
    sides = {row["function"]: row["side"] for row in rows}
    assert sides["removed"] == "against"
    assert sides["added"] == "what"
    assert sides["moved"] == sides["clamp"] == "both"
    assert (sides["old_name"], sides["new_name"]) == ("against", "what")
    (moved,) = [row for row in rows if row["function"] == "moved"]
    assert moved["file"] == "src/other.c"
    assert moved["records"] == moved["against_records"] > 0


@pytest.mark.parametrize("option", ["-O2", "-Og"])
def test_compilers_differ_in_inlining(before, tmp_path, option):
    """The same source by clang, and by gcc with other options: what the programs executed is the
    same.
    """
    compiler = "clang" if option == "-O2" else "gcc"
    other = build_program(tmp_path / "other", BEFORE, compiler, option)
    left, executed = before.run("compiler", *VALUES)
    right, executed_too = other.run("compiler", *VALUES)
    assert executed == executed_too
    _, rows = ask(*images(before, other), "diff", left, right, "--json")
    # A compiler has points where the other one has none. What both have, both programs came to.
    assert not [row for row in rows if row["missing"] is None]
    # Every function was entered in both.
    _, trace = ask(*images(before, other), "trace", right, "--against", left, "--json")
    assert {row["side"] for row in trace} == {"both"}


def test_report_shows_what_ran_of_a_patch(before, after, tmp_path):
    left, executed_before = before.run("report", *VALUES)
    right, executed_after = after.run("report", *VALUES)
    page = tmp_path / "page.html"
    status, _ = ask(*images(before, after), "report", left, right, "-o", page)
    assert status == 0
    changes = re.search(r'<section id="changes".*?</section>', page.read_text(), re.DOTALL)[0]
    found = {}
    for row in re.findall(r"<tr(?: class[^>]*)?><td.*?</tr>", changes, re.DOTALL):
        sign, words = re.search(
            r'<td class="mark">(.?)</td><td class="covered">(.*?)</td>', row
        ).groups()
        if tag := re.search(r'hit\("(.*?)"\)', html.unescape(row)):
            found[sign, tag[1]] = words
    # Moved to another file, so removed from one and added to the other.
    assert found["\N{MINUS SIGN}", "moved loop"] == "executed before"
    assert found["+", "moved loop"] == "executed after"
    assert found["\N{MINUS SIGN}", "moved seven"] == found["+", "moved seven"] == "never executed"
    assert found["+", "new answer"] == "executed after"
    assert found["\N{MINUS SIGN}", "removed"] == "executed before"
    assert found["+", "added"] == "executed after"
    assert found["", "high"] == "executed before, not executed after"
    # What the programs printed, of the lines of the diff.
    for (sign, tag), words in found.items():
        ran = {"\N{MINUS SIGN}": tag in executed_before, "+": tag in executed_after}.get(sign)
        assert ran is None or words.startswith("executed") == ran
    assert ask("report", left, right, "-o", page)[0] == 0
    assert (
        "--other-source"
        in re.search(r'<section id="changes".*?</section>', page.read_text(), re.DOTALL)[0]
    )


@pytest.mark.parametrize(("dark", "width"), [(False, 1300), (True, 390)])
def test_changed_lines_in_a_browser(before, after, tmp_path, page, dark, width):
    path = tmp_path / "page.html"
    assert (
        ask(
            *images(before, after),
            "report",
            before.run("l", 9)[0],
            after.run("r", 9)[0],
            "-o",
            path,
        )[0]
        == 0
    )
    browser = page(path, width=width, height=844, dark=dark)
    assert browser.run(CONTRAST) == []
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    # The lines are seen at once, not behind a click.
    assert browser.run("document.querySelector('#changes tbody tr').checkVisibility()")


def test_text_traces_take_builds_in_order(before, after, tmp_path):
    names = []
    for program in (before, after):
        program.run("text", 42)
        names.append(tmp_path / f"{program.folder.name}.txt")
        data = (program.folder / "text.kcov").read_bytes()
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(8, len(data), 8)]
        names[-1].write_text("".join(f"{word:#x}\n" for word in words))
    _, rows = ask(*images(before, after), "diff", *(f"file:{name}" for name in names), "--json")
    assert tags(after, rows, "right") - RENAMED == {"new answer", "added"}


def test_one_side_has_one_build(before, after):
    left, _ = before.run("mixed", 1)
    right, _ = after.run("mixed", 1)
    assert "2 builds" in refuse("diff", left, right, "--", left)


def test_unknown_builds_are_said(before, after, tmp_path, monkeypatch):
    left, _ = before.run("unknown", 1)
    right, _ = after.run("unknown", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, text = ask("diff", left, left)
    assert before.build_id in text
    for words, unknown in (((), before), (images(before), after)):
        assert unknown.build_id in refuse(*words, "diff", left, right)


@pytest.mark.parametrize("build_id", ["../../../etc/passwd", "", "zz", "/dev/stdin"])
def test_build_ids_are_no_paths(before, build_id):
    name, _ = before.run("hostile", 1)
    side = before.folder / "hostile.kcov.json"
    side.write_text(json.dumps({**json.loads(side.read_text()), "build_id": build_id}))
    assert ask("diff", name, name, "--json") == (0, [])


QUESTIONS = [
    ["top", "{}", "--json"],
    ["buffer", "{}", "--raw", "--json"],
    ["source", "{}", "--json"],
    ["trace", "{}", "--json"],
    ["view", "{}", "--json"],
    ["points", "src/calc.c", "{}", "--json"],
    ["export", "rawcover", "{}"],
    ["export", "funccover", "{}"],
]


def without_text(answer):
    """Return an answer without the text of lines: without an image beside it, no source tree is
    known.
    """
    status, rows = answer
    if isinstance(rows, list):
        rows = [
            row | ({"text": None, "errors": ["source text is missing"]} if "text" in row else {})
            for row in rows
        ]
    return status, rows


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: " ".join(question[:2]))
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_trace_is_read_by_its_own_image_or_not_at_all(
    before, after, tmp_path, monkeypatch, question, is_cached
):
    """Whatever the cache holds, by every command alike; the truth is what the program's own image
    says.
    """
    what, _ = before.run("own", *VALUES)
    words = [word.format(what) for word in question]
    truth = ask("-s", before.image, *words)
    if not is_cached:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert before.build_id in refuse("-s", after.image, *words)
    else:
        assert ask("-s", after.image, *words) == without_text(truth)
    assert ask("-s", after.image, *images(before), *words) == truth
    if words[0] == "source":
        named = ["-s", after.image, *images(before), "--other-source", before.folder]
        assert ask(*named, *words) == truth
