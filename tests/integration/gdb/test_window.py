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


@pytest.fixture
def terminal(imitation):
    made = Terminal(imitation.program, imitation.core)
    made.wait("(gdb)")
    yield made
    made.close()


def test_buffer_beside_the_source(terminal):
    terminal.send("kcov-window 41")
    terminal.wait("41, task 41")
    terminal.wait("0 covered")
    terminal.wait("n * 3")
    assert "0 covered" in terminal.highlighted()
    # Selecting a record moves the source window.
    terminal.send("kcov-window next")
    terminal.wait("return (long)file")
    assert "1 kcov_ioctl" in terminal.highlighted()
    # And an empty line goes on.
    terminal.send("")
    terminal.wait("n * 3")
    assert "2 covered" in terminal.highlighted()
    assert max(map(len, terminal.screen.display)) <= 80


def test_keys_select_and_the_source_follows(terminal):
    terminal.send("kcov-window 41")
    terminal.wait("0 covered")
    terminal.send("focus kcov")
    terminal.wait("Focus set to kcov")
    # At once, without a prompt in between; in the middle of the window, whichever way it has to go there.
    for key, line, record in (
        ("B", "return (long)file", "1 kcov_ioctl"),
        ("B", "n * 3", "2 covered"),
        ("A", "file;", "1 kcov"),
    ):
        terminal.press(f"\x1bO{key}")
        terminal.wait_selected(record, line)
    # Also when other commands have moved it meanwhile, and for keys that come faster than it is drawn.
    terminal.send("list 4,5")
    terminal.wait("* Members are those")
    terminal.press("\x1bOB\x1bOA\x1bOA")
    terminal.wait_selected("0 covered", "n * 3")
    # What is typed stays, and so does the cursor.
    terminal.press("echo \x1bOB")
    terminal.wait("return (long)file")
    terminal.send("typed\\n")
    terminal.wait("typed\n".strip())


def test_errors_are_shown_in_the_window(terminal):
    terminal.send("kcov-window 999")
    terminal.wait("task 999")
    terminal.send("kcov-window 41")
    terminal.wait("0 covered")
    terminal.send("tui disable")
    terminal.send("kcov-window next")
    terminal.send("kcov-show tasks 41")
    terminal.wait("SEQUENCE")
    # No command has shown the window again.
    terminal.send("info win")
    terminal.wait("The TUI is not active.")


def test_refreshed_when_the_target_stops(imitation):
    made = Terminal(imitation.program, "-ex", "break standing", "-ex", "break covered")
    made.wait("(gdb)")
    made.send("kcov-window 41")
    made.wait("no target")
    made.send("run")
    made.wait("41, task 41")
    made.wait("0 covered")
    made.close()
