# SPDX-License-Identifier: LGPL-2.1-or-later
"""Unpacked copies of compressed files: how large they may be, and what is left of them."""

import os
import signal
import struct
import subprocess
import sys
import time

import pytest
import zstandard

from kcovdbg.errors import LimitError
from kcovdbg.file_digest import find_digest
from kcovdbg.limits import UNPACKED_CACHE, UNPACKED_SIZE, VARIABLE
from kcovdbg.target import dump_file
from kcovdbg.target.dump_file import unpack


def compress(path, size, times=1, byte=b"\0"):
    data = byte * size
    for _ in range(times):
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("byte", "times"), [(b"\0", 1), (b"A", 1), (b"A", 2)])
def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch, byte, times):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv(VARIABLE, f"{UNPACKED_SIZE}=8M")
    path = compress(tmp_path / "bomb.zst", 64 << 20, times, byte)
    with pytest.raises(LimitError, match=r"bomb\.zst") as caught:
        unpack(path)
    assert UNPACKED_SIZE in str(caught.value)
    assert f"--limit {UNPACKED_SIZE}=" in caught.value.hint
    # What it says helps.
    assert [entry.name for entry in tmp_path.iterdir()] == ["bomb.zst"]
    monkeypatch.setenv(VARIABLE, f"{UNPACKED_SIZE}=64M")
    assert unpack(path).path.stat().st_size == 64 << 20


def test_a_large_file_may_be_unpacked_further(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"{UNPACKED_SIZE}=1M")
    path = tmp_path / "dump.zst"
    # Each random byte with 50 zeros.
    path.write_bytes(
        zstandard.ZstdCompressor(level=1).compress(os.urandom(1 << 18) + bytes(50 << 18))
    )
    assert unpack(path).path.stat().st_size == 51 << 18


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_nothing_is_left_whatever_ends_the_process(tmp_path, number):
    path = compress(tmp_path / "a.zst", 1 << 20)
    folder = tmp_path / "tmp"
    folder.mkdir()
    code = (
        f"import os; from kcovdbg.target.dump_file import unpack; path = "
        f"unpack({str(path)!r}).path; "
        f"assert path.stat().st_size == 1 << 20; os.kill(os.getpid(), {int(number)})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}, capture_output=True
    )
    assert done.returncode == -number, done.stderr
    assert list(folder.iterdir()) == []


def test_other_processes_can_open_them(tmp_path):
    path = unpack(compress(tmp_path / "a.zst", 1000, byte=b"x")).path
    assert subprocess.run(["cat", str(path)], capture_output=True, check=True).stdout == b"x" * 1000
    assert path.read_bytes() == b"x" * 1000


ELF = b"\x7fELF\2\1\1".ljust(16, b"\0") + b"\2\0"
MIB = 1 << 20


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The directory of copies of compressed images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(dump_file, "_KEPT", [])
    return tmp_path / "cache/kcovdbg/unpacked"


def make_image(path, size=MIB, mark=b""):
    """Write a compressed image, which is unpacked into the cache."""
    path.write_bytes(zstandard.ZstdCompressor().compress(ELF + mark + os.urandom(size)))
    return path


def close_all():
    """Let go of the copies, as the end of a process does."""
    for copy in dump_file._KEPT:
        copy.close()
    dump_file._KEPT.clear()


def test_a_copy_is_made_once_and_is_the_user_s_alone(copies, tmp_path):
    path = make_image(tmp_path / "a.zst")
    before = os.umask(0)
    try:
        first = unpack(path)
    finally:
        os.umask(before)
    assert (first.path.parent, first.path.name) == (copies, find_digest(path))
    assert (first.path.stat().st_mode & 0o777, copies.stat().st_mode & 0o777) == (0o600, 0o700)
    assert first.notes
    inode = first.path.stat().st_ino
    assert unpack(path) == (first.path, (), (), None)
    assert first.path.stat().st_ino == inode


def test_copies_have_a_limit_together(copies, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"{UNPACKED_CACHE}=3500K")
    made = []
    for number in range(5):
        made.append(unpack(make_image(tmp_path / f"{number}.zst")).path)
        close_all()
        os.utime(made[-1], (time.time() - 5000 + 1000 * number, 0))
        if number == 3:
            # The oldest is used again.
            assert {path.name for path in copies.iterdir()} == {path.name for path in made[1:]}
            unpack(tmp_path / "1.zst")
            close_all()
    assert {path.name for path in copies.iterdir()} == {made[number].name for number in (1, 3, 4)}
    assert sum(path.stat().st_size for path in copies.iterdir()) < 3500 << 10


def test_a_copy_in_use_is_not_removed(copies, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"{UNPACKED_CACHE}=1500K")
    first = unpack(make_image(tmp_path / "a.zst")).path
    in_use = dump_file._KEPT[:]
    second = unpack(make_image(tmp_path / "b.zst", mark=b"second")).path
    assert [path.name for path in copies.iterdir()] == [first.name]
    # It is there as long as this process.
    assert second.read_bytes()[len(ELF) :].startswith(b"second")
    assert in_use[0].read(4) == ELF[:4]


def test_a_copy_larger_than_all_may_be_is_not_kept(copies, tmp_path, monkeypatch):
    path = make_image(tmp_path / "a.zst")
    for limit in ("512K", "0"):
        monkeypatch.setenv(VARIABLE, f"{UNPACKED_CACHE}={limit}")
        assert unpack(path).path.read_bytes().startswith(ELF)
        assert not copies.exists() or [*copies.iterdir()] == []
        close_all()


def test_copies_that_nothing_uses_go_away(copies, tmp_path):
    old = unpack(make_image(tmp_path / "a.zst")).path
    close_all()
    (copies / ".kcovdbg-left").write_bytes(bytes(100))
    for path in (old, copies / ".kcovdbg-left"):
        os.utime(path, (time.time() - 40 * 86400, time.time()))
    new = unpack(make_image(tmp_path / "b.zst")).path
    assert [path.name for path in copies.iterdir()] == [new.name]


def test_a_copy_is_of_the_bytes_that_its_digest_is_of(copies, tmp_path, monkeypatch):
    """Whoever can write a file must not get other contents under the digest of a genuine one."""
    path, genuine = tmp_path / "a.zst", make_image(tmp_path / "genuine.zst", mark=b"genuine")
    path.write_bytes(genuine.read_bytes())
    path.chmod(0o666)
    evil = make_image(tmp_path / "b.zst", 10, mark=b"strange").read_bytes()
    # A skippable frame to the end of the other one.
    evil += struct.pack("<II", 0x184D2A50, path.stat().st_size - len(evil) - 8)
    plain = dump_file._make_copy

    def swap(*words):
        with path.open("r+b") as file:
            file.write(evil)
        plain(*words)

    monkeypatch.setattr(dump_file, "_make_copy", swap)
    found = unpack(path)
    assert found.path.name == find_digest(genuine)
    assert found.path.read_bytes().startswith(ELF + b"genuine")
    monkeypatch.setattr(dump_file, "_make_copy", plain)
    assert unpack(path).path.read_bytes().startswith(ELF + b"strange")
    assert unpack(genuine).path == found.path


def test_a_hole_behind_the_data_takes_no_time(copies, tmp_path):
    path = make_image(tmp_path / "a.zst")
    os.truncate(path, 1 << 42)
    start = time.process_time()
    assert unpack(path).path.read_bytes().startswith(ELF)
    assert time.process_time() - start < 5
