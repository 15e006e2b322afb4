# SPDX-License-Identifier: LGPL-2.1-or-later
"""The README's session has the demo's real answers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SESSION = re.compile(r"```console\n\$ (?P<start>.*?)\n(?P<session>.*?)```", re.DOTALL)


def read_session():
    match = SESSION.search((ROOT / "README.md").read_text())
    assert match is not None
    exchanges = match["session"].split("kcovdbg> ")[1:]
    return match["start"].split()[1:], [exchange.partition("\n")[::2] for exchange in exchanges]


def test_the_session_is_real():
    pytest.importorskip("drgn")
    start, exchanges = read_session()
    assert len(exchanges) >= 3
    for command, shown in exchanges:
        done = subprocess.run(
            [sys.executable, "-m", "kcovdbg", *start, "-e", command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        )
        assert done.returncode == 0, done.stderr
        assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in shown.splitlines()], command


def test_the_commands_are_the_makefiles():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for goal in ("demo", "test"):
        assert re.search(rf"^make {goal}\b", readme, re.MULTILINE)
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE)
