# SPDX-License-Identifier: LGPL-2.1-or-later
"""The TUI's window on a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.gdb_run import START
from tests.support.screen import Screen


@contextlib.contextmanager
def open_gdb(*arguments: object) -> Iterator[Screen]:
    with Screen("gdb", *START, "-q", *arguments) as screen:
        screen.wait("(gdb)")
        yield screen
        screen.process.kill(signal.SIGKILL)


def highlighted(screen: Screen) -> str:
    """Return the text in reverse video inside the window."""
    # The frames of the windows may be in reverse video as well.
    for number, row in enumerate(screen.screen.display[1:14], 1):
        cells = screen.screen.buffer[number]
        found = "".join(row[x] for x in range(40, 79) if cells[x].reverse)
        if found.strip():
            return found.strip()
    return ""


def wait_selected(screen: Screen, record: str, line: str = "") -> None:
    """Wait until a record is selected, and its line in the middle of the source window."""
    screen.wait(lambda screen: record in highlighted(screen) and line in screen.screen.display[7])


FILES = ("kernel/sys.c", "kernel/pid.c", "kernel/kcov.c", "arch/x86/kernel/tsc.c")


@pytest.fixture
def terminal(demo, tmp_path):
    """GDB on the demo, with source files that tell their lines."""
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{path.name} line {number}\n" for number in range(1, 1500)))
        # GDB warns of files that are newer than the kernel.
        os.utime(path, (1, 1))
    with open_gdb(
        "-iex", f"directory {tmp_path}", "-iex", "set pagination off", demo.vmlinux, demo.core
    ) as screen:
        yield screen


def test_buffer_beside_the_source(terminal):
    terminal.type("kcov-window 34\r", "34, task 34")
    terminal.wait("0 __rcu_read_lock")
    assert "0 __rcu_read_lock" in highlighted(terminal)
    # Selecting a record moves the source window, and an empty line goes on.
    for line, record, place in (
        ("kcov-window record 11", "11 sched_clock", "tsc.c line 283"),
        ("kcov-window record 4", "4 task_pid_ptr", "pid.c line 334"),
        ("kcov-window next", "5 __task_pid_nr_ns", "pid.c line 513"),
        ("", "6 ns_of_pid", ""),
        ("kcov-window last", "70 ", ""),
        ("kcov-window first", "0 __rcu_read_lock", ""),
    ):
        terminal.type(f"{line}\r")
        wait_selected(terminal, record, place)
        assert max(map(len, terminal.screen.display)) <= 80


def test_keys_select_and_the_source_follows(terminal):
    terminal.type("kcov-window 34\r", "0 __rcu_read_lock")
    terminal.type("kcov-window record 4\r")
    terminal.type("focus kcov\r", "Focus set to kcov")
    # At once, without a prompt in between; in the middle of the window, whichever way it has to go
    # there.
    for key, line, record in (
        ("B", "pid.c line 513", "5 __task_pid_nr_ns"),
        ("A", "pid.c line 334", "4 task_pid_ptr"),
    ):
        terminal.type(f"\x1bO{key}")
        wait_selected(terminal, record, line)
    # Also when other commands have moved it meanwhile, and for keys that come faster than it is
    # drawn.
    terminal.type("list kernel/kcov.c:700,701\r", "kcov.c line 70")
    terminal.type("\x1bOB\x1bOA\x1bOB")
    wait_selected(terminal, "5 __task_pid_nr_ns", "pid.c line 513")
    # What is typed stays, and so does the cursor.
    terminal.type("echo \x1bOA")
    wait_selected(terminal, "4 task_pid_ptr", "pid.c line 334")
    terminal.type("typed\\n\r", "typed")
    # To the right, what the column cuts off.
    terminal.type("\x1bOC" * 30, "./include/linux/rcupdate.h:93")


def test_errors_are_shown_in_the_window(terminal):
    terminal.type("kcov-window 9999\r", "task 9999")
    terminal.type("kcov-window 34\r", "0 __rcu_read_lock")
    terminal.type("tui disable\r")
    terminal.type("kcov-window next\r")
    terminal.type("kcov-show tasks 34\r", "SEQUENCE")
    # No command has shown the window again.
    terminal.type("info win\r", "The TUI is not active.")


@pytest.mark.lab
def test_refreshed_when_the_target_stops(kernel, standing_guest):
    pid = next(line["pid"] for line in standing_guest.truth.lines() if line.get("comm") == "kc-pc")
    with open_gdb(kernel.vmlinux) as screen:
        screen.type(f"kcov-window {pid}\r", "no target")
        screen.type(f"target remote {standing_guest.sockets.gdb_remote}\r")
        screen.wait(f"{pid}, task {pid}", 60)
        screen.wait("0 ")
    # A GDB that is killed leaves the guest stopped.
    standing_guest.qmp.execute("cont")
