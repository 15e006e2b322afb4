# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of runs that stopped a machine."""

import os
import subprocess
import sys

import pytest

from kcovdbg.target.connection import (
    _start_time,
    describe_record,
    parse_socket_address,
    read_record,
    remove_record,
    restore_record,
    write_record,
)


@pytest.fixture(params=["unix", "tcp"])
def address(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return parse_socket_address(
        f"unix:{tmp_path}/qmp" if request.param == "unix" else "127.0.0.1:4444"
    )


def test_the_record_of_this_run(address, tmp_path):
    # Where there is no place for one, there is none.
    write_record(parse_socket_address(f"{tmp_path}/none/qmp"))
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


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"pid": "x", "started": 1, "command": 2, "stopped_at": 3}', "\0\xff"],
)
def test_damaged_records(tmp_path, content):
    address = parse_socket_address(f"{tmp_path}/qmp")
    write_record(address)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert read_record(address) is None


def test_the_record_of_a_run_that_is_about_to_stop_the_machine_stays(address):
    """Another run that finds the machine running leaves it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        write_record(address)
        record = read_record(address)._replace(pid=other.pid, started=_start_time(other.pid))
        restore_record(address, record)
        remove_record(address)
        assert read_record(address) == record
        other.communicate(b"\n")
    remove_record(address)
    assert read_record(address) is None
