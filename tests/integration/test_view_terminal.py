# SPDX-License-Identifier: LGPL-2.1-or-later
"""The view as a process in a pseudo-terminal: its screen, and how the process ends."""

import random
import sys

import pytest

from tests.support.screen import Screen
from tests.support.traces import write_words


def open_view(*words, columns=100):
    return Screen(sys.executable, "-m", "kcovdbg", *words, rows=30, columns=columns)


@pytest.fixture
def traces(tmp_path):
    chosen = random.Random(5)
    words = [0xFFFFFFFF81000005 + 16 * chosen.randrange(4000) for _ in range(5000)]
    other = [*words[:3000], *(0xFFFFFFFF81900005 + 16 * index for index in range(4)), *words[3000:]]
    return [write_words(tmp_path / "a", words), write_words(tmp_path / "b", other)]


def test_a_session(traces):
    with open_view("view", *traces) as screen:
        screen.wait("1/5004")
        screen.type("]", "3001/5004")
        assert sum(" > " in line for line in screen.lines) == 4
        for keys, shown in (
            ("G", "5004/5004"),
            ("/ffffffff81900015\r", "3002/5004"),
            ("n", "wrapped"),
            ("f", "equal records from 0 and 0"),
            ("?", "the next difference"),
        ):
            screen.type(keys, shown)
        screen.type("?", lambda screen: "the next difference" not in screen.text)
        screen.resize(15, 70)
        screen.wait(lambda screen: "] diff" in screen.lines[14])
        assert screen.end(keys="q") == 0
        # The terminal is left as it was.
        assert screen.raw.count(b"\x1b[?1049l") == 1


@pytest.mark.parametrize("key", ["q", "\x1b", "\x03"])
def test_ways_out(traces, key):
    with open_view("view", traces[0]) as screen:
        screen.wait("1/5000")
        assert screen.end(keys=key) == 0


def test_text_has_the_width_of_the_terminal(traces):
    with open_view("view", *traces, "--text", "--fold", columns=90) as screen:
        screen.wait("equal records")
        assert screen.end() == 0


def test_a_key_shows_all_notes():
    with open_view("--demo", "view", "41") as screen:
        screen.wait("(i: ")
        assert "system calls in the records" not in screen.text
        screen.type("i", "system calls in the records")
        screen.type("x", lambda screen: "system calls in the records" not in screen.text)
        assert screen.end(keys="q") == 0
