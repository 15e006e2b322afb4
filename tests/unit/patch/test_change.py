# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diffs of every shape, beside what git and diff are known to write; and hostile ones."""

import base64
import gzip
import quopri
import re
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.errors import KcovdbgError
from kcovdbg.patch.change import decode_diff, find_one_sided, read_diff

MAIL = """From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Subject: [PATCH 1/2] fs: do less

A message may quote a diff:
--- a/quoted.c
+++ b/other.c
@@ -1,9 +1,9 @@
diff of nothing
---
 fs/open.c | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/fs/open.c b/fs/open.c
index 1111111..2222222 100644
--- a/fs/open.c
+++ b/fs/open.c
@@ -10,3 +10,3 @@ int f(void)
 before
-old
+new
 after
--\x20
2.39.5

"""


def added(text):
    """Return (file, number, text) of each added line."""
    changes = read_diff(text, "a diff")
    return [
        (one.file, line.number, line.text)
        for one in changes
        for hunk in one.hunks
        for line in hunk
        if line.is_added
    ]


def test_mails():
    second = MAIL.replace("fs/open.c", "fs/read.c").replace("+new", "+newer")
    assert added(MAIL) == [("fs/open.c", 11, "new")]
    assert added(MAIL + second) == [("fs/open.c", 11, "new"), ("fs/read.c", 11, "newer")]
    assert added((MAIL + second).replace("\n", "\r\n")) == added(MAIL + second)


@pytest.mark.parametrize(
    "start",
    ["From mboxrd@z Thu Jan  1 00:00:00 1970", "From a@example.org Mon Nov 30 09:15:00 2026"],
)
def test_mails_of_an_archive(start):
    """A message between two patches may have lines that look like those of a hunk."""
    mail = start + MAIL[MAIL.index("\n") :]
    mail = mail.replace("A message may", "+ Added by the message.\nA message may")
    second = mail.replace("fs/open.c", "fs/read.c").replace("+new", "+newer")
    assert added(mail + second) == [("fs/open.c", 11, "new"), ("fs/read.c", 11, "newer")]


def _encode_mail(encoding):
    header, _, body = MAIL.encode().partition(b"\n\n")
    encode = {"quoted-printable": quopri.encodestring, "base64": base64.encodebytes}[encoding]
    return header + b"\nContent-Transfer-Encoding: %s\n\n" % encoding.encode() + encode(body)


def _attach_mail(name):
    header, _, body = MAIL.encode().partition(b"\n\n")
    return (
        header
        + b'\nContent-Type: multipart/mixed; boundary="b"\n\n--b\n\nsee below\n--b\n'
        + b"Content-Disposition: attachment; filename=%s\n" % name.encode()
        + b"Content-Type: application/octet-stream\nContent-Transfer-Encoding: base64\n\n"
        + base64.encodebytes(body)
        + b"--b--\n"
    )


COLORED = re.sub(r"(?m)^([-+@d].*)$", "\x1b[1m\\1\x1b[m", MAIL[MAIL.index("diff --git") :])


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(MAIL.encode()),
        MAIL.encode("utf-16"),
        _encode_mail("quoted-printable"),
        _encode_mail("base64"),
        _attach_mail("a.patch"),
        COLORED.encode(),
    ],
    ids=["gzip", "utf-16", "quoted-printable", "base64", "attached", "colors"],
)
def test_forms_in_which_diffs_are_kept(data):
    assert added(decode_diff(data, "a diff")) == [("fs/open.c", 11, "new")]


def test_several_encoded_mails():
    second = MAIL.replace("fs/open.c", "fs/read.c").replace("+new", "+x = '=3D';")
    mails = _encode_mail("base64") + second.encode()
    assert added(decode_diff(mails, "mails")) == [
        ("fs/open.c", 11, "new"),
        ("fs/read.c", 11, "x = '=3D';"),
    ]


def test_a_mail_of_nested_parts_is_refused():
    parts = b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n"
    mail = b"".join(parts % (number, number) for number in range(2000))
    with pytest.raises(KcovdbgError):
        decode_diff(mail, "a mail")


def test_of_a_tree_in_git(tmp_path):
    """What git itself writes: names with blanks, renames, modes, binary files, ends without a
    newline.
    """

    def git(*words):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    body = "".join(f"line {number}\n" for number in range(30))
    names = (
        "plain.c",
        "with blank.c",
        'ünder "quote".c',
        "tab\there.c",
        "old name.c",
        "gone.c",
        "mode.c",
        "crlf.c",
        "end.c",
    )
    git("init", "-q")
    for name in names:
        (tmp_path / name).write_text(body)
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)))
    git("add", ".")
    git("commit", "-qm", "1")
    wanted = []
    for name in ("plain.c", "with blank.c", 'ünder "quote".c', "tab\there.c"):
        (tmp_path / name).write_text(body.replace("line 7\n", "line seven\nand more\n"))
        wanted += [(name, 8, "line seven"), (name, 9, "and more")]
    git("mv", "old name.c", "new name.c")
    (tmp_path / "new name.c").write_text(body.replace("line 20\n", "line twenty\n"))
    wanted.append(("new name.c", 21, "line twenty"))
    (tmp_path / "gone.c").unlink()
    (tmp_path / "mode.c").chmod(0o755)
    (tmp_path / "crlf.c").write_bytes(body.replace("line 3\n", "line three\r\n").encode())
    wanted.append(("crlf.c", 4, "line three"))
    (tmp_path / "end.c").write_text(body + "last")
    wanted.append(("end.c", 31, "last"))
    (tmp_path / "fresh.c").write_text("one\n\f two\n")
    wanted += [("fresh.c", 1, "one"), ("fresh.c", 2, "\f two")]
    (tmp_path / "binary.bin").write_bytes(bytes(reversed(range(256))))
    (tmp_path / "empty.c").write_text("")
    git("add", ".")
    for options in ((), ("--binary",), ("-U0",), ("-U10",), ("--src-prefix=i/", "--dst-prefix=w/")):
        assert sorted(added(git("diff", "--cached", *options))) == sorted(wanted)
    git("commit", "-qm", "--- a/x\n+++ b/y\n@@ -1 +1 @@")
    for text in (git("format-patch", "-1", "--stdout"), git("show"), git("log", "-p", "-1")):
        assert sorted(added(text)) == sorted(wanted)


def test_of_diff(tmp_path):
    """What diff itself writes, without git's headers."""
    for name, text in (("a", "1\n2\n3\n"), ("b", "1\n2\nthree\n")):
        (tmp_path / name / "fs").mkdir(parents=True)
        (tmp_path / name / "fs" / "open.c").write_text(text)
    done = subprocess.run(
        ["diff", "-ru", "a", "b"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert added(done.stdout) == [("fs/open.c", 3, "three")]
    single = subprocess.run(
        ["diff", "-u", "a/fs/open.c", "b/fs/open.c"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert added(single.stdout) == [("fs/open.c", 3, "three")]


def test_of_two_trees(tmp_path):
    """Directories of trees have any name, and are no part of paths."""
    for tree, text in (("linux-6.12.orig", "1\n2\n3"), ("linux-6.12", "1\n2\nthree\n")):
        (tmp_path / tree / "fs").mkdir(parents=True)
        (tmp_path / tree / "fs" / "open.c").write_text(text)
    (tmp_path / "linux-6.12" / "fs" / "fresh.c").write_text("one\n")
    (tmp_path / "linux-6.12.orig" / "fs" / "gone.c").write_text("one\n")
    done = subprocess.run(
        ["diff", "-ruN", "linux-6.12.orig", "linux-6.12"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert added(done.stdout) == [("fs/fresh.c", 1, "one"), ("fs/open.c", 3, "three")]


HUNK = "@@ -1 +1 @@\n-old\n+new\n"


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (f"Index: linux/fs/a.c\n{'=' * 67}\n--- l.orig/fs/a.c\n+++ l/fs/a.c\n{HUNK}", "fs/a.c"),
        (f"diff --git fs/a.c fs/a.c\n--- fs/a.c\n+++ fs/a.c\n{HUNK}", "fs/a.c"),
        (
            "diff --git fs/a.c mm/a.c\nsimilarity index 50%\nrename from fs/a.c\n"
            f"rename to mm/a.c\n--- fs/a.c\n+++ mm/a.c\n{HUNK}",
            "mm/a.c",
        ),
        (
            "diff --git a/fs/a.c b/fs/b.c\nsimilarity index 50%\ncopy from fs/a.c\n"
            f"copy to fs/b.c\n--- a/fs/a.c\n+++ b/fs/b.c\n{HUNK}",
            "fs/b.c",
        ),
        (
            "diff --git a/a.sh b/a.sh\nold mode 100644\nnew mode 100755\nindex 1..2\n"
            f"--- a/a.sh\n+++ b/a.sh\n{HUNK}",
            "a.sh",
        ),
        (f"--- fs/a.c.orig\n+++ fs/a.c\n{HUNK}", "fs/a.c"),
    ],
)
def test_headers_of_other_tools(text, file):
    assert added(text) == [(file, 1, "new")]


@pytest.mark.parametrize(
    ("hunk", "wanted"),
    [
        ("@@ -1,2 +1,2 @@\n x\n-a\n\\ No newline at end of file\n+a\n", [(2, "a")]),
        ("@@ -1,2 +1,2 @@\n x\n-a\n+a\n\\ No newline at end of file\n", [(2, "a")]),
        # A mail program cut the blank off an empty line.
        ("@@ -1,3 +1,3 @@\n\n-a\n+b\n c\n", [(2, "b")]),
        # Lines that begin with signs themselves.
        ("@@ -1,2 +1,3 @@\n x\n--- a\n+++ b\n++++ c\n", [(2, "++ b"), (3, "+++ c")]),
        ("@@ -1 +1 @@\n-a\r\n+b\r\n", [(1, "b")]),
    ],
)
def test_lines_of_hunks(hunk, wanted):
    for header in ("", "diff --git a/f.c b/f.c\nindex 1..2 100644\n"):
        text = f"{header}--- a/f.c\n+++ b/f.c\n{hunk}"
        assert added(text) == [("f.c", number, line) for number, line in wanted]


def test_a_merge_is_refused_with_what_to_do_instead(tmp_path):
    """What git show writes of a merge with conflicts has no lines of one parent."""
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]

    def run(*words, check=True):
        done = subprocess.run(
            [*git, *words], cwd=tmp_path, capture_output=True, text=True, check=check
        )
        return done.stdout

    run("init", "-q", "-b", "one")
    for branch, text in (("one", "base\n"), ("two", "two\n"), ("one", "one\n")):
        run("checkout", "-q", "-B" if branch == "two" else "-q", branch, check=False)
        (tmp_path / "a.c").write_text(text)
        run("add", "a.c")
        run("commit", "-qm", text.strip())
    run("merge", "-q", "two", check=False)
    (tmp_path / "a.c").write_text("both\n")
    run("commit", "-qam", "merge")
    for options in ((), ("-c",)):
        with pytest.raises(KcovdbgError) as caught:
            added(run("show", *options))
        assert caught.value.hint is not None
        assert "MERGE^1" in caught.value.hint
    assert added(run("diff", "HEAD^1", "HEAD")) == [("a.c", 1, "both")]


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", MAIL.partition("@@ -10")[0], "diff --git a/x b/y\nrename from x\nrename to y\n"],
)
def test_nothing_is_added(text):
    assert added(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "no diff\n",
        "1c1\n< a\n---\n> b\n",
        "*** a\n--- b\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
        MAIL.replace("-10,3 +10,3", "-10,9 +10,9"),
        MAIL.replace("-10,3 +10,3", "-10,1 +10,1"),
        MAIL.replace("-10,3 +10,3", f"-10,3 +{'9' * 5000},3"),
        "+++ b/x\n@@ -1 +1 @@\n+a\n",
        "diff --cc fs/open.c\nindex 1,2..3\n--- a/fs/open.c\n+++ b/fs/open.c\n@@@ -1,1 -1,1 "
        "+1,2 @@@\n  a\n++b\n",
    ],
)
def test_what_is_no_diff_is_refused(text):
    with pytest.raises(KcovdbgError):
        added(text)


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "a/../../x.c", "..", '"b/x\\ny.c"', '"b/x\\000y.c"']
)
def test_paths_out_of_the_tree(path):
    target = path if path.startswith('"') else f"b/{path}"
    text = f"--- /dev/null\n+++ {target}\n@@ -0,0 +1 @@\n+a\n"
    (change,) = read_diff(text, "a diff")
    assert not change.is_inside


def test_large_diffs_take_time_by_their_size():
    files = "".join(f"--- a/f{n}.c\n+++ b/f{n}.c\n@@ -0,0 +1,2 @@\n+a\n+b\n" for n in range(5000))
    hunk = "--- a/x.c\n+++ b/x.c\n@@ -0,0 +1,100000 @@\n" + "+a\n" * 100000
    start = time.process_time()
    assert len(added(files)) == 10_000
    assert len(added(hunk)) == 100_000
    assert time.process_time() - start < 20


@given(st.text(alphabet='+-@ \\ab/01,\n\r"', max_size=200), st.integers(0, 700))
def test_damage_is_an_answer_or_an_error(noise, at):
    text = MAIL[:at] + noise + MAIL[at:]
    try:
        for one in read_diff(text, "a diff"):
            assert one.added_lines
    except KcovdbgError:
        pass


def test_files_that_one_tree_lacks(tmp_path):
    """diff names them without their lines; with -N, it has the lines."""
    for path, text in {
        "old/fs/a.c": "one\n",
        "new/fs/a.c": "two\n",
        "new/fs/added.c": "added\n",
        "new/fs/a.o": "object\n",
        "new/net/core/x.c": "added\n",
        "old/fs/gone.h": "gone\n",
    }.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def diff(options):
        command = ["diff", options, "old", "new"]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
        ).stdout

    text = diff("-ur")
    assert added(text) == [("fs/a.c", 1, "two")]
    assert set(find_one_sided(text)) == {"new/fs/added.c", "old/fs/gone.h", "new/net"}
    complete = diff("-urN")
    assert find_one_sided(complete) == []
    assert {file for file, _, _ in added(complete)} >= {"fs/added.c", "net/core/x.c"}
    # The lines of no file are known.
    (tmp_path / "new/fs/a.c").write_text("one\n")
    with pytest.raises(KcovdbgError) as caught:
        read_diff(diff("-ur"), "a diff")
    assert "-urN" in caught.value.hint


@pytest.mark.parametrize("start", ["", "+", "-"])
def test_an_error_names_the_line_that_mail_wrapped(start):
    wrapped = MAIL.replace("+new", f"+a_function(argument,\n{start}further)")
    with pytest.raises(KcovdbgError) as caught:
        read_diff(wrapped, "a diff")
    assert start or "'further)'" in str(caught.value)
    assert "lore.kernel.org" in caught.value.hint
