# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diffs as they reach a user, of the source of the demo's module; diff itself writes them."""

import json
import shutil
import subprocess

import pytest

from tests.lab.kcovdbg_run import run_kcovdbg

FILE = "modules/kcovlab_keep.c"
FUNCTION = "kcovlab_keep_outer(unsigned int n)"


@pytest.fixture(scope="module")
def trees(demo, tmp_path_factory):
    """Two source trees: in one, a function of the module and a further file are missing."""
    folder = tmp_path_factory.mktemp("trees")
    (folder / "new/modules").mkdir(parents=True)
    shutil.copy(demo.vmlinux.parent / FILE, folder / "new" / FILE)
    shutil.copytree(folder / "new", folder / "old")
    (folder / "new/modules/further.c").write_text("int further;\n")
    lines = (folder / "new" / FILE).read_text().splitlines(keepends=True)
    start = next(index for index, line in enumerate(lines) if FUNCTION in line)
    (folder / "old" / FILE).write_text("".join(lines[:start] + lines[start + 7 :]))
    return folder


def compare(trees, options="-ur"):
    done = subprocess.run(
        ["diff", options, "old", "new"],
        cwd=trees,
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "TZ": "UTC"},
    )
    assert done.returncode == 1
    return done.stdout


def ask(trees, text, status=None):
    """Return the rows of patch and its notes."""
    (trees / "change.diff").write_text(text)
    words = ("--source-dir", trees / "new", "patch", trees / "change.diff", "41", "--json")
    done = run_kcovdbg("--demo", *words, status=status)
    return json.loads(done.stdout or "[]"), done.stderr


def test_a_file_of_which_a_diff_has_no_lines(trees):
    rows, notes = ask(trees, compare(trees))
    assert {row["file"] for row in rows} == {FILE}
    assert "new/modules/further.c" in notes
    rows, notes = ask(trees, compare(trees, "-urN"))
    assert {row["file"] for row in rows} == {FILE, "modules/further.c"}
    assert "diff -N" not in notes


def test_lines_that_mail_changed(trees):
    """With blanks for tabs, or with a line as two, nothing is decided, and the reason says why."""
    text = compare(trees)
    whole, _ = ask(trees, text)
    of_module = [row for row in whole if row["file"] == FILE]
    assert any(row["state"] == "not-executed" for row in of_module)
    for damaged, reason in (
        (text.replace("+\t", "+        ").replace(" \t", "         "), "blanks"),
        (text.replace("(n) + ", "(n) +\n "), "wrapped"),
    ):
        assert damaged != text
        rows, _ = ask(trees, damaged, status=2)
        found = [row for row in rows if row["file"] == FILE]
        assert {(row["state"], row["reason"]) for row in found} >= {("unknown", reason)}
        assert {row["state"] for row in found} == {"unknown"}


@pytest.mark.parametrize("start", ["", "+"])
def test_a_line_without_a_mark_is_named(trees, start):
    text = compare(trees).replace("(n) + ", f"(n) +\n{start}")
    _, notes = ask(trees, text, status=2)
    assert "lore.kernel.org" in notes
    assert start or "kcovlab_keep_inner(n);'" in notes
