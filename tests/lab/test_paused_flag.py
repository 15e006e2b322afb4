# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_PAUSED in a guest: `tasks` and `why` report it for a task that runs, and not for those that are switched out.

The kernel is built by hand: python -m tests.lab build --recipe dataflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kcovdbg.why.missing_coverage import Reason
from tests.lab import kernel as kernels
from tests.lab import requirements
from tests.lab.comparison import lines_of, parse_outputs
from tests.lab.generation import GENERATIONS
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import run_kcovdbg, symbol_options
from tests.lab.section import Probe, kaslr_offset, read_layout
from tests.lab.situation import STANDING, dump_of

if TYPE_CHECKING:
    from tests.lab.kernel import Kernel
    from tests.lab.rsp import Rsp

pytestmark = pytest.mark.lab
PAUSED = 1 << 29
# enum kcov_mode of 6.12.
MODES = {2: "TRACE_PC", 3: "TRACE_CMP"}


# What a wake-up calls: the task that runs is in try_to_wake_up() there, be it in an interrupt.
INSIDE = "enqueue_task_fair"


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    found = kernels.find(GENERATIONS["dataflow"].recipe)
    if found is None or requirements.missing(requirements.BOOT):
        pytest.skip("the kernel isn't built: python -m tests.lab build --recipe dataflow")
    return found


def test_a_task_that_runs(kernel: Kernel) -> None:
    userland, layout = make_userland(kernel), read_layout(kernel)
    with Guest(kernel, userland, Machine(cpus=1)) as guest:
        guest.wait_done(600)
        offset = kaslr_offset(guest, layout.symbols)
        guest.ask("traffic usb")
        with guest.gdb() as stub:
            probe = Probe(stub, layout, offset)
            running = find_paused(stub, probe)
            words = [word for command in ("tasks", "why") for word in ("-e", f"{command} {running['pid']} --json")]
            done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbol_options(kernel, userland), *words)
    answers = parse_outputs(done.stdout, ("tasks", "why"))
    (row,) = answers["tasks"]
    assert int(row["kcov_mode_raw"], 16) == running["kcov_mode"]
    assert (row["kcov_mode"], row["in_ctxsw"], row["role"]) == (MODES[running["kcov_mode"] & ~PAUSED], False, "local")
    (remark,) = row["errors"]
    assert "KCOV_PAUSED" in remark
    (answer,) = (answer for answer in answers["why"] if answer["code"] == Reason.NOT_RECORDING)
    assert "KCOV_PAUSED" in answer["answer"]


def find_paused(stub: Rsp, probe: Probe) -> dict[str, Any]:
    """Stop where the running task collects its own coverage and is paused, by what raw memory says."""
    address = probe.address(INSIDE)
    for _ in range(2000):
        stub.step()
        stub.set_breakpoint(address)
        stub.resume()
        assert stub.wait_stop(120) is not None
        stub.clear_breakpoint(address)
        found = probe.look()
        if found["kcov_mode"] & PAUSED and found["kcov_mode"] & ~PAUSED in MODES and not found["kcov_softirq"]:
            return found
    pytest.fail("no task that collects its own coverage was seen in a wake-up")


def test_switched_out_tasks(kernel: Kernel) -> None:
    userland = make_userland(kernel)
    dump = dump_of(kernel, userland, STANDING)
    lines = [line for line in lines_of(dump.truth).values() if line.get("owner_tid")]
    local = [line for line in lines if line["owner_tid"] == line["tid"] and not line["remote"]]
    questions = {"tasks": "tasks -a --json"} | {str(line["tid"]): f"why {line['tid']} --json" for line in local}
    words = [word for question in questions.values() for word in ("-e", question)]
    done = run_kcovdbg("-c", dump.path, *symbol_options(kernel, userland), *words)
    answers = parse_outputs(done.stdout, questions)
    tasks = {row["pid"]: row for row in answers.pop("tasks")}
    assert len(local) > 10
    for line in local:
        row = tasks[line["tid"]]
        # KCOV_IN_CTXSW and KCOV_PAUSED.
        assert int(row["kcov_mode_raw"], 16) >> 29 == 3
        assert (row["kcov_mode"], row["errors"]) == (line["mode"], [])
        codes = {answer["code"] for answer in answers[str(line["tid"])]}
        assert codes
        assert Reason.NOT_RECORDING not in codes
