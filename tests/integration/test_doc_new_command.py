# SPDX-License-Identifier: LGPL-2.1-or-later
"""Follow docs/adding-a-command.md: the command is then in every frontend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.page_steps import ROOT, copy_tree, follow

PAGE = ROOT / "docs" / "adding-a-command.md"
COMPLETE = """
from kcovdbg.commands import COMMANDS
from kcovdbg.console.completion import find_candidates, find_cursor
from kcovdbg.console.completion_index import Index
for line in ("mo", "modes --"):
    for entry in find_candidates(find_cursor(line), COMMANDS, Index()):
        print(entry.text, entry.meta)
"""
DRGN = (
    "import drgn; from kcovdbg.frontends.drgn_commands import run_in_drgn; "
    "run_in_drgn(drgn.Program(), 'help modes')"
)
_RULES = "not loads and not dump"
HELP = "modes - count the tasks in each mode"
# By frontend: the words for Python, and texts in the answer.
FRONTENDS = {
    "cli": (("-m", "kcovdbg", "help", "modes"), [HELP]),
    "script": (("-m", "kcovdbg"), [HELP]),
    "completion": (
        ("-c", COMPLETE),
        ["modes count the tasks in each mode", "--all also count tasks without KCOV state"],
    ),
    "answer": (("-m", "kcovdbg", "--demo", "modes", "-a", "--json"), ['"mode": "TRACE_PC"']),
    "drgn": (("-c", DRGN), [HELP]),
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A copy of the source tree in which the page was followed."""
    top = copy_tree(tmp_path_factory.mktemp("copy"), leave_out=())
    follow(PAGE, top)
    subprocess.run(
        (sys.executable, "-m", "docs.generate"),
        cwd=top,
        env=os.environ | {"PYTHONPATH": str(top)},
        check=False,
    )
    return top


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_the_command_is_there(installation, frontend):
    words, expected = FRONTENDS[frontend]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(installation),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }
    options = {
        "capture_output": True,
        "text": True,
        "cwd": installation,
        "env": environment,
        "timeout": 60,
    }
    done = subprocess.run([sys.executable, *words], input="modes?\n", **options)
    assert done.returncode == 0, done.stderr
    assert [text for text in expected if text not in done.stdout] == []


def test_the_check_passes(installation):
    """``make static`` and the rules of the tree in the copy, with the tools of the environment that
    runs this test.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    binaries = Path(sys.executable).parent
    for command in (
        (sys.executable, "-m", "docs.generate"),
        # -o: nothing is installed, into an environment that is not the copy's.
        ("make", "-o", f"{binaries.parent}/.dev", f"VENV={binaries.parent}", "static"),
        # Without those that start the program on a dump to see what it loads.
        (sys.executable, "-m", "pytest", "-q", "tests/unit/test_imports.py", "-k", _RULES),
    ):
        result = subprocess.run(
            command, cwd=installation, env=environment, capture_output=True, text=True, timeout=1800
        )
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "modes" in (installation / "docs" / "commands.md").read_text()
