# SPDX-License-Identifier: LGPL-2.1-or-later
"""The monitor as a process in a pseudo-terminal: its screen, and how the process ends."""

import os
import re
import signal
import sys
import termios

import pytest

from tests.support.monitor_process import EXAMPLE, MODULE
from tests.support.screen import Screen

# At the last of these looks, a buffer is full and a section runs. No other look follows.
MONITOR = (MODULE, EXAMPLE, "31", "--interval", "3600")
VIEW = ("kcovdbg", "--demo", "view", "kc-again")


def open_monitor(rows=24, columns=80, **environment):
    command = (sys.executable, "-m", *MONITOR)
    return Screen(
        *command, rows=rows, columns=columns, XDG_CONFIG_HOME="/nonexistent", **environment
    )


@pytest.mark.parametrize(("rows", "columns"), [(24, 80), (30, 100)])
def test_a_session(rows, columns):
    with open_monitor(rows, columns) as screen:
        screen.wait("rounds-fill")
        screen.type(" ", "FROZEN")
        screen.type(" ", lambda shown: "FROZEN" not in shown.text)
        assert len(screen.lines) == rows
        assert "Quit" in screen.lines[-1]
        assert "FULL" in next(
            line for line in screen.lines if "rounds-fill" in line and "TRACE_PC" in line
        )
        screen.type(
            "/own\r",
            lambda shown: "filter 'own'" in shown.text and " rounds-run " not in shown.text,
        )
        screen.type("\x1b", " rounds-run ")
        screen.type("\t", "common:0x5ec7")
        screen.type("?", "show this help")
        screen.type("?", lambda shown: "show this help" not in shown.text)
        screen.resize(16, 60)
        screen.wait(lambda shown: "Help" in shown.lines[15])
        assert screen.end(keys="q") == 0
        # The terminal is left as it was.
        assert b"\x1b[?1049l" in screen.raw


def test_no_color():
    with open_monitor(NO_COLOR="1") as screen:
        screen.wait("Quit")
        screen.type(" ", "FROZEN")
        assert b"\x1b[0;31" not in screen.raw
        assert not [
            code
            for code in range(31, 37)
            if f"[0;{code}".encode() in screen.raw or f";{code}m".encode() in screen.raw
        ]
        assert screen.end(keys="\x03") == 0


def is_cooked(screen):
    return bool(termios.tcgetattr(screen.process.child_fd)[3] & termios.ICANON)


def test_stopped_and_continued():
    with open_monitor() as screen:
        cooked = termios.tcgetattr(screen.process.child_fd)
        screen.wait("Quit")
        screen.type(" ", "FROZEN")
        screen.settle()
        assert not is_cooked(screen)
        # As a shell has the terminal afterwards.
        os.kill(screen.process.pid, signal.SIGSTOP)
        os.waitpid(screen.process.pid, os.WUNTRACED)
        termios.tcsetattr(screen.process.child_fd, termios.TCSANOW, cooked)
        screen.screen.reset()
        assert is_cooked(screen)
        assert "FROZEN" not in screen.text
        os.kill(screen.process.pid, signal.SIGCONT)
        screen.wait("FROZEN")
        assert "Quit" in screen.lines[-1]
        assert not is_cooked(screen)
        assert screen.raw.count(b"\x1b[?1049h") == 2
        assert screen.end(keys="q") == 0
        # The terminal is as it was at the start.
        assert is_cooked(screen)


@pytest.mark.parametrize("words", [MONITOR, VIEW])
def test_suspended_by_a_key(words):
    command = [sys.executable, "-m", *words]
    with Screen(
        "bash", "--norc", "-i", rows=24, columns=80, PS1="$$ ", XDG_CONFIG_HOME="/nonexistent"
    ) as screen:
        screen.type(" ".join(map(str, command)) + "\r")
        shown = "Quit" if words is MONITOR else "q leave"
        screen.wait(shown)
        screen.type("\x1a", "Stopped")
        screen.type(
            "fg\r", lambda screen: "Stopped" not in screen.text and shown in screen.lines[-1]
        )
        screen.type("q")
        assert screen.end(keys="exit 7\r") == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_leaves_the_terminal_as_it_was(number):
    with open_monitor() as screen:
        screen.wait("Quit")
        screen.settle()
        os.kill(screen.process.pid, number)
        assert screen.end() == 128 + number
        assert b"\x1b[?1049l" in screen.raw


@pytest.mark.parametrize("words", [(MODULE, EXAMPLE, "1"), VIEW])
def test_a_dumb_terminal_gets_text(words):
    command = [sys.executable, "-m", *words]
    with Screen(
        *command, rows=50, columns=100, XDG_CONFIG_HOME="/nonexistent", TERM="dumb"
    ) as screen:
        screen.wait("rounds-fill" if MODULE in words else "46 ")
        if MODULE in words:
            # There is a look each quarter of a second.
            screen.wait(lambda _: screen.raw.count(b"kcovdbg monitor") > 3)
            screen.type("\x03")
        assert screen.end() == 0
        assert b"\x1b" not in screen.raw
        looks = [
            float(seconds) for seconds in re.findall(rb"kcovdbg monitor.* (\d+\.\d) s", screen.raw)
        ]
        assert not looks or looks[1] - looks[0] > 2
        # An event is printed once.
        events = re.findall(rb"[\d:]+ FULL: .*", screen.raw)
        assert len(events) == len(set(events))
