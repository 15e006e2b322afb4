# SPDX-License-Identifier: LGPL-2.1-or-later
"""Unpacked copies of compressed files: how large they may be, and what is left of them."""

import os
import signal
import subprocess
import sys

import pytest
import zstandard

from kcovdbg.errors import LimitError
from kcovdbg.limits import UNPACKED_SIZE, VARIABLE
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
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(os.urandom(1 << 18) + bytes(50 << 18)))
    assert unpack(path).path.stat().st_size == 51 << 18


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_nothing_is_left_whatever_ends_the_process(tmp_path, number):
    path = compress(tmp_path / "a.zst", 1 << 20)
    folder = tmp_path / "tmp"
    folder.mkdir()
    code = (
        f"import os; from kcovdbg.target.dump_file import unpack; path = unpack({str(path)!r}).path; "
        f"assert path.stat().st_size == 1 << 20; os.kill(os.getpid(), {int(number)})"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}, capture_output=True)
    assert done.returncode == -number, done.stderr
    assert list(folder.iterdir()) == []


def test_other_processes_can_open_them(tmp_path):
    path = unpack(compress(tmp_path / "a.zst", 1000, byte=b"x")).path
    assert subprocess.run(["cat", str(path)], capture_output=True, check=True).stdout == b"x" * 1000
    assert path.read_bytes() == b"x" * 1000
