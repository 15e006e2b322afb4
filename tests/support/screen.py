# SPDX-License-Identifier: LGPL-2.1-or-later
"""Screens and keys: of a process in a pseudo-terminal, and of a full-screen application in
memory.
"""

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pyte
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

ROOT = Path(__file__).parent.parent.parent
_ASKS_FOR_CURSOR = re.compile(rb"\x1b\[6n")


class Screen:
    """Runs a program and keeps what its terminal shows.

    :param answers_cursor: whether it tells where the cursor is, as nearly every terminal does.
    """

    def __init__(self, *command, rows=24, columns=80, answers_cursor=False, **environment):
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._answers_cursor = answers_cursor
        self.raw = b""
        base = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        base |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        if not answers_cursor:
            base["PROMPT_TOOLKIT_NO_CPR"] = "1"
        self.process: pexpect.spawn[bytes] = pexpect.spawn(
            str(command[0]),
            [str(word) for word in command[1:]],
            env={**base, **environment},
            dimensions=(rows, columns),
            cwd=str(ROOT),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.close(force=True)

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    def _read(self, seconds):
        try:
            data = self.process.read_nonblocking(65536, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        if self._answers_cursor:
            for _ in _ASKS_FOR_CURSOR.findall(data):
                self.process.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        return True

    def wait(self, condition, seconds=20.0):
        """Wait for a text on the screen, or until a function of this object returns true."""
        wanted = condition if callable(condition) else lambda screen: condition in screen.text
        end = time.monotonic() + seconds
        while not wanted(self):
            assert self._read(0.05) or wanted(self), f"the program has ended:\n{self.text}"
            assert time.monotonic() < end, f"{condition!r} doesn't come:\n{self.text}"

    def settle(self, seconds=0.4):
        """Read the remaining output."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._read(0.05):
            pass

    def type(self, keys, shown=None):
        """Type keys, and wait for what they show."""
        self.process.send(keys)
        if shown is not None:
            self.wait(shown)

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def end(self, seconds=10.0, keys=None):
        """Wait for its end, after the last keys; return its exit status."""
        if keys is not None:
            self.type(keys)
        end = time.monotonic() + seconds
        while self._read(0.05):
            assert time.monotonic() < end, f"it doesn't end:\n{self.text}"
        self.process.wait()
        if self.process.exitstatus is not None:
            return self.process.exitstatus
        assert self.process.signalstatus is not None
        return -self.process.signalstatus


def open_shell(state, *words, **options):
    """The shell on a kernel made by hand; its history is kept below this folder."""
    return Screen(
        sys.executable,
        "-m",
        "tests.support.shell_process",
        *words,
        XDG_STATE_HOME=str(state),
        **options,
    )


class Sink:
    """What prompt_toolkit writes to, read by a terminal emulator."""

    def __init__(self, columns, rows):
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self.screen)
        self.raw = ""

    def write(self, data):
        self.raw += data
        # pyte knows no private OSC but titles.
        self._stream.feed(data)

    def flush(self):
        pass

    def isatty(self):
        return True

    encoding = "utf-8"


# Seconds until what was typed is on the screen; prompt_toolkit waits for the rest of an escape
# sequence.
_STEP, _SHORT_STEP = 0.1, 0.04


class KeyTerminal:
    """Types keys into a full-screen application and reads its screen.

    :param make: makes it.
    """

    def __init__(self, make, columns=80, rows=24):
        self._make, self._size = make, Size(rows, columns)
        self.sink: Any = Sink(columns, rows)
        self.result = None

    def run(self, *steps):
        """Run the application: each step is text to type, or a function to call; return the screen
        after each.
        """
        return asyncio.run(self._run(steps))

    async def _run(self, steps):
        frames = []
        with create_pipe_input() as keys:
            output = Vt100_Output(self.sink, lambda: self._size, term="xterm", enable_cpr=False)
            with create_app_session(input=keys, output=output):
                self.shown = self._make()
                application = self.shown.application
                running = asyncio.ensure_future(application.run_async(handle_sigint=False))
                await asyncio.sleep(_STEP)
                for step in steps:
                    drawn = application.render_counter
                    if callable(step):
                        step()
                        application.invalidate()
                    else:
                        keys.send_text(step)
                    for _ in range(200):
                        # A busy machine may take long to answer.
                        if running.done() or application.render_counter > drawn:
                            break
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(
                        _STEP if callable(step) or "\x1b" in step or "N" in step else _SHORT_STEP
                    )
                    frames.append(list(self.sink.screen.display))
                if not running.done():
                    self.shown.popup = None
                    keys.send_text("q")
                self.result = await asyncio.wait_for(running, 5)
        return frames

    def resize(self, columns, rows):
        self._size = Size(rows, columns)
        self.sink.screen.resize(rows, columns)
        self.shown.application._on_resize()
