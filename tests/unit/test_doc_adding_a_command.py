# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/adding-a-command.md, done: the command is in every frontend afterwards."""

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
from kcovdbg.frontends.completion.candidates import find_candidates
from kcovdbg.frontends.completion.cursor import find_cursor
from kcovdbg.frontends.completion.index import Index
for line in ("mo", "modes --"):
    for entry in find_candidates(find_cursor(line), COMMANDS, Index()):
        print(entry.text, entry.meta)
"""
DRGN = "import drgn; from kcovdbg.frontends.drgn_commands import run_in_drgn; run_in_drgn(drgn.Program(), 'help modes')"
ANSWER = """
from kcovdbg.commands.run import run_line
from kcovdbg.commands.session import Context
from tests.unit.state import StubCensus, Streams, make_session
class Patch:
    def setattr(self, *arguments):
        setattr(*arguments)
streams = Streams()
run_line(make_session(streams, Patch()), "modes -a --json")
print(streams.take()[0])
"""
PYTHON = (sys.executable, "-c")


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A copy of the package that somebody followed the page in."""
    top = tmp_path_factory.mktemp("installation")
    shutil.copytree(ROOT / "kcovdbg", top / "kcovdbg", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "gdb", top / "gdb")
    module, entry = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = top / "kcovdbg" / "commands"
    (commands / "modes.py").write_text(module)
    table = (commands / "__init__.py").read_text()
    assert table.count("import INFO\n") == 1
    table = table.replace("import INFO\n", f"import INFO\n{entry}").replace("INFO,", "INFO, MODES,")
    (commands / "__init__.py").write_text(table)
    return top


def ask(installation, command, **options):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{installation}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["LANG"] = "C.UTF-8"
    result = subprocess.run(command, capture_output=True, text=True, cwd=installation, env=environment, timeout=60, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


# Another frontend is another row: what is run, and what its answer must hold.
FRONTENDS = {
    "cli": ((sys.executable, "-m", "kcovdbg", "help", "modes"), "modes - how many tasks are in each mode"),
    "completion of commands": ((*PYTHON, COMPLETE), "modes how many tasks are in each mode"),
    "completion of options": ((*PYTHON, COMPLETE), "--all tasks without KCOV state too"),
    "answer": ((*PYTHON, ANSWER), '"mode": "TRACE_PC"'),
    "drgn": ((*PYTHON, DRGN), "modes - how many tasks are in each mode"),
    "gdb": (("gdb", "-nx", "-batch", "-ex", "source gdb/kcov.py", "-ex", "kcov-show help modes"), "modes - how many"),
}


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_the_command_is_there(installation, frontend):
    command, expected = FRONTENDS[frontend]
    if frontend == "drgn":
        pytest.importorskip("drgn")
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    assert expected in ask(installation, command)


def test_it_runs_as_a_line_of_a_script(installation):
    assert "modes - how many" in ask(installation, (sys.executable, "-m", "kcovdbg"), input="modes?\n")
