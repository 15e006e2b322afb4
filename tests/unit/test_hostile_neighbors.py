# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that other users of the machine have planted: links, files and directories where kcovdbg writes and reads."""

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from kcovdbg.collect.trace_writer import make_header, write_trace
from kcovdbg.commands import COMMANDS
from kcovdbg.frontends.cli import main
from kcovdbg.output_file import open_output, write_files
from kcovdbg.target.slice_file import write_file
from tests.unit.test_collect_files import make

ROOT, OTHER, USER = 0, 65534, 65533
pytestmark = pytest.mark.skipif(os.geteuid() != ROOT, reason="makes files of other users")


@pytest.fixture(autouse=True)
def _plain_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def shared():
    """A directory that is open to all, as /tmp is; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="kcovdbg-test-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def acting_as(uid):
    """Run a block's assertions with the effective ids of a user."""
    before = os.geteuid()

    def become(uid):
        os.seteuid(ROOT)
        os.setegid(uid)
        os.seteuid(uid)

    become(uid)
    try:
        yield
    finally:
        become(before)


def give(path, uid=OTHER, mode=None):
    os.chown(path, uid, uid, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)
    return path


def link(path, target, uid=OTHER):
    path.symlink_to(target)
    return give(path, uid)


@pytest.fixture(params=[ROOT, USER])
def victim(request, shared):
    """A user with a file of its own, which others want to be overwritten."""
    home = shared / "home"
    home.mkdir(mode=0o700)
    give(home, request.param)
    (home / "precious").write_text("old")
    give(home / "precious", request.param)
    with acting_as(request.param):
        yield home / "precious"
        assert (home / "precious").read_text() == "old"


def writes(path):
    """Yield calls that write a file in each way."""

    def plain(**options):
        with open_output(path, **options) as stream:
            stream.write(b"new")

    yield plain
    yield lambda: plain(append=True)
    yield lambda: write_files(path, {".json": b"new", "": b"new"})
    yield lambda: write_file(path, [b"new"])
    yield lambda: write_trace(path, make(), make_header(make()))


@pytest.mark.parametrize("place", ["sticky", "theirs"])
def test_links_of_others_are_not_followed(shared, victim, place):
    """Whatever fs.protected_symlinks says."""
    folder = shared if place == "sticky" else shared / "theirs"
    with acting_as(ROOT):
        if place == "theirs":
            folder.mkdir()
            give(folder, OTHER, 0o777)
        link(folder / "out", victim)
        link(folder / "dangling", victim.parent / "made")
        link(folder / "folder", victim.parent)
    for name in ("out", "dangling", "folder/precious", "folder/made"):
        for write in writes(folder / name):
            with pytest.raises(Exception, match=name.split("/")[0]):
                write()
    assert [entry.name for entry in victim.parent.iterdir()] == ["precious"]


def test_own_links_and_root_s_are_followed(shared, victim):
    uid = os.geteuid()
    with acting_as(ROOT):
        link(shared / "own", victim.parent / "made", uid)
        link(shared / "root", victim.parent / "made", ROOT)
    for name in ("own", "root"):
        for write in writes(shared / name):
            write()
        assert (shared / name).is_symlink()
        for path in (*victim.parent.glob("made*"),):
            path.unlink()


def test_what_is_replaced_leaves_nothing_of_its_owner_and_mode(shared):
    """Root replaces the file of another user, who has made it in advance to read it later."""
    for number, (write, private) in enumerate(zip(writes(shared / "out"), (False, None, False, True, True), strict=True)):
        if private is None:
            continue
        (shared / "out").write_text("old")
        give(shared / "out", OTHER, 0o666)
        write()
        found = (shared / "out").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ROOT, 0o600 if private else 0o644), number
        for path in shared.glob("out*"):
            assert path.stat().st_uid == ROOT
            path.unlink()


@pytest.mark.parametrize("kind", ["file", "pipe", "hard link"])
def test_what_others_made_in_a_shared_directory_is_not_written_through(shared, kind):
    path = shared / "out"
    precious = shared / "precious"
    precious.write_text("old")
    if kind == "file":
        path.touch()
        give(path, OTHER, 0o666)
    elif kind == "pipe":
        os.mkfifo(path)
        give(path, OTHER, 0o666)
    else:
        # Without fs.protected_hardlinks anyone can make one.
        path.hardlink_to(precious)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(PermissionError, match="out"), open_output(path, append=True) as stream:
            stream.write(b"new")
        assert os.read(reader, 9) == (b"old" if kind == "hard link" else b"")
    finally:
        os.close(reader)
    assert precious.read_text() == "old"


# The words of each command and way that write a file.
WORDS = {
    "monitor --record": "monitor --record {}",
    "monitor --output": "monitor --summary none.jsonl -o {}",
    "report --output": "report -o {}",
    "symbols --output": "symbols build vmlinux -o {}",
    "export --output": "export hex 41 -o {}",
    "slice --output": "slice -o {}",
    "collect --output": "collect -o {} -- true",
    ">": "config > {}",
    ">>": "config >> {}",
}


def test_no_command_is_missing_here():
    ways = {
        f"{command.name} {argument.names[-1]}" for command in COMMANDS for argument in command.arguments if argument.is_output
    }
    assert ways == WORDS.keys() - {">", ">>"}


@pytest.mark.parametrize("way", WORDS)
@pytest.mark.parametrize("name", ["out", "folder/precious"])
def test_no_command_writes_through_a_link_of_another_user(shared, capsys, way, name):
    (shared / "home").mkdir()
    (shared / "home" / "precious").write_text("old")
    link(shared / "out", "home/precious")
    link(shared / "folder", "home")
    # Before it reads or runs anything.
    assert main(["-e", WORDS[way].format(shared / name)]) in (2, 125)
    assert str(shared / name) in capsys.readouterr().err
    assert [path.name for path in (shared / "home").iterdir()] == ["precious"]
    assert (shared / "home" / "precious").read_text() == "old"
