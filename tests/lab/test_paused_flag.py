# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_PAUSED in a guest: `tasks` and `why` report it for a task that runs, and not for those that
are switched out.

The kernel is built by hand: python -m tests.lab build --recipe dataflow.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.comparison import lines_of
from tests.lab.conftest import built
from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_run import ask
from tests.lab.rsp import Rsp
from tests.lab.section import Probe, kaslr_offset, read_layout
from tests.lab.situation import STANDING, dump_of

PAUSED = 1 << 29
# enum kcov_mode of 6.12.
MODES = {2: "TRACE_PC", 3: "TRACE_CMP"}


# What a wake-up calls: the task that runs is in try_to_wake_up() there, be it in an interrupt.
INSIDE = "enqueue_task_fair"


def test_a_task_that_runs() -> None:
    kernel, userland = built("dataflow")
    layout = read_layout(kernel)
    with Guest(kernel, userland, Machine(cpus=1)) as guest:
        offset = kaslr_offset(guest, layout.symbols)
        guest.ask("traffic usb")
        with guest.gdb() as stub:
            probe = Probe(stub, layout, offset)
            running = find_paused(stub, probe)
            (row,), answers = ask(
                guest.target(), f"tasks {running['pid']}", f"why {running['pid']}"
            )
    assert int(row["kcov_mode_raw"], 16) == running["kcov_mode"]
    assert (row["kcov_mode"], row["in_ctxsw"], row["role"]) == (
        MODES[running["kcov_mode"] & ~PAUSED],
        False,
        "local",
    )
    (remark,) = row["errors"]
    assert "KCOV_PAUSED" in remark
    (answer,) = (answer for answer in answers if answer["code"] == "not-recording-now")
    assert "KCOV_PAUSED" in answer["answer"]


def find_paused(stub: Rsp, probe: Probe) -> dict[str, Any]:
    """Stop where the running task collects its own coverage and is paused, by what raw memory
    says.
    """
    address = probe.address(INSIDE)
    for _ in range(2000):
        stub.step()
        stub.set_breakpoint(address)
        stub.resume()
        assert stub.wait_stop(120) is not None
        stub.clear_breakpoint(address)
        found = probe.look()
        if (
            found["kcov_mode"] & PAUSED
            and found["kcov_mode"] & ~PAUSED in MODES
            and not found["kcov_softirq"]
        ):
            return found
    pytest.fail("no task that collects its own coverage was seen in a wake-up")


def test_switched_out_tasks() -> None:
    dump = dump_of(*built("dataflow"), STANDING)
    lines = [line for line in lines_of(dump.truth).values() if line.get("owner_tid")]
    local = [line for line in lines if line["owner_tid"] == line["tid"] and not line["remote"]]
    rows, *reasons = ask(dump.target, "tasks -a", *(f"why {line['tid']}" for line in local))
    tasks = {row["pid"]: row for row in rows}
    assert len(local) > 10
    for line, answers in zip(local, reasons, strict=True):
        row = tasks[line["tid"]]
        # KCOV_IN_CTXSW and KCOV_PAUSED.
        assert int(row["kcov_mode_raw"], 16) >> 29 == 3
        assert (row["kcov_mode"], row["errors"]) == (line["mode"], [])
        codes = {answer["code"] for answer in answers}
        assert codes
        assert "not-recording-now" not in codes
