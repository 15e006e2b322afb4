# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that other users of the machine have planted: links, files and directories where kcovdbg
writes and reads.
"""

import contextlib
import io
import os
import shutil
import stat
import tempfile
from functools import partial
from pathlib import Path

import pytest

from kcovdbg.child_process import child_environment
from kcovdbg.collect.trace_writer import make_header, write_trace
from kcovdbg.commands import COMMANDS
from kcovdbg.console.output_files import run_shell
from kcovdbg.console.terminal import Terminal
from kcovdbg.frontends.cli import main
from kcovdbg.frontends.shell.pager import paged
from kcovdbg.output_file import open_output, write_files
from kcovdbg.symbols import table_builder
from kcovdbg.symbols.table_cache import cache_folder, find_usable_cache, lock_path, table_path
from kcovdbg.target import debug_files, dump_file
from kcovdbg.target.connection import parse_socket_address, read_record, write_record
from kcovdbg.target.debug_files import find_debug_file
from kcovdbg.target.slice_file import write_slice
from kcovdbg.user_folder import find_stranger, find_temporary_folder, find_user_folder
from tests.unit.records.test_collect_files import make

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
    yield lambda: write_slice(path, [b"new"])
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
    for number, (write, private) in enumerate(
        zip(writes(shared / "out"), (False, None, False, True, True), strict=True)
    ):
        if private is None:
            continue
        (shared / "out").write_text("old")
        give(shared / "out", OTHER, 0o666)
        write()
        found = (shared / "out").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ROOT, 0o600 if private else 0o644), (
            number
        )
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
        f"{command.name} {argument.names[-1]}"
        for command in COMMANDS
        for argument in command.arguments
        if argument.is_output
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


# Root with the folders of somebody else, as with sudo -E.


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """The home directory of another user, named by each variable."""
    home = tmp_path / "theirs"
    for name in ("cache", "config", "state", "tmp"):
        (home / name / "kcovdbg").mkdir(parents=True)
        give(home / name / "kcovdbg")
        give(home / name)
    give(home)
    monkeypatch.setattr("kcovdbg.user_folder._find_home", lambda: str(tmp_path / "root"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(home / "tmp"))
    for kind in ("cache", "config", "state"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(home / kind))
    return home


@pytest.mark.parametrize("kind", ["cache", "config", "state"])
def test_root_uses_no_folder_of_another_user(theirs, tmp_path, monkeypatch, kind):
    found = find_user_folder(kind)
    assert found.path.is_relative_to(tmp_path / "root")
    assert str(theirs / kind) in found.problem
    assert str(OTHER) in found.problem
    # Others use theirs.
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: OTHER)
        assert find_user_folder(kind) == (theirs / kind / "kcovdbg", None)


@pytest.mark.parametrize(
    ("owner", "mode", "is_safe"),
    [
        (ROOT, 0o755, True),
        (ROOT, 0o777, False),
        (ROOT, 0o775, True),
        (ROOT, 0o1777, False),
        (OTHER, 0o755, False),
    ],
)
def test_who_can_write_to_a_folder(tmp_path, owner, mode, is_safe):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    give(folder, owner, mode)
    assert (find_stranger(folder) is None) is is_safe
    assert (find_stranger(folder / "new") is None) is (is_safe or mode == 0o1777)
    # A link of root's to it, and one that another user can replace.
    link(tmp_path / "link", folder, ROOT)
    assert (find_stranger(tmp_path / "link") is None) is is_safe
    link(tmp_path / "theirs", folder, OTHER)
    assert find_stranger(tmp_path / "theirs") is not None


def test_root_builds_tables_elsewhere_and_says_so(theirs, tmp_path):
    (tmp_path / "root").mkdir()
    cache = find_usable_cache()
    assert cache.folder == cache_folder()
    assert cache.folder.is_relative_to(tmp_path / "root")
    assert str(theirs / "cache") in cache.note
    assert list((theirs / "cache" / "kcovdbg").iterdir()) == []


def test_the_lock_of_a_table_leads_nowhere(tmp_path):
    victim = tmp_path / "precious"
    victim.write_text("old")
    path = table_path("ab" * 20, tmp_path)
    lock_path(path).symlink_to(victim)
    with pytest.raises(OSError, match="lock"), table_builder._only_builder(path):
        pass
    assert victim.read_text() == "old"
    lock_path(path).unlink()
    lock_path(path).hardlink_to(victim)
    with table_builder._only_builder(path) as is_only:
        assert is_only
    assert victim.read_text() == "old"


def test_root_reads_no_settings_of_another_user(theirs, capsys):
    (theirs / "config" / "kcovdbg" / "config.toml").write_text('pager = "touch /tmp/owned"\n')
    assert main(["config", "--json"]) == 0
    told = capsys.readouterr()
    assert "touch" not in told.out
    assert str(theirs / "config") in told.err


def test_root_s_children_use_nothing_of_another_user(theirs, tmp_path, monkeypatch):
    """less runs what ~/.lesskey says, GDB ~/.gdbinit, an interactive shell ENV."""
    monkeypatch.setenv("LESSKEYIN", str(theirs / "lesskey"))
    monkeypatch.setenv("ENV", str(theirs / "env"))
    monkeypatch.setenv("INPUTRC", "/etc/inputrc")
    monkeypatch.setenv("LESSOPEN", "|-cat %s")
    monkeypatch.setenv("LESS", "-X")
    own = str(tmp_path / "root")
    found = child_environment(MORE="1", LESS="-F")
    assert (found["HOME"], found["LESSSECURE"], found["MORE"], found["LESS"]) == (
        own,
        "1",
        "1",
        "-X",
    )
    assert [name for name, value in found.items() if str(theirs) in value] == []
    assert found["INPUTRC"] == "/etc/inputrc"
    pager = tmp_path / "pager"
    with pager.open("w") as file:
        terminal = Terminal(file, io.StringIO(), width=80)
        # A pager that ends before it has read everything breaks the pipe.
        with paged(terminal, "env; cat >/dev/null", os.environ) as its_terminal:
            its_terminal.stdout.write("line\n" * 1000)
    with (tmp_path / "pipeline").open("w") as file:
        assert run_shell("env", file) == 0
    for name in ("pager", "pipeline"):
        text = (tmp_path / name).read_text()
        assert f"HOME={own}\n" in text
        assert str(theirs) not in text
    assert "LESSOPEN" not in pager.read_text()
    # Root's own are used, and so are everybody's for other users.
    monkeypatch.setenv("HOME", own)
    assert "LESSSECURE" not in child_environment()
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    assert child_environment()["ENV"] == str(theirs / "env")


def test_folders_of_the_user_are_closed_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a/state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b/cache"))
    workdir = tmp_path / "workdir"
    (workdir / "crashes/a").mkdir(parents=True)
    (workdir / "crashes/a/log0").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    os.umask(0)
    with contextlib.suppress(SystemExit):
        main(["syzkaller", str(workdir)])
    address = parse_socket_address("localhost:1234")
    write_record(address, "watch")
    assert find_usable_cache().folder is not None
    for top in ("a", "b"):
        assert (tmp_path / top).stat().st_mode & 0o777 == 0o700
        # Behind such a directory nobody gets.
        first = next((tmp_path / top).iterdir())
        assert (first / "kcovdbg").stat().st_mode & 0o777 == first.stat().st_mode & 0o777 == 0o700
    # One that was made otherwise is not used.
    cache_folder().chmod(0o777)
    assert str(cache_folder()) in find_usable_cache().problem


def test_answers_about_a_work_directory_go_to_root_s_own_folder(theirs, tmp_path):
    workdir = tmp_path / "workdir"
    (workdir / "crashes/a").mkdir(parents=True)
    (workdir / "crashes/a/log0").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    before = {*theirs.rglob("*")}
    with contextlib.suppress(SystemExit):
        main(["syzkaller", str(workdir)])
    assert {*theirs.rglob("*")} == before
    assert [path.name for path in (tmp_path / "root").rglob("program.txt")] == ["program.txt"]


def test_root_unpacks_nothing_where_another_user_can_replace_it(theirs, capsys):
    assert find_temporary_folder().path == Path("/tmp")
    assert main(["config"]) == 0
    assert str(theirs / "tmp") in capsys.readouterr().err
    assert tempfile.gettempdir() == "/tmp"
    (theirs / "tmp").chmod(0o1777)
    os.chown(theirs / "tmp", 0, 0)
    os.chown(theirs, 0, 0)
    assert find_temporary_folder() == (theirs / "tmp", None)


def test_root_takes_no_debug_info_from_another_user_s_cache(theirs, monkeypatch):
    build_id = "ab" * 20
    folder = theirs / "cache" / "debuginfod_client" / build_id
    folder.mkdir(parents=True)
    (folder / "debuginfo").touch()
    monkeypatch.setattr(debug_files, "_has_debug_info", lambda _path, _build_id: True)
    find = partial(find_debug_file, Path("/nowhere/vmlinux"), build_id, None)
    assert find() is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: OTHER)
        assert find() == folder / "debuginfo"


def test_debug_info_that_others_put_beside_a_file_is_not_used(shared, tmp_path, monkeypatch):
    """It claims the build ID of the stripped image, or of the dump's kernel, which is public."""
    build_id = "ab" * 20
    monkeypatch.setattr(debug_files, "_has_debug_info", lambda _path, _build_id: True)
    monkeypatch.setattr(debug_files, "_check_debug_file", lambda name, _path: name)
    monkeypatch.setattr(debug_files.dumpfile, "unpack", lambda path: dump_file.UnpackedFile(path))
    for folder, is_used in ((shared, False), (tmp_path / "theirs", True)):
        folder.mkdir(exist_ok=True)
        if is_used:
            give(folder)
        for name in ("image.debug", "vmlinux"):
            (folder / name).touch()
            give(folder / name)
        found = find_debug_file(folder / "image", build_id, "image.debug")
        assert found == (folder / "image.debug" if is_used else None)
        assert [*debug_files.find_images(folder)] == ([str(folder / "vmlinux")] if is_used else [])
        give(folder / "vmlinux", ROOT)
        assert [*debug_files.find_images(folder)] == [str(folder / "vmlinux")]


def test_root_s_drgn_asks_no_debuginfod_for_another_user(theirs, tmp_path, monkeypatch):
    drgn = pytest.importorskip("drgn")
    from kcovdbg.target.drgn.program_memory import load_debug_info

    for home, is_asked in ((theirs, False), (tmp_path, True)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        prog = drgn.Program()
        prog.register_debug_info_finder("other", lambda _modules: None, enable_index=0)
        if "debuginfod" not in prog.enabled_debug_info_finders():
            pytest.skip("drgn was built without debuginfod")
        load_debug_info(prog, [])
        assert ("debuginfod" in prog.enabled_debug_info_finders()) is is_asked
        assert "other" in prog.enabled_debug_info_finders()


# Records of runs that stopped a machine, beside a socket in a directory that is open to all.

RECORD = '{"pid": 1, "started": "1", "command": "planted", "stopped_at": "now"}'


@pytest.mark.parametrize("kind", ["file", "link", "pipe", "deep", "huge"])
def test_planted_stop_records_are_not_believed(shared, kind):
    address = parse_socket_address(f"unix:{shared}/qmp")
    write_record(address)
    (path,) = shared.iterdir()
    assert read_record(address).pid == os.getpid()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (shared / "other").write_text(RECORD)
        path.symlink_to("other")
    else:
        path.write_text("[" * 100_000 if kind == "deep" else RECORD)
        if kind == "huge":
            os.truncate(path, 1 << 40)
    if kind == "file":
        give(path)
    # A pipe without a writer would be waited for.
    assert read_record(address) is None
    if kind in ("link", "file"):
        write_record(address)
        assert read_record(address).pid == os.getpid()
        assert not path.is_symlink()
