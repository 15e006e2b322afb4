# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's configuration file in the shell and in real drgn; GDB has its own in gdb/."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kcovdbg.target.dump_file import unpack
from tests.lab.golden import DEBUG_INFO, DESTINATION, SLICE
from tests.support.screen import Screen

GOLDEN = DESTINATION / "6.12-gcc"
TEXT = '[columns]\ntasks = ["comm", "pid"]\n[aliases]\nfuzzers = "tasks --mode trace-pc"\nnewest-tasks = "tasks"\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "kcovdbg").mkdir()
    (tmp_path / "kcovdbg" / "config.toml").write_text(TEXT)
    return tmp_path


def environment(home: Path) -> Mapping[str, str]:
    return {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home)}


def test_aliases_are_completed_in_the_shell(home: Path) -> None:
    def at_prompt(screen: Screen) -> bool:
        return bool(screen.lines[screen.screen.cursor.y].startswith("kcovdbg>"))

    with Screen(
        sys.executable, "-m", "kcovdbg", "--demo", "-q", columns=120, answers_cursor=True, **environment(home)
    ) as screen:
        screen.wait(at_prompt, 60)
        screen.type("fuz\t")
        screen.wait("kcovdbg> fuzzers")
        screen.type(" --wid\t")
        screen.wait("kcovdbg> fuzzers --wide")
        screen.type("\r")
        screen.wait("TRACE_PC")


class TestDrgn:
    DRGN = Path(sys.executable).parent / "drgn"

    def open(self, home: Path) -> Screen:
        if not self.DRGN.exists():
            pytest.skip("drgn's command line isn't installed")
        files = ("-c", unpack(GOLDEN / SLICE).path, "-s", unpack(GOLDEN / DEBUG_INFO).path)
        plugin = "kcov=kcovdbg.frontends.drgn_plugin"
        return Screen(self.DRGN, "-q", *files, rows=60, columns=120, DRGN_PLUGINS=plugin, **environment(home))

    @staticmethod
    def at_prompt(screen: Screen) -> bool:
        return bool(screen.lines[screen.screen.cursor.y] == ">>>")

    def test_columns_and_aliases(self, home: Path) -> None:
        with self.open(home) as screen:
            screen.wait(self.at_prompt, seconds=60)
            screen.type("%kcov tasks | head -1\r")
            screen.wait(lambda screen: ["COMM", "PID"] in [line.split() for line in screen.lines])
            screen.wait(self.at_prompt)
            screen.type("\x0c%kcov fuzzers --json | grep -c TRACE_CMP\r")
            screen.wait(lambda screen: "0" in screen.lines)

    def test_an_error_names_the_file(self, home: Path) -> None:
        path = home / "kcovdbg" / "config.toml"
        path.write_text('color = "never"\ncolors = 1\n')
        with self.open(home) as screen:
            screen.wait(self.at_prompt, seconds=60)
            screen.type("%kcov tasks\r")
            # The line is wrapped somewhere: paths differ in length.
            screen.wait(lambda screen: f"{path}:unknownsetting" in "".join(screen.text.split()))
            screen.wait(self.at_prompt)
            assert "Traceback" not in screen.text
