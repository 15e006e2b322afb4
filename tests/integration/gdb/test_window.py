# SPDX-License-Identifier: LGPL-2.1-or-later
"""The TUI's window on a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pexpect
import pyte
import pytest

from tests.support.gdb_run import LOADER


class Terminal:
    """GDB in a terminal."""

    def __init__(self, *arguments: object) -> None:
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        command = ["-nx", "-q", "-iex", "set auto-load no", "-iex", "set debuginfod enabled off", "-iex", f"source {LOADER}"]
        self._child = pexpect.spawn(
            "gdb",
            [*command, *map(str, arguments)],
            dimensions=(24, 80),
            env={"TERM": "xterm-256color", "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LC_ALL": "C.UTF-8"},
        )

    def wait(self, text: str, timeout: float = 20) -> None:
        """Wait until the screen shows a text."""
        self.wait_until(lambda: text in self.text, repr(text), timeout)

    def wait_until(self, holds: Callable[[], bool], what: str, timeout: float = 20) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < deadline, f"no {what} in\n{self.text}"
            try:
                self._stream.feed(self._child.read_nonblocking(65536, 0.1))
            except pexpect.TIMEOUT:
                continue

    def send(self, line: str) -> None:
        self._child.send(line + "\r")

    def press(self, keys: str) -> None:
        self._child.send(keys)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def highlighted(self) -> str:
        """Return the text in reverse video inside the window."""
        # The frames of the windows may be in reverse video as well.
        for number, row in enumerate(self.screen.display[1:14], 1):
            cells = self.screen.buffer[number]
            found = "".join(row[x] for x in range(40, 79) if cells[x].reverse)
            if found.strip():
                return found.strip()
        return ""

    def wait_selected(self, record: str, line: str) -> None:
        """Wait until a record is selected, and its line in the middle of the source window."""
        self.wait_until(lambda: record in self.highlighted() and line in self.screen.display[7], f"{record!r} at {line!r}")

    def close(self) -> None:
        # With its own patience pexpect gives up on a busy machine.
        self._child.kill(signal.SIGKILL)
        self._child.wait()
        self._child.close()


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
    made = Terminal("-iex", f"directory {tmp_path}", "-iex", "set pagination off", demo.vmlinux, demo.core)
    made.wait("(gdb)")
    yield made
    made.close()


def test_buffer_beside_the_source(terminal):
    terminal.send("kcov-window 34")
    terminal.wait("34, task 34")
    terminal.wait("0 __rcu_read_lock")
    assert "0 __rcu_read_lock" in terminal.highlighted()
    # Selecting a record moves the source window.
    terminal.send("kcov-window record 11")
    terminal.wait_selected("11 sched_clock", "tsc.c line 283")
    terminal.send("kcov-window record 4")
    terminal.wait_selected("4 task_pid_ptr", "pid.c line 334")
    terminal.send("kcov-window next")
    terminal.wait_selected("5 __task_pid_nr_ns", "pid.c line 513")
    # And an empty line goes on.
    terminal.send("")
    terminal.wait_until(lambda: "6 ns_of_pid" in terminal.highlighted(), "record 6")
    assert max(map(len, terminal.screen.display)) <= 80
    terminal.send("kcov-window last")
    terminal.wait_until(lambda: "70 " in terminal.highlighted(), "the last record")
    terminal.send("kcov-window first")
    terminal.wait_until(lambda: "0 __rcu_read_lock" in terminal.highlighted(), "the first record")


def test_keys_select_and_the_source_follows(terminal):
    terminal.send("kcov-window 34")
    terminal.wait("0 __rcu_read_lock")
    terminal.send("kcov-window record 4")
    terminal.send("focus kcov")
    terminal.wait("Focus set to kcov")
    # At once, without a prompt in between; in the middle of the window, whichever way it has to go there.
    for key, line, record in (
        ("B", "pid.c line 513", "5 __task_pid_nr_ns"),
        ("A", "pid.c line 334", "4 task_pid_ptr"),
    ):
        terminal.press(f"\x1bO{key}")
        terminal.wait_selected(record, line)
    # Also when other commands have moved it meanwhile, and for keys that come faster than it is drawn.
    terminal.send("list kernel/kcov.c:700,701")
    terminal.wait("kcov.c line 70")
    terminal.press("\x1bOB\x1bOA\x1bOB")
    terminal.wait_selected("5 __task_pid_nr_ns", "pid.c line 513")
    # What is typed stays, and so does the cursor.
    terminal.press("echo \x1bOA")
    terminal.wait_selected("4 task_pid_ptr", "pid.c line 334")
    terminal.send("typed\\n")
    terminal.wait("typed\n".strip())
    # To the right, what the column cuts off.
    terminal.press("\x1bOC" * 30)
    terminal.wait("./include/linux/rcupdate.h:93")


def test_errors_are_shown_in_the_window(terminal):
    terminal.send("kcov-window 9999")
    terminal.wait("task 9999")
    terminal.send("kcov-window 34")
    terminal.wait("0 __rcu_read_lock")
    terminal.send("tui disable")
    terminal.send("kcov-window next")
    terminal.send("kcov-show tasks 34")
    terminal.wait("SEQUENCE")
    # No command has shown the window again.
    terminal.send("info win")
    terminal.wait("The TUI is not active.")


@pytest.mark.lab
def test_refreshed_when_the_target_stops(kernel, standing_guest):
    made = Terminal(kernel.vmlinux)
    made.wait("(gdb)")
    pid = next(line["pid"] for line in standing_guest.truth.lines() if line.get("comm") == "kc-pc")
    made.send(f"kcov-window {pid}")
    made.wait("no target")
    made.send(f"target remote {standing_guest.sockets.gdb_remote}")
    made.wait(f"{pid}, task {pid}", 60)
    made.wait("0 ")
    made.close()
    # A GDB that is killed leaves the guest stopped.
    standing_guest.qmp.execute("cont")
