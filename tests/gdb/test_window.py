# SPDX-License-Identifier: LGPL-2.1-or-later
"""The TUI's window on a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import os
import time

import pexpect
import pyte
import pytest

from tests.gdb.gdb_run import LOADER


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
        deadline = time.monotonic() + timeout
        while text not in self.text:
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.text}"
            try:
                self._stream.feed(self._child.read_nonblocking(65536, 0.1))
            except pexpect.TIMEOUT:
                continue

    def send(self, line: str) -> None:
        self._child.send(line + "\r")

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def highlighted(self) -> str:
        """What is in reverse video inside the window."""
        # The frames of the windows may be in reverse video as well.
        for number, row in enumerate(self.screen.display[1:14], 1):
            cells = self.screen.buffer[number]
            found = "".join(row[x] for x in range(40, 79) if cells[x].reverse)
            if found.strip():
                return found.strip()
        return ""

    def close(self) -> None:
        self._child.close(force=True)


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


def test_keys_select(terminal):
    terminal.send("kcov-window 41")
    terminal.wait("0 covered")
    terminal.send("focus kcov")
    terminal.wait("Focus set to kcov")
    terminal._child.send("\x1bOB")
    terminal.send("echo moved\\n")
    terminal.wait("moved\n".strip())
    terminal.wait("return (long)file")
    assert "1 kcov_ioctl" in terminal.highlighted()


def test_errors_are_shown_in_the_window(terminal):
    terminal.send("kcov-window 999")
    terminal.wait("there is no task 999")
    terminal.send("tui disable")
    terminal.send("kcov-window next")
    terminal.send("kcov-show tasks 41")
    terminal.wait("syz-executor")


def test_refreshed_when_the_target_stops(imitation):
    made = Terminal(imitation.program, "-ex", "break standing", "-ex", "break covered")
    made.wait("(gdb)")
    made.send("kcov-window 41")
    made.wait("there is no target")
    made.send("run")
    made.wait("41, task 41")
    made.wait("0 covered")
    made.close()
