# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of a change: where they are in the source of the kernel, what builds their file, and their
states.
"""

import random

import pytest

from kcovdbg.patch.change import FileChange, TargetLine
from kcovdbg.patch.changed_lines import (
    BuiltFiles,
    ChangeState,
    fits_text,
    judge_change,
    place_change,
)
from kcovdbg.patch.line_placement import place_lines
from kcovdbg.records.joined_states import JoinedLine, TraceHits
from kcovdbg.records.line_states import LineState
from kcovdbg.symbols.build_option import BuildOptions, BuildRule
from kcovdbg.symbols.source_tree import SourceText

TEXT = tuple(f"\tcall_{number}(argument);" if number % 5 else "}" for number in range(100))


def hunk_of(text, first, last, context=3):
    """A hunk that adds some lines of a text."""
    start, end = max(first - context, 1), min(last + context, len(text))
    return [
        TargetLine(number, text[number - 1], first <= number <= last)
        for number in range(start, end + 1)
    ]


def test_lines_at_their_numbers():
    assert place_lines([hunk_of(TEXT, 7, 9), hunk_of(TEXT, 40, 40)], TEXT) == {
        7: 7,
        8: 8,
        9: 9,
        40: 40,
    }


@pytest.mark.parametrize("context", [0, 1, 3])
def test_lines_that_moved(context):
    moved = ("new", "newer", *TEXT)
    assert place_lines([hunk_of(TEXT, 7, 9, context)], moved) == {7: 9, 8: 10, 9: 11}


def test_lines_that_are_not_there_have_no_place():
    """A kernel that was built without the change, of lines that are elsewhere as well."""
    without = TEXT[:20] + TEXT[23:]
    assert place_lines([hunk_of(TEXT, 21, 23)], without) == {}
    assert place_lines([hunk_of(TEXT, 21, 23, 0)], without) == {}
    # A closing brace alone may be any.
    assert place_lines([hunk_of(TEXT, 21, 21, 0)], without) == {}
    assert place_lines([hunk_of(TEXT, 21, 21)], without) == {}


def test_lines_that_are_there_twice():
    assert place_lines([hunk_of(TEXT, 7, 9)], ("x", *TEXT, *TEXT)) == {}


def test_a_further_change_beside_the_lines():
    """Of a hunk, what another change left alone has a place."""
    changed = list(TEXT)
    changed[9] = "\tanother();"
    assert place_lines([hunk_of(TEXT, 7, 8)], changed) == {7: 7, 8: 8}


def test_random_changes_never_have_a_wrong_place():
    random.seed(1)
    for _ in range(300):
        original = [
            random.choice(["}", "{", "", "\treturn 0;", f"\tf{random.randrange(40)}();"])
            for _ in range(60)
        ]
        marked = list(enumerate(original, 1))
        for _ in range(random.randrange(6)):
            del marked[random.randrange(len(marked))]
        for _ in range(random.randrange(6)):
            marked.insert(random.randrange(len(marked)), (0, "\tinserted();"))
        first = random.randrange(1, 55)
        hunk = hunk_of(original, first, first + random.randrange(5), 3)
        for number, place in place_lines([hunk], [text for _, text in marked]).items():
            assert marked[place - 1][1] == original[number - 1]


def test_a_text_that_code_cannot_be_of():
    assert fits_text([1, 3], ("a", "", "b"))
    assert not fits_text([2], ("a", "", "b"))
    assert not fits_text([4], ("a", "", "b"))


def change_of(text, first, last, file="fs/a.c"):
    return FileChange(file, [hunk_of(text, first, last)], is_inside=True)


def judge(change, states, source):
    """Judge a change of a file that has code."""
    placed = place_change(change, BuiltFiles([change.file]), lambda _: source)
    return judge_change(placed, {change.file: states})


def place_without_code(change):
    return place_change(change, BuiltFiles(()), lambda _: SourceText(None, ()))


def test_states_of_lines():
    states = {
        1: JoinedLine(LineState.EXECUTED, 3, [TraceHits("one", 3)]),
        2: JoinedLine(LineState.PARTLY, 1, [TraceHits("one", 1)]),
        3: JoinedLine(LineState.NOT_EXECUTED, 0, ()),
        4: JoinedLine(LineState.MOVED, 0, ()),
        6: JoinedLine(LineState.NOT_INSTRUMENTED, 0, ()),
    }
    text = ("a", "b", "c", "d", "e", "f")
    found = judge(change_of(text, 1, 6), states, SourceText(None, text))
    assert [row.state.value for row in found.rows] == [
        *("executed", "partly", "not-executed", "unknown", "no-code", "not-instrumented")
    ]
    assert [row.hits for row in found.rows] == [3, 1, 0, 0, 0, 0]
    assert [bool(row.reason) for row in found.rows] == [False, False, False, True, False, False]
    assert found.rows[0].traces == [TraceHits("one", 3)]
    assert found.is_compared


def test_a_source_of_another_kernel():
    """Code at an empty line: the text is not what the kernel was built from, and nothing of the
    file is judged.
    """
    text = ("a", "", "c", "d")
    states = {2: JoinedLine(LineState.EXECUTED, 1, ())}
    found = judge(change_of(text, 1, 4), states, SourceText(None, text))
    assert {row.state for row in found.rows} == {ChangeState.UNKNOWN}
    assert {row.built_line for row in found.rows} == {None}


def test_a_source_that_is_not_at_hand():
    states = {2: JoinedLine(LineState.EXECUTED, 1, ())}
    found = judge(change_of(("a", "b"), 1, 2), states, SourceText(None, ()))
    assert [row.state.value for row in found.rows] == ["no-code", "executed"]
    assert not found.is_compared


@pytest.mark.parametrize(
    ("file", "rule", "state", "option"),
    [
        ("fs/a.c", None, "not-built", None),
        ("fs/a.c", BuildRule("CONFIG_A"), "not-built", "CONFIG_A"),
        ("fs/a.c", BuildRule(None), "no-code", None),
        ("fs/a.h", None, "no-code", None),
        ("Documentation/a.rst", None, "no-code", None),
    ],
)
def test_files_without_code(file, rule, state, option):
    found = judge_change(place_without_code(change_of(("a",), 1, 1, file)), {}, rule=rule)
    assert [(row.state.value, row.option) for row in found.rows] == [(state, option)]


@pytest.mark.parametrize(
    ("file", "state"), [("fs/a.c", "unknown"), ("fs/a.h", "unknown"), ("fs/Kconfig", "no-code")]
)
def test_code_that_a_module_may_have_is_unknown(file, state):
    placed = place_without_code(change_of(("a",), 1, 1, file))
    found = judge_change(placed, {}, lacks_modules=True)
    assert [row.state.value for row in found.rows] == [state]


def test_names_in_debug_info():
    inside = BuiltFiles(["fs/a.c", "./include/a.h", "arch/x86/lib/string.c", "drivers/../fs/b.c"])
    assert inside.find("include/a.h") == ["./include/a.h"]
    assert inside.find("fs/b.c") == ["drivers/../fs/b.c"]
    assert inside.find("lib/string.c") == ()
    names = [
        "/src/linux/fs/a.c",
        "/src/linux/arch/x86/lib/string.c",
        "/src/linux/arch/x86/a.c",
        "include/generated/a.h",
    ]
    elsewhere = BuiltFiles(names)
    assert elsewhere.find("fs/a.c") == ["/src/linux/fs/a.c"]
    assert elsewhere.find("lib/string.c") == ()
    assert elsewhere.find("include/generated/a.h") == ["include/generated/a.h"]
    assert BuiltFiles(["../linux/fs/a.c", "../linux/mm/b.c"]).find("mm/b.c") == ["../linux/mm/b.c"]


MAKEFILES = {
    "Kbuild": "obj-y += fs/\nobj-$(CONFIG_NET) += net/\nobj-y += maybe/\n",
    "fs/Makefile": "obj-y := a.o \\\n  b.o # c.o\nobj-$(CONFIG_D) += "
    "d.o\nobj-$(CONFIG_E)+=e/\nlib-$(CONFIG_L) += l.o\n",
    "fs/e/Makefile": "obj-$(CONFIG_E) += e.o\ne-y := f.o\ne-$(CONFIG_G) += g.o\ne-objs += h.o\n",
    "net/Makefile": "obj-y += n.o\nobj-$(CONFIG_TWICE) += t.o\nobj-$(CONFIG_AGAIN) += t.o\n",
    "maybe/Makefile": "ifeq ($(CONFIG_M),y)\nobj-y += m.o\nobj-$(CONFIG_O) += "
    "o.o\nendif\nobj-$(CONFIG_P) += "
    "p.o\n",
}


@pytest.mark.parametrize(
    ("file", "rule"),
    [
        ("fs/a.c", BuildRule(None)),
        ("fs/b.S", BuildRule(None)),
        ("fs/c.c", None),
        ("fs/d.c", BuildRule("CONFIG_D")),
        ("fs/l.c", BuildRule("CONFIG_L")),
        ("fs/e/f.c", BuildRule("CONFIG_E")),
        ("fs/e/g.c", BuildRule("CONFIG_G")),
        ("fs/e/h.c", BuildRule("CONFIG_E")),
        ("net/n.c", BuildRule("CONFIG_NET")),
        ("net/t.c", None),
        ("maybe/m.c", None),
        ("maybe/p.c", BuildRule("CONFIG_P")),
        ("fs/d.h", None),
        ("nowhere/x.c", None),
    ],
)
def test_options(tmp_path, file, rule):
    for name, text in MAKEFILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert BuildOptions(tmp_path.resolve()).find(file) == rule


def test_makefiles_out_of_the_tree_are_not_read(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "Makefile").write_text("obj-$(CONFIG_SECRET) += a.o\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "fs").symlink_to(tmp_path / "other")
    assert BuildOptions((tmp_path / "tree").resolve()).find("fs/a.c") is None


def test_lines_of_a_file_that_several_patches_change():
    """Each patch moves the lines of the others: only the source says where they are."""
    built = BuiltFiles(["fs/a.c"])
    change = change_of(TEXT, 7, 9, "fs/a.c")
    states = {"fs/a.c": {7: JoinedLine(LineState.EXECUTED, 1, ())}}
    for lines, state, reason in (((), "unknown", "order"), (TEXT, "executed", None)):
        source = SourceText("fs/a.c", lines)
        placed = place_change(change, built, {"fs/a.c": source}.__getitem__, is_only=False)
        found = judge_change(placed, states)
        assert (found.rows[0].state.value, found.rows[0].reason) == (state, reason)


def test_a_path_that_the_tree_does_not_have(tmp_path):
    """Such as one with a prefix that no other tree has: whether it is built is unknown."""
    (tmp_path / "fs").mkdir()
    for name in ("Makefile", "fs/a.c"):
        (tmp_path / name).touch()
    options = BuildOptions(tmp_path)
    for file, state in (("fs/a.c", "not-built"), ("linux/fs/a.c", "unknown")):
        placed = place_without_code(change_of(("a",), 1, 1, file))
        found = judge_change(placed, {}, is_in_tree=not options.lacks(file))
        assert found.rows[0].state.value == state


def test_assembly_outside_of_functions_may_have_code():
    text = ("\tswapgs", "/* a note */", "", "#ifdef A", " * of two lines")
    placed = place_change(
        change_of(text, 1, 5, "a.S"), BuiltFiles(["a.S"]), lambda _: SourceText("a.S", text)
    )
    found = judge_change(placed, {"a.S": {}})
    assert [row.state.value for row in found.rows] == ["unknown"] + ["no-code"] * 4


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ((" ", "    first(one, two);", "    second();", "}"), "blanks"),
        ((" ", "\xa0 \xa0 first(one, two);", "\tsecond();", "}"), "blanks"),
        ((" ", "\tfirst(one,", "two);", "\tsecond();", "}"), "wrapped"),
        ((" ", "\tfirst(one,", "two) + 1;", "\tsecond();", "}"), "text"),
    ],
)
def test_what_mail_does_to_lines(texts, reason):
    source = SourceText("a.c", ("", "\tfirst(one, two);", "\tsecond();", "}", "other", "}"))
    lines = [
        TargetLine(number, text, "first" in text or "second" in text)
        for number, text in enumerate(texts, 1)
    ]
    change = FileChange("a.c", [lines], is_inside=True)
    placed = place_change(change, BuiltFiles(["a.c"]), lambda _: source)
    rows = judge_change(placed, {"a.c": {}}).rows
    assert {(row.state, row.reason) for row in rows} == {(ChangeState.UNKNOWN, reason)}
