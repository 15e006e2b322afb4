# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn opens dumps of every format, and they hold what the workload printed; kcovdbg itself is not used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import drgn
import pytest
from drgn.helpers.linux import find_task, for_each_task

from tests.lab import __main__ as command_line
from tests.lab import requirements
from tests.lab.dump import FORMATS, truth_path

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.conftest import DumpMaker
    from tests.lab.situation import Dump

pytestmark = pytest.mark.lab

# States with a task of their own in a local session, which has fields to compare.
LOCAL = ("kc-pc", "kc-cmp", "kc-full", "kc-again", "kc-closed", "kc-dup")
IN_CTXSW = 1 << 30


def opened(dump: Dump) -> drgn.Program:
    # QEMU's kdump files do not name the architecture.
    program = drgn.Program(drgn.host_platform if dump.format == "kdump" else None)
    program.set_core_dump(str(dump.path))
    program.load_debug_info([str(dump.kernel.vmlinux)])
    return program


@pytest.mark.parametrize("dump_format", FORMATS)
def test_standing_dump(standing_dump: DumpMaker, dump_format: str) -> None:
    if FORMATS[dump_format].makedumpfile and requirements.missing(requirements.FILTER):
        pytest.skip(requirements.remedy(["makedumpfile"]))
    dump = standing_dump(dump_format)
    program = opened(dump)
    states = dump.states()
    tids = {entry[0] for entry in states["tasks"]["tids"]}
    assert tids <= {task.pid.value_() for task in for_each_task(program)}
    for name in LOCAL:
        task = find_task(program, states[name]["tid"])
        assert task.kcov_size.value_() == states[name]["size"]
        assert task.kcov_mode.value_() == IN_CTXSW | {"TRACE_PC": 2, "TRACE_CMP": 3}[states[name]["mode"]]
        assert program.read_u64(task.kcov_area.value_()) == states[name]["count"]


def test_formats_show_the_same_instant(standing_dump: DumpMaker) -> None:
    dumps = [standing_dump(name) for name in ("elf", "elf-paging", "kdump")]
    counts = [opened(dump)["jiffies"].value_() for dump in dumps]
    assert len(set(counts)) == 1
    assert dumps[0].truth == dumps[1].truth


def test_crash_dump(crash_dump: DumpMaker) -> None:
    dump = crash_dump()
    program = opened(dump)
    crashed = dump.states()["kc-crash"]
    task = program.crashed_thread().object
    assert task.pid.value_() == crashed["tid"]
    assert task.kcov_mode.value_() & ~IN_CTXSW == 2
    assert 0 < program.read_u64(task.kcov_area.value_()) < task.kcov_size.value_()


@pytest.mark.usefixtures("userland")
def test_dump_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "core"
    arguments = ["dump", "--append", "kcovlab.mode=none", "--say", "threads 5", "--format", "kdump", "-o", str(path)]
    assert command_line.main(arguments) == 0
    assert capsys.readouterr().out.strip() == str(path)
    truth = json.loads(truth_path(path).read_text())
    assert truth["recipe"]["name"] == "default"
    assert truth["section"] is None
    assert truth["lines"][-1]["answer"] == "threads 5"
    # QEMU 7.2 writes only the flattened kind, 9.0 and later also the other one.
    assert path.read_bytes()[:8] in (b"makedump", b"KDUMP   ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["core", "core.truth.json"]
