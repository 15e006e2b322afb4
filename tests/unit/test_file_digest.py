# SPDX-License-Identifier: LGPL-2.1-or-later
"""Digests of files: which are remembered, and that no other contents get a remembered one."""

import hashlib
import os
import time

import pytest

from kcovdbg import file_digest
from kcovdbg.file_digest import find_digest, open_unchanging

DATA = b"contents" * 1000


def digest_of(data):
    """Return the digest of a file that has one block."""
    return hashlib.sha256(len(data).to_bytes(8, "little") + bytes(8) + data).hexdigest()


@pytest.fixture
def image(tmp_path, monkeypatch):
    """A file that was written long ago."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "image"
    path.write_bytes(DATA)
    later = time.time_ns() + 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    return path


def list_of(tmp_path):
    return tmp_path / "cache/kcovdbg/digests.json"


def test_a_digest_is_computed_once(image, tmp_path, monkeypatch):
    expected = digest_of(DATA)
    before = os.umask(0)
    try:
        assert find_digest(image) == expected
    finally:
        os.umask(before)
    kept = list_of(tmp_path)
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    monkeypatch.setattr(hashlib, "sha256", None)
    assert find_digest(image) == expected


def test_other_contents_have_another_digest(image):
    """Of the same size, and with the time of the last write put back."""
    first = find_digest(image)
    status = image.stat()
    image.write_bytes(DATA[::-1])
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert image.stat().st_mtime_ns == status.st_mtime_ns
    assert find_digest(image) == digest_of(DATA[::-1]) != first


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_what_others_can_write_is_read_each_time(image, tmp_path, mode):
    image.chmod(mode)
    find_digest(image)
    assert not list_of(tmp_path).exists()
    with open_unchanging(image) as found:
        image.write_bytes(DATA[::-1])
        found.file.seek(0)
        assert found.file.read() == DATA
        assert found.is_unchanged()
    assert found.digest == digest_of(DATA)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file of another user")
def test_what_another_user_owns_is_read_each_time(image, tmp_path):
    os.chown(image, 65534, 65534)
    find_digest(image)
    assert not list_of(tmp_path).exists()


def test_what_has_just_changed_is_not_remembered(image, tmp_path, monkeypatch):
    """Two changes in one tick of the clock have the same time."""
    now = image.stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: now)
    find_digest(image)
    assert not list_of(tmp_path).exists()


@pytest.mark.parametrize("content", ["", "[]", "3", '{"a": 3}', "[" * 100_000])
def test_a_damaged_list_is_written_again(image, tmp_path, content):
    expected = find_digest(image)
    list_of(tmp_path).write_text(content)
    assert find_digest(image) == find_digest(image) == expected
    assert expected in list_of(tmp_path).read_text()


def test_the_list_does_not_grow_without_end(image, tmp_path, monkeypatch):
    monkeypatch.setattr(file_digest, "_REMEMBERED", 3)
    for number in range(6):
        (tmp_path / str(number)).write_bytes(DATA)
        find_digest(tmp_path / str(number))
    assert list_of(tmp_path).read_text().count(digest_of(DATA)) == 3


def test_holes_take_no_time_and_count_as_zeros(tmp_path, image):
    block = 1 << 20
    contents = {
        "holes": [(0, b"a"), (5 * block + 7, b"b")],
        "zeros": [(0, b"a" + bytes(5 * block + 6) + b"b")],
        "moved": [(0, b"a"), (6 * block + 7, b"b"), (5 * block, b"")],
        "swapped": [(0, b"b"), (5 * block + 7, b"a")],
        "longer": [(0, b"a"), (5 * block + 7, b"b\0")],
    }
    found = {}
    for name, parts in contents.items():
        with (tmp_path / name).open("wb") as file:
            for place, data in parts:
                file.seek(place)
                file.write(data)
        found[name] = find_digest(tmp_path / name)
        (tmp_path / name).chmod(0o666)
        with open_unchanging(tmp_path / name) as unchanging:
            unchanging.file.seek(0)
            assert unchanging.file.read() == (tmp_path / name).read_bytes()
        assert unchanging.digest == found[name]
    assert found["holes"] == found["zeros"]
    assert len(set(found.values())) == len(found) - 1
    # As large as a file of this kind can be.
    os.truncate(image, 1 << 42)
    start = time.process_time()
    find_digest(image)
    assert time.process_time() - start < 5


def test_what_the_user_changes_does_not_stay_unchanged(image):
    with open_unchanging(image) as found:
        assert found.is_unchanged()
        with image.open("r+b") as file:
            file.write(b"C")
        assert not found.is_unchanged()


def test_of_what_has_just_changed_a_copy_is_read(image, monkeypatch):
    now = image.stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: now)
    with open_unchanging(image) as found:
        image.write_bytes(DATA[::-1])
        found.file.seek(0)
        assert found.file.read() == DATA
        assert found.is_unchanged()
