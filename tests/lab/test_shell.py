# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell on a real dump, in a pseudo-terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.conftest import DumpMaker
    from tests.lab.situation import Dump

pytestmark = pytest.mark.lab


def at_prompt(screen: Screen) -> bool:
    return bool(screen.lines[screen.screen.cursor.y] == "kcovdbg>")


@pytest.fixture
def dump(standing_dump: DumpMaker) -> Dump:
    return standing_dump()


@pytest.fixture
def shell(dump: Dump, tmp_path: Path) -> Iterator[Screen]:
    words = (sys.executable, "-m", "kcovdbg", *dump.target)
    with Screen(*words, rows=70, columns=150, answers_cursor=True, XDG_STATE_HOME=str(tmp_path)) as screen:
        screen.wait(at_prompt, seconds=60)
        yield screen


def test_status_line_names_the_target(shell: Screen, dump: Dump) -> None:
    shell.wait("F1 help")
    assert dump.truth["release"] in shell.lines[-1]
    assert "  dump  E9a" in shell.lines[-1]


def test_tasks_and_objects_complete(shell: Screen, dump: Dump) -> None:
    traced = dump.states()["kc-pc"]
    shell.type(f"tasks {str(traced['tid'])[:-1]}")
    shell.wait(f"{traced['comm']}  TRACE_PC  {traced['count']}")
    shell.type("\x15buffer kcov:0xff\t")
    shell.wait(lambda screen: sum("kcov:0xffff" in line for line in screen.lines) > 5)
    shell.type(f"\x15buffer fd:{traced['tid']}")
    shell.wait(f"fd:{traced['tid']}/{traced['fds'][0]}")


def test_interrupt_in_the_middle_of_a_long_answer(shell: Screen, dump: Dump) -> None:
    busy = dump.states()["kc-usb"]["tid"]
    shell.type("watch 0 objects\r")
    shell.wait("kc-pc")
    shell.type("\x03")
    shell.wait(at_prompt)
    shell.type(f"buffer {busy} --raw > /dev/null\r")
    shell.settle(0.2)
    shell.type("\x03")
    shell.wait(at_prompt)
    shell.type("info | grep release\r")
    shell.wait(f"release          {dump.truth['release']}")
    assert "Traceback" not in shell.text


def test_view_and_back(shell: Screen, dump: Dump) -> None:
    shell.type(f"view {dump.states()['kc-pc']['tid']}\r")
    shell.wait(lambda screen: "q leave" in screen.text and "kcovdbg>" not in screen.text)
    shell.type("q")
    shell.wait(at_prompt)
    shell.type("remote\r")
    shell.wait("usb:1")
