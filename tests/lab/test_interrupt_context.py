# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest stopped in each context that an interrupt runs code in: `why` tells which of them are in
the task's coverage.

The module kcovlab_interrupt counts what the kernel records in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.dump import write_dump
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import ask, symbols_of
from tests.lab.kernel import Kernel

# The second on a host that is too busy for the guest to calibrate the first one's timer.
ENTRIES = ("asm_sysvec_apic_timer_interrupt", "asm_common_interrupt")
# On the stack below an interrupt of task work that another interrupt's exit runs.
OWN = {"run_work", "task_work_run", "irqentry_exit_to_user_mode"}
# Context -> whether to take a dump as well.
CONTEXTS = {
    "hardirq": False,
    "softirq": False,
    "work": True,
    "hardirq_over_work": False,
    "softirq_over_work": True,
}


@pytest.fixture(scope="module")
def interrupted(kernel: Kernel, userland: Userland) -> Iterator[tuple[Guest, dict[str, Any]]]:
    with Guest(kernel, userland, Machine(cpus=1, append="kcovlab.mode=none")) as guest:
        yield guest, guest.make("traffic interrupt", "kc-traffic-i")


@pytest.mark.parametrize("context", CONTEXTS)
def test_context(interrupted: tuple[Guest, dict[str, Any]], tmp_path: Path, context: str) -> None:
    guest, told = interrupted
    tid, function = told["tid"], f"kcovlab_{context}"
    is_recorded = told["recorded"][context] > 0
    assert is_recorded == (context == "work")
    asked = [f"why {tid}", f"why {tid} {function}", f"last {tid}", f"tasks {tid}"]
    symbols = symbols_of(guest.kernel.vmlinux, *guest.userland.modules)
    with guest.gdb() as stub:
        address = int(told["functions"][function], 16)
        stub.set_breakpoint(address)
        stub.resume()
        assert stub.wait_stop(60) is not None
        stub.clear_breakpoint(address)
        targets: list[tuple[str | Path, ...]] = [("--qemu", guest.sockets.debugger_qmp)]
        if CONTEXTS[context]:
            write_dump(guest, tmp_path / "dump")
            targets.append(("-c", tmp_path / "dump"))
        for target in targets:
            reasons, about_function, last_records, (task,) = ask((*target, *symbols), *asked)
            assert (task["role"], task["count"]) == ("local", stub.word(int(task["kcov_area"], 16)))
            about = {row["code"]: row for row in reasons}
            assert about["coverage"]["values"]["count"] == task["count"]
            assert ("interrupted" in about) == (not is_recorded)
            in_interrupt = {row["code"]: row for row in about_function}.get("function-in-interrupt")
            assert (in_interrupt is None) == is_recorded
            if in_interrupt is not None:
                entry = about["interrupted"]["values"]["function"]
                assert entry in ENTRIES
                frames = in_interrupt["values"]["frames"]
                assert (frames[0], frames.count(entry), frames[-1]) == (function, 1, entry)
                assert not OWN & set(frames)
            # Records of task work after the interrupt are the task's last ones, and on its stack.
            last = {frame["function"] for row in last_records[-5:] for frame in row["frames"] or ()}
            assert ("run_work" in last) == context.endswith("work")
