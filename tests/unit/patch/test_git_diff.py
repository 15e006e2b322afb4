# SPDX-License-Identifier: LGPL-2.1-or-later
"""git on a tree whose configuration wants to have programs run."""

import os
import resource
import subprocess

import pytest

from kcovdbg.errors import KcovdbgError, LimitError
from kcovdbg.limits import TEXT_SIZE, VARIABLE
from kcovdbg.patch.change import read_diff
from kcovdbg.patch.git_diff import git_diff


@pytest.fixture
def tree(tmp_path):
    """A tree with a committed and a changed file, and a function that runs git in it."""
    folder = tmp_path / "tree"
    folder.mkdir()

    def git(*words):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *words]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)

    git("init", "-q")
    (folder / "a.c").write_text("1\n2\n")
    git("add", ".")
    git("commit", "-qm", "1")
    (folder / "a.c").write_text("1\ntwo\n")
    return folder, git


def added(text):
    return [
        line.text
        for one in read_diff(text, "a diff")
        for hunk in one.hunks
        for line in hunk
        if line.is_added
    ]


def test_ranges(tree):
    folder, git = tree
    assert added(git_diff(folder, "HEAD")) == ["two"]
    git("commit", "-qam", "2")
    assert added(git_diff(folder, "HEAD")) == []
    assert added(git_diff(folder, "HEAD~1..HEAD")) == ["two"]
    (folder / "sub").mkdir()
    assert added(git_diff(folder / "sub", "HEAD~1..")) == ["two"]


def test_nothing_of_the_tree_is_run(tree, tmp_path):
    folder, git = tree
    mark = tmp_path / "mark"
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\necho "$0 $*" >>{mark}\ncat\n')
    script.chmod(0o755)
    for name in (
        "core.fsmonitor",
        "diff.external",
        "core.pager",
        "pager.diff",
        "diff.d.textconv",
        "diff.d.command",
        "core.sshCommand",
    ):
        git("config", name, str(script))
    for name in ("clean", "smudge", "process"):
        git("config", f"filter.f.{name}", str(script))
        git("config", f"filter.with.dot.{name}", str(script))
    git("config", "filter.f.required", "true")
    (folder / ".git" / "included").write_text(
        f'[filter "included"]\n\tclean = {script}\n\trequired = true\n'
    )
    git("config", "include.path", "included")
    (folder / ".gitattributes").write_text(
        "a.c filter=f diff=d\nb.c filter=with.dot diff=d\nc.c filter=included\n"
    )
    for name in ("b.c", "c.c"):
        (folder / name).write_text("text\n")
    git(
        "-c",
        "filter.f.required=false",
        "-c",
        "filter.f.process=",
        "-c",
        "filter.f.clean=",
        "add",
        "-N",
        "b.c",
        "c.c",
    )
    hooks = folder / ".git" / "hooks"
    for name in ("post-index-change", "reference-transaction", "pre-auto-gc"):
        (hooks / name).write_text(script.read_text())
        (hooks / name).chmod(0o755)
    mark.unlink(missing_ok=True)
    text = git_diff(folder, "HEAD")
    assert not mark.exists(), mark.read_text()
    assert "two" in added(text)
    # The same tree runs some of these for git itself.
    subprocess.run(["git", "diff", "HEAD"], cwd=folder, capture_output=True, check=False)
    assert mark.exists()


def test_settings_of_the_user_do_not_change_the_diff(tree, monkeypatch):
    folder, git = tree
    for name, value in (
        ("diff.noprefix", "true"),
        ("diff.mnemonicPrefix", "true"),
        ("color.ui", "always"),
        ("diff.orderFile", "missing"),
        ("diff.context", "0"),
        ("diff.relative", "true"),
    ):
        git("config", name, value)
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    (change,) = read_diff(git_diff(folder, "HEAD"), "a diff")
    assert change.file == "a.c"
    assert [line.text for hunk in change.hunks for line in hunk] == ["1", "two"]


@pytest.mark.parametrize("word", ["--output=x", "-Ofile", "no such range", "HEAD~100", "", "a\0b"])
def test_words_that_are_no_range(tree, word):
    folder, _ = tree
    with pytest.raises(KcovdbgError):
        git_diff(folder, word)
    assert sorted(path.name for path in folder.iterdir()) == [".git", "a.c"]


def test_output_beyond_the_limit(tree, monkeypatch):
    """git ends at the limit, and leaves no core and no other file in the tree."""
    folder, _ = tree
    (folder / "a.c").write_text("line\n" * 100_000)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    monkeypatch.setenv(VARIABLE, f"{TEXT_SIZE}=100K")
    with pytest.raises(LimitError):
        git_diff(folder, "HEAD")
    monkeypatch.setenv(VARIABLE, f"{TEXT_SIZE}=1M")
    assert len(git_diff(folder, "HEAD")) > 500_000
    assert sorted(path.name for path in folder.iterdir()) == [".git", "a.c"]


def test_no_repository(tmp_path):
    with pytest.raises(KcovdbgError):
        git_diff(tmp_path, "HEAD")
    with pytest.raises(KcovdbgError):
        git_diff(tmp_path / "missing", "HEAD")


def test_a_tree_of_somebody_else(tree):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder, _ = tree
    for path in (folder, folder / ".git"):
        os.chown(path, 12345, 12345)
    with pytest.raises(KcovdbgError):
        git_diff(folder, "HEAD")
