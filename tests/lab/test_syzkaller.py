# SPDX-License-Identifier: LGPL-2.1-or-later
"""``syzkaller`` on a crashed guest: the crash point agrees with what the guest did to crash, and
with its log.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.lab import requirements, situation
from tests.lab.conftest import StateDumpMaker
from tests.lab.dump import FORMATS
from tests.lab.kcovdbg_run import run_kcovdbg, symbols_of

TITLE = "BUG: \x1b]0;owned\x07 in sysrq\x9b2J"


# As written by makedumpfile -F -c -d 0, and by QEMU.
@pytest.mark.parametrize(
    ("name", "dump_format", "function", "caller"),
    [
        (situation.CRASHED, "elf", "sysrq_handle_crash", "write_sysrq_trigger"),
        (situation.OOPSED, "flattened", "kcovlab_oops_inner", "kcovlab_oops_outer"),
    ],
)
def test_crash(
    inflight_dump: StateDumpMaker,
    tmp_path: Path,
    name: str,
    dump_format: str,
    function: str,
    caller: str,
) -> None:
    if FORMATS[dump_format].makedumpfile and requirements.missing(requirements.FILTER):
        pytest.skip(requirements.remedy(["makedumpfile"]))
    dump = inflight_dump(name, dump_format)
    folder = tmp_path / "workdir/crashes/0123"
    folder.mkdir(parents=True)
    shutil.copy(dump.path, folder / "vmcore")
    (folder / "description").write_text(f"{TITLE}\n")
    (folder / "log0").write_text("".join(f"{line}\n" for line in dump.lines))
    modules = sorted({str(path.parent) for path in dump.userland.modules})
    settings = {
        "workdir": "workdir",
        "kernel_obj": str(dump.kernel.directory),
        "module_obj": modules,
    }
    (tmp_path / "manager.cfg").write_text(json.dumps(settings))
    output = tmp_path / "answers"
    # It names directories that are neither in nor beside it.
    symbols = symbols_of(dump.kernel.vmlinux, *dump.userland.modules)
    done = run_kcovdbg(
        "syzkaller", tmp_path / "workdir", "-o", output, *symbols, "--json", status=0
    )
    (row,) = json.loads(done.stdout)
    assert (row["error"], row["errors"], row["title"]) == (None, [], TITLE)
    crashed = dump.states()["kc-crash"]
    assert (row["pid"], row["comm"], row["role"]) == (crashed["tid"], "kc-crash", "local")
    assert row["function"] == function
    assert row["syscall"] == "write"
    assert not row["violations"]
    answers = output / "crashes/0123/vmcore"
    assert f"crashed in {function}()" in (answers / "last.txt").read_text()
    assert caller in (answers / "trace.txt").read_text()
    alone = run_kcovdbg("-c", dump.path, *symbols, "-e", f"why {crashed['tid']}")
    assert alone.stdout == (answers / "why.txt").read_text()
    sliced = run_kcovdbg("-c", answers / "kcov.slice.zst", *symbols, "-e", "last --all")
    assert sliced.stdout == (answers / "last.txt").read_text()
    shown = run_kcovdbg("syzkaller", tmp_path / "workdir", "-o", output, *symbols).stdout
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
