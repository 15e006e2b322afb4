# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits for inputs, where they are set, and the opener of inputs."""

import gzip
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from kcovdbg.child_process import python_command
from kcovdbg.compiled_module import zeros
from kcovdbg.errors import KcovdbgError, LimitError
from kcovdbg.frontends.cli import main
from kcovdbg.input_file import open_input, parse_json, read_input, unpack_data
from kcovdbg.limits import (
    LIMITS,
    MEMORY,
    REPLY_TIME,
    TEXT_SIZE,
    TRACE_SIZE,
    VARIABLE,
    WORK,
    find_limit,
    hold_memory,
    one_command,
    parse_limit,
    set_limits,
)
from kcovdbg.target.end_signals import reading


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    # Set and deleted, so that it is restored whatever the test does.
    monkeypatch.setenv(VARIABLE, "")


def test_a_limit_is_set_in_the_file_and_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "kcovdbg").mkdir()
    path = tmp_path / "kcovdbg" / "config.toml"
    path.write_text('[limits]\ntrace-size = "3G"\nreply-time = 7\n')
    assert main(["--limit", "text-size=5K", "--limit", "reply-time=9", "config", "--json"]) == 0
    rows = {
        row["setting"]: (row["value"], row["origin"]) for row in json.loads(capsys.readouterr().out)
    }
    assert rows["limits.trace-size"] == ("3G", str(path))
    assert rows["limits.text-size"] == ("5K", "command line")
    assert rows["limits.reply-time"] == ("9", "command line")
    assert rows["limits.reply-size"][1] == "default"
    assert (find_limit(TRACE_SIZE), find_limit(TEXT_SIZE), find_limit(REPLY_TIME)) == (
        3 << 30,
        5 << 10,
        9,
    )
    # What kcovdbg starts has them from its environment.
    assert VARIABLE in os.environ
    assert python_command("x")


@pytest.mark.parametrize(
    "text",
    ["none=1", "trace-size", "trace-size=", "trace-size=-1", "trace-size=1.5G", "reply-time=1K"],
)
def test_a_wrong_limit_is_refused(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["--limit", text, "config"]) == 2
    assert text.split("=", 1)[0] in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(KcovdbgError):
        find_limit(TRACE_SIZE)


@pytest.mark.parametrize("name", LIMITS)
def test_values_are_shown_as_they_are_typed(name):
    for value in (0, 1, 1000, 1 << 20, 3 << 30, 5 << 40):
        assert parse_limit(name, LIMITS[name].format(value)) == value


def test_a_file_above_its_limit_is_not_read(tmp_path):
    set_limits({TEXT_SIZE: 4})
    (tmp_path / "a").write_bytes(b"1234")
    (tmp_path / "b").write_bytes(b"12345")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert read_input(tmp_path / "a") == b"1234"
    for name in ("b", "sparse"):
        with pytest.raises(LimitError, match=TEXT_SIZE) as caught:
            read_input(tmp_path / name)
        assert TEXT_SIZE in caught.value.hint
    # It has no size before it is read.
    with pytest.raises(LimitError):
        read_input("/proc/self/maps")


def test_only_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "socket", tmp_path, "/dev/zero", "/dev/tty"):
            with pytest.raises(OSError, match=str(path)):
                open_input(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_files_of_others_and_links_are_not_opened_where_they_must_be_ours(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    (tmp_path / "link").symlink_to(path)
    assert read_input(path, owned=True) == read_input(tmp_path / "link") == b"1"
    with pytest.raises(OSError, match="link"):
        open_input(tmp_path / "link", owned=True)
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionError):
        open_input(path, owned=True)


def test_a_file_outside_a_folder_is_not_opened(tmp_path):
    folder = tmp_path.resolve() / "in"
    folder.mkdir()
    (tmp_path / "out").write_bytes(b"1")
    (folder / "a").write_bytes(b"1")
    (folder / "inside").symlink_to("a")
    (folder / "outside").symlink_to("../out")
    assert read_input(folder / "inside", folder=folder) == b"1"
    for path in (folder / "outside", folder / ".." / "out"):
        with pytest.raises(OSError, match="out"):
            open_input(path, folder=folder)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 10_000, "{", b"\xff", "[" + "[]," * (1 << 21) + "1]"]
)
def test_hostile_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_security_md_has_every_limit():
    text = (Path(__file__).parents[3] / "SECURITY.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|", text, re.MULTILINE))
    shown = {
        name: value.replace(" GiB", "G").replace(" MiB", "M").removesuffix(" s")
        for name, value in rows.items()
    }
    assert shown == {name: limit.format_default() for name, limit in LIMITS.items()}


def test_half_of_the_memory_is_the_least_two_gibibytes():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert find_limit(MEMORY) == max(2 << 30, total // 2 >> 20 << 20)


def test_the_kernel_holds_memory(tmp_path):
    set_limits({MEMORY: 64 << 20})
    with pytest.raises(LimitError, match=MEMORY), hold_memory("it"):
        bytearray(256 << 20)
    assert len(bytearray(256 << 20)) == 256 << 20
    with pytest.raises(LimitError, match=MEMORY):
        zeros("Q", 1 << 24)


def test_a_reader_is_ended_after_its_processor_time(tmp_path):
    set_limits({WORK: 1})
    start = time.process_time()

    def spend() -> None:
        while time.process_time() - start < 20:
            pass

    with pytest.raises(LimitError, match=WORK) as caught, reading("it"):
        spend()
    assert "it" in str(caught.value)
    assert time.process_time() - start < 10
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_traces_of_one_command_are_counted_together(tmp_path):
    set_limits({TRACE_SIZE: 100})
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        path.write_bytes(gzip.compress(bytes(40)))
    with one_command():
        for path in (*paths[:2], *paths[:2]):
            assert unpack_data(path, read_input(path, TRACE_SIZE)) == bytes(40)
        with pytest.raises(LimitError, match=TRACE_SIZE):
            unpack_data(paths[2], paths[2].read_bytes())
    with one_command():
        assert unpack_data(paths[2], paths[2].read_bytes()) == bytes(40)
