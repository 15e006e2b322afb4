# SPDX-License-Identifier: LGPL-2.1-or-later
"""Follow docs/adding-a-command.md: the command is then in every frontend."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kcovdbg

ROOT = Path(kcovdbg.__file__).parent.parent
PAGE = ROOT / "docs" / "adding-a-command.md"
COMPLETE = """
from kcovdbg.commands import COMMANDS
from kcovdbg.console.completion import find_candidates
from kcovdbg.console.completion import find_cursor
from kcovdbg.console.completion_index import Index
for line in ("mo", "modes --"):
    for entry in find_candidates(find_cursor(line), COMMANDS, Index(), {}):
        print(entry.text, entry.meta)
"""
DRGN = "import drgn; from kcovdbg.frontends.drgn_commands import run_in_drgn; run_in_drgn(drgn.Program(), 'help modes')"
ANSWER = """
from kcovdbg.console.runner import run_line
from kcovdbg.console.context import Context
from tests.support.state import StubReader, Streams, make_workspace
class Patch:
    def setattr(self, *arguments):
        setattr(*arguments)
streams = Streams()
run_line(make_workspace(streams, Patch()), "modes -a --json")
print(streams.take()[0])
"""
PYTHON = (sys.executable, "-c")
LEFT_OUT = (".pytest_cache", ".ruff_cache", "__pycache__", ".venv", "build", "dist", "*.egg-info")


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A copy of the source tree in which the page was followed."""
    top = tmp_path_factory.mktemp("copy") / "kcovdbg"
    shutil.copytree(ROOT, top, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (module,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (line,) = re.findall(r"__init__\.py`:\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = top / "kcovdbg" / "commands"
    (commands / "modes.py").write_text(module)
    table = (commands / "__init__.py").read_text()
    (commands / "__init__.py").write_text(table.replace("MODULES: Final = {\n", f"MODULES: Final = {{\n{line}"))
    subprocess.run((sys.executable, "-m", "docs.generate"), cwd=top, env=os.environ | {"PYTHONPATH": str(top)}, check=False)
    return top


def ask(installation, command, **options):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(installation), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"LANG": "C.UTF-8", "KCOVDBG_PYTHON": sys.executable}
    result = subprocess.run(command, capture_output=True, text=True, cwd=installation, env=environment, timeout=60, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


# By frontend: the program to run, and a text in its answer.
FRONTENDS = {
    "cli": ((sys.executable, "-m", "kcovdbg", "help", "modes"), "modes - count the tasks in each mode"),
    "completion of commands": ((*PYTHON, COMPLETE), "modes count the tasks in each mode"),
    "completion of options": ((*PYTHON, COMPLETE), "--all also count tasks without KCOV state"),
    "answer": ((*PYTHON, ANSWER), '"mode": "TRACE_PC"'),
    "drgn": ((*PYTHON, DRGN), "modes - count the tasks in each mode"),
}


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_the_command_is_there(installation, frontend):
    command, expected = FRONTENDS[frontend]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    assert expected in ask(installation, command)


def test_it_runs_as_a_line_of_a_script(installation):
    assert "modes - count" in ask(installation, (sys.executable, "-m", "kcovdbg"), input="modes?\n")


def test_the_check_passes(installation):
    """``make static`` and the rules of the tree in the copy, with the tools of the environment that runs this test."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    binaries = Path(sys.executable).parent
    for command in (
        (sys.executable, "-m", "docs.generate"),
        # -o: nothing is installed, into an environment that is not the copy's.
        ("make", "-o", f"{binaries.parent}/.dev", f"VENV={binaries.parent}", "static"),
        (sys.executable, "-m", "pytest", "-q", "tests/unit/test_imports.py"),
    ):
        result = subprocess.run(command, cwd=installation, env=environment, capture_output=True, text=True, timeout=1800)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "modes" in (installation / "docs" / "commands.md").read_text()
