# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that run a part of kcovdbg import nothing from the current directory."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kcovdbg import child_process
from kcovdbg.child_process import ROOT, find_install_command, python_command
from kcovdbg.collect.background_jobs import Jobs
from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.errors import CapabilityError
from kcovdbg.farm.batch_run import WORKER
from kcovdbg.farm.batch_worker import import_arrow
from tests.unit.test_imports import MODULES

MODULES_STARTED = ("kcovdbg.frontends.cli", WORKER, "kcovdbg.symbols.table_builder")


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A current directory where each module of the standard library, and kcovdbg, leaves a mark
    when it is imported.
    """
    folder = tmp_path / "trap"
    folder.mkdir()
    for name in (*sys.stdlib_module_names, "kcovdbg", "drgn", "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r})\n"
        )
    monkeypatch.chdir(folder)
    return tmp_path / "sprung"


@pytest.mark.parametrize("python_path", [None, "", ".", f":{ROOT}", f"{ROOT}:"])
@pytest.mark.parametrize("module", MODULES_STARTED)
def test_nothing_is_imported_from_the_current_directory(trap, monkeypatch, module, python_path):
    if python_path is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", python_path)
    # As python -c and python -m leave it.
    for first in ("", str(Path.cwd())):
        monkeypatch.setattr(sys, "path", [first, *sys.path])
        command = python_command(module, str(os.getpid()), "--version")
        done = subprocess.run(command, input=b"{}", capture_output=True)
        assert b"ModuleNotFoundError" not in done.stderr
        assert not trap.exists(), trap.read_text()
    if module == MODULES_STARTED[0]:
        assert done.returncode == 0
        assert done.stdout.startswith(b"kcovdbg ")


def test_a_background_collector_imports_nothing_from_there(trap):
    """The collected command runs in the current directory."""
    jobs = Jobs(Workspace(COMMANDS), python_command(MODULES_STARTED[0], str(os.getpid())))
    job = jobs.start(["--", "true"], output=None, name=None, title="collect -- true &")
    try:
        assert job.wait(60)
        assert not trap.exists(), trap.read_text()
    finally:
        jobs.end()


def test_the_user_s_own_search_path_is_kept(tmp_path, monkeypatch):
    (tmp_path / "own_module.py").write_text("print(__file__)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    done = subprocess.run(python_command("own_module"), capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/own_module.py\n"


def test_every_interpreter_is_started_in_one_place():
    started = re.compile(r"sys\.executable|[\"']python3?[\"']|[\"']-m[\"']")
    found = {name for name, path in MODULES.items() if started.search(path.read_text())}
    # The second shows the user how to install a package; the third tells GDB which Python it is.
    assert found == {"kcovdbg.child_process", "kcovdbg.commands.gdb"}


def test_extras_are_installed_beside_this_kcovdbg(monkeypatch, tmp_path):
    words = shlex.split(find_install_command("farm"))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert words[4:] == ["-e", f"{ROOT}[farm]"]
    monkeypatch.setattr(child_process, "ROOT", str(tmp_path))
    assert shlex.split(find_install_command("farm"))[4:] == ["kcovdbg[farm]"]


def test_hints_about_missing_packages_can_be_typed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(CapabilityError) as caught:
        import_arrow()
    assert caught.value.hint == find_install_command("farm")
