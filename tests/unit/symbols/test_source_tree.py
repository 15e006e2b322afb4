# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source files that debug info names: which of them are read."""

import os
import subprocess

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.limits import TEXT_SIZE, VARIABLE
from kcovdbg.symbols.dwarf_reader import read_comp_dir
from kcovdbg.symbols.source_tree import SourceTree


@pytest.fixture
def home(tmp_path):
    """A tree of sources beside what debug info might name."""
    for name in ("tree/fs/open.c", "tree/big.c", "secret", "tree2/secret"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
    (tmp_path / "tree/link.c").symlink_to("../secret")
    (tmp_path / "tree/up").symlink_to("..")
    (tmp_path / "tree/own.c").symlink_to("fs/open.c")
    os.mkfifo(tmp_path / "tree/pipe.c")
    return tmp_path


def trees(home):
    """Each way to allow a tree, with a build directory that is not allowed."""
    tree = str(home / "tree")
    yield SourceTree([tree], build_directory=str(home))
    yield SourceTree([tree], build_directory=str(home), image=f"{tree}/vmlinux")
    yield SourceTree(build_directory="/build", substitutions=[("/build", tree)])
    yield SourceTree(build_directory=tree, image=f"{tree}/vmlinux")
    yield SourceTree(build_directory=tree, image=f"{home}/tree/up/tree/vmlinux")


@pytest.mark.parametrize("number", range(5))
def test_only_what_is_in_an_allowed_tree_is_read(home, number):
    tree = list(trees(home))[number]
    for name in ("fs/open.c", "./fs/../fs/open.c", "own.c"):
        assert tree.read(name).lines == ("text",), name
        assert tree.has_text(name)
    (home / "secret.c").write_text("text\n")
    names = (
        "secret",
        "../secret",
        "../secret.c",
        str(home / "secret.c"),
        "up/secret.c",
        "link.c",
        "up/secret",
        "../tree2/secret",
        "pipe.c",
        "fs",
        "a\0",
        "x" * 300 + ".c",
        "a/" * 5000 + "x.c",
        "/etc/passwd",
    )
    for name in (
        *names,
        "/dev/zero",
        "../../../../../../etc/passwd",
        str(home / "secret"),
        f"{home}/tree/../secret",
    ):
        text = tree.read(name)
        assert (text.lines, tree.has_text(name), tree.find(name)) == ((), False, None), name
        assert text.remark
    assert all(path.name in ("open.c", "own.c") for path in tree.paths)


def test_nothing_is_read_where_the_image_does_not_lie(home):
    for image in (
        None,
        str(home / "tree2" / "vmlinux"),
        str(home / "tree" / "fs" / "vmlinux"),
        str(home / "vmlinux"),
    ):
        text = SourceTree(build_directory=str(home / "tree"), image=image).read("fs/open.c")
        assert text.lines == ()
        # What to type if it is fine.
        assert f"--source-dir {home / 'tree'}" in text.remark


def test_a_tree_that_does_not_exist_is_named(home):
    missing = home / "linux-6"
    text = SourceTree([missing], build_directory=str(home)).read("fs/open.c")
    assert text.lines == ()
    assert str(missing) in text.remark


def test_a_build_directory_is_named_by_its_own_path(home, monkeypatch):
    """Through links an author need not know where the image is saved, nor the path of a home
    directory.
    """
    tree, image = home / "tree", str(home / "tree/vmlinux")
    (tree / "vmlinux").touch()
    (home / "link").symlink_to(tree)
    monkeypatch.chdir(tree)
    assert SourceTree(build_directory=str(tree), image=image).read("fs/open.c").lines
    others = (
        "/proc/self/cwd",
        f"/proc/self/root{tree}",
        f"{home}/link",
        f"{home}/tree2/../tree",
        f"{tree}/.",
        ".",
        "",
        "/",
        "a\0",
    )
    for name in (
        *others,
        f"/proc/{os.getpid()}/cwd",
        f"/proc/thread-self/cwd/../{tree.name}",
        "/dev/fd/../cwd",
    ):
        text = SourceTree(build_directory=name, image=image).read("fs/open.c")
        assert (text.lines, bool(text.remark)) == ((), True), name
    for place in (tree, tree / "fs"):
        monkeypatch.setenv("HOME", str(place))
        assert SourceTree(build_directory=str(tree), image=image).read("fs/open.c").lines == ()


@pytest.mark.parametrize(
    "name", ["id_rsa", ".ssh/id_rsa", ".env", "key.pem", "c", ".c", "a.c.orig", "core.c/notes.txt"]
)
def test_a_file_that_is_no_source_is_not_read(home, name):
    path = home / "tree" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("secret\n")
    (home / "tree/named.c").symlink_to(name)
    tree = SourceTree(
        [home / "tree"], build_directory=str(home / "tree"), image=str(home / "tree/vmlinux")
    )
    for wanted in (name, "named.c", str(path)):
        text = tree.read(wanted)
        assert (text.lines, tree.has_text(wanted), tree.find(wanted)) == ((), False, None)
        assert text.remark


@pytest.mark.parametrize(
    "name",
    ["a.h", "entry.S", "lib.rs", "vmlinux.lds", "gram.y", "lex.l", "x.inc", "x.tab.c", "u.cc"],
)
def test_sources_of_a_kernel_are_read(home, name):
    (home / "tree" / name).write_text("text\n")
    assert SourceTree([home / "tree"]).read(name).lines == ("text",)


def test_a_file_that_is_swapped_for_a_link_is_not_read(home, monkeypatch):
    """Between the check and the use."""
    tree = SourceTree([home / "tree"])
    plain = os.open

    def swap(path, *words, **options):
        if str(path).endswith("open.c"):
            path.unlink()
            path.symlink_to(home / "secret")
        return plain(path, *words, **options)

    monkeypatch.setattr(os, "open", swap)
    text = tree.read("fs/open.c")
    assert (home / "tree/fs/open.c").is_symlink()
    assert text.lines == ()
    assert text.remark


def test_a_huge_file_is_not_read(home, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"{TEXT_SIZE}=1K")
    os.truncate(home / "tree/big.c", 1 << 40)
    text = SourceTree([home / "tree"]).read("big.c")
    assert text.lines == ()
    assert TEXT_SIZE in text.remark


def test_a_compiler_s_line_directive_names_no_other_file(home):
    """As gcc writes it into debug info."""
    (home / "tree/a.c").write_text(
        '#line 1 "/etc/passwd"\nvoid f(void) {}\n#line 1 "../secret"\nvoid g(void) {}\n'
    )
    subprocess.run(
        ["gcc", "-g", "-shared", "-nostdlib", "-o", "vmlinux", "a.c"], cwd=home / "tree", check=True
    )
    with ElfFile(home / "tree/vmlinux") as elf:
        directory = read_comp_dir(elf)
    assert directory == str(home / "tree")
    tree = SourceTree(build_directory=directory, image=str(home / "tree/vmlinux"))
    assert tree.read("a.c").lines
    for name in ("/etc/passwd", "../secret"):
        assert tree.read(name).lines == ()


def test_a_build_directory_that_cannot_be_looked_at(tmp_path):
    """The builder's home is closed to others, and a name may be longer than any."""
    closed = tmp_path / "closed"
    (closed / "linux").mkdir(parents=True)
    (closed / "linux/a.c").write_text("text\n")
    folders = [f"/{'x' * 300}", "/x" * 4000, "/a\0b"]
    if os.geteuid() == 0:
        folders.append(str(closed / "linux"))
        closed.chmod(0o700)
        os.seteuid(65534)
    try:
        for folder in folders:
            image = f"{folder}/vmlinux"
            tree = SourceTree([tmp_path], build_directory=folder, image=image)
            text = tree.read("a.c")
            assert (text.lines, tree.find("a.c")) == ((), None)
            assert text.remark
    finally:
        if os.geteuid() == 65534:
            os.seteuid(0)
