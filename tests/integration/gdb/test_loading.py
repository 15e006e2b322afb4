# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loading kcov-show: by a script of Python, after an attempt that failed, and while the process
does not answer.
"""

from __future__ import annotations

import time
from pathlib import Path

import pexpect
import pytest

from tests.support.gdb_run import LOADER, PLAIN, PROMPT, run_gdb

TASKS = "kcov-show tasks 34 --json"
# Raises once when a module is imported, as C-c does at that moment.
INTERRUPT_ONCE = """
import sys
class Once:
    def find_spec(self, name, path, target=None):
        if name == "kcov_show.printers":
            sys.meta_path.remove(self)
            raise KeyboardInterrupt
sys.meta_path.insert(0, Once())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script of Python of the user's, as in ``gdb -x``, or the one that GDB loads with a
    program.
    """
    path = tmp_path / "scripts" / "of-the-user.py"
    path.parent.mkdir()
    path.write_text(f"import gdb\ngdb.execute('source {LOADER}')\n")
    return path


def test_a_script_of_python_sources_it(gdb, script: Path) -> None:
    assert gdb(ask=[TASKS], loader=script).json(0)[0]["pid"] == 34


def test_sourcing_again_after_a_failure(demo, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(INTERRUPT_ONCE)
    said = run_gdb(
        demo.vmlinux,
        demo.core,
        before=[f"source {broken}", f"source {LOADER}", f"source {LOADER}"],
        ask=[TASKS, "output $kcov_count(34)", "complete kcov-win"],
        loader=Path("/dev/null"),
    )
    assert said.json(0)[0]["pid"] == 34, said.stderr
    assert int(said.answers[1]) > 0
    assert said.answers[2] == "kcov-window"


def test_an_interpreter_that_hangs(tmp_path: Path) -> None:
    """Everything is defined before the process answers, and C-c ends the wait for it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    environment = {
        "TERM": "xterm",
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "KCOVDBG_PYTHON": str(python),
    }
    child = pexpect.spawn("gdb", [*PLAIN, "-q"], env=environment, encoding="utf-8", timeout=60)
    try:
        child.expect_exact(PROMPT)
        child.sendline(f"source {LOADER}")
        time.sleep(1)
        start = time.monotonic()
        child.sendintr()
        child.expect_exact(PROMPT)
        assert time.monotonic() - start < 5
        child.sendline("complete kcov-show ta")
        child.expect_exact("kcov-show tasks")
        child.expect_exact(PROMPT)
        assert "Traceback" not in child.before
    finally:
        child.close(force=True)
