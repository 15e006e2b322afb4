# SPDX-License-Identifier: LGPL-2.1-or-later
"""The process behind kcov-show: which interpreter it is, what it imports, what it cannot do, and
what is left when it ends.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.kcovdbg_run import run_kcovdbg
from tests.support.gdb_run import LOADER, ROOT, run_gdb

SOURCES = sorted((ROOT / "gdb").rglob("*.py"))
# The interpreter of a checkout's environment is found by itself.
NOTHING = {"PATH": "/usr/bin:/bin", "KCOVDBG_PYTHON": ""}
CHILD = "import kcov_show; child = kcov_show._installed[0]._child"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_any_gdb_can_read_the_sources(path):
    """GDB's Python is whichever the system has; none of kcovdbg is in its process."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            assert (
                name == "gdb"
                or name.startswith("gdb.")
                or name.partition(".")[0] in sys.stdlib_module_names
            )


def test_only_the_standard_library(gdb):
    foreign = (
        "[m for m in sys.modules if m.split('.')[0] in ('kcovdbg', 'drgn', 'cffi', 'pygments', "
        "'prompt_toolkit')]"
    )
    said = gdb(
        before=["kcov-show tasks", "kcov-show buffer 34"],
        ask=[
            f"python import sys; print({foreign}, [p for p in sys.path if 'kcov' in p or p == "
            f"'{ROOT}'])"
        ],
    )
    assert said.answers == ["[] []"]


def install(directory: Path) -> Path:
    """Install the package as a wheel has it; return its script."""
    package = directory / "lib" / "python3.99" / "site-packages" / "kcovdbg"
    shutil.copytree(ROOT / "kcovdbg", package)
    shutil.copytree(ROOT / "gdb", package / "gdb")
    # An interpreter that has this package.
    python = directory / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = directory / "bin" / "kcovdbg"
    script.write_text(f"#!{python}\n")
    script.chmod(0o755)
    return package / "gdb" / "kcov.py"


WHERE = (
    f"python {CHILD}; import os; print(os.readlink('/proc/%d/cwd' % child._process.pid), "
    f"child.python)"
)


def test_an_installed_package_is_its_own(gdb, tmp_path):
    loader = install(tmp_path)
    ask = ["kcov-show tasks 34 --json", WHERE]
    said = gdb(ask=ask, loader=loader, environment=NOTHING)
    assert said.json(0)[0]["pid"] == 34
    assert said.answers[1].split()[1] == str(tmp_path / "bin" / "python3")


def test_an_interpreter_in_path_and_one_that_is_named(gdb, tmp_path):
    install(tmp_path)
    alone = tmp_path / "alone"
    shutil.copytree(ROOT / "gdb", alone)
    loader = alone / "kcov.py"
    environment = {**NOTHING, "PATH": f".:{tmp_path / 'bin'}:/usr/bin:/bin"}
    for more in (environment, {**NOTHING, "KCOVDBG_PYTHON": sys.executable}):
        said = gdb(ask=["kcov-show tasks 34 --json"], loader=loader, environment=more)
        assert said.json(0)[0]["pid"] == 34
    for more in (
        NOTHING,
        {**NOTHING, "KCOVDBG_PYTHON": "/nosuch/python"},
        {**NOTHING, "KCOVDBG_PYTHON": "/bin/false"},
    ):
        said = gdb(ask=["kcov-show tasks", "print 1"], loader=loader, environment=more)
        assert said.answers == ["", "$1 = 1"]
        assert "KCOVDBG_PYTHON" in said.stderr
        assert "Traceback" not in said.stderr


# C-c as soon as a message was received, by the number of the message.
INTERRUPTED = """
import json
import types
import kcov_show.child

left = {number}

def loads(text):
    global left
    left -= 1
    if left == 0:
        raise KeyboardInterrupt
    return json.loads(text)

kcov_show.child.json = types.SimpleNamespace(loads=loads, dumps=json.dumps)
"""


@pytest.mark.parametrize("number", range(1, 4))
def test_a_message_that_comes_with_an_interrupt_is_not_lost(gdb, tmp_path, number):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED.format(number=number))
    ask = [f"source {script}", "kcov-show check", "kcov-show tasks 34 --json"]
    said = gdb(before=["kcov-show tasks"], ask=ask)
    assert said.json(2)[0]["pid"] == 34


def test_nothing_comes_from_the_current_directory(gdb, tmp_path, monkeypatch):
    for name in ("json", "drgn", "kcovdbg", "socket", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(
            "open('/tmp/never', 'x')\nraise SystemExit('from the current directory')\n"
        )
    script = tmp_path / "kcovdbg"
    script.write_text("#!/bin/false\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    environment = {"PATH": f".:{os.environ['PATH']}", "PYTHONPATH": ""}
    said = gdb(
        ask=["kcov-show buffer 34", "kcov-show check", "complete kcov-show tasks 3"],
        environment=environment,
    )
    assert "from the current directory" not in said.output + said.stderr
    assert "kcov_ioctl" in said.output
    assert not Path("/tmp/never").exists()


def test_another_version_of_kcovdbg(gdb, tmp_path):
    loader = tmp_path / "gdb" / "kcov.py"
    shutil.copytree(ROOT / "gdb", loader.parent)
    child = loader.parent / "kcov_show" / "child.py"
    child.write_text(child.read_text().replace("VERSION = 1", "VERSION = 0"))
    said = gdb(
        ask=["kcov-show tasks"], loader=loader, environment={"KCOVDBG_PYTHON": sys.executable}
    )
    assert said.answers == [""]
    assert "version" in said.stderr
    assert sys.executable in said.stderr


def test_killed_processes(gdb):
    kill = f"python {CHILD}; child._process.kill(); child._process.wait()"
    said = gdb(
        ask=["kcov-show tasks --json", kill, "kcov-show tasks --json", "output $kcov_count(34)"]
    )
    assert said.json(0) == said.json(2)
    assert int(said.answers[3]) > 0
    # In the middle of a command.
    slow = f"python {CHILD}; import threading; threading.Timer(0.05, child._process.kill).start()"
    said = gdb(before=[slow, "kcov-show check"], ask=["kcov-show tasks --json"])
    assert said.json(0)


def test_it_ends_with_gdb(gdb):
    pid = int(gdb(ask=[f"python {CHILD}; print(child._process.pid)"]).text)
    assert not Path(f"/proc/{pid}").exists()


def test_what_it_can_ask_for():
    """Nothing here lets a machine run but the watchpoint, and that is only for a line that asks for
    it.
    """
    text = (ROOT / "gdb" / "kcov_show" / "lender.py").read_text()
    machine = {"read", "physical", "monitor", "registers", "symbol", "address", "watch"}
    programs = {"pipe", "feed", "finish"}
    assert set(re.findall(r"def _do_(\w+)", text)) == machine | programs
    asked = (
        "python lender = __import__('kcov_show')._installed[0]; "
        "print(lender._do_watch({'spans': [], 'seconds': None})[0].get('error') is not None)"
    )
    assert run_gdb(ask=[asked]).text == "True"


def test_outside_of_gdb():
    done = subprocess.run(
        [sys.executable, LOADER], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode != 0


def test_command_line(demo):
    assert run_kcovdbg("gdb", "--path").stdout == f"{LOADER}\n"
    words = (
        "-nx",
        "-batch",
        demo.vmlinux,
        demo.core,
        "-ex",
        "kcov-show tasks 34 --json",
        "-ex",
        WHERE,
    )
    done = run_kcovdbg("gdb", *words)
    assert '"pid": 34' in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["/", sys.executable]
