# SPDX-License-Identifier: LGPL-2.1-or-later
"""The writer of files: files that it replaces, follows, writes through, or leaves as they were."""

import errno
import os
import resource

import pytest

from kcovdbg.output_file import find_descriptor, find_output, open_output


def write(path, data=b"new", **options):
    with open_output(path, **options) as stream:
        stream.write(data)


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old"
    path.write_bytes(b"old")
    return path


def test_a_file_is_replaced_when_it_is_complete(old):
    with open_output(old) as stream:
        stream.write(b"ne")
        stream.flush()
        assert old.read_bytes() == b"old"
        stream.write(b"w")
    assert old.read_bytes() == b"new"
    assert [entry.name for entry in old.parent.iterdir()] == ["old"]


def test_the_longest_name_can_be_written(tmp_path):
    write(tmp_path / ("ü" * 127))
    assert (tmp_path / ("ü" * 127)).read_bytes() == b"new"


def test_a_link_is_followed(old, tmp_path):
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "dangling").symlink_to("made")
    write(tmp_path / "link")
    write(tmp_path / "dangling")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "dangling").is_symlink()
    assert old.read_bytes() == (tmp_path / "made").read_bytes() == b"new"


def test_own_descriptors_share_their_offset(tmp_path):
    with (tmp_path / "out").open("wb", buffering=0) as out:
        out.write(b"before ")
        for path in (
            f"/dev/fd/{out.fileno()}",
            f"/proc/self/fd/{out.fileno()}",
            f"/proc/{os.getpid()}/fd/{out.fileno()}",
        ):
            assert find_descriptor(path) == out.fileno()
            write(path)
        out.write(b" after")
    assert (tmp_path / "out").read_bytes() == b"before newnewnew after"
    assert find_descriptor("/dev/stdout") == 1
    assert find_descriptor(f"/proc/{os.getppid()}/fd/1") is None
    assert find_descriptor(tmp_path / "out") is None


def test_the_check_comes_before_any_change(old):
    def refuse():
        raise RuntimeError

    for append in (False, True):
        with pytest.raises(RuntimeError):
            write(old, append=append, check=refuse)
        assert old.read_bytes() == b"old"
    with open_output(old, append=True, check=refuse):
        # Nothing is appended, so nothing is checked.
        pass
    assert [entry.name for entry in old.parent.iterdir()] == ["old"]


def test_a_quota_leaves_the_old_file(old):
    """The kernel's limit for file sizes is reached in the middle of a file, as a quota would be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        with pytest.raises(OSError, match=str(old)) as caught:
            write(old, bytes(10000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert old.read_bytes() == b"old"
    assert [entry.name for entry in old.parent.iterdir()] == ["old"]


def test_errors_name_the_path_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        write("none/a")
    assert caught.value.filename == "none/a"
    with pytest.raises(IsADirectoryError):
        write(".")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop") as caught:
        find_output("loop")
    assert caught.value.errno == errno.ELOOP


def test_an_error_with_another_file_is_left_as_it_is(old, tmp_path):
    with pytest.raises(FileNotFoundError) as caught, open_output(old):
        (tmp_path / "deep" / "other").read_bytes()
    assert caught.value.filename == str(tmp_path / "deep" / "other")
    assert old.read_bytes() == b"old"
