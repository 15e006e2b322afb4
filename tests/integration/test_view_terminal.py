# SPDX-License-Identifier: LGPL-2.1-or-later
"""The view as a process in a pseudo-terminal: its screen, and how the process ends."""

import os
import random
import struct
import sys
import time
from pathlib import Path

import pexpect
import pyte
import pytest

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 30


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, arguments, columns=100, rows=30):
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONPATH": str(ROOT)}
        for name in ("NO_COLOR", "LINES", "COLUMNS"):
            environment.pop(name, None)
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.child = pexpect.spawn(
            sys.executable, ["-m", "kcovdbg", *arguments], dimensions=(rows, columns), env=environment, timeout=PATIENCE
        )

    def send(self, keys):
        self.child.send(keys)

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def wait(self, wanted):
        """Wait until the screen satisfies a condition; return its text."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                self._stream.feed(self.child.read_nonblocking(1 << 16, 0.1))
            except pexpect.TIMEOUT:
                pass
            except pexpect.EOF:
                break
            if wanted(self.screen.display):
                return list(self.screen.display)
        pytest.fail("\n".join(self.screen.display))

    def end(self):
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def traces(tmp_path):
    chosen = random.Random(5)
    words = [0xFFFFFFFF81000005 + 16 * chosen.randrange(4000) for _ in range(5000)]
    other = [*words[:3000], *(0xFFFFFFFF81900005 + 16 * index for index in range(4)), *words[3000:]]
    names = []
    for name, content in (("a", words), ("b", other)):
        path = tmp_path / name
        path.write_bytes(struct.pack(f"<{len(content) + 1}Q", len(content), *content))
        names.append(f"file:{path}")
    return names


def shows(text):
    return lambda screen: any(text in line for line in screen)


def test_a_session(traces):
    terminal = Terminal(["view", *traces])
    terminal.wait(shows("1/5004"))
    terminal.send("]")
    screen = terminal.wait(shows("3001/5004"))
    assert sum(" > " in line for line in screen) == 4
    terminal.send("G")
    terminal.wait(shows("5004/5004"))
    terminal.send("/ffffffff81900015\r")
    terminal.wait(shows("3002/5004"))
    terminal.send("n")
    terminal.wait(shows("wrapped"))
    terminal.send("f")
    terminal.wait(shows("equal records from 0 and 0"))
    terminal.send("?")
    terminal.wait(shows("the next difference"))
    terminal.send("?")
    terminal.wait(lambda screen: not shows("the next difference")(screen))
    terminal.resize(70, 15)
    screen = terminal.wait(shows("] diff"))
    assert len(screen) == 15
    terminal.wait(lambda screen: "] diff" in screen[14])
    terminal.send("q")
    assert terminal.end() == 0
    # The terminal is left as it was.
    assert terminal.child.before.count(b"\x1b[?1049l") == 1


@pytest.mark.parametrize("key", ["q", "\x1b", "\x03"])
def test_ways_out(traces, key):
    terminal = Terminal(["view", traces[0]])
    terminal.wait(shows("1/5000"))
    terminal.send(key)
    assert terminal.end() == 0


def test_text_has_the_width_of_the_terminal(traces):
    terminal = Terminal(["view", *traces, "--text", "--fold"], columns=90)
    terminal.wait(shows("equal records"))
    assert terminal.end() == 0


def test_a_key_shows_all_notes():
    terminal = Terminal(["--demo", "view", "41"])
    first = terminal.wait(lambda lines: any("(i: " in line for line in lines))
    assert not any("system calls in the records" in line for line in first)
    terminal.send("i")
    terminal.wait(lambda lines: any("system calls in the records" in line for line in lines))
    terminal.send("x")
    terminal.wait(lambda lines: not any("system calls in the records" in line for line in lines))
    terminal.send("q")
    assert terminal.end() == 0
