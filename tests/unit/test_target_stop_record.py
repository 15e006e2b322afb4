# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of runs that stopped a machine, and signals that are turned into an exit."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from kcovdbg.target.socket_address import parse_address
from kcovdbg.target.stop_record import (
    describe_record,
    read_record,
    remove_record,
    signals_as_exit,
    signals_delayed,
    write_record,
)


@pytest.fixture(params=["unix", "tcp"])
def address(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return parse_address(f"unix:{tmp_path}/qmp" if request.param == "unix" else "127.0.0.1:4444")


def test_the_record_of_this_run(address, tmp_path):
    assert read_record(address) is None
    write_record(address)
    record = read_record(address)
    assert record.pid == os.getpid()
    assert record.is_running
    # The number of this process is of no use to a user who can resume the machine here.
    assert str(os.getpid()) not in describe_record(record)
    assert "resume" in describe_record(record)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert str(address.port) in file.name or file.name.startswith("qmp")
    remove_record(address)
    remove_record(address)
    assert read_record(address) is None


def test_the_record_of_a_run_that_has_ended(address):
    """Its process number may belong to another process by now."""
    write_record(address)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    record = read_record(address)
    assert not record._replace(pid=ended.pid).is_running
    assert not record._replace(pid=1).is_running


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": "x", "started": 1, "command": 2, "stopped_at": 3}', "\0\xff"])
def test_damaged_records(tmp_path, content):
    address = parse_address(f"{tmp_path}/qmp")
    write_record(address)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert read_record(address) is None


def test_no_place_for_a_record_and_no_following_of_links(tmp_path):
    write_record(parse_address(f"{tmp_path}/none/qmp"))
    address = parse_address(f"{tmp_path}/qmp")
    write_record(address)
    (file,) = tmp_path.iterdir()
    other = tmp_path / "other"
    other.write_text("kept")
    file.unlink()
    file.symlink_to(other)
    write_record(address)
    assert other.read_text() == "kept"
    assert read_record(address).pid == os.getpid()


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_leave_a_block_in_order(number):
    steps = []

    def block():
        with signals_as_exit():
            try:
                os.kill(os.getpid(), number)
            finally:
                steps.append("left")

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught:
        block()
    assert steps == ["left"]
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_an_exit_that_a_library_loses_is_repeated():
    def block():
        with signals_as_exit(), contextlib.suppress(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        block()


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_exit():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_wait_for_the_end_of_a_block():
    steps = []

    def block():
        with signals_delayed():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("done")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert steps == ["done"]
