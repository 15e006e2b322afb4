# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show against lx-ps of the kernel's own scripts: the same tasks through the same stub, in one
GDB.
"""

from __future__ import annotations

import json

import pytest

from tests.lab.conftest import kernel, standing_guest, userland
from tests.support.gdb_run import have_gdb, run_gdb

__all__ = ["kernel", "standing_guest", "userland"]

pytestmark = [pytest.mark.bench, pytest.mark.lab, pytest.mark.gdb]

_ROUNDS = 15
_MEASURE = f"""
import json, time
def measure(lines):
    took = {{line: [] for line in lines}}
    sizes = {{}}
    # In turns, so that a busy machine is busy for all of them.
    for _ in range({_ROUNDS}):
        for line in lines:
            start = time.perf_counter()
            text = gdb.execute(line, to_string=True)
            took[line].append(time.perf_counter() - start)
            sizes[line] = len(text.splitlines())
    print(json.dumps([(min(took[line]), took[line][0], sizes[line]) for line in lines]))
"""


@pytest.mark.skipif(not have_gdb(), reason="no gdb")
def test_four_times_as_fast_as_lx_ps(kernel, standing_guest, tmp_path):
    scripts = kernel.tree / "vmlinux-gdb.py"
    if not scripts.exists():
        pytest.skip("the kernel was built without CONFIG_GDB_SCRIPTS")
    helper = tmp_path / "measure.py"
    helper.write_text(_MEASURE)
    connect = f"target remote {standing_guest.sockets.gdb_remote}"
    with standing_guest.paused():
        info = run_gdb(kernel.vmlinux, before=[connect], ask=["kcov-show info --json"])
        offset = info.json()[0]["kaslr_offset"]
        # lx-ps needs symbols where the kernel is.
        said = run_gdb(
            before=[
                f"symbol-file {kernel.vmlinux} -o {offset}",
                connect,
                # It fails at a task whose name isn't UTF-8.
                "set target-charset ISO-8859-1",
                f"source {scripts}",
                f"source {helper}",
            ],
            ask=["python measure(['lx-ps', 'kcov-show tasks -a', 'kcov-show tasks'])"],
        )
    assert said.answers, said.stderr
    lx_ps, all_tasks, tasks = json.loads(said.answers[0].splitlines()[0])
    for name, (best, first, lines) in {
        "lx-ps": lx_ps,
        "kcov-show tasks -a": all_tasks,
        "kcov-show tasks": tasks,
    }.items():
        print(
            f"{name}: best of {_ROUNDS} {best * 1000:.1f} ms, first {first * 1000:.1f} ms, "
            f"{lines} lines"
        )
    # One line of headings each; lx-ps doesn't know idle tasks but the first.
    assert abs(lx_ps[2] - all_tasks[2]) <= 3
    assert lx_ps[0] / tasks[0] >= 4
