# SPDX-License-Identifier: LGPL-2.1-or-later
"""A tool is its folder and its lines in the table of commands: without them, nothing else is
missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kcovdbg

ROOT = Path(kcovdbg.__file__).parent
TOOLS = ("catch", "collect", "export", "farm", "monitor", "patch", "report")
# Imports all that is left, but for what needs GDB or another package; completes, and shows the help
# of each command.
PROGRAM = """
import importlib, pkgutil, sys
import kcovdbg
from kcovdbg.commands import COMMANDS, MODULES
from kcovdbg.console.completion import find_candidates, find_cursor
from kcovdbg.console.completion_index import Index
from kcovdbg.frontends.cli import main
assert kcovdbg.__file__.startswith(sys.argv[1]), kcovdbg.__file__
for module in pkgutil.walk_packages(kcovdbg.__path__, "kcovdbg."):
    if not module.name.startswith(("kcovdbg.frontends.mcp", "kcovdbg.__main__")):
        importlib.import_module(module.name)
names = [command.name for command in COMMANDS]
assert sorted(names) == sorted(MODULES)
assert {found.text for found in find_candidates(find_cursor(""), COMMANDS, Index())} >= set(names)
for name in names:
    assert main(["help", name]) == 0
assert main(["--demo", "-e", "tasks kc-pc", "-e", "check --list", "-e", "top 34 -n 3"]) == 0
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_can_be_deleted(tool: str, tmp_path: Path) -> None:
    package = tmp_path / "kcovdbg"
    shutil.copytree(ROOT, package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "examples").symlink_to(ROOT.parent / "examples")
    shutil.rmtree(package / tool)
    table = package / "commands" / "__init__.py"
    text = table.read_text()
    left = re.sub(rf'    "[\w-]+": "kcovdbg\.{tool}\.\w+",\n', "", text)
    assert left != text
    table.write_text(left)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"kcovdbg.{tool}" not in done.stderr
